package storetest

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
)

// step is one operation of a random walk. It returns what the caller sees, in
// an order that does not depend on the driver.
type step struct {
	name string
	do   func(ctx context.Context, s store.Store) (any, error)
}

// saved is the result of a save, sorted.
type saved struct {
	Outcomes []store.SaveOutcome
	Queued   []reward.Payout
}

// moment is what two promotions and their payouts are at a time.
type moment struct {
	Views []store.PromotionView
	Rows  []reward.Payout
}

// moment reads promotions first and first+1.
func (b *bundle) moment(first reward.PromotionID) moment {
	b.Helper()
	var m moment
	for id := first; id <= first+1; id++ {
		v := b.view(id)
		m.Views, m.Rows = append(m.Views, v), append(m.Rows, b.all(id)...)
	}
	return m
}

func idOf(p reward.Payout) store.PayoutID {
	return store.PayoutID{PromotionID: p.PromotionID, TargetID: p.TargetID}
}

const walkTargets = 9

// drawStep draws an operation on promotions first and first+1. rows are their
// payouts, so that dispatch numbers are often right.
func drawStep(t *rapid.T, first reward.PromotionID, rows []reward.Payout, now int) step {
	promotion := rapid.Custom(func(t *rapid.T) reward.PromotionID {
		return first + reward.PromotionID(rapid.IntRange(0, 1).Draw(t, "promotion"))
	})
	refs := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) reward.Ref {
		if len(rows) == 0 || rapid.IntRange(0, 9).Draw(t, "stranger") == 0 {
			return ref(promotion.Draw(t, "of"), reward.TargetID(rapid.IntRange(0, walkTargets).Draw(t, "target")), 1)
		}
		p := rapid.SampledFrom(rows).Draw(t, "row")
		late := rapid.SampledFrom([]int32{0, 0, 0, 0, -1, 1}).Draw(t, "late")
		return ref(p.PromotionID, p.TargetID, p.Dispatch+late)
	}), 1, 5)
	at := at(now)
	switch rapid.IntRange(0, 14).Draw(t, "operation") {
	case 0, 1:
		p := store.PayoutSaveParams{MaxLen: rapid.IntRange(0, 6).Draw(t, "max len"), Now: at}
		for range rapid.IntRange(1, 6).Draw(t, "rows") {
			r := row(promotion.Draw(t, "promotion"), reward.TargetID(rapid.IntRange(0, walkTargets).Draw(t, "target")))
			r.Amount += reward.Amount(rapid.IntRange(0, 5).Draw(t, "other amount") / 5)
			p.Rows = append(p.Rows, r)
		}
		return step{name: "save", do: func(ctx context.Context, s store.Store) (any, error) {
			res, err := s.PayoutSave(ctx, p)
			sortPayouts(res.Queued)
			return saved{res.Outcomes, withoutNil(res.Queued)}, err
		}}
	case 2, 3:
		p := store.PayoutDispatchParams{
			PromotionID: promotion.Draw(t, "promotion"), From: rapid.SampledFrom([]reward.State{reward.Ready, reward.Retrying}).Draw(t, "from"),
			Limit: rapid.IntRange(0, 5).Draw(t, "limit"), MaxLen: rapid.IntRange(0, 8).Draw(t, "max len"), Now: at,
		}
		if rapid.IntRange(0, 3).Draw(t, "named") == 0 {
			p.Refs = refs.Draw(t, "refs")
		}
		return step{name: "dispatch", do: func(ctx context.Context, s store.Store) (any, error) {
			list, err := s.PayoutDispatch(ctx, p)
			sortPayouts(list)
			return withoutNil(list), err
		}}
	case 4:
		p := store.PayoutReturnParams{
			Refs: refs.Draw(t, "refs"), MaybeCalled: rapid.Bool().Draw(t, "maybe called"), DeliveryFailed: rapid.Bool().Draw(t, "handed over"),
			Lease: lease, Now: at,
		}
		return step{name: "give back", do: func(ctx context.Context, s store.Store) (any, error) { return s.PayoutReturn(ctx, p) }}
	case 5:
		p := store.PayoutSweepParams{
			PromotionID: promotion.Draw(t, "promotion"), Before: at.Add(-2 * lease), Lease: lease, Now: at,
		}
		return step{name: "sweep", do: func(ctx context.Context, s store.Store) (any, error) { return s.PayoutSweep(ctx, p) }}
	case 6, 7:
		p := store.PayoutFinishParams{Lease: lease, Now: at}
		for _, r := range refs.Draw(t, "refs") {
			p.Outcomes = append(p.Outcomes, rules.Outcome{
				Ref: r, Kind: rapid.SampledFrom(kinds).Draw(t, "kind"), Sent: rapid.Bool().Draw(t, "sent"),
				GiveUp: rapid.Bool().Draw(t, "give up"), RetryAt: at.Add(lease),
				Code: rapid.SampledFrom([]string{"", "A", "B"}).Draw(t, "code"), TransactionKey: "tx" + r.TargetID.String(),
			})
		}
		return step{name: "finish", do: func(ctx context.Context, s store.Store) (any, error) { return s.PayoutFinish(ctx, p) }}
	case 8:
		p := store.PayoutClaimLookupsParams{Limit: store.BatchMax, Until: at.Add(lease), Now: at}
		return step{name: "take lookups", do: func(ctx context.Context, s store.Store) (any, error) {
			list, err := s.PayoutClaimLookups(ctx, p)
			list = slices.DeleteFunc(list, func(p reward.Payout) bool { return p.PromotionID < first }) // of earlier walks
			sortPayouts(list)
			return withoutNil(list), err
		}}
	case 9, 10:
		p := store.PayoutSettleParams{SettleAfter: lease, AgainAfter: lease * time.Duration(rapid.IntRange(0, 2).Draw(t, "again after")), Now: at}
		for _, r := range refs.Draw(t, "refs") {
			p.Lookups = append(p.Lookups, rules.Lookup{
				Ref: r, Found: rapid.IntRange(0, 3).Draw(t, "found") == 0, NotFound: rapid.Bool().Draw(t, "not found"),
				BeganAt: at.Add(-lease * time.Duration(rapid.IntRange(0, 3).Draw(t, "late")/3)), NextAt: at.Add(lease),
				TransactionKey: "late" + r.TargetID.String(),
			})
		}
		return step{name: "settle", do: func(ctx context.Context, s store.Store) (any, error) {
			_, err := s.PayoutSettle(ctx, p)
			return nil, err
		}}
	case 11:
		p := store.PayoutRetryParams{PromotionID: promotion.Draw(t, "promotion"), Code: rapid.SampledFrom([]string{"", "", "A"}).Draw(t, "code"), Now: at}
		return step{name: "retry", do: func(ctx context.Context, s store.Store) (any, error) {
			n, err := s.PayoutRetry(ctx, p)
			return legal(n, err)
		}}
	case 12:
		p := store.PayoutResolveParams{
			PayoutID: store.PayoutID{PromotionID: promotion.Draw(t, "promotion"), TargetID: reward.TargetID(rapid.IntRange(0, walkTargets).Draw(t, "target"))},
			Paid:     rapid.Bool().Draw(t, "paid"), TransactionKey: "said", Note: "why", By: "kim", Now: at,
		}
		if unknown := slices.DeleteFunc(slices.Clone(rows), func(p reward.Payout) bool { return p.State != reward.Unknown }); len(unknown) > 0 {
			p.PayoutID = idOf(rapid.SampledFrom(unknown).Draw(t, "unknown"))
		}
		return step{name: "resolve", do: func(ctx context.Context, s store.Store) (any, error) {
			got, err := s.PayoutResolve(ctx, p)
			return legal(got, err)
		}}
	case 13:
		p := store.PayoutListParams{
			PromotionID: promotion.Draw(t, "promotion"), Code: rapid.SampledFrom([]string{"", "A"}).Draw(t, "code"), Limit: rapid.IntRange(1, walkTargets).Draw(t, "limit"),
		}
		if rapid.Bool().Draw(t, "by state") {
			p.State = new(reward.State(rapid.Int16Range(0, int16(reward.StateCount)-1).Draw(t, "state")))
		}
		if n := rapid.IntRange(-1, walkTargets).Draw(t, "after"); n >= 0 {
			p.After = new(reward.TargetID(n))
		}
		return step{name: "list", do: func(ctx context.Context, s store.Store) (any, error) {
			list, err := s.PayoutList(ctx, p)
			return withoutNil(list), err
		}}
	}
	id := promotion.Draw(t, "promotion")
	switch rapid.IntRange(0, 4).Draw(t, "promotion's") {
	case 0:
		return step{name: "cancel step", do: func(ctx context.Context, s store.Store) (any, error) {
			return s.PayoutCancelStep(ctx, store.PayoutCancelStepParams{PromotionID: id, Lease: lease, Now: at})
		}}
	case 1:
		return step{name: "complete", do: func(ctx context.Context, s store.Store) (any, error) {
			return s.PromotionComplete(ctx, id, lease, at)
		}}
	case 2:
		return step{name: "judge", do: func(ctx context.Context, s store.Store) (any, error) {
			status, did, err := s.PromotionJudge(ctx, store.PromotionJudgeParams{ID: id, Reason: "canary", Now: at})
			return []any{status, did}, err
		}}
	}
	p := store.PromotionMoveParams{
		ID: id, Now: at, From: []reward.PromotionStatus{reward.Draft, reward.Running, reward.Paused},
		To: rapid.SampledFrom([]reward.PromotionStatus{
			reward.Running, reward.Running, reward.Running, reward.Paused, reward.PromotionCancelled,
		}).Draw(t, "to"),
	}
	return step{name: "move", do: func(ctx context.Context, s store.Store) (any, error) {
		moved, err := s.PromotionMove(ctx, p)
		return legal(moved, err)
	}}
}

