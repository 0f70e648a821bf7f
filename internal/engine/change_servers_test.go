package engine

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/config"
	"github.com/largesse/largesse/internal/obs"
)

// TestEveryInstanceFollowsAChange changes a running promotion on one of two instances.
// Both know its new settings within a second, and the calls that wait for the old rate
// get the new one.
func TestEveryInstanceFollowsAChange(t *testing.T) {
	t.Parallel()
	const targets = 200
	paid := make(chan struct{}, 2*targets)
	provider := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		paid <- struct{}{}
		_, _ = w.Write([]byte(`{"transactionKey":"t"}`))
	}))
	t.Cleanup(provider.Close)
	schema := schemaOf(t)
	var engines []*Engine
	for range 2 {
		cfg := config.Default()
		cfg.Data.Dir, cfg.Money.URL = t.TempDir(), provider.URL
		cfg.Database.URL = withParams(t, "search_path", schema)
		cfg.Database.MaxConnections, cfg.Coupon.ConsumerConcurrency = 6, 2
		cfg.Redis.URL, cfg.Redis.KeyPrefix = serverFor(t, "LARGESSE_TEST_REDIS"), schema+":"
		e, err := New(cfg, obs.Log{}, WithoutListener())
		if err != nil {
			t.Fatal(err)
		}
		if err := e.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(e.Stop)
		engines = append(engines, e)
	}
	do := func(method, path, media, body string) {
		t.Helper()
		req := httptest.NewRequest(method, "http://any.example/v1/promotions"+path, strings.NewReader(body))
		req.Header.Set("Content-Type", media)
		w := httptest.NewRecorder()
		if engines[0].Handler().ServeHTTP(w, req); w.Code >= 300 {
			t.Fatalf("%s: %d %s", path, w.Code, w.Body)
		}
	}
	var file strings.Builder
	file.WriteString("targetId\n")
	for n := range targets {
		fmt.Fprintln(&file, n+1)
	}
	do(http.MethodPost, "", "application/json", `{"id":"78","name":"spring","type":"POINT","amount":5,"ratePerSecond":1}`)
	do(http.MethodPost, "/78/targets", "text/csv", file.String())
	do(http.MethodPost, "/78/start", "application/json", "")
	// Both instances have calls that wait for the slow rate.
	await(t, time.Minute, func() bool {
		return engines[0].metrics.Governor().Waiting > 1 && engines[1].metrics.Governor().Waiting > 1
	})
	do(http.MethodPatch, "/78", "application/json", `{"ratePerSecond":1000,"weight":7,"maxRetries":9}`)
	await(t, time.Second, func() bool {
		for _, e := range engines {
			v := e.flow.Views()[78]
			if v == nil || v.RatePerSecond != 1000 || v.Weight != 7 || v.MaxRetries != 9 {
				return false
			}
		}
		return true
	})
	// At the old rate this would take minutes.
	timeout := time.After(time.Minute)
	for n := range targets {
		select {
		case <-paid:
		case <-timeout:
			t.Fatalf("%d of %d targets were paid", n, targets)
		}
	}
}

// await waits until cond is true.
func await(t *testing.T, limit time.Duration, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for timeout := time.After(limit); !cond(); {
		select {
		case <-tick.C:
		case <-timeout:
			t.Fatalf("not within %s", limit)
		}
	}
}
