package postgres

import (
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

// cancelledPromotion returns a store with a CANCELLED promotion of READY rows,
// and a function that cancels a chunk of them.
func cancelledPromotion(t *testing.T, rows int) (s *Store, step func() int) {
	t.Helper()
	s = open(t).(*Store)
	if _, err := s.PromotionRegister(t.Context(), []store.Registration{{ID: 1, Type: reward.Point, Started: true}}, time.Now()); err != nil {
		t.Fatal(err)
	}
	for from := 0; from < rows; from += store.BatchMax {
		var batch []store.NewPayout
		for i := from; i < min(rows, from+store.BatchMax); i++ {
			batch = append(batch, store.NewPayout{PromotionID: 1, TargetID: reward.TargetID(i + 1), UserID: "u", Amount: 5})
		}
		if _, err := s.PayoutSave(t.Context(), store.PayoutSaveParams{Rows: batch, Now: time.Now()}); err != nil {
			t.Fatal(err)
		}
	}
	_, err := s.PromotionMove(t.Context(), store.PromotionMoveParams{
		ID: 1, From: []reward.PromotionStatus{reward.Running}, To: reward.PromotionCancelled, Now: time.Now(),
	})
	if err != nil {
		t.Fatal(err)
	}
	return s, func() int {
		t.Helper()
		n, err := s.PayoutCancelStep(t.Context(), store.PayoutCancelStepParams{PromotionID: 1, Lease: time.Second, Now: time.Now()})
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
}

// TestACancelFindsRowsThatWereLocked: a chunk skips locked rows, and the one that
// reaches the end finds them.
func TestACancelFindsRowsThatWereLocked(t *testing.T) {
	t.Parallel()
	s, step := cancelledPromotion(t, 2500)
	tx, err := s.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `SELECT 1 FROM payouts WHERE target_id IN (1, 7) FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	moved := []int{step(), step()}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	moved = append(moved, step(), step())
	if want := []int{1000, 1000, 500, 0}; !slices.Equal(moved, want) {
		t.Errorf("chunks %v, want %v", moved, want)
	}
	v, err := s.PromotionGet(t.Context(), 1)
	if err != nil || v.Counts.Payouts[reward.Cancelled] != 2500 {
		t.Errorf("%+v, %v", v.Counts, err)
	}
	if len(s.cancelled.at) != 0 {
		t.Errorf("marks are left: %v", s.cancelled.at)
	}
}

// TestACancelReadsEachRowOnce: behind an old snapshot, the index keeps the
// entries of rows that have been cancelled. Later chunks do not read them again.
func TestACancelReadsEachRowOnce(t *testing.T) {
	t.Parallel()
	const chunks = 30
	s, step := cancelledPromotion(t, (chunks+2)*store.BatchMax)
	old, err := s.pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = old.Rollback(t.Context()) }()
	if _, err := old.Exec(t.Context(), `SELECT 1 FROM promotions`); err != nil { // takes the snapshot
		t.Fatal(err)
	}
	var took []time.Duration
	for range chunks {
		began := time.Now()
		if n := step(); n != store.BatchMax {
			t.Fatalf("a chunk of %d", n)
		}
		took = append(took, time.Since(began))
	}
	read := func() int64 {
		t.Helper()
		var n int64
		// The counters of a session reach the others when it is idle.
		err := s.pool.QueryRow(t.Context(), `SELECT idx_tup_read FROM pg_stat_user_indexes
WHERE schemaname = $1 AND indexrelname = 'payouts_open'`, s.schema).Scan(&n)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	const all = chunks * store.BatchMax
	for began := time.Now(); read() < all; time.Sleep(50 * time.Millisecond) { // polls a condition
		if time.Since(began) > 20*time.Second {
			t.Fatalf("the server counts %d entries read, want at least %d", read(), all)
		}
	}
	// Each chunk reads a few entries more than it needs.
	if n := read(); n > 2*all {
		t.Errorf("%d index entries read for %d rows; chunks took %v", n, all, took)
	}
}
