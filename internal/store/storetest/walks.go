package storetest

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
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
	// failures predicts the failed deliveries of the rows from the rows before
	// the step and its result. Nil means no change.
	failures func(predicted map[store.PayoutID]int32, before []reward.Payout, answer any)
	// expect returns the required result, from the state before the step. Nil
	// means that only the books are checked.
	expect func(before *world) any
}

const walkTargets = 9

// drawStep draws an operation on promotions first and first+1. w is their
// state, so that dispatch numbers are often right.
func drawStep(t *rapid.T, first reward.PromotionID, w *world, now int) step {
	rows := w.rows
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
	switch rapid.IntRange(0, 13).Draw(t, "operation") {
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
		}, expect: func(before *world) any { return before.saved(p) }}
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
		}, expect: func(before *world) any { return before.dispatched(p) }}
	case 4:
		p := store.PayoutReturnParams{
			Refs: refs.Draw(t, "refs"), MaybeCalled: rapid.Bool().Draw(t, "maybe called"), DeliveryFailed: rapid.Bool().Draw(t, "handed over"),
			Lease: lease, Now: at,
		}
		return step{
			name: "give back", do: func(ctx context.Context, s store.Store) (any, error) { return s.PayoutReturn(ctx, p) },
			failures: func(predicted map[store.PayoutID]int32, before []reward.Payout, _ any) {
				for _, was := range before {
					held := was.State == reward.Queued && slices.Contains(p.Refs, ref(was.PromotionID, was.TargetID, was.Dispatch))
					if held && p.DeliveryFailed {
						predicted[store.PayoutID{PromotionID: was.PromotionID, TargetID: was.TargetID}]++
					}
				}
			},
		}
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
		return step{
			name: "finish", do: func(ctx context.Context, s store.Store) (any, error) { return s.PayoutFinish(ctx, p) },
			failures: func(predicted map[store.PayoutID]int32, _ []reward.Payout, answer any) {
				for i, res := range answer.([]store.FinishResult) {
					if o := p.Outcomes[i]; res.Changed {
						predicted[store.PayoutID{PromotionID: o.PromotionID, TargetID: o.TargetID}] = 0
					}
				}
			},
		}
	case 8:
		p := store.PayoutClaimLookupsParams{Limit: store.BatchMax, Until: at.Add(lease), Now: at}
		return step{name: "take lookups", do: func(ctx context.Context, s store.Store) (any, error) {
			list, err := s.PayoutClaimLookups(ctx, p)
			list = slices.DeleteFunc(list, func(p reward.Payout) bool { return p.PromotionID < first }) // of earlier walks
			sortPayouts(list)
			return withoutNil(list), err
		}, expect: func(before *world) any { return before.lookups(p) }}
	case 9, 10:
		p := store.PayoutSettleParams{SettleAfter: lease, AgainAfter: lease * time.Duration(rapid.IntRange(0, 2).Draw(t, "again after")), Now: at}
		for _, r := range refs.Draw(t, "refs") {
			p.Lookups = append(p.Lookups, rules.Lookup{
				Ref: r, Found: rapid.IntRange(0, 3).Draw(t, "found") == 0, NotFound: rapid.Bool().Draw(t, "not found"),
				BeganAt: at.Add(-lease * time.Duration(rapid.IntRange(0, 3).Draw(t, "late")/3)), NextAt: at.Add(lease),
				TransactionKey: "late" + r.TargetID.String(),
			})
		}
		return step{
			name: "settle", do: func(ctx context.Context, s store.Store) (any, error) {
				_, err := s.PayoutSettle(ctx, p)
				return nil, err
			},
			expect: func(before *world) any {
				before.settled(p)
				return nil
			},
		}
	case 11:
		p := store.PayoutRetryParams{PromotionID: promotion.Draw(t, "promotion"), Code: rapid.SampledFrom([]string{"", "", "A"}).Draw(t, "code"), Now: at}
		return step{name: "retry", do: func(ctx context.Context, s store.Store) (any, error) {
			n, err := s.PayoutRetry(ctx, p)
			return legal(n, err)
		}, expect: func(before *world) any { return before.retried(p) }}
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
		}, expect: func(before *world) any { return before.resolved(p) }}
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
		}, expect: func(before *world) any { return before.judged(id) }}
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

// legal turns an error that the state of a row or promotion requires into a
// result.
func legal(answer any, err error) (any, error) {
	for _, code := range []string{reward.CodeIllegalState, reward.CodePayoutNotFound} {
		if reward.HasCode(err, code) {
			return code, nil
		}
	}
	return answer, err
}

func withoutNil(list []reward.Payout) []reward.Payout {
	if list == nil {
		return []reward.Payout{}
	}
	return list
}

