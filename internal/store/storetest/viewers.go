package storetest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/store/rows"
)

// ViewerConnections is what ExerciseViewers needs to know of a driver.
type ViewerConnections struct {
	// Hold takes every connection for viewers until the test calls release.
	Hold func(ctx context.Context, s *rows.Tables) (release func(), err error)
	// Endless reads until it is stopped.
	Endless func(ctx context.Context, s *rows.Tables) error
}

// ExerciseViewers checks that reads for viewers take no connection from others,
// and that their wait and duration have limits.
func ExerciseViewers(t *testing.T, open Open, driver ViewerConnections) {
	run(t, open, "SeeWhatWasWritten", func(b *bundle) {
		b.running(1)
		b.saveQueued(1, 1, 2)
		b.finish(rules.Outcome{Ref: ref(1, 1, 1), Kind: rules.OutcomeRefused, Code: "A"})
		b.must(b.DeadLetterAdd(b.ctx, []reward.DeadLetter{{Source: "x", Offset: "1", Reason: "MALFORMED", At: epoch}}))
		failed := reward.Failed
		for name, read := range map[string]func(ctx context.Context) (any, error){
			"promotion": func(ctx context.Context) (any, error) { return b.PromotionGet(ctx, 1) },
			"promotions": func(ctx context.Context) (any, error) {
				return b.PromotionList(ctx, store.PromotionListParams{Limit: 9})
			},
			"views":  func(ctx context.Context) (any, error) { return b.PromotionViews(ctx, []reward.PromotionID{1}) },
			"active": func(ctx context.Context) (any, error) { return b.PromotionActive(ctx) },
			"payouts": func(ctx context.Context) (any, error) {
				return b.PayoutGetMany(ctx, []store.PayoutID{{PromotionID: 1, TargetID: 1}})
			},
			"page": func(ctx context.Context) (any, error) {
				return b.PayoutList(ctx, store.PayoutListParams{PromotionID: 1, Limit: 9, State: &failed})
			},
			"page of a code": func(ctx context.Context) (any, error) {
				return b.PayoutList(ctx, store.PayoutListParams{PromotionID: 1, Limit: 9, Code: "A"})
			},
			"history": func(ctx context.Context) (any, error) { return b.PayoutHistory(ctx, "u1", 9) },
			"dead letters": func(ctx context.Context) (any, error) {
				return b.DeadLetterList(ctx, store.DeadLetterListParams{Limit: 9})
			},
			"missing": func(ctx context.Context) (any, error) {
				_, _, err := b.PayoutGet(ctx, store.PayoutID{PromotionID: 1, TargetID: 9})
				return reward.HasCode(err, reward.CodePayoutNotFound), nil
			},
		} {
			want := must(read(b.ctx))(b)
			got := must(read(store.ForViewer(b.ctx)))(b)
			same(b, name, want, got)
		}
		// A write ignores the mark.
		must(b.PromotionClose(store.ForViewer(b.ctx), 1))(b)
	})
	run(t, open, "TakeNothingFromOthers", func(b *bundle) {
		b.running(1)
		release := must(driver.Hold(b.ctx, b.Tables))(b)
		defer release()
		b.saveQueued(1, 1, 2, 3)
		b.finish(rules.Outcome{Ref: ref(1, 1, 1), Kind: rules.OutcomePaid})
		same(b, "state", reward.Succeeded, b.payout(1, 1).State)
		_, err := b.PayoutList(store.ForViewer(b.ctx), store.PayoutListParams{PromotionID: 1, Limit: 9})
		b.wantCode(err, reward.CodeUnavailable)
		ctx, cancel := context.WithCancel(store.ForViewer(b.ctx))
		cancel()
		if _, err = b.PromotionGet(ctx, 1); !errors.Is(err, context.Canceled) {
			b.Errorf("the wait of a caller who left ended with %v, want %v", err, context.Canceled)
		}
		release()
		list := must(b.PayoutList(store.ForViewer(b.ctx), store.PayoutListParams{PromotionID: 1, Limit: 9}))(b)
		same(b, "payouts", 3, len(list))
	})
	run(t, open, "EndInTime", func(b *bundle) {
		earliest := time.Now().Add(store.ViewerTimeout)
		b.wantCode(driver.Endless(store.ForViewer(b.ctx), b.Tables), reward.CodeUnavailable)
		if ended := time.Now(); ended.Before(earliest) {
			b.Errorf("a slow read was ended at %v, want %v", ended, earliest)
		}
		must(b.PromotionList(store.ForViewer(b.ctx), store.PromotionListParams{Limit: 9}))(b)
	})
}
