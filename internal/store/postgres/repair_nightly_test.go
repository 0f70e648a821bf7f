//go:build nightly

package postgres

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
)

// TestNightlyRepairOfAMillion makes the counts of a promotion wrong and repairs them.
// Meanwhile it records outcomes of the same promotion. It fails if one of these records
// waited for a large part of the repair.
func TestNightlyRepairOfAMillion(t *testing.T) {
	const rows = 1_000_000
	s := fresh(t, 8)
	ctx := t.Context()
	run(t, s,
		`INSERT INTO promotions (id, name, type, status, amount, voucher_code, currency, max_retries, registered, stream_gone, created_at)
VALUES (1, '', 'POINT', 'RUNNING', 0, '', '', 5, false, false, now())`,
		fmt.Sprintf(`INSERT INTO payouts (promotion_id, target_id, summary_id, amount, due_at, updated_at, first_dispatched_at, dispatch,
  attempts, state, maybe_called, user_id, voucher_code, transaction_key, error_code, error_message)
SELECT 1, i, i %% 3, 10, now(), now(), now(), 1, 0, 1, false, '', '', '', '', '' FROM generate_series(1, %d) i`, rows),
		`INSERT INTO summaries (promotion_id, summary_id, queued, queued_amount)
SELECT 1, 0, count(*), sum(amount) FROM payouts UNION ALL SELECT 1, summary_id, count(*), sum(amount) FROM payouts
WHERE summary_id > 0 GROUP BY summary_id`,
		`UPDATE summaries SET queued = queued + 77, failed = 5, attempts = 9`,
		`ANALYZE payouts`,
	)
	repaired := make(chan struct{})
	var (
		wg       sync.WaitGroup
		took     time.Duration
		repair   error
		records  []time.Duration
		finished int
	)
	wg.Go(func() {
		defer close(repaired)
		began := time.Now()
		_, repair = s.SummaryCompare(ctx, 1, true)
		took = time.Since(began)
	})
	next := 1
	for done := false; !done; {
		p := store.PayoutFinishParams{Lease: 15 * time.Second, Now: time.Now()}
		for range 20 {
			p.Outcomes = append(p.Outcomes, rules.Outcome{
				Ref: reward.Ref{PromotionID: 1, TargetID: reward.TargetID(next), Dispatch: 1}, Kind: rules.OutcomeKind(next % 2),
			})
			next++
		}
		began := time.Now()
		results := fixture.Must(s.PayoutFinish(ctx, p))(t)
		records = append(records, time.Since(began))
		for _, r := range results {
			if r.Changed {
				finished++
			}
		}
		select {
		case <-repaired:
			done = true
		default:
			done = next > rows-20
		}
	}
	wg.Wait()
	if repair != nil {
		t.Fatal(repair)
	}
	c := fixture.Must(s.SummaryCompare(ctx, 1, false))(t)
	if c.Kept != c.Rows {
		t.Errorf("after the repair %+v are stored, the rows have %+v", c.Kept, c.Rows)
	}
	if total := c.Rows.Total(); total != int64(rows) || finished != next-1 {
		t.Errorf("%d rows and %d outcomes, want %d and %d", total, finished, rows, next-1)
	}
	longest := slices.Max(records)
	t.Logf("a repair of %d rows took %v; meanwhile %d records, the longest took %v", rows, took, len(records), longest)
	if longest > took/5 {
		t.Errorf("a record waited %v of the %v of a repair", longest, took)
	}
}
