package obs

import (
	"log/slog"
	"maps"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/largesse/largesse/internal/reward"
)

// LookupClass is the result of a lookup. In largesse_provider_calls_total, it
// is a value of the same label as the classes of charges.
type LookupClass string

// The classes of lookups.
const (
	LookupFound    LookupClass = "LOOKUP_FOUND"     // charged
	LookupNotFound LookupClass = "LOOKUP_NOT_FOUND" // the provider does not know the key
	LookupOpen     LookupClass = "LOOKUP_OPEN"      // the lookup was inconclusive
)

// WebhookOutcome is the result of an attempt to deliver a webhook.
type WebhookOutcome string

// The outcomes of an attempt.
const (
	WebhookDelivered WebhookOutcome = "HEARD"    // the receiver responded with 2xx
	WebhookRetried   WebhookOutcome = "LATER"    // failed; retried later
	WebhookAbandoned WebhookOutcome = "GIVEN_UP" // failed; abandoned
)

// SpanResult says how a span of a sampled trace ended.
type SpanResult string

// The results.
const (
	SpanExported SpanResult = "EXPORTED" // the collector has it
	SpanFailed   SpanResult = "FAILED"   // the collector did not take it
	SpanDropped  SpanResult = "DROPPED"  // the queue was full
)

// callBuckets are the histogram buckets of the duration of provider calls, in
// seconds.
var callBuckets = []float64{0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30}

// requestBuckets and databaseBuckets are the histogram buckets of requests and of
// calls of the database, in seconds. They are few, because each operation and each
// call has its own.
var (
	requestBuckets  = []float64{0.005, 0.025, 0.1, 0.5, 1, 2.5, 10}
	databaseBuckets = []float64{0.002, 0.01, 0.05, 0.2, 0.5, 2, 10}
)

// Metrics counts what one instance does. Each Metrics has its own registry, so
// that two engines in one process do not mix. A nil or zero Metrics is usable
// and counts nothing. All methods are safe for concurrent use. docs/metrics.md
// lists the names and meanings.
type Metrics struct {
	registry *prometheus.Registry // nil: counts nothing

	claims, sweeps                   prometheus.Counter
	poolStarts, idleStops            prometheus.Counter
	deadLetters, payouts             *prometheus.CounterVec
	calls                            *prometheus.CounterVec
	callSeconds                      prometheus.Histogram
	callsOpen                        prometheus.Gauge
	breaches                         prometheus.Counter
	broken                           *prometheus.GaugeVec
	webhooks                         *prometheus.CounterVec
	webhooksDropped                  prometheus.Counter
	webhookBacklog, webhooksDisabled prometheus.Gauge
	couponAsks, coupons              *prometheus.CounterVec
	holds                            *prometheus.CounterVec
	gateLoads                        prometheus.Counter
	requests                         *prometheus.CounterVec
	requestSeconds                   *prometheus.HistogramVec
	databaseSeconds                  *prometheus.HistogramVec
	refusals                         *prometheus.CounterVec
	troubles                         *prometheus.GaugeVec
	pointsDropped                    prometheus.Counter
	spans                            *prometheus.CounterVec
	logLines                         *prometheus.CounterVec
	instancesAlive                   prometheus.Gauge
	promotionsPaused                 prometheus.Gauge
	build                            *prometheus.GaugeVec
	timeline                         *timeline

	pools    poolCollector
	parts    partCollector
	governor governorCollector
	streams  streamCollector
	database databaseCollector
	waits    waitCollector
}

