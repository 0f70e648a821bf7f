package api

import (
	"net/http"
	"strings"
	"testing"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/obs"
)

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
