//go:build nightly

package test

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/money/moneysim"
)

// bigLists fills the tables that grow. Promotion 1 has 2,000,000 payouts, the
// paid ones first, so a list of any other state begins behind them. It is
// paused, and none of its lookups is due, so nothing changes these rows.
var bigLists = []string{
	`INSERT INTO promotions (id, name, type, status, amount, voucher_code, currency, max_retries, registered, stream_gone, created_at, started_at)
SELECT i, 'p' || i, 'POINT', CASE WHEN i = 1 OR i % 1000 = 0 THEN 'PAUSED' WHEN i % 1000 = 1 THEN 'DRAFT' ELSE 'COMPLETED' END,
  0, '', '', 5, false, true, now(), now() FROM generate_series(1, 20000) i`,
	`INSERT INTO summaries (promotion_id, summary_id) SELECT i, 0 FROM generate_series(1, 20000) i`,
	`INSERT INTO payouts (promotion_id, target_id, summary_id, amount, due_at, updated_at, first_dispatched_at, settle_from, dispatch, attempts,
  state, maybe_called, user_id, voucher_code, transaction_key, error_code, error_message)
SELECT 1, i, 0, 1, now() + interval '1 year', now(), now(), now(), 1, 1, s, true, 'u' || i % 100000, '', CASE s WHEN 4 THEN 'tx-' || i ELSE '' END,
  CASE WHEN s IN (2, 3, 5) THEN (ARRAY['TIMEOUT', 'LIMIT', 'CLOSED'])[1 + i % 3] ELSE '' END, ''
FROM (SELECT i, CASE WHEN i <= 1280000 THEN 4 WHEN i <= 1680000 THEN 0 WHEN i <= 1720000 THEN 1 WHEN i <= 1840000 THEN 5
  WHEN i <= 1880000 THEN 3 WHEN i <= 1920000 THEN 2 ELSE 6 END AS s FROM generate_series(1, 2000000) i) p`,
	`INSERT INTO dead_letters (source, part, off, value, reason, detail, at, status)
SELECT 's' || i % 5, 0, i, 'x', CASE WHEN i % 100000 = 7 THEN 'POISON' ELSE 'MALFORMED' END, '', now(),
  CASE WHEN i % 50000 = 7 THEN 'OPEN' ELSE 'DISCARDED' END FROM generate_series(1, 500000) i`,
	`INSERT INTO audit (id, at, actor, role, action, subject, request_id, detail)
SELECT i, now(), CASE WHEN i % 50000 = 0 THEN 'rare' ELSE 'a' || i % 9 END, 'admin', CASE WHEN i % 50000 = 0 THEN 'reconcile' ELSE 'retry-payouts' END,
  '/v1/promotions/' || i % 20000 || '/payouts/retry', '', '{}' FROM generate_series(1, 500000) i`,
	`INSERT INTO coupon_templates (id, name, total_quantity, per_user_limit, valid_for, mode, reissue, when_redis_away, draw_state, closes_at, created_at)
SELECT i, '', 10000000, 1, 0, 'STREAM', false, 'DATABASE', '', now(), now() FROM generate_series(1, 2) i`,
	`INSERT INTO coupons (id, template_id, generation, ticket, version, issued_at, slot, code, user_id)
SELECT i, 1, 0, i, i, now(), 1, 'c' || i, 'u' || i FROM generate_series(1, 500000) i`,
	`ANALYZE`,
}

// readsWithin has the longest time for each list of the API with each of its filters,
// and for the count of the errors.
func readsWithin() map[string]time.Duration {
	within := map[string]time.Duration{"/v1/promotions/1/errors": time.Second}
	for _, path := range everyList() {
		within[path] = 100 * time.Millisecond
	}
	return within
}

func everyList() []string {
	const payouts = "/v1/promotions/1/payouts"
	paths := []string{payouts, payouts + "?code=LIMIT", payouts + "?code=none", "/v1/promotions", "/v1/dead-letters", "/v1/audit"}
	for _, state := range []string{"READY", "QUEUED", "RETRYING", "UNKNOWN", "SUCCEEDED", "FAILED", "CANCELLED"} {
		paths = append(paths, payouts+"?state="+state, payouts+"?code=LIMIT&state="+state)
	}
	for _, status := range []string{"DRAFT", "RUNNING", "PAUSED", "COMPLETED", "CANCELLED"} {
		paths = append(paths, "/v1/promotions?status="+status)
	}
	for _, filter := range []string{
		"source=s2", "source=none", "reason=POISON", "reason=none", "source=s2&reason=POISON", "status=OPEN", "status=REPLAYED", "status=DISCARDED",
		"source=s2&status=OPEN", "reason=MALFORMED&status=OPEN", "source=s2&reason=POISON&status=OPEN", "source=s1&reason=MALFORMED&status=REPLAYED",
	} {
		paths = append(paths, "/v1/dead-letters?"+filter)
	}
	for _, filter := range []string{
		"actor=rare", "actor=none", "action=reconcile", "subject=/v1/promotions/7/payouts/retry", "subject=/v1/promotions/7/", "actor=rare&action=reconcile",
		"actor=a3&action=retry-payouts&subject=/v1/promotions/7/",
	} {
		paths = append(paths, "/v1/audit?"+filter)
	}
	return append(paths, "/v1/promotions/1", payouts+"/1999999", "/v1/promotions/1/events", "/v1/coupon-templates", "/v1/coupon-templates/1/coupons", "/v1/users/u7/coupons",
		"/v1/users/u7/history", "/v1/instances", "/v1/api-keys", "/v1/reconciliations",
		"/v1/payouts", "/v1/payouts?olderThan=1h", "/v1/payouts?userId=u4",
		"/v1/overview", "/v1/promotions/1/timeline", "/v1/coupon-templates/1/timeline")
}