// NewMetrics returns a Metrics that counts.
func NewMetrics() *Metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	counters := func(name, help, label string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{label})
	}
	m := &Metrics{
		registry:   prometheus.NewRegistry(),
		claims:     counter("largesse_claims_total", "Stream entries that this instance claimed after another consumer's lease had expired."),
		sweeps:     counter("largesse_sweeps_total", "Payouts that the sweeper returned to READY because no stream contained them."),
		poolStarts: counter("largesse_pool_starts_total", "Consumer pools that this instance started."),
		idleStops:  counter("largesse_idle_stops_total", "Consumer pools that this instance stopped because they were idle."),
		deadLetters: counters("largesse_dead_letters_total",
			"Messages that this instance could not read or process and stored as dead letters, by reason.", "reason"),
		payouts: counters("largesse_payouts_total", "Outcomes that this instance wrote, by the resulting state of the payout.", "outcome"),
		calls: counters("largesse_provider_calls_total",
			"Calls to the provider, by class of the response; lookups have their own classes (LOOKUP_…).", "class"),
		callSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "largesse_provider_call_seconds", Buckets: callBuckets,
			Help: "Seconds from the start of a call to the provider (including the dial, excluding the wait for a free slot) to the end of its response, for charges and lookups that were sent.",
		}),
		callsOpen: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "largesse_provider_calls_open", Help: "Calls to the provider in flight, including lookups.",
		}),
		breaches: counter("largesse_balance_breaches_total", "Times that the books of a promotion were found out of balance, or that a payout was charged twice."),
		broken: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "largesse_balance_broken", Help: "1 while the books of the promotion do not balance.",
		}, []string{"promotion_id"}),
		webhooks:        counters("largesse_webhooks_total", "Attempts of this instance to deliver a webhook, by outcome.", "outcome"),
		webhooksDropped: counter("largesse_webhook_events_dropped_total", "Events that this instance dropped because too many deliveries to their webhook endpoint were pending."),
		webhookBacklog: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "largesse_webhook_backlog", Help: "Pending deliveries to all webhook endpoints, measured once a minute by each instance with the role housekeeping.",
		}),
		webhooksDisabled: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "largesse_webhook_endpoints_disabled", Help: "Disabled webhook endpoints, measured like the backlog.",
		}),
		couponAsks: counters("largesse_coupon_asks_total",
			"Coupon requests that this instance answered, by answer: WAITING, ISSUED, or the code of the refusal.", "answer"),
		coupons: counters("largesse_coupons_total",
			"Admitted coupon requests that this instance settled: ISSUED, REJECTED or LEFT (the waiting line).", "outcome"),
		holds: counters("largesse_coupon_holds_total",
			"Holds of coupons that this instance ended: CONFIRMED, or EXPIRED because nobody confirmed in time.", "outcome"),
		gateLoads: counter("largesse_gate_loads_total", "Gates that this instance loaded from the database."),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "largesse_http_requests_total", Help: "API requests that this instance answered, by operation and HTTP status.",
		}, []string{"operation", "status"}),
		requestSeconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "largesse_http_request_seconds", Buckets: requestBuckets,
			Help: "Seconds from the header of an API request to the end of its answer, by operation and class of the HTTP status; an event stream until its first byte, and no requests with Prefer: wait.",
		}, []string{"operation", "class"}),
		databaseSeconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "largesse_database_call_seconds", Buckets: databaseBuckets,
			Help: "Seconds that a call of the database took, with the wait for a connection and repeated tries.",
		}, []string{"call"}),
		refusals: counters("largesse_http_refusals_total",
			"API requests that were refused because of their caller, by HTTP status: 401, 403, 421, or 429 after many wrong API keys.", "status"),
		troubles: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "largesse_degraded", Help: "1 while a part of this instance is degraded; /readyz gives the reason.",
		}, []string{"part"}),
		pointsDropped: counter("largesse_timeline_points_dropped_total", "Points of timelines that this instance could not store."),
		spans: counters("largesse_trace_spans_total",
			"Spans of sampled traces, by result: EXPORTED, FAILED (the collector did not take them) or DROPPED (the queue was full).", "result"),
		timeline: newTimeline(),
		logLines: counters("largesse_log_lines_total", "Warnings and errors that this instance logged, whatever log.level is.", "level"),
		instancesAlive: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "largesse_instances_alive", Help: "Instances that are alive, as this instance last saw it.",
		}),
		promotionsPaused: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "largesse_promotions_paused", Help: "PAUSED promotions that Largesse paused, as this instance last saw them. Those that a person paused, or has to approve, do not count.",
		}),
		build: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "largesse_build_info", Help: "1, with the version of Largesse and of Go.",
		}, []string{"version", "go_version"}),

		pools:    newPoolCollector(),
		parts:    newPartCollector(),
		governor: newGovernorCollector(),
		streams:  newStreamCollector(),
		database: newDatabaseCollector(),
		waits:    newWaitCollector(),
	}
	m.registry.MustRegister(
		m.claims, m.sweeps, m.poolStarts, m.idleStops, m.deadLetters, m.payouts, m.calls, m.callSeconds, m.callsOpen,
		m.breaches, m.broken, m.webhooks, m.webhooksDropped, m.webhookBacklog, m.webhooksDisabled, m.couponAsks, m.coupons, m.holds, m.gateLoads, m.requests, m.requestSeconds, m.databaseSeconds, m.refusals, m.troubles,
		m.pointsDropped, m.spans, m.logLines, m.instancesAlive, m.promotionsPaused, m.build,
		&m.pools, &m.parts, &m.governor, &m.streams, &m.database, &m.waits,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	// A series that exists from the start has a rate from its first event on.
	for _, s := range []reward.State{reward.Succeeded, reward.Failed, reward.Retrying, reward.Unknown, reward.Cancelled} {
		m.payouts.WithLabelValues(s.String())
	}
	for _, c := range []reward.AnswerClass{
		reward.AnswerPaid, reward.AnswerRefused, reward.AnswerFailed, reward.AnswerUnknown, reward.AnswerThrottled, reward.AnswerMisconfigured, reward.AnswerNotSent,
	} {
		m.calls.WithLabelValues(string(c))
	}
	for _, level := range []slog.Level{slog.LevelWarn, slog.LevelError} {
		m.logLines.WithLabelValues(strings.ToLower(level.String()))
	}
	for _, c := range []LookupClass{LookupFound, LookupNotFound, LookupOpen} {
		m.calls.WithLabelValues(string(c))
	}
	for _, r := range []SpanResult{SpanExported, SpanFailed, SpanDropped} {
		m.spans.WithLabelValues(string(r))
	}
	for _, o := range []WebhookOutcome{WebhookDelivered, WebhookRetried, WebhookAbandoned} {
		m.webhooks.WithLabelValues(string(o))
	}
	for _, reason := range []string{reward.CodeMalformed, reward.CodeTypeMismatch, reward.CodeConflict, reward.CodeInvalid, reward.CodePoison, reward.CodeNeverGiven, reward.CodeAmountOverflow, reward.CodeArchived, reward.CodeTemplateNotFound} {
		m.deadLetters.WithLabelValues(reason)
	}
	return m
}

