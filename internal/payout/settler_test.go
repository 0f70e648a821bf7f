package payout

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/largesse/largesse/internal/governor"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/money"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
)

// lookupRows are UNKNOWN payouts of one promotion, for settlers alone.
type lookupRows struct {
	clockedRows

	mu      sync.Mutex // protects the fields below
	due     map[reward.TargetID]time.Time
	open    map[reward.TargetID]bool // claimed, without a result
	twice   int                      // claims of rows without a result
	settled []store.PayoutSettleParams
	asked   map[reward.TargetID]int
}

func newLookupRows(n int) *lookupRows {
	r := &lookupRows{
		due: make(map[reward.TargetID]time.Time), open: make(map[reward.TargetID]bool), asked: make(map[reward.TargetID]int),
	}
	for i := range n {
		r.due[reward.TargetID(i)] = time.Now()
	}
	return r
}

// settler returns a settler of these rows, whose lookups take so long.
func (r *lookupRows) settler(took time.Duration, g *governor.Governor) *Settler {
	s := newShared(Config{Store: r, Provider: slowLookups{rows: r, took: took}, Limits: testLimits()}, nil)
	s.governor = g
	return newSettler(s)
}

func (r *lookupRows) PayoutClaimLookups(_ context.Context, p store.PayoutClaimLookupsParams) ([]reward.Payout, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var list []reward.Payout
	for t := range reward.TargetID(len(r.due)) {
		if r.due[t].After(p.Now) || len(list) == p.Limit {
			continue
		}
		if r.open[t] {
			r.twice++
		}
		r.due[t], r.open[t] = p.Until, true
		list = append(list, reward.Payout{PromotionID: promotion, TargetID: t, State: reward.Unknown, Dispatch: 1, SettleFrom: p.Now})
	}
	return list, nil
}

func (r *lookupRows) PayoutSettle(_ context.Context, p store.PayoutSettleParams) ([]store.SecondCharge, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.settled = append(r.settled, p)
	for _, l := range p.Lookups {
		r.open[l.TargetID] = false
		r.due[l.TargetID] = l.NextAt.Add(time.Hour)
	}
	return nil, nil
}

// slowLookups answers "not found" after a time.
type slowLookups struct {
	Provider
	rows *lookupRows
	took time.Duration
}

func (p slowLookups) Lookup(_ context.Context, _ reward.PromotionID, t reward.TargetID) money.LookupResult {
	time.Sleep(p.took)
	p.rows.mu.Lock()
	defer p.rows.mu.Unlock()
	p.rows.asked[t]++
	return money.LookupResult{NotFound: true, Answer: money.Answer{Class: reward.AnswerRefused}}
}

// TestSettlerHoldsWhatItLooksUp checks that two instances do not look up the same
// payouts, even if each lookup takes as long as it may.
func TestSettlerHoldsWhatItLooksUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const payouts = 400
		rows := newLookupRows(payouts)
		var runs []func(context.Context)
		for range 2 {
			g := governor.New(governor.Config{})
			defer g.Close()
			s := rows.settler(5*time.Second, g)
			runs = append(runs, s.run)
		}
		stop := inBackground(t, runs...)
		time.Sleep(5 * time.Minute)
		stop()
		rows.mu.Lock()
		defer rows.mu.Unlock()
		if rows.twice > 0 {
			t.Errorf("%d payouts were claimed while another settler looked them up", rows.twice)
		}
		if len(rows.asked) != payouts {
			t.Errorf("%d payouts were looked up, want %d", len(rows.asked), payouts)
		}
	})
}

