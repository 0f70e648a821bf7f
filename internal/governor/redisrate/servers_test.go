package redisrate

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/largesse/largesse/internal/governor"
	"github.com/largesse/largesse/internal/governor/governortest"
	"github.com/largesse/largesse/internal/service"
)

var prefixes = service.NewIDs()

// overServers runs a test over each real server.
func overServers(t *testing.T, test func(t *testing.T, url string)) {
	t.Helper()
	for name, variable := range map[string]string{
		"Redis": "LARGESSE_TEST_REDIS", "Valkey": "LARGESSE_TEST_VALKEY", "Cluster": "LARGESSE_TEST_REDIS_CLUSTER",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := os.Getenv(variable)
			if url == "" {
				t.Fatalf("%s names no server: run it by make test", variable)
			}
			test(t, url)
		})
	}
}

// open returns a driver with keys of its own, which go away by themselves.
func open(t testing.TB, url string) *Rates {
	t.Helper()
	r, err := Open(t.Context(), Config{URL: url, KeyPrefix: fmt.Sprintf("test-%d:", prefixes.Next())})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r
}

func TestRatesOverServers(t *testing.T) {
	t.Parallel()
	overServers(t, func(t *testing.T, url string) {
		governortest.Exercise(t, func(t testing.TB) governor.Rates { return open(t, url) })
	})
}

func TestKeyGoesAway(t *testing.T) {
	t.Parallel()
	overServers(t, func(t *testing.T, url string) {
		r := open(t, url)
		run, err := r.Lease(t.Context(), governor.LeaseParams{Name: "all", PerSecond: 100, Count: 5})
		if err != nil || run.Count != 5 {
			t.Fatalf("%+v, %v", run, err)
		}
		key := rateKey(r.prefix, "all")
		left, err := r.client.Do(t.Context(), r.client.B().Pttl().Key(key).Build()).AsInt64()
		if err != nil || left <= 0 || left > 1100 {
			t.Errorf("%s lives for %d ms, %v", key, left, err)
		}
	})
}

// A clock that was set back leaves a next send time far ahead.
func TestClockSetBack(t *testing.T) {
	t.Parallel()
	overServers(t, func(t *testing.T, url string) {
		r := open(t, url)
		ahead := fmt.Sprint(time.Now().Add(time.Hour).UnixMicro())
		if err := r.client.Do(t.Context(), r.client.B().Set().Key(rateKey(r.prefix, "all")).Value(ahead).Px(time.Minute).Build()).Error(); err != nil {
			t.Fatal(err)
		}
		run, err := r.Lease(t.Context(), governor.LeaseParams{Name: "all", PerSecond: 100, Count: 1})
		if err != nil || run.Count != 1 || run.In > 10*time.Millisecond {
			t.Errorf("%+v, %v", run, err)
		}
	})
}

func TestLeaseAfterClose(t *testing.T) {
	t.Parallel()
	overServers(t, func(t *testing.T, url string) {
		r := open(t, url)
		r.Close()
		r.Close()
		if _, err := r.Lease(t.Context(), governor.LeaseParams{Name: "all", PerSecond: 1, Count: 1}); !errors.Is(err, rueidis.ErrClosing) {
			t.Errorf("error %v", err)
		}
	})
}

// TestGovernorsShareARate runs three of them for real for a while.
func TestGovernorsShareARate(t *testing.T) {
	t.Parallel()
	overServers(t, func(t *testing.T, url string) {
		const limit, took, runs = 500, 3 * time.Second, 3
		r := open(t, url)
		ctx, cancel := context.WithTimeout(t.Context(), took)
		defer cancel()
		starts := make(chan time.Time, 10*limit)
		done := make(chan struct{})
		const hands = 100
		for range runs {
			g := governor.New(governor.Config{RatePerSecond: limit, Rates: r, Instances: func() int { return runs }})
			t.Cleanup(g.Close)
			for range hands {
				go func() {
					for {
						p, err := g.Acquire(ctx, governor.Job{PromotionID: 1})
						if err != nil {
							done <- struct{}{}
							return
						}
						starts <- time.Now()
						p.Done(governor.Outcome{Class: "PAID", Status: 200, Took: time.Millisecond})
					}
				}()
			}
		}
		for range runs * hands {
			<-done
		}
		close(starts)
		if mean := float64(len(starts)) / took.Seconds(); mean > 1.05*limit || mean < 0.5*limit {
			t.Errorf("%.0f calls a second, the limit is %d", mean, limit)
		} else {
			t.Logf("%.0f calls a second, the limit is %d", mean, limit)
		}
	})
}

func BenchmarkLease(b *testing.B) {
	r := open(b, os.Getenv("LARGESSE_TEST_REDIS"))
	for b.Loop() {
		if _, err := r.Lease(b.Context(), governor.LeaseParams{Name: "all", PerSecond: 1e6, Count: 1}); err != nil {
			b.Fatal(err)
		}
	}
}