// off reports whether nothing is counted.
func (m *Metrics) off() bool { return m == nil || m.registry == nil }

// Handler serves all metrics in the text format of Prometheus, and none if
// nothing is counted.
func (m *Metrics) Handler() http.Handler {
	registry := prometheus.NewRegistry()
	if !m.off() {
		registry = m.registry
	}
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
}

// Claimed counts claimed entries.
func (m *Metrics) Claimed(entries int) {
	if !m.off() {
		m.claims.Add(float64(entries))
	}
}

// Swept counts payouts that the sweeper returned to READY.
func (m *Metrics) Swept(payouts int) {
	if !m.off() {
		m.sweeps.Add(float64(payouts))
	}
}

// PoolStarted counts a started pool.
func (m *Metrics) PoolStarted() {
	if !m.off() {
		m.poolStarts.Inc()
	}
}

// PoolIdleStopped counts a pool that stopped because it was idle.
func (m *Metrics) PoolIdleStopped() {
	if !m.off() {
		m.idleStops.Inc()
	}
}

// SpansEnded counts spans by how they ended.
func (m *Metrics) SpansEnded(result SpanResult, spans int) {
	if !m.off() {
		m.spans.WithLabelValues(string(result)).Add(float64(spans))
	}
}

// DeadLettered counts dead letters. reason must be a code of Largesse, never
// external text, because each value creates a series.
func (m *Metrics) DeadLettered(reason string, messages int) {
	if !m.off() {
		m.deadLetters.WithLabelValues(reason).Add(float64(messages))
	}
}