// legal turns an error that the state of a row requires into a result.
func legal(answer any, err error) (any, error) {
	var e *reward.Error
	if errors.As(err, &e) && (e.Kind == reward.KindConflict || e.Kind == reward.KindNotFound) {
		return e.Code, nil
	}
	return answer, err
}

func withoutNil(list []reward.Payout) []reward.Payout {
	if list == nil {
		return []reward.Payout{}
	}
	return list
}

// alike takes a step on every store. All must answer the same and keep the same,
// which it returns.
func alike[S any](stores []*bundle, st step, read func(b *bundle) S) (kept S) {
	var answer any
	for i, b := range stores {
		got, err := st.do(b.ctx, b.Store)
		if err != nil {
			b.Fatalf("%s: %v", st.name, err)
		}
		now := read(b)
		if i == 0 {
			answer, kept = got, now
		}
		same(b, st.name+": the answer of the first store, of another one", answer, got)
		same(b, st.name+": what the first store keeps, another one", kept, now)
	}
	return kept
}

// walk takes random steps with payouts. After each one the books must balance, and no
// budget and no canary may be exceeded.
func walk(t *testing.T, stores []*bundle) {
	next := reward.PromotionID(1)
	rapid.Check(t, func(rt *rapid.T) {
		first := next
		next += 2
		controls := drawControls(rt, first)
		for _, b := range stores {
			b.reporter = rt
			for _, p := range controls {
				must(b.PromotionCreate(b.ctx, p))(b)
				b.move(p.ID, reward.Running)
			}
		}
		now, before := 100, stores[0].moment(first)
		for range rapid.IntRange(1, 25).Draw(rt, "steps") {
			now += rapid.IntRange(0, 20).Draw(rt, "seconds")
			after := alike(stores, drawStep(rt, first, before.Rows, now), func(b *bundle) moment {
				b.books(first)
				b.books(first + 1)
				b.must(b.followed.Compare(b.ctx, b))
				return b.moment(first)
			})
			stores[0].bounds(before, after)
			before = after
		}
	})
}