// TestReadsOfLargeTables: with 2,000,000 payouts, every list of the API returns its
// first page in under 100 ms, the errors are counted in under a second, and 60 clients
// that list payouts all the time slow payouts by a tenth at most.
func TestReadsOfLargeTables(t *testing.T) {
	sim, simURL := startSim(t, moneysim.Faults{LatencyMs: 20})
	schema := "reads_" + strings.ToLower(rand.Text()[:10])
	database := ownSchema(t, server(t, "LARGESSE_TEST_POSTGRES"), schema)
	p := serve(t, "--data-dir", t.TempDir(), "--money-url", simURL, "--database-url", database, "--money-rate-per-second", "500")
	db, err := pgx.Connect(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close(context.Background())
	began := time.Now()
	for _, sql := range bigLists {
		if _, err := db.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("the rows were made in %.0f s", time.Since(began).Seconds())

	t.Run("EveryListStartsAtOnce", func(t *testing.T) {
		for path, most := range readsWithin() {
			var took []time.Duration
			var status int
			for range 5 {
				began := time.Now()
				status = get(t, t.Context(), p.address+path)
				took = append(took, time.Since(began))
			}
			// A list without an index is slow every time, a busy machine is not.
			fastest := slices.Min(took)
			t.Logf("%7.1f ms %d %s", float64(fastest.Microseconds())/1000, status, path)
			if status != http.StatusOK || fastest > most {
				t.Errorf("GET %s: %d after %v (the fastest of 5), want 200 within %v", path, status, fastest, most)
			}
		}
	})

	t.Run("ReadersDoNotStopPayouts", func(t *testing.T) {
		const payouts, readers = 3000, 60
		r := rigOf(t, p, simURL)
		pay := func() float64 {
			before := sim.Stats().Charges
			began := time.Now()
			id, _ := r.create(payouts, false, client.NewPromotion{})
			for sim.Stats().Charges < before+payouts {
				if time.Since(began) > time.Minute {
					n := sim.Stats().Charges - before
					t.Errorf("%d of %d payouts of promotion %s were paid in %v", n, payouts, id, time.Since(began))
					return float64(n) / time.Since(began).Seconds()
				}
				time.Sleep(2 * time.Millisecond) // polls a count
			}
			return payouts / time.Since(began).Seconds()
		}
		pay() // warms up
		var alone, beside []float64
		for range 3 {
			alone = append(alone, pay())
			ctx, cancel := context.WithCancel(t.Context())
			var all sync.WaitGroup
			var statuses [600]atomic.Int64
			for range readers {
				all.Go(func() {
					for ctx.Err() == nil {
						// They never rest, whatever the server asks for.
						statuses[get(t, ctx, p.address+"/v1/promotions/1/payouts?state=CANCELLED")].Add(1)
					}
				})
			}
			beside = append(beside, pay())
			cancel()
			all.Wait()
			var said []string
			for status := range statuses {
				if n := statuses[status].Load(); n > 0 {
					said = append(said, fmt.Sprintf("%d × %d", n, status))
				}
			}
			if n := statuses[http.StatusTooManyRequests].Load() + statuses[http.StatusServiceUnavailable].Load(); n == 0 {
				t.Errorf("none of the reads was refused: %s", strings.Join(said, ", "))
			}
			t.Logf("%.0f payouts per second without readers, %.0f with %d: they got %s", alone[len(alone)-1], beside[len(beside)-1], readers, strings.Join(said, ", "))
			if t.Failed() {
				return
			}
		}
		slices.Sort(alone)
		slices.Sort(beside)
		if ratio := beside[1] / alone[1]; ratio < 0.9 {
			t.Errorf("payouts kept %.2f of their rate while %d clients read, want 0.9", ratio, readers)
		}
	})
}

// get reads a response, or the first bytes of an endless one. It returns the
// status, or 0 if there is none.
func get(t *testing.T, ctx context.Context, url string) (status int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		t.Error(err)
		return 0
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0
	}
	defer res.Body.Close()
	if strings.HasPrefix(res.Header.Get("Content-Type"), "text/event-stream") {
		_, err = io.ReadFull(res.Body, make([]byte, 16))
	} else {
		_, err = io.Copy(io.Discard, res.Body)
	}
	if err != nil {
		return 0
	}
	return res.StatusCode
}