// Finished counts payouts by the state in which an outcome of this instance
// left them.
func (m *Metrics) Finished(id reward.PromotionID, after reward.State, payouts int) {
	if !m.off() {
		m.payouts.WithLabelValues(after.String()).Add(float64(payouts))
		m.timeline.promotion(id, func(s *PromotionSums) { s.finished(after, int64(payouts)) })
	}
}

// ChargeTook records the duration of a charge that was sent, for the timeline.
func (m *Metrics) ChargeTook(id reward.PromotionID, took time.Duration) {
	if !m.off() {
		m.timeline.promotion(id, func(s *PromotionSums) { s.called(took) })
	}
}

// CallOpened counts a call to the provider as in flight, until CallEnded.
func (m *Metrics) CallOpened() {
	if !m.off() {
		m.callsOpen.Inc()
	}
}

// CallEnded ends a call that CallOpened counted. If timed is set, its duration
// is observed: callers set it for charges and lookups that were sent.
func (m *Metrics) CallEnded(timed bool, took time.Duration) {
	if m.off() {
		return
	}
	m.callsOpen.Dec()
	if timed {
		m.callSeconds.Observe(took.Seconds())
	}
}

// Charged counts a charge by its class.
func (m *Metrics) Charged(class reward.AnswerClass) {
	if !m.off() {
		m.calls.WithLabelValues(string(class)).Inc()
	}
}

// LookedUp counts a lookup by its class.
func (m *Metrics) LookedUp(class LookupClass) {
	if !m.off() {
		m.calls.WithLabelValues(string(class)).Inc()
	}
}

// Breached counts a promotion whose books do not balance.
func (m *Metrics) Breached() {
	if !m.off() {
		m.breaches.Inc()
	}
}

// SetBalance records whether the books of a promotion are broken. Only
// promotions with broken books have a series.
func (m *Metrics) SetBalance(id reward.PromotionID, broken bool) {
	if m.off() {
		return
	}
	if broken {
		m.broken.WithLabelValues(id.String()).Set(1)
	} else {
		m.broken.DeleteLabelValues(id.String())
	}
}

// WebhooksDropped counts events that were dropped.
func (m *Metrics) WebhooksDropped(n int) {
	if !m.off() {
		m.webhooksDropped.Add(float64(n))
	}
}

// WebhookEndpoints records the pending deliveries to all webhook endpoints, and how many
// endpoints are disabled.
func (m *Metrics) WebhookEndpoints(backlog, disabled int) {
	if !m.off() {
		m.webhookBacklog.Set(float64(backlog))
		m.webhooksDisabled.Set(float64(disabled))
	}
}

// WebhookAttempted counts an attempt to deliver a webhook by its outcome.
func (m *Metrics) WebhookAttempted(o WebhookOutcome) {
	if !m.off() {
		m.webhooks.WithLabelValues(string(o)).Inc()
	}
}

// PoolTotals is the sum over the pools of an instance.
type PoolTotals struct {
	Pools     int
	Consumers int
	Pending   int // pending entries
}

