package obs

import (
	"log/slog"
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

// Metrics counts what one instance does. Each Metrics has its own registry, so
// that two engines in one process do not mix. A nil or zero Metrics is usable
// and counts nothing. All methods are safe for concurrent use. docs/metrics.md
// lists the names and meanings.
type Metrics struct {
	registry   *prometheus.Registry // nil: counts nothing
	counters   [len(counters)]*prometheus.CounterVec
	gauges     [len(gauges)]*prometheus.GaugeVec
	histograms [len(histograms)]*prometheus.HistogramVec
	scrapes    [len(scrapes)]scraper
	governor   atomic.Pointer[func() GovernorFigures]

	promotions sums[reward.PromotionID, PromotionSums]
	templates  sums[reward.TemplateID, TemplateSums]

	streamsMu sync.Mutex // protects streams
	streams   map[reward.PromotionID]series
}

// definition describes a metric that has a value before it is scraped.
type definition struct {
	name, help string
	labels     []string
	// from lists values of the only label. A series that exists from the start has a rate
	// from its first event on.
	from    []string
	buckets []float64 // of a histogram
}

// These index the counters, gauges and histograms of a Metrics.
const (
	claims = iota
	sweeps
	poolStarts
	idleStops
	deadLetters
	payouts
	calls
	breaches
	webhooks
	webhooksDropped
	couponAsks
	coupons
	holds
	gateLoads
	requests
	refusals
	pointsDropped
	spans
	logLines
)

const (
	callsOpen = iota
	broken
	webhookBacklog
	webhooksDisabled
	degradedParts
	instancesAlive
	promotionsPaused
	build
)

const (
	callSeconds = iota
	requestSeconds
	databaseSeconds
)

var counters = [...]definition{
	claims:     {name: "largesse_claims_total", help: "Stream entries that this instance claimed after another consumer's lease had expired."},
	sweeps:     {name: "largesse_sweeps_total", help: "Payouts that the sweeper returned to READY because no stream contained them."},
	poolStarts: {name: "largesse_pool_starts_total", help: "Consumer pools that this instance started."},
	idleStops:  {name: "largesse_idle_stops_total", help: "Consumer pools that this instance stopped because they were idle."},
	deadLetters: {
		name: "largesse_dead_letters_total", help: "Messages that this instance could not read or process and stored as dead letters, by reason.",
		labels: []string{"reason"},
		from: []string{
			reward.CodeMalformed, reward.CodeTypeMismatch, reward.CodeConflict, reward.CodeInvalid, reward.CodePoison,
			reward.CodeNeverGiven, reward.CodeAmountOverflow, reward.CodeArchived, reward.CodeTemplateNotFound,
		},
	},
	payouts: {
		name: "largesse_payouts_total", help: "Outcomes that this instance wrote, by the resulting state of the payout.", labels: []string{"outcome"},
		from: []string{
			reward.Succeeded.String(), reward.Failed.String(), reward.Retrying.String(), reward.Unknown.String(), reward.Cancelled.String(),
		},
	},
	calls: {
		name: "largesse_provider_calls_total", help: "Calls to the provider, by class of the response; lookups have their own classes (LOOKUP_…).",
		labels: []string{"class"},
		from: append(
			texts(reward.AnswerPaid, reward.AnswerRefused, reward.AnswerFailed, reward.AnswerUnknown, reward.AnswerThrottled,
				reward.AnswerMisconfigured, reward.AnswerNotSent),
			texts(LookupFound, LookupNotFound, LookupOpen)...),
	},
	breaches: {name: "largesse_balance_breaches_total", help: "Times that the books of a promotion were found out of balance, or that a payout was charged twice."},
	webhooks: {
		name: "largesse_webhooks_total", help: "Attempts of this instance to deliver a webhook, by outcome.", labels: []string{"outcome"},
		from: texts(WebhookDelivered, WebhookRetried, WebhookAbandoned),
	},
	webhooksDropped: {name: "largesse_webhook_events_dropped_total", help: "Events that this instance dropped because too many deliveries to their webhook endpoint were pending."},
	couponAsks: {
		name: "largesse_coupon_asks_total", help: "Coupon requests that this instance answered, by answer: WAITING, ISSUED, or the code of the refusal.",
		labels: []string{"answer"},
	},
	coupons: {
		name: "largesse_coupons_total", help: "Admitted coupon requests that this instance settled: ISSUED, REJECTED or LEFT (the waiting line).",
		labels: []string{"outcome"},
	},
	holds: {
		name: "largesse_coupon_holds_total", help: "Holds of coupons that this instance ended: CONFIRMED, or EXPIRED because nobody confirmed in time.",
		labels: []string{"outcome"},
	},
	gateLoads: {name: "largesse_gate_loads_total", help: "Gates that this instance loaded from the database."},
	requests: {
		name: "largesse_http_requests_total", help: "API requests that this instance answered, by operation and HTTP status.",
		labels: []string{"operation", "status"},
	},
	refusals: {
		name: "largesse_http_refusals_total", help: "API requests that were refused because of their caller, by HTTP status: 401, 403, 421, or 429 after many wrong API keys.",
		labels: []string{"status"},
	},
	pointsDropped: {name: "largesse_timeline_points_dropped_total", help: "Points of timelines that this instance could not store."},
	spans: {
		name: "largesse_trace_spans_total", help: "Spans of sampled traces, by result: EXPORTED, FAILED (the collector did not take them) or DROPPED (the queue was full).",
		labels: []string{"result"}, from: texts(SpanExported, SpanFailed, SpanDropped),
	},
	logLines: {
		name: "largesse_log_lines_total", help: "Warnings and errors that this instance logged, whatever log.level is.", labels: []string{"level"},
		from: []string{levelName(slog.LevelWarn), levelName(slog.LevelError)},
	},
}

var gauges = [...]definition{
	callsOpen:        {name: "largesse_provider_calls_open", help: "Calls to the provider in flight, including lookups."},
	broken:           {name: "largesse_balance_broken", help: "1 while the books of the promotion do not balance.", labels: []string{"promotion_id"}},
	webhookBacklog:   {name: "largesse_webhook_backlog", help: "Pending deliveries to all webhook endpoints, measured once a minute by each instance with the role housekeeping."},
	webhooksDisabled: {name: "largesse_webhook_endpoints_disabled", help: "Disabled webhook endpoints, measured like the backlog."},
	degradedParts:    {name: "largesse_degraded", help: "1 while a part of this instance is degraded; /readyz gives the reason.", labels: []string{"part"}},
	instancesAlive:   {name: "largesse_instances_alive", help: "Instances that are alive, as this instance last saw it."},
	promotionsPaused: {name: "largesse_promotions_paused", help: "PAUSED promotions that Largesse paused, as this instance last saw them. Those that a person paused, or has to approve, do not count."},
	build:            {name: "largesse_build_info", help: "1, with the version of Largesse and of Go.", labels: []string{"version", "go_version"}},
}

// The buckets are in seconds. Those of requests and of calls of the database are few,
// because each operation and each call has its own.
var histograms = [...]definition{
	callSeconds: {
		name:    "largesse_provider_call_seconds",
		help:    "Seconds from the start of a call to the provider (including the dial, excluding the wait for a free slot) to the end of its response, for charges and lookups that were sent.",
		buckets: []float64{0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30},
	},
	requestSeconds: {
		name:    "largesse_http_request_seconds",
		help:    "Seconds from the header of an API request to the end of its answer, by operation and class of the HTTP status; an event stream until its first byte, and no requests with Prefer: wait.",
		labels:  []string{"operation", "class"},
		buckets: []float64{0.005, 0.025, 0.1, 0.5, 1, 2.5, 10},
	},
	databaseSeconds: {
		name:    "largesse_database_call_seconds",
		help:    "Seconds that a call of the database took, with the wait for a connection and repeated tries.",
		labels:  []string{"call"},
		buckets: []float64{0.002, 0.01, 0.05, 0.2, 0.5, 2, 10},
	},
}

func texts[T ~string](values ...T) []string {
	out := make([]string, len(values))
	for i, v := range values {
		out[i] = string(v)
	}
	return out
}

func levelName(l slog.Level) string { return strings.ToLower(l.String()) }

// NewMetrics returns a Metrics that counts.
func NewMetrics() *Metrics {
	m := &Metrics{registry: prometheus.NewRegistry(), streams: make(map[reward.PromotionID]series)}
	m.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	for i, d := range counters {
		m.counters[i] = register(m, d, prometheus.NewCounterVec(prometheus.CounterOpts{Name: d.name, Help: d.help}, d.labels))
	}
	for i, d := range gauges {
		m.gauges[i] = register(m, d, prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: d.name, Help: d.help}, d.labels))
	}
	for i, d := range histograms {
		m.histograms[i] = register(m, d, prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: d.name, Help: d.help, Buckets: d.buckets}, d.labels))
	}
	for i := range m.scrapes {
		m.scrapes[i].descs = scrapes[i].descs()
		m.registry.MustRegister(&m.scrapes[i])
	}
	m.scrapesFrom()
	return m
}

