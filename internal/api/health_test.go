package api

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/obs"
)

func TestHealth(t *testing.T) {
	t.Parallel()
	troubles := obs.NewTroubles(nil, obs.Log{})
	troubles.Set(obs.PartProvider, "the circuit breaker is open")
	b := setup(t, func(c *Config) {
		c.Degraded = func() []string { return []string{"redis"} }
		c.Troubles = troubles
	})
	if a := b.json(t, "GET", "/healthz", ""); a.status != 200 || a.text(t, "status") != "ok" {
		t.Errorf("%+v", a)
	}
	a := b.json(t, "GET", "/readyz", "")
	a.want(t, http.StatusOK)
	fixture.Equal(t, []any{"redis", "provider"}, a.object(t)["degraded"])
	if !strings.Contains(a.body, `"reason":"the circuit breaker is open"`) {
		t.Errorf("no reason: %s", a.body)
	}
	b.api.Drain()
	b.json(t, "GET", "/readyz", "").wantProblem(t, http.StatusServiceUnavailable, "DRAINING")
	b.api.Undrain()
	b.store.fail("Ping", errors.New("dial tcp 10.0.0.1: refused"))
	a = b.json(t, "GET", "/readyz", "")
	a.wantProblem(t, http.StatusServiceUnavailable, "UNAVAILABLE")
	if strings.Contains(a.body, "10.0.0.1") || a.header.Get("Retry-After") == "" {
		t.Errorf("%+v", a)
	}
	if a := b.json(t, "GET", "/healthz", ""); a.status != 200 {
		t.Errorf("healthz must not ask the store: %+v", a)
	}
}

// TestProbesAreNotLimited checks that probes, which have no caller, do not share the
// limits of one.
func TestProbesAreNotLimited(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, id := range []string{"alive", "ready"} {
		if !b.api.declared[id].unlimited {
			t.Errorf("the operation %s has the limits of reads", id)
		}
	}
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	m := obs.NewMetrics()
	m.Swept(3)
	b := setup(t, func(c *Config) { c.Metrics = m })
	a := b.json(t, "GET", "/metrics", "")
	a.want(t, http.StatusOK)
	if got := a.header.Get("Content-Type"); !strings.HasPrefix(got, "text/plain") {
		t.Errorf("content type %s", got)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families := fixture.Must(parser.TextToMetricFamilies(strings.NewReader(a.body)))(t)
	if got := families["largesse_sweeps_total"].GetMetric(); len(got) != 1 || got[0].GetCounter().GetValue() != 3 {
		t.Errorf("largesse_sweeps_total: %v", got)
	}
	b.json(t, "POST", "/metrics", "").wantProblem(t, http.StatusMethodNotAllowed, "METHOD_NOT_ALLOWED")
	if a := setup(t).json(t, "GET", "/metrics", ""); a.status != http.StatusOK || a.body != "" {
		t.Errorf("without metrics: %+v", a)
	}
}
