package redisrate

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/largesse/largesse/internal/governor"
	"github.com/largesse/largesse/internal/governor/governortest"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/lab/fleet"
)

// open returns a driver with keys of its own.
func open(t testing.TB, url string) *Rates {
	t.Helper()
	r := fixture.Must(Open(t.Context(), Config{URL: url, KeyPrefix: fixture.Keys(t, url)}))(t)
	t.Cleanup(r.Close)
	return r
}

// leaseRunAt is the script with a clock in a key instead of the server's, and with a key
// that outlives every test.
var leaseRunAt = rueidis.NewLuaScript(strings.NewReplacer(
	"redis.call('TIME')", "{0, redis.call('GET', '{' .. KEYS[1] .. '}:clock')}",
	"math.ceil((after - now) / 1000) + 1000", "3600000",
).Replace(leaseRunText))

// atRest returns a driver whose clock moves only by the calls of wait.
func atRest(t *testing.T, url string) (r *Rates, wait func(d time.Duration)) {
	t.Helper()
	r = open(t, url)
	r.script = leaseRunAt
	var now atomic.Int64
	wait = func(d time.Duration) {
		at := now.Add(d.Microseconds())
		// What the script reads is in the slot of the rate.
		for _, name := range []string{governor.NameOfAll, "7"} {
			key := "{" + rateKey(r.prefix, name) + "}:clock"
			fixture.OK(t, r.client.Do(t.Context(), r.client.B().Set().Key(key).Value(micros(time.Duration(at)*time.Microsecond)).Build()).Error())
		}
	}
	wait(time.Duration(time.Now().UnixMicro()) * time.Microsecond)
	return r, wait
}

func TestRatesOverServers(t *testing.T) {
	t.Parallel()
	if !strings.Contains(leaseRunText, "redis.call('TIME')") {
		t.Fatal("leaseRunAt does not replace the script's clock")
	}
	fixture.OnEachRedis(t, func(t *testing.T, url string) {
		governortest.Exercise(t, func(t *testing.T, test func(t *testing.T, rates governor.Rates, wait func(d time.Duration))) {
			r, wait := atRest(t, url)
			test(t, r, wait)
		})
	})
}

func TestKeyGoesAway(t *testing.T) {
	t.Parallel()
	fixture.OnEachRedis(t, func(t *testing.T, url string) {
		r := open(t, url)
		// The next send time is 1,000 s from now.
		run, err := r.Lease(t.Context(), governor.LeaseParams{Name: "all", PerSecond: 0.001, Count: 5})
		if err != nil || run.Count != 1 {
			t.Fatalf("%+v, %v", run, err)
		}
		key := rateKey(r.prefix, "all")
		left, err := r.client.Do(t.Context(), r.client.B().Pttl().Key(key).Build()).AsInt64()
		if err != nil || left <= 0 || left > 1_001_000 {
			t.Errorf("%s lives for %d ms, %v", key, left, err)
		}
	})
}

// TestServerClock checks that the script goes by the server's clock. A clock that was set
// back leaves a next send time far ahead.
func TestServerClock(t *testing.T) {
	t.Parallel()
	fixture.OnEachRedis(t, func(t *testing.T, url string) {
		r := open(t, url)
		key := rateKey(r.prefix, "all")
		now := fixture.Must(r.client.Do(t.Context(), r.client.B().Time().Build()).AsIntSlice())(t)
		at := time.Unix(now[0], now[1]*1000)
		set := func(next time.Time) {
			t.Helper()
			fixture.OK(t, r.client.Do(t.Context(), r.client.B().Set().Key(key).Value(micros(time.Duration(next.UnixMicro())*time.Microsecond)).Build()).Error())
		}
		set(at.Add(2 * time.Hour))
		run, err := r.Lease(t.Context(), governor.LeaseParams{Name: "all", PerSecond: 100, Count: 1})
		if err != nil || run.Count != 1 || run.In != 10*time.Millisecond {
			t.Errorf("after the clock was set back by two hours: %+v, %v", run, err)
		}
		// Within one interval, a next send time is believed.
		set(at.Add(time.Hour))
		run, err = r.Lease(t.Context(), governor.LeaseParams{Name: "all", PerSecond: 1.0 / 7200, Count: 1})
		if err != nil || run.Count != 0 || run.In <= 0 || run.In > time.Hour {
			t.Errorf("with a next send time an hour ahead: %+v, %v", run, err)
		}
	})
}

func TestLeaseAfterClose(t *testing.T) {
	t.Parallel()
	r := open(t, fixture.Address(t, fleet.VariableRedis))
	r.Close()
	r.Close()
	if _, err := r.Lease(t.Context(), governor.LeaseParams{Name: "all", PerSecond: 1, Count: 1}); !errors.Is(err, rueidis.ErrClosing) {
		t.Errorf("error %v", err)
	}
}
