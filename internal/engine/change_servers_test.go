package engine

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/largesse/largesse/internal/config"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/obs"
)

// TestEveryInstanceFollowsAChange changes a running promotion on one of two instances.
// Both learn its new settings, and the calls that wait for the old rate get the new one.
func TestEveryInstanceFollowsAChange(t *testing.T) {
	t.Parallel()
	const targets = 400
	paid := make(chan struct{}, 2*targets)
	provider := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		paid <- struct{}{}
		_, _ = fmt.Fprintf(w, `{"transactionKey":%q}`, r.Header.Get("Idempotency-Key"))
	}))
	t.Cleanup(provider.Close)
	useServers := onServers(t)
	var engines []*Engine
	for range 2 {
		cfg := config.Default()
		cfg.Data.Dir, cfg.Money.URL = t.TempDir(), provider.URL
		useServers(&cfg)
		engines = append(engines, start(t, cfg, obs.Log{}, WithoutListener()))
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
	fixture.Until(t, "both instances wait for the slow rate", func() bool {
		return engines[0].metrics.Governor().Waiting > 1 && engines[1].metrics.Governor().Waiting > 1
	})
	do(http.MethodPatch, "/78", "application/json", `{"ratePerSecond":1000,"weight":7,"maxRetries":9}`)
	fixture.Until(t, "both instances know the new settings", func() bool {
		for _, e := range engines {
			v := e.flow.Views()[78]
			if v == nil || v.RatePerSecond != 1000 || v.Weight != 7 || v.MaxRetries != 9 {
				return false
			}
		}
		return true
	})
	// At the old rate this would take longer than the test waits.
	fixture.Until(t, "all targets are paid", func() bool { return len(paid) >= targets })
}
