package rows

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
)

// moving is a payout, and its promotion, that others change while a rule decides. Each read
// finds the next state.
type moving struct {
	Payouts
	status []reward.PromotionStatus
	rows   []*rules.Row // nil: it is removed
	reads  int
	stale  bool // no write finds the row as it was read
	wrote  []Change
}

func (m *moving) FinishPaid(context.Context, store.PayoutFinishParams, []store.FinishResult) (rest []int, err error) {
	return []int{0}, nil
}

func (m *moving) RowsOf(_ context.Context, _ string, ids []store.PayoutID) (map[store.PayoutID]rules.Row, map[reward.PromotionID]reward.Promotion, error) {
	at := min(m.reads, len(m.rows)-1)
	m.reads++
	found := make(map[store.PayoutID]rules.Row)
	if r := m.rows[at]; r != nil {
		found[ids[0]] = *r
	}
	return found, map[reward.PromotionID]reward.Promotion{1: {ID: 1, Status: m.status[min(at, len(m.status)-1)], MaxRetries: 3}}, nil
}

func (m *moving) Rewrite(_ context.Context, _ string, _ bool, changes []Change) ([]int, error) {
	if m.stale {
		return []int{0}, nil
	}
	m.wrote = append(m.wrote, changes...)
	return nil, nil
}

func TestOthersChangeAPayoutWhileARuleDecides(t *testing.T) {
	t.Parallel()
	in := func(state reward.State) *rules.Row {
		return &rules.Row{Payout: reward.Payout{PromotionID: 1, TargetID: 7, State: state, Dispatch: 1, MaybeCalled: state == reward.Unknown}}
	}
	running, id := []reward.PromotionStatus{reward.Running}, store.PayoutID{PromotionID: 1, TargetID: 7}
	finish := store.PayoutFinishParams{Outcomes: []rules.Outcome{{Ref: reward.Ref{PromotionID: 1, TargetID: 7, Dispatch: 1}, Kind: rules.OutcomePaid}}}
	tables := func(m *moving) *Tables {
		return tablesOver(&promotions{views: []store.PromotionView{{Promotion: reward.Promotion{ID: 1, Status: reward.Running}}}}, m)
	}
	t.Run("RetryOfACancelledPromotion", func(t *testing.T) {
		t.Parallel()
		m := &moving{status: []reward.PromotionStatus{reward.PromotionCancelled}, rows: []*rules.Row{in(reward.Failed)}}
		n, err := tables(m).PayoutRetry(t.Context(), store.PayoutRetryParams{PromotionID: 1, Targets: []reward.TargetID{7}})
		if !reward.HasCode(err, reward.CodeIllegalState) || n != 0 || len(m.wrote) > 0 {
			t.Errorf("%d, %v; written: %+v", n, err, m.wrote)
		}
	})
	t.Run("FinishOfARemovedPayout", func(t *testing.T) {
		t.Parallel()
		results, err := tables(&moving{status: running, rows: []*rules.Row{in(reward.Failed), nil}, stale: true}).PayoutFinish(t.Context(), finish)
		if err != nil || !slices.Equal(results, []store.FinishResult{{}}) {
			t.Errorf("%+v, %v", results, err)
		}
	})
	t.Run("ResolveOfARemovedPayout", func(t *testing.T) {
		t.Parallel()
		_, err := tables(&moving{status: running, rows: []*rules.Row{in(reward.Unknown), nil}, stale: true}).PayoutResolve(t.Context(), store.PayoutResolveParams{PayoutID: id, Paid: true})
		if !reward.HasCode(err, reward.CodePayoutNotFound) {
			t.Errorf("%v", err)
		}
	})
	t.Run("AnOutcomeIsDecidedAgain", func(t *testing.T) {
		t.Parallel()
		m := &moving{status: running, rows: []*rules.Row{in(reward.Queued), in(reward.Succeeded)}, stale: true}
		if results, err := tables(m).PayoutFinish(t.Context(), finish); err != nil || results[0].Changed || results[0].State != reward.Succeeded || m.reads != 2 {
			t.Errorf("%+v, %v after %d reads", results, err, m.reads)
		}
	})
	t.Run("NeverAsItWasRead", func(t *testing.T) {
		t.Parallel()
		_, err := tables(&moving{status: running, rows: []*rules.Row{in(reward.Queued)}, stale: true}).PayoutFinish(t.Context(), finish)
		if !errors.Is(err, store.ErrBusy) {
			t.Errorf("%v", err)
		}
	})
}