// PoolsFrom sets the function that returns the pools' totals at each scrape. It
// must be quick and safe for concurrent use.
func (m *Metrics) PoolsFrom(read func() PoolTotals) {
	if !m.off() {
		m.pools.read.Store(&read)
	}
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

// GovernorFrom sets the function that returns the governor's state at each
// scrape. It must be quick and safe for concurrent use.
func (m *Metrics) GovernorFrom(read func() GovernorFigures) {
	if !m.off() {
		m.governor.read.Store(&read)
	}
}

// Governor returns the governor's state, or the zero state if there is none.
func (m *Metrics) Governor() GovernorFigures {
	if m.off() {
		return GovernorFigures{}
	}
	if read := m.governor.read.Load(); read != nil {
		return (*read)()
	}
	return GovernorFigures{}
}

// Built records the version of the program.
func (m *Metrics) Built(version string) {
	if !m.off() {
		m.build.WithLabelValues(version, runtime.Version()).Set(1)
	}
}

// InstancesAlive records how many instances are alive.
func (m *Metrics) InstancesAlive(n int) {
	if !m.off() {
		m.instancesAlive.Set(float64(n))
	}
}

// PromotionsPaused records how many promotions Largesse has paused.
func (m *Metrics) PromotionsPaused(n int) {
	if !m.off() {
		m.promotionsPaused.Set(float64(n))
	}
}

// logged counts a log line if it is a warning or an error.
func (m *Metrics) logged(level slog.Level) {
	if !m.off() && level >= slog.LevelWarn {
		m.logLines.WithLabelValues(strings.ToLower(level.String())).Inc()
	}
}

// PartsFrom sets the function that reports at each scrape, by the part's name,
// whether a part is available. It must limit its duration and be safe for
// concurrent use.
func (m *Metrics) PartsFrom(read func() map[string]bool) {
	if !m.off() {
		m.parts.read.Store(&read)
	}
}

// degraded records whether a part is in trouble.
func (m *Metrics) degraded(part string, is bool) {
	switch {
	case m.off():
	case is:
		m.troubles.WithLabelValues(part).Set(1)
	default:
		m.troubles.WithLabelValues(part).Set(0)
	}
}

// SetStream records the state of a promotion's stream: its length, the unread
// entries (lag), the pending ones, and the age of the oldest pending entry
// (zero without any).
func (m *Metrics) SetStream(t reward.PromotionType, id reward.PromotionID, length, lag, pending int64, oldestPendingAge time.Duration) {
	if m.off() {
		return
	}
	m.streams.mu.Lock()
	defer m.streams.mu.Unlock()
	m.streams.streams[id] = streamFigures{promotionType: t, values: [streamGauges]float64{
		float64(length), float64(lag), float64(pending), max(oldestPendingAge, 0).Seconds(),
	}}
}

// KeepStreams drops every stream but those of the current promotions, so that
// their series end.
func (m *Metrics) KeepStreams(current []reward.PromotionID) {
	if m.off() {
		return
	}
	keep := make(map[reward.PromotionID]bool, len(current))
	for _, id := range current {
		keep[id] = true
	}
	m.streams.mu.Lock()
	defer m.streams.mu.Unlock()
	maps.DeleteFunc(m.streams.streams, func(id reward.PromotionID, _ streamFigures) bool { return !keep[id] })
}

// partCollector checks the parts at each scrape.
type partCollector struct {
	up   *prometheus.Desc
	read atomic.Pointer[func() map[string]bool]
}

func newPartCollector() partCollector {
	return partCollector{up: prometheus.NewDesc("largesse_up", "1 if the part is available to this instance, else 0.", []string{"part"}, nil)}
}

// Describe implements prometheus.Collector.
func (c *partCollector) Describe(out chan<- *prometheus.Desc) { out <- c.up }

// Collect checks every part.
func (c *partCollector) Collect(out chan<- prometheus.Metric) {
	read := c.read.Load()
	if read == nil {
		return
	}
	for part, up := range (*read)() {
		value := 0.0
		if up {
			value = 1
		}
		out <- prometheus.MustNewConstMetric(c.up, prometheus.GaugeValue, value, part)
	}
}

// poolCollector reads the pools at each scrape.
type poolCollector struct {
	pools, consumers, pending *prometheus.Desc
	read                      atomic.Pointer[func() PoolTotals]
}

func newPoolCollector() poolCollector {
	return poolCollector{
		pools:     prometheus.NewDesc("largesse_pools", "Consumer pools of this instance, at most one per promotion.", nil, nil),
		consumers: prometheus.NewDesc("largesse_consumers", "Registered consumers of all pools of this instance.", nil, nil),
		pending:   prometheus.NewDesc("largesse_entries_in_hand", "Pending stream entries of this instance: delivered to its consumers and not acknowledged.", nil, nil),
	}
}

// Describe implements prometheus.Collector.
func (c *poolCollector) Describe(out chan<- *prometheus.Desc) {
	out <- c.pools
	out <- c.consumers
	out <- c.pending
}

// Collect reads all gauges at the same moment.
func (c *poolCollector) Collect(out chan<- prometheus.Metric) {
	var t PoolTotals
	if read := c.read.Load(); read != nil {
		t = (*read)()
	}
	out <- prometheus.MustNewConstMetric(c.pools, prometheus.GaugeValue, float64(t.Pools))
	out <- prometheus.MustNewConstMetric(c.consumers, prometheus.GaugeValue, float64(t.Consumers))
	out <- prometheus.MustNewConstMetric(c.pending, prometheus.GaugeValue, float64(t.Pending))
}

// governorCollector reads the governor at each scrape.
type governorCollector struct {
	limit, waiting, breakerOpen, ratesAway *prometheus.Desc
	read                                   atomic.Pointer[func() GovernorFigures]
}

func newGovernorCollector() governorCollector {
	gauge := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc("largesse_governor_"+name, help, nil, nil)
	}
	return governorCollector{
		limit:       gauge("limit", "Maximum calls to the provider in flight on this instance, adapted to the provider's responses."),
		waiting:     gauge("waiting", "Calls to the provider that wait on this instance."),
		breakerOpen: gauge("breaker_open", "1 while the provider does not respond and gets only probes, else 0."),
		ratesAway:   gauge("rates_away", "1 while rates are not shared and this instance uses its share of them, else 0."),
	}
}

