package postgres

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/store/storetest"
)

// TestSlots reads slots, which no method shows.
func TestSlots(t *testing.T) {
	t.Parallel()
	s := open(t).(*Store)
	storetest.ExerciseSlots(t, s, func() (map[reward.CouponID]int, error) {
		slots := make(map[reward.CouponID]int)
		err := s.send(t.Context(), "read slots", func(b *pgx.Batch) {
			b.Queue(`SELECT id, coalesce(slot, 0) FROM coupons`).Query(each(func(rows pgx.Rows) error {
				var id int64
				var slot int
				err := rows.Scan(&id, &slot)
				slots[reward.CouponID(id)] = slot
				return err
			}))
		})
		return slots, err
	})
}

// holdTwo returns a store with coupons 1 and 2 of template 1, whose hold has ended.
func holdTwo(t *testing.T) *Store {
	t.Helper()
	s := open(t).(*Store)
	now := time.Now()
	if _, err := s.TemplateCreate(t.Context(), reward.CouponTemplate{
		ID: 1, Name: "spring", TotalQuantity: 2, PerUserLimit: 1, Mode: reward.ModeStream, WhenRedisAway: reward.FallbackDatabase,
		HoldFor: time.Hour, CreatedAt: now,
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.CouponSettle(t.Context(), store.CouponSettleParams{TemplateID: 1, Now: now, Requests: []rules.CouponRequest{
		{UserID: "a", Ticket: 1, CouponID: 1, Code: "1"}, {UserID: "b", Ticket: 2, CouponID: 2, Code: "2"},
	}}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.pool.Exec(t.Context(), `UPDATE coupons SET held_until = now() - interval '1 minute'`); err != nil {
		t.Fatal(err)
	}
	return s
}

// sweepWhileLocked starts a sweep while tx has locked a coupon, and waits until it
// waits for that lock. It returns the sweep's backend and its result.
func sweepWhileLocked(t *testing.T, s *Store) (backend int, swept chan error) {
	t.Helper()
	swept = make(chan error, 1)
	go func() {
		_, n, err := s.CouponEndHolds(t.Context(), 1, 1000)
		if err == nil && n != 1 {
			err = fmt.Errorf("%d coupons ended", n)
		}
		swept <- err
	}()
	for deadline := time.Now().Add(20 * time.Second); ; {
		err := s.pool.QueryRow(t.Context(), `SELECT coalesce(min(l.pid), 0) FROM pg_locks l JOIN pg_stat_activity a USING (pid)
WHERE NOT l.granted AND a.query LIKE '%cancel_reason%' AND a.query NOT LIKE '%pg_locks%'
  AND EXISTS (SELECT 1 FROM pg_locks h WHERE h.pid = l.pid AND h.relation = 'coupon_templates'::regclass)`).Scan(&backend)
		if err != nil {
			t.Fatal(err)
		}
		if backend != 0 {
			return backend, swept
		}
		if time.Now().After(deadline) {
			t.Fatal("the sweep does not wait for the coupon")
		}
		time.Sleep(5 * time.Millisecond) // polls a condition
	}
}

// TestOnlyCancelledCouponsFreeAPlace: a confirmation that began in time may commit
// after a sweep has found the coupon. Counted by what the sweep has found, its place
// would be free although it is ISSUED.
func TestOnlyCancelledCouponsFreeAPlace(t *testing.T) {
	t.Parallel()
	s := holdTwo(t)
	ctx := t.Context()
	tx, err := s.pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(ctx)
	if _, err := tx.Exec(ctx, `UPDATE coupons SET status = 0, held_until = NULL WHERE id = 1`); err != nil {
		t.Fatal(err)
	}
	_, swept := sweepWhileLocked(t, s)
	if err := tx.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	if err := <-swept; err != nil {
		t.Fatal(err)
	}
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
	tx, err := s.pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(ctx)
	if _, err := tx.Exec(ctx, `SELECT 1 FROM coupons WHERE id = 2 FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	backend, swept := sweepWhileLocked(t, s)
	if _, err := tx.Exec(ctx, `SELECT pg_terminate_backend($1)`, backend); err != nil {
		t.Fatal(err)
	}
	if err := <-swept; !hasState(err, "57P01") {
		t.Fatalf("the killed sweep: %v", err)
	}
	if c, err := s.CouponRecount(ctx, 1); err != nil || c.Live != 2 || c.KeptLive != 2 {
		t.Errorf("after the kill: %+v, %v", c, err)
	}
	if err := tx.Rollback(ctx); err != nil {
		t.Fatal(err)
	}
	if _, n, err := s.CouponEndHolds(ctx, 1, 1000); err != nil || n != 2 {
		t.Fatalf("the next sweep: %d, %v", n, err)
	}
	if c, err := s.CouponRecount(ctx, 1); err != nil || c.Live != 0 || c.KeptLive != 0 {
		t.Errorf("after the next sweep: %+v, %v", c, err)
	}
}

// BenchmarkCouponSettle issues b.N coupons of one template, each to another
// user, and reports coupons per second. It uses batches of several sizes. For
// comparison it issues them one by one from ten connections with SELECT FOR
// UPDATE, INSERT and UPDATE.
func BenchmarkCouponSettle(b *testing.B) {
	now := time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
	stocked := func(b *testing.B, limit int) *Store {
		s := open(b).(*Store)
		if _, err := s.TemplateCreate(b.Context(), reward.CouponTemplate{
			ID: 1, Name: "spring", TotalQuantity: reward.TemplateQuantityMax, PerUserLimit: limit, Mode: reward.ModeStream,
			WhenRedisAway: reward.FallbackDatabase, CreatedAt: now,
		}); err != nil {
			b.Fatal(err)
		}
		return s
	}
	report := func(b *testing.B, s *Store) {
		b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "coupons/s")
		b.StopTimer()
		if c, err := s.CouponRecount(b.Context(), 1); err != nil || c.Live != int64(b.N) || c.Live != c.KeptLive {
			b.Fatalf("recounted: %+v, %v", c, err)
		}
	}
	for _, limit := range []int{1, 3} {
		for _, size := range []int{100, 500, 1000} {
			b.Run(fmt.Sprintf("Limit%d/Batch%d", limit, size), func(b *testing.B) {
				s := stocked(b, limit)
				b.ResetTimer()
				for from := 1; from <= b.N; from += size {
					asks := make([]rules.CouponRequest, min(size, b.N-from+1))
					for i := range asks {
						id := int64(from + i)
						asks[i] = rules.CouponRequest{
							UserID: fmt.Sprintf("user-%08d", (id*7919)%100_000_007), Ticket: id, CouponID: reward.CouponID(id), Code: reward.NewCouponCode(),
						}
					}
					if _, err := s.CouponSettle(b.Context(), store.CouponSettleParams{TemplateID: 1, Requests: asks, Now: now}); err != nil {
						b.Fatal(err)
					}
				}
				report(b, s)
			})
		}
	}
	b.Run("OneByOne", func(b *testing.B) {
		const connections = 10
		s := openEmpty(b, connections)
		if err := s.Migrate(b.Context()); err != nil {
			b.Fatal(err)
		}
		if _, err := s.pool.Exec(b.Context(), `INSERT INTO coupon_templates (id, name, total_quantity, per_user_limit, valid_for, mode, reissue,
  when_redis_away, draw_state, created_at) VALUES (1, '', 1000000000, 1, 0, 'SYNC', false, 'DATABASE', '', now())`); err != nil {
			b.Fatal(err)
		}
		issue := func(id int64) error {
			return pgx.BeginFunc(b.Context(), s.pool, func(tx pgx.Tx) error {
				var live, total int64
				if err := tx.QueryRow(b.Context(), `SELECT live, total_quantity FROM coupon_templates WHERE id = 1 FOR UPDATE`).Scan(&live, &total); err != nil {
					return err
				}
				if live >= total {
					return fmt.Errorf("%d of %d are live", live, total)
				}
				if _, err := tx.Exec(b.Context(), `INSERT INTO coupons (id, template_id, generation, ticket, version, issued_at, slot, code, user_id)
VALUES ($1, 1, 0, $1, $1, $2, 1, $3, $4)`, id, now, reward.NewCouponCode(), fmt.Sprintf("user-%08d", id)); err != nil {
					return err
				}
				_, err := tx.Exec(b.Context(), `UPDATE coupon_templates SET live = live + 1, issued_total = issued_total + 1 WHERE id = 1`)
				return err
			})
		}
		var next atomic.Int64
		errs := make(chan error, connections)
		b.ResetTimer()
		for range connections {
			go func() {
				for {
					id := next.Add(1)
					if id > int64(b.N) {
						errs <- nil
						return
					}
					if err := issue(id); err != nil {
						errs <- err
						return
					}
				}
			}()
		}
		for range connections {
			if err := <-errs; err != nil {
				b.Fatal(err)
			}
		}
		report(b, s)
	})
}
