package obs

import (
	"maps"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/largesse/largesse/internal/reward"
)

// LookupClass is what came of asking the provider about a key; it stands
// beside the classes of charges in largesse_provider_calls_total.
type LookupClass string

// The classes of look-ups.
const (
	LookupFound    LookupClass = "LOOKUP_FOUND"     // charged
	LookupNotFound LookupClass = "LOOKUP_NOT_FOUND" // the provider does not know the key
	LookupOpen     LookupClass = "LOOKUP_OPEN"      // it could not be asked, or could not tell
)

// WebhookOutcome is what came of telling a webhook.
type WebhookOutcome string

// The outcomes of a delivery.
const (
	WebhookHeard   WebhookOutcome = "HEARD"    // the receiver said 2xx
	WebhookLater   WebhookOutcome = "LATER"    // it did not; tried again
	WebhookGivenUp WebhookOutcome = "GIVEN_UP" // never tried again
)

// callBuckets are the bounds of the seconds a provider's call takes.
var callBuckets = []float64{0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30}

// Metrics counts what one instance does. Each is a registry of its own, so
// that two engines in one process do not mix. A nil or zero Metrics is usable
// and counts nothing. All methods are safe for concurrent use; names and
// meanings are listed in docs/metrics.md.
type Metrics struct {
	registry *prometheus.Registry // nil: nothing is counted

	claims, sweeps        prometheus.Counter
	poolStarts, idleStops prometheus.Counter
	deadLetters, payouts  *prometheus.CounterVec
	calls                 *prometheus.CounterVec
	callSeconds           prometheus.Histogram
	callsOpen             prometheus.Gauge
	breaches              prometheus.Counter
	broken                *prometheus.GaugeVec
	webhooks              *prometheus.CounterVec
	couponAsks, coupons   *prometheus.CounterVec
	gateLoads             prometheus.Counter
	requests              *prometheus.CounterVec

	pools    poolCollector
	parts    partCollector
	governor governorCollector
	streams  streamCollector
}

