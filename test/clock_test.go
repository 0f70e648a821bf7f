package test

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/config"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/lab/fleet"
	"github.com/largesse/largesse/internal/money/moneysim"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

// TestARedisWhoseClockIsWrong runs promotions on a Redis whose clock is 12 s
// ahead, a minute ahead, a minute behind, and right again.
func TestARedisWhoseClockIsWrong(t *testing.T) {
	t.Parallel()
	const targets = 200
	redis := fixture.Own(t, fleet.NewSkewedRedis)
	skew := func(ahead time.Duration) {
		t.Helper()
		fixture.OK(t, redis.Skew(ahead))
	}
	skew(12 * time.Second)
	r := newRig(t, servers, moneysim.Faults{LatencyMs: 5}, func(c *config.Config) {
		c.Redis.URL = redis.Address()
	}, patient)
	// shows waits until /readyz contains a text, or does not.
	shows := func(text string, want bool) {
		t.Helper()
		fixture.Until(t, "/readyz shows the clock as it is: "+text, func() bool {
			req := fixture.Must(http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+r.engine.Addr()+"/readyz", nil))(t)
			res, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			body, err := io.ReadAll(res.Body)
			if err != nil || res.StatusCode != http.StatusOK {
				t.Fatalf("status %d, %v", res.StatusCode, err)
			}
			return strings.Contains(string(body), text) == want
		})
	}
	// dispatches counts the dispatches of a promotion's payouts.
	dispatches := func(id string) (sum int32) {
		t.Helper()
		promotion := fixture.Must(reward.ParsePromotionID(id))(t)
		rows, err := r.engine.Store().PayoutList(t.Context(), store.PayoutListParams{PromotionID: promotion, Limit: store.BatchMax})
		if err != nil || len(rows) != targets {
			t.Fatalf("%d rows, %v", len(rows), err)
		}
		for _, row := range rows {
			sum += row.Dispatch
		}
		return sum
	}
	charges := int64(0)
	settles := func(id string, charged int64) {
		t.Helper()
		if n := dispatches(id); n != targets {
			t.Errorf("%d payouts were dispatched %d times", targets, n)
		}
		charges += charged
		if n := r.sim.MaxChargesPerKey(); n != 1 || r.sim.Stats().Charges != charges {
			t.Errorf("a key was charged %d times, and all %d times, want 1 and %d", n, r.sim.Stats().Charges, charges)
		}
	}

	shows("12s ahead", true)
	id, workload := r.create(targets, false, client.NewPromotion{Name: "12 s ahead"})
	settles(id, r.balance(id, workload).Charges)

	skew(time.Minute)
	shows("dispatches no payouts", true)
	id, workload = r.create(targets, false, client.NewPromotion{Name: "a minute ahead"})
	fixture.Until(t, "the promotion is found to stand still", func() bool { return value(r.scrape(), "largesse_dispatch_stalled_seconds") > 5 })
	if n := dispatches(id); n != 0 {
		t.Errorf("payouts were dispatched %d times although Redis refuses every entry", n)
	}
	skew(-time.Minute)
	settles(id, r.balance(id, workload).Charges)
	shows("behind the database's", true)

	skew(0)
	shows(obs.PartRedisClock, false)
	id, workload = r.create(targets, false, client.NewPromotion{Name: "right"})
	settles(id, r.balance(id, workload).Charges)
}