// walk takes the same random steps on every store. After each step all stores
// must return the same, and their books must balance.
func walk(t *testing.T, stores ...store.Store) {
	bundles := make([]*bundle, len(stores))
	for i, s := range stores {
		bundles[i] = &bundle{reporter: t, Store: s, ctx: t.Context()}
	}
	next := reward.PromotionID(1)
	rapid.Check(t, func(rt *rapid.T) {
		first := next
		next += 2
		controls := drawControls(rt, first)
		for _, b := range bundles {
			b.reporter = rt
			for _, p := range controls {
				_, err := b.PromotionCreate(b.ctx, p)
				b.must(err)
				b.move(p.ID, reward.Running)
			}
		}
		now := 100
		known := newWorld()
		known.read(bundles[0], first)
		failures := make(map[store.PayoutID]int32)
		for range rapid.IntRange(1, 25).Draw(rt, "steps") {
			now += rapid.IntRange(0, 20).Draw(rt, "seconds")
			st := drawStep(rt, first, known, now)
			listed := drawList(rt)
			var expected any
			before := known.clone()
			if st.expect != nil {
				expected = st.expect(known) // this also updates what no method shows
			}
			rows := make([][]reward.Payout, len(bundles))
			answers := make([]any, len(bundles))
			for i, b := range bundles {
				answer, err := st.do(b.ctx, b.Store)
				if err != nil {
					rt.Fatalf("%s: %v", st.name, err)
				}
				answers[i] = answer
				if st.expect != nil {
					same(b, st.name+" (expected, told)", expected, answer)
				}
				b.books(first)
				b.books(first + 1)
				b.must(b.followed.Follow(b.ctx, b))
				for id := first; id <= first+1; id++ {
					now := view(rt, b, id)
					got, active := b.followed.Views[id]
					same(b, st.name+": active", isActive(now), active)
					if active {
						same(b, st.name+": followed", now, got)
					}
				}
				if i == 0 && st.failures != nil {
					st.failures(failures, before.rows, answer)
				}
				rows[i] = append(b.all(first), b.all(first+1)...)
				b.lists(rows[i], listed, first, first+1)
				for _, p := range rows[i] {
					if want := failures[store.PayoutID{PromotionID: p.PromotionID, TargetID: p.TargetID}]; p.FailedDeliveries != want {
						rt.Fatalf("after %s store %d says %d failures, want %d: %+v", st.name, i, p.FailedDeliveries, want, p)
					}
				}
			}
			known.read(bundles[0], first)
			bundles[0].bounds(before, known)
			for i := 1; i < len(bundles); i++ {
				if diff := cmp.Diff(answers[0], answers[i]); diff != "" {
					rt.Fatalf("%s: store 0 and store %d answer differently:\n%s", st.name, i, diff)
				}
				if diff := cmp.Diff(rows[0], rows[i]); diff != "" {
					rt.Fatalf("after %s store 0 and store %d hold different rows:\n%s", st.name, i, diff)
				}
				for id := first; id <= first+1; id++ {
					left, right := view(rt, bundles[0], id), view(rt, bundles[i], id)
					if diff := cmp.Diff(left, right); diff != "" {
						rt.Fatalf("after %s store 0 and store %d hold different promotions:\n%s", st.name, i, diff)
					}
				}
			}
		}
		for _, b := range bundles {
			b.activeBooks(first, first+1)
		}
	})
}

// activeBooks fails the test unless PromotionActive returns exactly the
// promotions that still need work, as they are.
func (b *bundle) activeBooks(ids ...reward.PromotionID) {
	b.Helper()
	var want, got []store.PromotionView
	for _, id := range ids {
		v, err := b.PromotionGet(b.ctx, id)
		b.must(err)
		if isActive(v) {
			want = append(want, v)
		}
	}
	list, err := b.PromotionActive(b.ctx)
	b.must(err)
	for _, v := range list {
		if slices.Contains(ids, v.ID) {
			got = append(got, v)
		}
	}
	same(b, "active", want, got)
}

func view(t *rapid.T, b *bundle, id reward.PromotionID) store.PromotionView {
	v, err := b.PromotionGet(b.ctx, id)
	if err != nil {
		t.Fatal(fmt.Errorf("read promotion %d: %w", id, err))
	}
	return v
}

// Agree takes the same random steps, over payouts and over coupons, on two drivers. After
// each step both must return and store what a model says.
func Agree(t *testing.T, left, right Open) {
	t.Helper()
	if underRace {
		t.Skip("one goroutine compares two drivers")
	}
	for name, steps := range map[string]func(*testing.T, ...store.Store){"Payouts": walk, "Coupons": shops} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			steps(t, left(t), right(t))
		})
	}
}