// NewMetrics makes a Metrics that counts.
func NewMetrics() *Metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	counters := func(name, help, label string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{label})
	}
	m := &Metrics{
		registry:   prometheus.NewRegistry(),
		claims:     counter("largesse_claims_total", "Stream entries that this instance claimed from consumers whose lease had run out."),
		sweeps:     counter("largesse_sweeps_total", "Payouts that the sweeper returned to READY because no stream held them any more."),
		poolStarts: counter("largesse_pool_starts_total", "Pools of consumers that this instance started."),
		idleStops:  counter("largesse_idle_stops_total", "Pools that this instance stopped because they had nothing to do."),
		deadLetters: counters("largesse_dead_letters_total",
			"Messages that this instance could not read or process and set aside, by reason.", "reason"),
		payouts: counters("largesse_payouts_total", "Outcomes that this instance wrote, by the state of the payout after it.", "outcome"),
		calls: counters("largesse_provider_calls_total",
			"Calls of the provider, by what came of them; look-ups have classes of their own (LOOKUP_…).", "class"),
		callSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "largesse_provider_call_seconds", Buckets: callBuckets,
			Help: "Seconds from the start of a provider's call (the dial included, the wait for a free call not) to the end of its answer, of charges and look-ups that left.",
		}),
		callsOpen: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "largesse_provider_calls_open", Help: "Calls of the provider, look-ups included, that are open now.",
		}),
		breaches: counter("largesse_balance_breaches_total", "Times that the books of a promotion were found out of balance."),
		broken: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "largesse_balance_broken", Help: "1 while the books of the promotion do not balance.",
		}, []string{"promotion_id"}),
		webhooks: counters("largesse_webhooks_total", "Tries of this instance to tell a webhook, by what came of them.", "outcome"),
		couponAsks: counters("largesse_coupon_asks_total",
			"Asks for a coupon that this instance answered, by the answer: WAITING, ISSUED, or the code of the refusal.", "answer"),
		coupons: counters("largesse_coupons_total",
			"Accepted requests for a coupon that this instance settled: ISSUED or REJECTED.", "outcome"),
		gateLoads: counter("largesse_gate_loads_total", "Gates that this instance loaded from rows."),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "largesse_http_requests_total", Help: "Requests to the API that this instance answered, by operation and HTTP status.",
		}, []string{"operation", "status"}),
		pools:    newPoolCollector(),
		parts:    newPartCollector(),
		governor: newGovernorCollector(),
		streams:  newStreamCollector(),
	}
	m.registry.MustRegister(
		m.claims, m.sweeps, m.poolStarts, m.idleStops, m.deadLetters, m.payouts, m.calls, m.callSeconds, m.callsOpen,
		m.breaches, m.broken, m.webhooks, m.couponAsks, m.coupons, m.gateLoads, m.requests,
		&m.pools, &m.parts, &m.governor, &m.streams,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	// A series that is there from the start has a rate from its first event on.
	for _, s := range []reward.State{reward.Succeeded, reward.Failed, reward.Retrying, reward.Unknown, reward.Cancelled} {
		m.payouts.WithLabelValues(s.String())
	}
	for _, c := range []reward.AnswerClass{
		reward.AnswerPaid, reward.AnswerRefused, reward.AnswerFailed, reward.AnswerUnknown, reward.AnswerThrottled, reward.AnswerMisset, reward.AnswerUnsent,
	} {
		m.calls.WithLabelValues(string(c))
	}
	for _, c := range []LookupClass{LookupFound, LookupNotFound, LookupOpen} {
		m.calls.WithLabelValues(string(c))
	}
	for _, o := range []WebhookOutcome{WebhookHeard, WebhookLater, WebhookGivenUp} {
		m.webhooks.WithLabelValues(string(o))
	}
	for _, reason := range []string{reward.CodeMalformed, reward.CodeTypeMismatch, reward.CodeConflict, reward.CodeInvalid, reward.CodePoison} {
		m.deadLetters.WithLabelValues(reason)
	}
	return m
}

// off says that nothing is counted.
func (m *Metrics) off() bool { return m == nil || m.registry == nil }

// Handler shows everything in the text format of Prometheus; nothing at all
// when nothing is counted.
func (m *Metrics) Handler() http.Handler {
	registry := prometheus.NewRegistry()
	if !m.off() {
		registry = m.registry
	}
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
}

// Claimed counts entries that were claimed.
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

// PoolStarted counts a pool that was started.
func (m *Metrics) PoolStarted() {
	if !m.off() {
		m.poolStarts.Inc()
	}
}

// PoolIdleStopped counts a pool that stopped because it had nothing to do.
func (m *Metrics) PoolIdleStopped() {
	if !m.off() {
		m.idleStops.Inc()
	}
}

// DeadLettered counts messages that were set aside. reason is one of our
// codes, never text from outside: each makes a series.
func (m *Metrics) DeadLettered(reason string, messages int) {
	if !m.off() {
		m.deadLetters.WithLabelValues(reason).Add(float64(messages))
	}
}

// Finished counts payouts that an outcome of this instance left in a state.
func (m *Metrics) Finished(after reward.State, payouts int) {
	if !m.off() {
		m.payouts.WithLabelValues(after.String()).Add(float64(payouts))
	}
}

// CallOpened counts a call of the provider, from now until CallEnded, as open.
func (m *Metrics) CallOpened() {
	if !m.off() {
		m.callsOpen.Inc()
	}
}

// CallEnded ends what CallOpened began. Only a charge or a look-up that has left
// (timed) says how long the provider takes.
func (m *Metrics) CallEnded(timed bool, took time.Duration) {
	if m.off() {
		return
	}
	m.callsOpen.Dec()
	if timed {
		m.callSeconds.Observe(took.Seconds())
	}
}

// Charged counts a charge by what came of it.
func (m *Metrics) Charged(class reward.AnswerClass) {
	if !m.off() {
		m.calls.WithLabelValues(string(class)).Inc()
	}
}