// Describe implements prometheus.Collector.
func (c *governorCollector) Describe(out chan<- *prometheus.Desc) {
	out <- c.limit
	out <- c.waiting
	out <- c.breakerOpen
	out <- c.ratesAway
}

// Collect reads all gauges at the same moment.
func (c *governorCollector) Collect(out chan<- prometheus.Metric) {
	var f GovernorFigures
	if read := c.read.Load(); read != nil {
		f = (*read)()
	}
	one := map[bool]float64{true: 1}
	out <- prometheus.MustNewConstMetric(c.limit, prometheus.GaugeValue, float64(f.Limit))
	out <- prometheus.MustNewConstMetric(c.waiting, prometheus.GaugeValue, float64(f.Waiting))
	out <- prometheus.MustNewConstMetric(c.breakerOpen, prometheus.GaugeValue, one[f.BreakerOpen])
	out <- prometheus.MustNewConstMetric(c.ratesAway, prometheus.GaugeValue, one[f.RatesUnshared])
}

// streamGauges is the number of gauges of a stream.
const streamGauges = 4

// streamFigures is the state of a stream as SetStream got it, in the order of
// the gauges.
type streamFigures struct {
	promotionType reward.PromotionType
	values        [streamGauges]float64
}

// streamCollector has the gauges of the current streams. The values of one
// stream always belong together.
type streamCollector struct {
	descs [streamGauges]*prometheus.Desc

	mu      sync.Mutex // protects streams
	streams map[reward.PromotionID]streamFigures
}

func newStreamCollector() streamCollector {
	gauge := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc("largesse_stream_"+name, help, []string{"promotion_id", "type"}, nil)
	}
	return streamCollector{
		descs: [streamGauges]*prometheus.Desc{
			gauge("length", "Entries in a promotion's stream: dispatched and unfinished."),
			gauge("lag", "Entries in a promotion's stream that no consumer has read."),
			gauge("pending", "Pending entries in a promotion's stream: delivered and not acknowledged."),
			gauge("oldest_pending_age_seconds", "Seconds since the oldest pending entry of a promotion's stream was added; 0 if none is pending."),
		},
		streams: make(map[reward.PromotionID]streamFigures),
	}
}

