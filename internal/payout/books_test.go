package payout

import (
	"context"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/books"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/money"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

// listing is a ledgerProvider that lists what it has charged.
type listing struct {
	*ledgerProvider
	mu    sync.Mutex // protects order, known
	order []reward.TargetID
	known map[reward.TargetID]bool
}

func (p *listing) Charges(_ context.Context, id reward.PromotionID, cursor string) (money.ChargesPage, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ledgerProvider.mu.Lock()
	for t := range p.charged {
		if !p.known[t] {
			p.known[t] = true
			p.order = append(p.order, t)
		}
	}
	p.ledgerProvider.mu.Unlock()
	from, _ := strconv.Atoi(cursor)
	to := min(from+7, len(p.order))
	page := money.ChargesPage{}
	for _, t := range p.order[from:to] {
		page.Charges = append(page.Charges, money.ListedCharge{PromotionID: id, TargetID: t, Amount: 100})
	}
	if to < len(p.order) {
		page.NextCursor = strconv.Itoa(to)
	}
	return page, nil
}

// TestBalanceHoldsWhileMoneyMoves reconciles a flow whose provider fails in
// every way, as often as it can, and never finds a difference.
func TestBalanceHoldsWhileMoneyMoves(t *testing.T) {
	t.Parallel()
	for _, cancel := range []bool{false, true} {
		fixture.OnFakeTime(t, map[bool]string{false: "ToTheEnd", true: "AndIsCancelled"}[cancel], func(t *testing.T) {
			p := newProvider(func(target reward.TargetID, n int) money.Answer {
				switch {
				case target%5 == 0 && n < 2:
					return lost
				case target%5 == 1 && n == 0:
					return money.Answer{Class: reward.AnswerFailed, Status: 500}
				case target%5 == 2:
					return money.Answer{Class: reward.AnswerRefused, Status: 422, Code: "NO"}
				case target%5 == 3 && n == 0:
					return money.Answer{Class: reward.AnswerThrottled, Status: 429}
				}
				return money.Answer{Class: reward.AnswerPaid}
			})
			s := newStage(t, p)
			s.create(300, 5)
			r := books.New(books.Config{
				Store: s.store, Charges: &listing{ledgerProvider: p, known: map[reward.TargetID]bool{}}, Hint: func(reward.PromotionID) {}, Metrics: obs.NewMetrics(),
			})
			looks := 0
			look := func() {
				looks++
				c, err := s.store.SummaryCompare(t.Context(), promotion, false)
				if err != nil || c.Kept != c.Rows {
					t.Fatalf("stored %+v, rows %+v, %v", c.Kept, c.Rows, err)
				}
				// A difference would be compared again 10 s later before it
				// is reported, so the report comes at once if there is
				// none.
				id, began := promotion, time.Now()
				report, err := r.Run(t.Context(), books.ReconcileCommand{PromotionID: &id})
				if took := time.Since(began); err != nil || len(report.Drifts) > 0 || len(report.Skipped) > 0 || took > time.Second {
					t.Fatalf("%+v, %v, after %v", report, err, took)
				}
			}
			s.start()
			s.until("done", func(v store.PromotionView) bool {
				look()
				if cancel && v.Status == reward.Running && v.Counts.Payouts[reward.Succeeded] > 100 {
					s.move(reward.Running, reward.PromotionCancelled)
				}
				return !v.FinishedAt.IsZero() && v.Counts.Payouts[reward.Unknown] == 0
			})
			if look(); looks < 10 {
				t.Errorf("only %d reconciliations", looks)
			}
			if charged, v := int64(len(p.charged)), s.view(); charged != v.Counts.Payouts[reward.Succeeded] {
				t.Errorf("%d charged, counts %+v", charged, v.Counts)
			}
		})
	}
}
