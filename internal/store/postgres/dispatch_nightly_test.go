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

// TestNightlyAnOldSnapshotDoesNotSlowDispatches dispatches many rows while another session
// holds a snapshot from before, so that the server keeps every index entry that is
// dead.
func TestNightlyAnOldSnapshotDoesNotSlowDispatches(t *testing.T) {
	const rows, batch = 500_000, 1000
	s := fresh(t, 2)
	ctx := t.Context()
	payoutsOf(t, s, 1, reward.Ready, false, rows, longDue)
	snapshot, err := pgx.Connect(ctx, s.pool.Config().ConnString())
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