// TestALookupThatWasNotMadeDecidesNothing checks that a settler that gets no permit
// does not say that it has asked.
func TestALookupThatWasNotMadeDecidesNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rows := newLookupRows(3)
		g := governor.New(governor.Config{MaxConcurrency: 1})
		defer g.Close()
		permit := fixture.Must(g.Acquire(t.Context(), governor.Job{PromotionID: 7}))(t)
		defer permit.Done(governor.Outcome{Class: reward.AnswerPaid})
		s := rows.settler(0, g)
		stop := inBackground(t, s.run)
		time.Sleep(time.Minute)
		stop()
		if len(rows.asked) > 0 {
			t.Fatalf("the provider was asked %d times without a permit", len(rows.asked))
		}
		if len(rows.settled) == 0 {
			t.Error("the settler wrote no result, so the payouts are due at once again")
		}
		for _, p := range rows.settled {
			for _, l := range p.Lookups {
				if !l.BeganAt.IsZero() || !l.NextAt.After(time.Now().Add(-time.Minute)) {
					t.Errorf("a lookup that was not made began at %v and is due again at %v", l.BeganAt, l.NextAt)
				}
			}
		}
	})
}

// clockStore is a store whose clock differs from that of the instances.
type clockStore struct {
	Store
	ahead time.Duration // what the clock of the database is ahead
}

func (s clockStore) Clock(context.Context) (time.Time, error) { return time.Now().Add(s.ahead), nil }

// TestSettlerGoesByTheClockOfTheDatabase checks that an instance whose clock is
// wrong settles a payout neither early nor late. The payout became UNKNOWN on
// another instance, whose clock is right, or on this one.
func TestSettlerGoesByTheClockOfTheDatabase(t *testing.T) {
	t.Parallel()
	for name, ahead := range map[string]time.Duration{"Ahead": -time.Hour, "Behind": time.Hour} {
		for _, here := range []bool{false, true} {
			fixture.OnFakeTime(t, fmt.Sprintf("%s/Here=%t", name, here), func(t *testing.T) {
				p := newProvider(func(reward.TargetID, int) money.Answer { return silent })
				s := newStage(t, p)
				s.with(func(cfg *Config) { cfg.Store = clockStore{s.store, ahead} }, dropPublisher{})
				s.create(1, 0)
				began := time.Now()
				fixture.Must(s.flow.rows.PayoutDispatch(t.Context(), store.PayoutDispatchParams{
					PromotionID: promotion, From: reward.Ready, Limit: 1, MaxLen: 1, Now: time.Now(),
				}))(t)
				finish, now := s.store.PayoutFinish, time.Now().Add(ahead) // an instance whose clock is right
				if here {
					finish, now = s.flow.rows.PayoutFinish, time.Now()
				}
				fixture.Must(finish(t.Context(), store.PayoutFinishParams{
					Outcomes: []rules.Outcome{{Ref: reward.Ref{PromotionID: promotion, TargetID: 1, Dispatch: 1}, Kind: rules.OutcomeNoAnswer, GiveUp: true}},
					Lease:    testLimits().Lease, Now: now,
				}))(t)
				s.start()
				s.until("settled", func(v store.PromotionView) bool { return v.Counts.Payouts[reward.Failed] == 1 })
				took, want := time.Since(began), testLimits().Lease+testLimits().SettleAfter
				if took < want || took > want+10*time.Second {
					t.Errorf("settled after %v, want %v", took, want)
				}
			})
		}
	}
}

