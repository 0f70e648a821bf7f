//go:build nightly

package postgres

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

// TestAnOldSnapshotDoesNotSlowDispatches dispatches many rows while another session
// holds a snapshot from before, so that the server keeps every index entry that is
// dead.
func TestAnOldSnapshotDoesNotSlowDispatches(t *testing.T) {
	const rows, batch = 500_000, 1000
	s := open(t).(*Store)
	ctx := t.Context()
	if _, err := s.PromotionRegister(ctx, []store.Registration{{ID: 1, Type: reward.Point, Started: true}}, time.Now()); err != nil {
		t.Fatal(err)
	}
	for _, sql := range []string{
		`INSERT INTO payouts (promotion_id, target_id, summary_id, amount, due_at, updated_at, dispatch, attempts,
  state, maybe_called, user_id, voucher_code, transaction_key, error_code, error_message)
SELECT 1, i, 0, 1, now() - interval '1 hour' + (i / 1000) * interval '1 ms', now(), 0, 0, 0, false, 'u', '', '', '', '' FROM generate_series(1, $1::int8) i`,
		`UPDATE summaries SET ready = $1, ready_amount = $1 WHERE promotion_id = 1`,
	} {
		if _, err := s.pool.Exec(ctx, sql, int64(rows)); err != nil {
			t.Fatal(err)
		}
	}
	snapshot, err := pgx.Connect(ctx, serverURL(t))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = snapshot.Close(context.Background()) }()
	for _, sql := range []string{"BEGIN ISOLATION LEVEL REPEATABLE READ", "SELECT 1"} {
		if _, err := snapshot.Exec(ctx, sql); err != nil {
			t.Fatal(err)
		}
	}
	var took []time.Duration
	for range rows / batch {
		began := time.Now()
		list, err := s.PayoutDispatch(ctx, store.PayoutDispatchParams{PromotionID: 1, Limit: batch, MaxLen: rows, Now: time.Now()})
		took = append(took, time.Since(began))
		if err != nil || len(list) != batch {
			t.Fatalf("%d rows, %v", len(list), err)
		}
	}
	const some = 40
	median := func(of []time.Duration) time.Duration {
		of = slices.Sorted(slices.Values(of))
		return of[len(of)/2]
	}
	first, last := median(took[:some]), median(took[len(took)-some:])
	t.Logf("1,000 rows take %v at first, and %v at last", first, last)
	if last > 2*first {
		t.Errorf("dispatches become %.1f times as slow", float64(last)/float64(first))
	}
}