// LookedUp counts a look-up by what came of it.
func (m *Metrics) LookedUp(class LookupClass) {
	if !m.off() {
		m.calls.WithLabelValues(string(class)).Inc()
	}
}

// Breached counts a promotion whose books were found out of balance.
func (m *Metrics) Breached() {
	if !m.off() {
		m.breaches.Inc()
	}
}

// SetBalance tells whether the books of a promotion balance. Only those that do
// not have a series.
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

// WebhookTold counts a try to tell a webhook by what came of it.
func (m *Metrics) WebhookTold(o WebhookOutcome) {
	if !m.off() {
		m.webhooks.WithLabelValues(string(o)).Inc()
	}
}

// PoolTotals is what the pools of an instance add up to.
type PoolTotals struct {
	Pools     int
	Consumers int
	InHand    int // entries read and not yet settled
}

// PoolsFrom has the pools asked at every scrape. read must be quick and safe
// for concurrent use.
func (m *Metrics) PoolsFrom(read func() PoolTotals) {
	if !m.off() {
		m.pools.read.Store(&read)
	}
}

// GovernorFigures is how the governor of an instance's calls stands.
type GovernorFigures struct {
	Limit       int  // calls that may be open
	Waiting     int  // calls that wait to be opened
	BreakerOpen bool // the provider shows no sign of life
	RatesAway   bool // rates cannot be shared with the other instances
}

// GovernorFrom has the governor asked at every scrape. read must be quick and
// safe for concurrent use.
func (m *Metrics) GovernorFrom(read func() GovernorFigures) {
	if !m.off() {
		m.governor.read.Store(&read)
	}
}

// PartsFrom has the parts asked at every scrape whether they answer. read
// returns that by the part's name; it must be bounded, and safe for concurrent
// use.
func (m *Metrics) PartsFrom(read func() map[string]bool) {
	if !m.off() {
		m.parts.read.Store(&read)
	}
}

// SetStream tells how the stream of a promotion stands: its entries, those that
// nobody has read (lag), those read and not settled (pending), and the age of
// the oldest of these (0 without any).
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

// KeepStreams forgets every stream that SetStream has told of but for those of
// the current promotions, so that their series end.
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

// partCollector asks the parts when it is asked.
type partCollector struct {
	up   *prometheus.Desc
	read atomic.Pointer[func() map[string]bool]
}

func newPartCollector() partCollector {
	return partCollector{up: prometheus.NewDesc("largesse_up", "Whether a part answers this instance now: 1, or 0.", []string{"part"}, nil)}
}

// Describe names the gauge.
func (c *partCollector) Describe(out chan<- *prometheus.Desc) { out <- c.up }

// Collect asks every part.
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

// poolCollector asks the pools when it is asked.
type poolCollector struct {
	pools, consumers, inHand *prometheus.Desc
	read                     atomic.Pointer[func() PoolTotals]
}

func newPoolCollector() poolCollector {
	return poolCollector{
		pools:     prometheus.NewDesc("largesse_pools", "Pools of consumers that this instance has, one per promotion at most.", nil, nil),
		consumers: prometheus.NewDesc("largesse_consumers", "Consumers that this instance has registered, of all its pools.", nil, nil),
		inHand:    prometheus.NewDesc("largesse_entries_in_hand", "Stream entries that this instance has read and not yet settled.", nil, nil),
	}
}

// Describe names the gauges.
func (c *poolCollector) Describe(out chan<- *prometheus.Desc) {
	out <- c.pools
	out <- c.consumers
	out <- c.inHand
}

// Collect reads all three at the same moment.
func (c *poolCollector) Collect(out chan<- prometheus.Metric) {
	var t PoolTotals
	if read := c.read.Load(); read != nil {
		t = (*read)()
	}
	out <- prometheus.MustNewConstMetric(c.pools, prometheus.GaugeValue, float64(t.Pools))
	out <- prometheus.MustNewConstMetric(c.consumers, prometheus.GaugeValue, float64(t.Consumers))
	out <- prometheus.MustNewConstMetric(c.inHand, prometheus.GaugeValue, float64(t.InHand))
}