// TestASecondChargeIsReported checks that a flow reports a payout that was
// confirmed with two transaction keys, by a call or by a lookup, and that its
// attempts keep the second key.
func TestASecondChargeIsReported(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t, newProvider(nil))
		s.create(1, 0)
		var reported []store.SecondCharge
		rows := newFlowStore(s.store, reward.Limits{}, Breaches{ChargedTwice: func(_ context.Context, c store.SecondCharge) { reported = append(reported, c) }})
		ref := reward.Ref{PromotionID: promotion, TargetID: 1, Dispatch: 1}
		confirm := func(key string) {
			t.Helper()
			fixture.Must(rows.PayoutFinish(t.Context(), store.PayoutFinishParams{
				Outcomes: []rules.Outcome{{Ref: ref, Kind: rules.OutcomePaid, TransactionKey: key}}, Lease: testLimits().Lease,
			}))(t)
		}
		confirm("one")
		confirm("one") // the same charge
		if len(reported) > 0 {
			t.Errorf("one charge was reported as %+v", reported)
		}
		confirm("two")
		time.Sleep(time.Millisecond)
		fixture.Must(rows.PayoutSettle(t.Context(), store.PayoutSettleParams{
			Lookups: []rules.Lookup{{Ref: ref, Found: true, TransactionKey: "three", BeganAt: time.Now()}},
		}))(t)
		want := []store.SecondCharge{{Ref: ref, Recorded: "one", TransactionKey: "two"}, {Ref: ref, Recorded: "one", TransactionKey: "three"}}
		if !slices.Equal(reported, want) {
			t.Errorf("reported %+v, want %+v", reported, want)
		}
		p, attempts, err := s.store.PayoutGet(t.Context(), store.PayoutID{PromotionID: promotion, TargetID: 1})
		if err != nil || p.TransactionKey != "one" || len(attempts) != 2 || attempts[0].Code != reward.CodeSecondCharge {
			t.Errorf("payout %+v, attempts %+v, %v", p, attempts, err)
		}
	})
}

// TestAKeyOfTwoPayoutsIsReported checks that a flow reports a payout that is confirmed,
// by a call or by a lookup, with the transaction key of another one.
func TestAKeyOfTwoPayoutsIsReported(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t, newProvider(nil))
		s.create(3, 0)
		var reported []string
		rows := newFlowStore(s.store, reward.Limits{}, Breaches{KeyShared: func(_ context.Context, key string, first, second store.PayoutID) {
			reported = append(reported, fmt.Sprint(key, " of ", first.TargetID, " and ", second.TargetID))
		}})
		ref := func(target reward.TargetID) reward.Ref {
			return reward.Ref{PromotionID: promotion, TargetID: target, Dispatch: 1}
		}
		for range 2 { // a repeated write is no other payout
			fixture.Must(rows.PayoutFinish(t.Context(), store.PayoutFinishParams{
				Outcomes: []rules.Outcome{{Ref: ref(1), Kind: rules.OutcomePaid, TransactionKey: "T"}}, Lease: testLimits().Lease,
			}))(t)
		}
		fixture.Must(rows.PayoutFinish(t.Context(), store.PayoutFinishParams{
			Outcomes: []rules.Outcome{{Ref: ref(2), Kind: rules.OutcomePaid, TransactionKey: "T"}}, Lease: testLimits().Lease,
		}))(t)
		fixture.Must(rows.PayoutFinish(t.Context(), store.PayoutFinishParams{ // one report per promotion and batch
			Outcomes: []rules.Outcome{{Ref: ref(2), Kind: rules.OutcomePaid, TransactionKey: "T"}, {Ref: ref(3), Kind: rules.OutcomePaid, TransactionKey: "T"}},
			Lease:    testLimits().Lease,
		}))(t)
		for n := range confirmationsMax { // those before are forgotten with the next half only
			rows.latest.add(fmt.Sprint(n), store.PayoutID{})
		}
		fixture.Must(rows.PayoutSettle(t.Context(), store.PayoutSettleParams{
			Lookups: []rules.Lookup{{Ref: ref(3), Found: true, TransactionKey: "T", BeganAt: time.Now()}},
		}))(t)
		if want := []string{"T of 1 and 2", "T of 1 and 2", "T of 1 and 3"}; !slices.Equal(reported, want) {
			t.Errorf("reported %q, want %q", reported, want)
		}
		for n := range 2 * confirmationsMax {
			rows.latest.add(fmt.Sprint("later ", n), store.PayoutID{})
		}
		if _, shared := rows.latest.add("T", store.PayoutID{TargetID: 4}); shared {
			t.Error("the memory of confirmations has no bound")
		}
	})
}
