package postgres

import (
	"fmt"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
)

// holdTwo returns a store with coupons 1 and 2 of template 1, whose hold has ended.
func holdTwo(t *testing.T) database {
	t.Helper()
	s := lend(t)
	now := time.Now()
	fixture.Must(s.TemplateCreate(t.Context(), reward.CouponTemplate{
		ID: 1, Name: "spring", TotalQuantity: 2, PerUserLimit: 1, Mode: reward.ModeStream, WhenRedisAway: reward.FallbackDatabase,
		HoldFor: time.Hour, CreatedAt: now,
	}))(t)
	fixture.Must(s.CouponSettle(t.Context(), store.CouponSettleParams{TemplateID: 1, Now: now, Requests: []rules.CouponRequest{
		{UserID: "a", Ticket: 1, CouponID: 1, Code: "1"}, {UserID: "b", Ticket: 2, CouponID: 2, Code: "2"},
	}}))(t)
	run(t, s, `UPDATE coupons SET held_until = now() - interval '1 minute'`)
	return s
}

// sweepWhileLocked starts a sweep while tx has locked a coupon, and waits until it
// waits for that lock. It returns the sweep's backend and its result.
func sweepWhileLocked(t *testing.T, s database) (backend int, swept chan error) {
	t.Helper()
	swept = make(chan error, 1)
	go func() {
		_, n, err := s.CouponEndHolds(t.Context(), 1, 1000)
		if err == nil && n != 1 {
			err = fmt.Errorf("%d coupons ended", n)
		}
		swept <- err
	}()
	fixture.Until(t, "the sweep waits for the coupon", func() bool {
		fixture.OK(t, s.pool.QueryRow(t.Context(), `SELECT coalesce(min(l.pid), 0) FROM pg_locks l JOIN pg_stat_activity a USING (pid)
WHERE NOT l.granted AND a.query LIKE '%cancel_reason%' AND a.query NOT LIKE '%pg_locks%'
  AND EXISTS (SELECT 1 FROM pg_locks h WHERE h.pid = l.pid AND h.relation = 'coupon_templates'::regclass)`).Scan(&backend))
		return backend != 0
	})
	return backend, swept
}

// TestOnlyCancelledCouponsFreeAPlace: a confirmation that began in time may commit
// after a sweep has found the coupon. Counted by what the sweep has found, its place
// would be free although it is ISSUED.
func TestOnlyCancelledCouponsFreeAPlace(t *testing.T) {
	t.Parallel()
	s := holdTwo(t)
	ctx := t.Context()
	tx := holding(t, s, `UPDATE coupons SET status = 0, held_until = NULL WHERE id = 1`)
	_, swept := sweepWhileLocked(t, s)
	fixture.OK(t, tx.Commit(ctx))
	fixture.OK(t, <-swept)
	if c, err := s.CouponRecount(ctx, 1); err != nil || c.Live != 1 || c.KeptLive != 1 {
		t.Errorf("one is confirmed, one has ended: %+v, %v", c, err)
	}
}

// TestASweepIsKilled ends the backend of a sweep after it has locked the template
// and before it has cancelled all coupons. Nothing has changed then, and the next
// sweep frees each place once.
func TestASweepIsKilled(t *testing.T) {
	t.Parallel()
	s := holdTwo(t)
	ctx := t.Context()
	tx := holding(t, s, `SELECT 1 FROM coupons WHERE id = 2 FOR UPDATE`)
	backend, swept := sweepWhileLocked(t, s)
	fixture.Must(tx.Exec(ctx, `SELECT pg_terminate_backend($1)`, backend))(t)
	if err := <-swept; !hasState(err, "57P01") {
		t.Fatalf("the killed sweep: %v", err)
	}
	if c, err := s.CouponRecount(ctx, 1); err != nil || c.Live != 2 || c.KeptLive != 2 {
		t.Errorf("after the kill: %+v, %v", c, err)
	}
	release(t, tx)
	if _, n, err := s.CouponEndHolds(ctx, 1, 1000); err != nil || n != 2 {
		t.Fatalf("the next sweep: %d, %v", n, err)
	}
	if c, err := s.CouponRecount(ctx, 1); err != nil || c.Live != 0 || c.KeptLive != 0 {
		t.Errorf("after the next sweep: %+v, %v", c, err)
	}
}