// governorCollector asks the governor when it is asked.
type governorCollector struct {
	limit, waiting, breakerOpen, ratesAway *prometheus.Desc
	read                                   atomic.Pointer[func() GovernorFigures]
}

func newGovernorCollector() governorCollector {
	gauge := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc("largesse_governor_"+name, help, nil, nil)
	}
	return governorCollector{
		limit:       gauge("limit", "Calls of the provider that this instance may have open, as the provider's answers allow."),
		waiting:     gauge("waiting", "Calls that wait on this instance to be opened."),
		breakerOpen: gauge("breaker_open", "1 while the provider shows no sign of life and is only probed, else 0."),
		ratesAway:   gauge("rates_away", "1 while rates cannot be shared and this instance keeps to its part of them, else 0."),
	}
}

// Describe names the gauges.
func (c *governorCollector) Describe(out chan<- *prometheus.Desc) {
	out <- c.limit
	out <- c.waiting
	out <- c.breakerOpen
	out <- c.ratesAway
}

// Collect reads all at the same moment.
func (c *governorCollector) Collect(out chan<- prometheus.Metric) {
	var f GovernorFigures
	if read := c.read.Load(); read != nil {
		f = (*read)()
	}
	one := map[bool]float64{true: 1}
	out <- prometheus.MustNewConstMetric(c.limit, prometheus.GaugeValue, float64(f.Limit))
	out <- prometheus.MustNewConstMetric(c.waiting, prometheus.GaugeValue, float64(f.Waiting))
	out <- prometheus.MustNewConstMetric(c.breakerOpen, prometheus.GaugeValue, one[f.BreakerOpen])
	out <- prometheus.MustNewConstMetric(c.ratesAway, prometheus.GaugeValue, one[f.RatesAway])
}

// streamGauges is how many gauges a stream has.
const streamGauges = 4

// streamFigures is what SetStream was told, in the order of the gauges.
type streamFigures struct {
	promotionType reward.PromotionType
	values        [streamGauges]float64
}

// streamCollector shows the gauges of the current streams; the figures of one
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
			gauge("length", "Entries in the stream of a promotion: dispatched and not settled."),
			gauge("lag", "Entries in the stream of a promotion that nobody has read yet."),
			gauge("pending", "Entries in the stream of a promotion that were read and are not settled."),
			gauge("oldest_pending_age_seconds", "Seconds since the oldest pending entry of a promotion's stream was added; 0 when none is pending."),
		},
		streams: make(map[reward.PromotionID]streamFigures),
	}
}

// Describe names the gauges.
func (c *streamCollector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range c.descs {
		out <- d
	}
}

// Collect shows the streams as they were last told of.
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

// RequestAnswered counts a request to the API by its operation ("" = there is
// none at that path) and HTTP status; 0 = cut off without one.
func (m *Metrics) RequestAnswered(operation string, status int) {
	if !m.off() {
		m.requests.WithLabelValues(operation, strconv.Itoa(status)).Inc()
	}
}

// CouponAsked counts an ask for a coupon by its answer.
func (m *Metrics) CouponAsked(answer string) {
	if !m.off() {
		m.couponAsks.WithLabelValues(answer).Inc()
	}
}

// CouponsIssued counts coupons that were issued.
func (m *Metrics) CouponsIssued(n int) {
	if !m.off() {
		m.coupons.WithLabelValues("ISSUED").Add(float64(n))
	}
}

// CouponsRejected counts requests that were accepted and got no coupon.
func (m *Metrics) CouponsRejected(n int) {
	if !m.off() {
		m.coupons.WithLabelValues("REJECTED").Add(float64(n))
	}
}

// GateLoaded counts a gate that was loaded from rows.
func (m *Metrics) GateLoaded() {
	if !m.off() {
		m.gateLoads.Inc()
	}
}