// Describe implements prometheus.Collector.
func (c *streamCollector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range c.descs {
		out <- d
	}
}

// Collect returns the latest state of each stream.
func (c *streamCollector) Collect(out chan<- prometheus.Metric) {
	c.mu.Lock()
	streams := maps.Clone(c.streams)
	c.mu.Unlock()
	for id, s := range streams {
		for i, v := range s.values {
			out <- prometheus.MustNewConstMetric(c.descs[i], prometheus.GaugeValue, v,
				strconv.FormatInt(int64(id), 10), string(s.promotionType))
		}
	}
}

// RequestAnswered counts an API request by its operation ("" for an unknown
// path) and HTTP status (0 for a request cut off without a response).
func (m *Metrics) RequestAnswered(operation string, status int) {
	if !m.off() {
		m.requests.WithLabelValues(operation, strconv.Itoa(status)).Inc()
	}
}

// RequestTook records how long an API request took, by its operation and status as
// RequestAnswered gets them.
func (m *Metrics) RequestTook(operation string, status int, took time.Duration) {
	if m.off() {
		return
	}
	class := "0"
	if status > 0 {
		class = strconv.Itoa(status/100) + "xx"
	}
	m.requestSeconds.WithLabelValues(operation, class).Observe(took.Seconds())
}

// DatabaseCalled records how long a call of the database took. call must be a constant
// of Largesse, because each value creates series.
func (m *Metrics) DatabaseCalled(call string, took time.Duration) {
	if !m.off() {
		m.databaseSeconds.WithLabelValues(call).Observe(took.Seconds())
	}
}

// Refused counts an API request that was refused because of its caller.
func (m *Metrics) Refused(status int) {
	if !m.off() {
		m.refusals.WithLabelValues(strconv.Itoa(status)).Inc()
	}
}

// CouponAsked counts a coupon request by its answer.
func (m *Metrics) CouponAsked(answer string) {
	if !m.off() {
		m.couponAsks.WithLabelValues(answer).Inc()
	}
}

// TemplateAsked records the answer to a coupon request of a template that exists,
// for the timeline: whether it got a coupon at once, or was refused.
func (m *Metrics) TemplateAsked(id reward.TemplateID, issued, refused bool) {
	if m.off() {
		return
	}
	m.timeline.template(id, func(s *TemplateSums) {
		s.Asked++
		if issued {
			s.Issued++
		}
		if refused {
			s.Refused++
		}
	})
}

// CouponsIssued counts coupons issued to users in line.
func (m *Metrics) CouponsIssued(id reward.TemplateID, n int) {
	if !m.off() && n > 0 {
		m.coupons.WithLabelValues("ISSUED").Add(float64(n))
		m.timeline.template(id, func(s *TemplateSums) { s.Issued += int64(n) })
	}
}

// CouponLeft counts an admitted request whose user left the waiting line.
func (m *Metrics) CouponLeft() {
	if !m.off() {
		m.coupons.WithLabelValues("LEFT").Inc()
	}
}

// CouponsRejected counts admitted requests that ended without a coupon.
func (m *Metrics) CouponsRejected(id reward.TemplateID, n int) {
	if !m.off() && n > 0 {
		m.coupons.WithLabelValues("REJECTED").Add(float64(n))
		m.timeline.template(id, func(s *TemplateSums) { s.Refused += int64(n) })
	}
}

// HoldsConfirmed counts coupons whose hold was confirmed.
func (m *Metrics) HoldsConfirmed(n int) {
	if !m.off() {
		m.holds.WithLabelValues("CONFIRMED").Add(float64(n))
	}
}

// HoldsExpired counts coupons whose hold was not confirmed in time.
func (m *Metrics) HoldsExpired(n int) {
	if !m.off() {
		m.holds.WithLabelValues("EXPIRED").Add(float64(n))
	}
}

// GateLoaded counts a gate that was loaded from the database.
func (m *Metrics) GateLoaded() {
	if !m.off() {
		m.gateLoads.Inc()
	}
}