// register registers a metric with the series that exist from the start.
func register[T any, V interface {
	prometheus.Collector
	WithLabelValues(values ...string) T
}](m *Metrics, d definition, vec V) V {
	for _, value := range d.from {
		vec.WithLabelValues(value)
	}
	if len(d.labels) == 0 {
		vec.WithLabelValues()
	}
	m.registry.MustRegister(vec)
	return vec
}

func (m *Metrics) off() bool { return m == nil || m.registry == nil }

func (m *Metrics) add(counter, n int, labels ...string) {
	if !m.off() {
		m.counters[counter].WithLabelValues(labels...).Add(float64(n))
	}
}

func (m *Metrics) set(gauge int, value float64, labels ...string) {
	if !m.off() {
		m.gauges[gauge].WithLabelValues(labels...).Set(value)
	}
}

func (m *Metrics) observe(histogram int, took time.Duration, labels ...string) {
	if !m.off() {
		m.histograms[histogram].WithLabelValues(labels...).Observe(took.Seconds())
	}
}

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
func (m *Metrics) Claimed(entries int) { m.add(claims, entries) }

// Swept counts payouts that the sweeper returned to READY.
func (m *Metrics) Swept(payouts int) { m.add(sweeps, payouts) }

// PoolStarted counts a started pool.
func (m *Metrics) PoolStarted() { m.add(poolStarts, 1) }

