package payout

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/queue"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/store/postgres"
)

// TestFeederPassesALockOnPostgreSQL locks the counts of promotions in another
// session. Meanwhile a healthy promotion gets its payouts one after the other, and
// each is dispatched before the next one is saved.
func TestFeederPassesALockOnPostgreSQL(t *testing.T) {
	t.Parallel()
	const locked, payouts = 6, 12
	url := os.Getenv("LARGESSE_TEST_POSTGRES")
	if url == "" {
		t.Fatal("LARGESSE_TEST_POSTGRES names no PostgreSQL server: run it by make test")
	}
	ctx := t.Context()
	schema := fmt.Sprintf("largesse feeder %d", os.Getpid())
	rows, err := postgres.Open(ctx, postgres.Config{URL: url, Schema: schema})
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	if err := rows.Migrate(ctx); err != nil {
		t.Fatal(err)
	}
	other, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Close(context.Background()) }()
	name := pgx.Identifier{schema}.Sanitize()
	defer func() {
		if _, err := other.Exec(context.Background(), "DROP SCHEMA "+name+" CASCADE"); err != nil {
			t.Error(err)
		}
	}()
	save := func(id reward.PromotionID, target int) {
		t.Helper()
		if _, err := rows.PayoutSave(ctx, store.PayoutSaveParams{
			Rows: []store.NewPayout{{PromotionID: id, TargetID: reward.TargetID(target), Amount: 1}}, Now: time.Now(),
		}); err != nil {
			t.Fatal(err)
		}
	}
	for id := range reward.PromotionID(locked + 1) {
		id++
		if _, err := rows.PromotionCreate(ctx, reward.Promotion{ID: id, Type: reward.Point, CreatedAt: time.Now()}); err != nil {
			t.Fatal(err)
		}
		if _, err := rows.PromotionMove(ctx, store.PromotionMoveParams{
			ID: id, From: []reward.PromotionStatus{reward.Draft}, To: reward.Running, Now: time.Now(),
		}); err != nil {
			t.Fatal(err)
		}
		save(id, 0)
	}
	tx, err := other.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(ctx, "SELECT FROM "+name+".summaries WHERE promotion_id <= $1 FOR UPDATE", locked); err != nil {
		t.Fatal(err)
	}

	cache := NewStatusCache(rows, obs.Log{})
	q := queue.NewMemory()
	defer q.Close()
	dispatching := newFlowStore(rows, 0, nil)
	f := NewFeeder(dispatching, cache, &Producer{Queue: q, Rows: dispatching, MaxLen: 1000, DispatchHorizon: time.Hour}, 1000, obs.Log{})
	running, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { cache.run(running) })
	wg.Go(func() { f.run(running) })
	began := time.Now()
	queued := func(id reward.PromotionID, want int64) bool {
		t.Helper()
		for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
			v, err := rows.PromotionGet(ctx, id)
			if err != nil {
				t.Fatal(err)
			}
			if v.Counts.Payouts[reward.Queued] == want {
				return true
			}
		}
		return false
	}
	for n := 1; n <= payouts; n++ {
		if !queued(locked+1, int64(n)) || time.Since(began) > 20*time.Second {
			t.Errorf("payout %d of the healthy promotion was dispatched after %v", n, time.Since(began))
			break
		}
		save(locked+1, n)
	}
	t.Logf("%d payouts were dispatched one by one within %v", payouts, time.Since(began))
	if err := tx.Rollback(ctx); err != nil {
		t.Error(err)
	}
	for id := range reward.PromotionID(locked) {
		if !queued(id+1, 1) {
			t.Errorf("promotion %s was not fed after its lock was gone", id+1)
		}
	}
	stop()
	wg.Wait()
}
