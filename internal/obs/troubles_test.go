package obs

import (
	"strings"
	"testing"
)

// TestTroubles follows a trouble from its first report to its end: in the list, in
// the log and in the metric.
func TestTroubles(t *testing.T) {
	log, out := newTestLog(t, "info", "text")
	metrics := NewMetrics()
	troubles := NewTroubles(metrics, log)
	troubles.Clear(PartProvider)
	if got := troubles.List(); len(got) != 0 || out.Len() != 0 {
		t.Fatalf("at first: %v, log %q", got, out.String())
	}
	troubles.Set(PartView, "older than 1 s")
	troubles.Set(PartProvider, "the breaker is open")
	troubles.Set(PartProvider, "the breaker is open")
	since := troubles.List()[0].Since
	troubles.Set(PartProvider, "throttled")
	got := troubles.List()
	if len(got) != 2 || got[0].Part != PartProvider || got[0].Reason != "throttled" || got[1].Part != PartView || !got[0].Since.Equal(since) {
		t.Fatalf("List returns %v", got)
	}
	if n := strings.Count(out.String(), "instance degraded"); n != 2 {
		t.Errorf("%d lines for two troubles:\n%s", n, out.String())
	}
	if got := gather(t, metrics, "largesse_degraded")[PartProvider]; got != 1 {
		t.Errorf("the metric of the provider is %v", got)
	}
	troubles.Clear(PartProvider)
	if got := troubles.List(); len(got) != 1 || !strings.Contains(out.String(), "instance no longer degraded") {
		t.Errorf("after the end: %v, log %q", got, out.String())
	}
	if got := gather(t, metrics, "largesse_degraded")[PartProvider]; got != 0 {
		t.Errorf("after the end, the metric of the provider is %v", got)
	}
	var none *Troubles
	none.Set(PartView, "x")
	none.Clear(PartView)
	if none.List() != nil {
		t.Error("a nil Troubles holds something")
	}
}