// drawControls draws the settings of promotions first and first+1. They often
// have a budget or a canary that some walks reach.
func drawControls(t *rapid.T, first reward.PromotionID) []reward.Promotion {
	var list []reward.Promotion
	for id := first; id <= first+1; id++ {
		p := reward.Promotion{ID: id, Name: "summer", Type: reward.Point, Amount: 100, MaxRetries: 3, CreatedAt: epoch}
		if rapid.Bool().Draw(t, "with a budget") {
			p.MaxAmount = reward.Amount(rapid.IntRange(100, 700).Draw(t, "budget"))
		}
		if rapid.Bool().Draw(t, "with a canary") {
			p.Canary.Targets = int64(rapid.IntRange(1, 4).Draw(t, "canary"))
			p.Canary.MaxFailureRate = rapid.SampledFrom([]float64{0, 0.25, 0.5, 1}).Draw(t, "failure rate")
		}
		list = append(list, p)
	}
	return list
}

// bounds fails the test unless a step respected budget and canary. It states both
// rules without internal/rules.
func (b *bundle) bounds(before, after moment) {
	b.Helper()
	was := make(map[store.PayoutID]int32)
	for _, p := range before.Rows {
		was[idOf(p)] = p.Dispatch
	}
	for i, v := range after.Views {
		first, gone, worth := int64(0), false, exposed(v.Counts)
		for _, p := range after.Rows {
			if p.PromotionID != v.ID {
				continue
			}
			if p.State == reward.Ready && p.MaybeCalled {
				worth += p.Amount
			}
			if p.State == reward.Queued && was[idOf(p)] != p.Dispatch {
				gone = true
				if p.Dispatch == 1 {
					first++
				}
			}
		}
		c := before.Views[i].Canary
		if c.Targets == 0 || c.Judged {
			first = 0
		}
		same(b, "dispatched of the canary", c.Dispatched+first, v.Canary.Dispatched)
		if v.Canary.Dispatched > v.Canary.Targets {
			b.Fatalf("%d of a canary of %d were dispatched", v.Canary.Dispatched, v.Canary.Targets)
		}
		if gone && v.MaxAmount > 0 && worth > v.MaxAmount {
			b.Fatalf("%d of a budget of %d are exposed", worth, v.MaxAmount)
		}
	}
}

// Agree takes the same random steps, over payouts and over coupons, on two drivers. After
// each step both must have answered the same and keep the same.
func Agree(t *testing.T, left, right Open) {
	t.Helper()
	if underRace {
		t.Skip("one goroutine compares two drivers")
	}
	for name, steps := range map[string]func(*testing.T, []*bundle){"Payouts": walk, "Coupons": shops} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			steps(t, []*bundle{setup(t, left), setup(t, right)})
		})
	}
}
