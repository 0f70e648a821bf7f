package obs

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// waitGauges is the number of gauges of a waitCollector.
const waitGauges = 3

// waitCollector shows how long payouts have waited at the time of each scrape.
type waitCollector struct {
	descs [waitGauges]*prometheus.Desc
	since atomic.Pointer[[waitGauges]time.Time] // nil: not measured here
}

func newWaitCollector() waitCollector {
	gauge := func(name, help string) *prometheus.Desc { return prometheus.NewDesc("largesse_"+name, help, nil, nil) }
	return waitCollector{descs: [waitGauges]*prometheus.Desc{
		gauge("oldest_ready_age_seconds", "Seconds since the oldest READY payout of all RUNNING promotions became READY; 0 without any."),
		gauge("dispatch_stalled_seconds", "Seconds for which a RUNNING promotion has had READY payouts and dispatched none: the longest of all promotions; 0 without any."),
		gauge("oldest_unknown_age_seconds", "Seconds since the oldest UNKNOWN payout became UNKNOWN; 0 without any."),
	}}
}

// SetWaits records since when the oldest READY payout waits, since when a promotion with
// READY payouts has dispatched none, and since when the oldest UNKNOWN payout is UNKNOWN, by
// the clock of this process. A zero time is none.
func (m *Metrics) SetWaits(ready, stalled, unknown time.Time) {
	if !m.off() {
		m.waits.since.Store(&[waitGauges]time.Time{ready, stalled, unknown})
	}
}

// Describe implements prometheus.Collector.
func (c *waitCollector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range c.descs {
		out <- d
	}
}

// Collect returns the ages at this moment.
func (c *waitCollector) Collect(out chan<- prometheus.Metric) {
	since := c.since.Load()
	if since == nil {
		return
	}
	for i, at := range since {
		age := 0.0
		if !at.IsZero() {
			age = max(time.Since(at).Seconds(), 0)
		}
		out <- prometheus.MustNewConstMetric(c.descs[i], prometheus.GaugeValue, age)
	}
}
