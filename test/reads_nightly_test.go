//go:build nightly

package test

import (
	"context"
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
	"github.com/largesse/largesse/internal/lab/fixture"
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
	`ANALYZE`,
}

// TestNightlyReadsOfLargeTables: with 2,000,000 payouts, 60 clients that list payouts all the time
// slow payouts by a tenth at most.
func TestNightlyReadsOfLargeTables(t *testing.T) {
	sim, simURL := startSim(t, moneysim.Faults{LatencyMs: 20})
	database := fixture.NewSchema(t)
	p := serve(t, "--data-dir", t.TempDir(), "--money-url", simURL, "--database-url", database, "--money-rate-per-second", "500")
	db := fixture.Must(pgx.Connect(t.Context(), database))(t)
	defer db.Close(context.Background())
	began := time.Now()
	for _, sql := range bigLists {
		fixture.Must(db.Exec(t.Context(), sql))(t)
	}
	t.Logf("the rows were made in %.0f s", time.Since(began).Seconds())

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
	var alone, among []float64
	for range 3 {
		alone = append(alone, pay())
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		var statuses [600]atomic.Int64
		for range readers {
			all.Go(func() {
				for ctx.Err() == nil {
					// They never rest, whatever the server asks for.
					statuses[get(ctx, t, p.address+"/v1/promotions/1/payouts?state=CANCELLED")].Add(1)
				}
			})
		}
		among = append(among, pay())
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
		t.Logf("%.0f payouts per second without readers, %.0f with %d: they got %s", alone[len(alone)-1], among[len(among)-1], readers, strings.Join(said, ", "))
		if t.Failed() {
			return
		}
	}
	slices.Sort(alone)
	slices.Sort(among)
	if ratio := among[1] / alone[1]; ratio < 0.9 {
		t.Errorf("payouts kept %.2f of their rate while %d clients read, want 0.9", ratio, readers)
	}
}

// get reads a response, and returns the status, or 0 if there is none.
func get(ctx context.Context, t *testing.T, url string) (status int) {
	t.Helper()
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
	if _, err := io.Copy(io.Discard, res.Body); err != nil {
		return 0
	}
	return res.StatusCode
}
