package obs

import (
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/largesse/largesse/internal/reward"
)

// These index the scrapes of a Metrics.
const (
	scrapeParts = iota
	scrapePools
	scrapeGovernor
	scrapeStreams
	scrapeDatabase
	scrapeWaits
)

// scrape describes metrics that are read together at each scrape, so that the values of
// a series belong together.
type scrape struct {
	prefix string // of the names
	labels []string
	names  [][2]string // with the help
}

var scrapes = [...]scrape{
	scrapeParts: {"largesse_", []string{"part"}, [][2]string{
		{"up", "1 if the part is available to this instance, else 0."},
	}},
	scrapePools: {"largesse_", nil, [][2]string{
		{"pools", "Consumer pools of this instance, at most one per promotion."},
		{"consumers", "Registered consumers of all pools of this instance."},
		{"entries_in_hand", "Pending stream entries of this instance: delivered to its consumers and not acknowledged."},
	}},
	scrapeGovernor: {"largesse_governor_", nil, [][2]string{
		{"limit", "Maximum calls to the provider in flight on this instance, adapted to the provider's responses."},
		{"waiting", "Calls to the provider that wait on this instance."},
		{"breaker_open", "1 while the provider does not respond and gets only probes, else 0."},
		{"rates_away", "1 while rates are not shared and this instance uses its share of them, else 0."},
	}},
	scrapeStreams: {"largesse_stream_", []string{"promotion_id", "type"}, [][2]string{
		{"length", "Entries in a promotion's stream: dispatched and unfinished."},
		{"lag", "Entries in a promotion's stream that no consumer has read."},
		{"pending", "Pending entries in a promotion's stream: delivered and not acknowledged."},
		{"oldest_pending_age_seconds", "Seconds since the oldest pending entry of a promotion's stream was added; 0 if none is pending."},
	}},
	scrapeDatabase: {"largesse_database_", []string{"pool"}, [][2]string{
		{"connections_in_use", "Database connections that a call has."},
		{"connections_idle", "Open database connections that no call has."},
		{"connections_max", "The largest number of database connections."},
		{"connections_waiting", "Calls that wait for a database connection."},
		{"connection_wait_seconds_total", "Seconds that calls have waited for a database connection."},
	}},
	scrapeWaits: {"largesse_", nil, [][2]string{
		{"oldest_ready_age_seconds", "Seconds since the oldest READY payout of all RUNNING promotions became READY; 0 without any."},
		{"dispatch_stalled_seconds", "Seconds for which a RUNNING promotion has had READY payouts and dispatched none: the longest of all promotions; 0 without any."},
		{"oldest_unknown_age_seconds", "Seconds since the oldest UNKNOWN payout became UNKNOWN; 0 without any."},
	}},
}

func (s scrape) descs() []described {
	descs := make([]described, len(s.names))
	for i, n := range s.names {
		descs[i] = described{prometheus.NewDesc(s.prefix+n[0], n[1], s.labels, nil), prometheus.GaugeValue}
		if strings.HasSuffix(n[0], "_total") { // so every counter is named, and no gauge
			descs[i].kind = prometheus.CounterValue
		}
	}
	return descs
}

type described struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
}

// series has the values of a scrape's metrics for one combination of label values.
type series struct {
	labels []string
	values []float64
}

// scraper calls a function at each scrape.
type scraper struct {
	descs []described
	read  atomic.Pointer[func() []series] // nil: there are no series
}

// Describe implements prometheus.Collector.
func (s *scraper) Describe(out chan<- *prometheus.Desc) {
	for _, d := range s.descs {
		out <- d.desc
	}
}

// Collect implements prometheus.Collector.
func (s *scraper) Collect(out chan<- prometheus.Metric) {
	read := s.read.Load()
	if read == nil {
		return
	}
	for _, one := range (*read)() {
		for i, d := range s.descs {
			out <- prometheus.MustNewConstMetric(d.desc, d.kind, one.values[i], one.labels...)
		}
	}
}

func (m *Metrics) from(scrape int, read func() []series) {
	if !m.off() {
		m.scrapes[scrape].read.Store(&read)
	}
}

// scrapesFrom sets what the scrapes read that have series from the start.
func (m *Metrics) scrapesFrom() {
	m.PoolsFrom(func() (pools, consumers, pending int) { return 0, 0, 0 })
	m.from(scrapeGovernor, func() []series {
		f := m.Governor()
		return []series{{values: []float64{float64(f.Limit), float64(f.Waiting), oneIf(f.BreakerOpen), oneIf(f.RatesUnshared)}}}
	})
	m.from(scrapeStreams, func() []series {
		m.streamsMu.Lock()
		defer m.streamsMu.Unlock()
		return slices.Collect(maps.Values(m.streams))
	})
}