// PoolIdleStopped counts a pool that stopped because it was idle.
func (m *Metrics) PoolIdleStopped() { m.add(idleStops, 1) }

// SpansEnded counts spans by how they ended.
func (m *Metrics) SpansEnded(result SpanResult, n int) { m.add(spans, n, string(result)) }

// DeadLettered counts dead letters. reason must be a code of Largesse, never
// external text, because each value creates a series.
func (m *Metrics) DeadLettered(reason string, messages int) { m.add(deadLetters, messages, reason) }

// Finished counts a payout by the state in which an outcome of this instance left it.
func (m *Metrics) Finished(id reward.PromotionID, after reward.State, amount reward.Amount) {
	if m.off() {
		return
	}
	m.add(payouts, 1, after.String())
	m.promotions.add(id, func(s *PromotionSums) {
		switch after {
		case reward.Succeeded:
			s.Succeeded++
			s.Amount += amount
		case reward.Failed:
			s.Failed++
		case reward.Retrying:
			s.Retrying++
		case reward.Unknown:
			s.Unknown++
		}
	})
}

// ChargeTook records the duration of a charge that was sent, for the timeline.
func (m *Metrics) ChargeTook(id reward.PromotionID, took time.Duration) {
	if !m.off() {
		m.promotions.add(id, func(s *PromotionSums) { s.called(took) })
	}
}

// CallOpened counts a call to the provider as in flight, until CallEnded.
func (m *Metrics) CallOpened() {
	if !m.off() {
		m.gauges[callsOpen].WithLabelValues().Inc()
	}
}

// CallEnded ends a call that CallOpened counted. If timed is set, its duration
// is observed: callers set it for charges and lookups that were sent.
func (m *Metrics) CallEnded(timed bool, took time.Duration) {
	if !m.off() {
		m.gauges[callsOpen].WithLabelValues().Dec()
	}
	if timed {
		m.observe(callSeconds, took)
	}
}

// Charged counts a charge by its class.
func (m *Metrics) Charged(class reward.AnswerClass) { m.add(calls, 1, string(class)) }

// LookedUp counts a lookup by its class.
func (m *Metrics) LookedUp(class LookupClass) { m.add(calls, 1, string(class)) }

// Breached counts a promotion whose books do not balance.
func (m *Metrics) Breached() { m.add(breaches, 1) }

// SetBalance records whether the books of a promotion are broken. Only
// promotions with broken books have a series.
func (m *Metrics) SetBalance(id reward.PromotionID, isBroken bool) {
	switch {
	case isBroken:
		m.set(broken, 1, id.String())
	case !m.off():
		m.gauges[broken].DeleteLabelValues(id.String())
	}
}