func oneIf(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

// PoolsFrom sets the function that returns the number of pools at each scrape, and of
// their consumers and pending entries. It must be quick and safe for concurrent use.
func (m *Metrics) PoolsFrom(read func() (pools, consumers, pending int)) {
	m.from(scrapePools, func() []series {
		pools, consumers, pending := read()
		return []series{{values: []float64{float64(pools), float64(consumers), float64(pending)}}}
	})
}

// GovernorFigures is the state of an instance's governor.
type GovernorFigures struct {
	Limit         int       // maximum calls in flight
	Open          int       // calls in flight
	Waiting       int       // calls that wait
	BreakerOpen   bool      // the provider does not respond
	RatesUnshared bool      // rates are not shared with the other instances
	BlockedUntil  time.Time // end of a Retry-After; zero: none
}

// GovernorFrom sets the function that returns the governor's state. It must be quick
// and safe for concurrent use.
func (m *Metrics) GovernorFrom(read func() GovernorFigures) {
	if !m.off() {
		m.governor.Store(&read)
	}
}

// Governor returns the governor's state, or the zero state if there is none.
func (m *Metrics) Governor() GovernorFigures {
	if m.off() {
		return GovernorFigures{}
	}
	if read := m.governor.Load(); read != nil {
		return (*read)()
	}
	return GovernorFigures{}
}

// PartsFrom sets the function that reports at each scrape, by the part's name,
// whether a part is available. It must limit its duration and be safe for
// concurrent use.
func (m *Metrics) PartsFrom(read func() map[string]bool) {
	m.from(scrapeParts, func() []series {
		var all []series
		for part, up := range read() {
			all = append(all, series{[]string{part}, []float64{oneIf(up)}})
		}
		return all
	})
}

// SetStream records the state of a promotion's stream: its length, the unread
// entries (lag), the pending ones, and the age of the oldest pending entry
// (zero without any).
func (m *Metrics) SetStream(t reward.PromotionType, id reward.PromotionID, length, lag, pending int64, oldestPendingAge time.Duration) {
	if m.off() {
		return
	}
	m.streamsMu.Lock()
	defer m.streamsMu.Unlock()
	m.streams[id] = series{
		[]string{id.String(), string(t)},
		[]float64{float64(length), float64(lag), float64(pending), max(oldestPendingAge, 0).Seconds()},
	}
}

// KeepStreams drops every stream but those of the current promotions, so that
// their series end.
func (m *Metrics) KeepStreams(current []reward.PromotionID) {
	if m.off() {
		return
	}
	m.streamsMu.Lock()
	defer m.streamsMu.Unlock()
	kept := make(map[reward.PromotionID]series, len(current))
	for _, id := range current {
		if s, ok := m.streams[id]; ok {
			kept[id] = s
		}
	}
	m.streams = kept
}

// The names of the pools of database connections.
const (
	DatabaseWork  = "work"  // payouts, coupons, writes and periodic work
	DatabaseReads = "reads" // reads that are only shown (database.read-connections)
	DatabaseWrite = "write" // the one connection of SQLite that writes
)

// DatabasePool is the state of a pool of database connections.
type DatabasePool struct {
	Name             string
	InUse, Idle, Max int
	Waiting          int           // calls that wait for a connection
	Waited           time.Duration // sum of the waits that have ended
}

// DatabasePoolsFrom sets the function that returns the pools of the database at each
// scrape. It must be quick and safe for concurrent use.
func (m *Metrics) DatabasePoolsFrom(read func() []DatabasePool) {
	m.from(scrapeDatabase, func() []series {
		var all []series
		for _, p := range read() {
			all = append(all, series{
				[]string{p.Name},
				[]float64{float64(p.InUse), float64(p.Idle), float64(p.Max), float64(p.Waiting), p.Waited.Seconds()},
			})
		}
		return all
	})
}

// SetWaits records since when the oldest READY payout waits, since when a promotion with
// READY payouts has dispatched none, and since when the oldest UNKNOWN payout is UNKNOWN, by
// the clock of this process. A zero time is none. Each scrape shows their ages.
func (m *Metrics) SetWaits(ready, stalled, unknown time.Time) {
	age := func(since time.Time) float64 {
		if since.IsZero() {
			return 0
		}
		return max(time.Since(since).Seconds(), 0)
	}
	m.from(scrapeWaits, func() []series {
		return []series{{values: []float64{age(ready), age(stalled), age(unknown)}}}
	})
}