// WebhooksDropped counts events that were dropped.
func (m *Metrics) WebhooksDropped(n int) { m.add(webhooksDropped, n) }

// WebhookEndpoints records the pending deliveries to all webhook endpoints, and how many
// endpoints are disabled.
func (m *Metrics) WebhookEndpoints(backlog, disabled int) {
	m.set(webhookBacklog, float64(backlog))
	m.set(webhooksDisabled, float64(disabled))
}

// WebhookAttempted counts an attempt to deliver a webhook by its outcome.
func (m *Metrics) WebhookAttempted(o WebhookOutcome) { m.add(webhooks, 1, string(o)) }

// Built records the version of the program.
func (m *Metrics) Built(version string) { m.set(build, 1, version, runtime.Version()) }

// InstancesAlive records how many instances are alive.
func (m *Metrics) InstancesAlive(n int) { m.set(instancesAlive, float64(n)) }

// PromotionsPaused records how many promotions Largesse has paused.
func (m *Metrics) PromotionsPaused(n int) { m.set(promotionsPaused, float64(n)) }

// logged counts a log line if it is a warning or an error.
func (m *Metrics) logged(level slog.Level) {
	if level >= slog.LevelWarn {
		m.add(logLines, 1, levelName(level))
	}
}

func (m *Metrics) degraded(part string, is bool) { m.set(degradedParts, oneIf(is), part) }

// RequestAnswered counts an API request by its operation ("" for an unknown
// path) and HTTP status (0 for a request cut off without a response).
func (m *Metrics) RequestAnswered(operation string, status int) {
	m.add(requests, 1, operation, strconv.Itoa(status))
}

// RequestTook records how long an API request took, by its operation and status as
// RequestAnswered gets them.
func (m *Metrics) RequestTook(operation string, status int, took time.Duration) {
	class := "0"
	if status > 0 {
		class = strconv.Itoa(status/100) + "xx"
	}
	m.observe(requestSeconds, took, operation, class)
}

// DatabaseCalled records how long a call of the database took. call must be a constant
// of Largesse, because each value creates series.
func (m *Metrics) DatabaseCalled(call string, took time.Duration) {
	m.observe(databaseSeconds, took, call)
}

// Refused counts an API request that was refused because of its caller.
func (m *Metrics) Refused(status int) { m.add(refusals, 1, strconv.Itoa(status)) }

// CouponAsked counts a coupon request by its answer.
func (m *Metrics) CouponAsked(answer string) { m.add(couponAsks, 1, answer) }

// TemplateAsked records the answer to a coupon request of a template that exists,
// for the timeline: whether it got a coupon at once, or the code of its refusal.
func (m *Metrics) TemplateAsked(id reward.TemplateID, issued bool, refusal string) {
	if m.off() {
		return
	}
	m.templates.add(id, func(s *TemplateSums) {
		s.Asked++
		if issued {
			s.Issued++
		}
		if refusal != "" {
			s.refused(refusal)
		}
	})
}

// CouponsIssued counts coupons issued to users in line.
func (m *Metrics) CouponsIssued(id reward.TemplateID, n int) {
	if !m.off() && n > 0 {
		m.add(coupons, n, "ISSUED")
		m.templates.add(id, func(s *TemplateSums) { s.Issued += int64(n) })
	}
}

// CouponLeft counts an admitted request whose user left the waiting line.
func (m *Metrics) CouponLeft() { m.add(coupons, 1, "LEFT") }

// CouponRejected counts an admitted request that ended without a coupon.
func (m *Metrics) CouponRejected(id reward.TemplateID, reason string) {
	if !m.off() {
		m.add(coupons, 1, "REJECTED")
		m.templates.add(id, func(s *TemplateSums) { s.refused(reason) })
	}
}

// HoldsConfirmed counts coupons whose hold was confirmed.
func (m *Metrics) HoldsConfirmed(n int) { m.add(holds, n, "CONFIRMED") }

// HoldsExpired counts coupons whose hold was not confirmed in time.
func (m *Metrics) HoldsExpired(n int) { m.add(holds, n, "EXPIRED") }

// GateLoaded counts a gate that was loaded from the database.
func (m *Metrics) GateLoaded() { m.add(gateLoads, 1) }
