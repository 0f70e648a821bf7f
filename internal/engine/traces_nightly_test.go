//go:build nightly

package engine

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/bus"
	"github.com/largesse/largesse/internal/config"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/money"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
)

// paysAtOnce is a provider that pays every charge at once.
type paysAtOnce struct{}

func (paysAtOnce) ChargePoint(_ context.Context, c money.Charge, check money.CheckFunc) money.Answer {
	if err := check(); err != nil {
		return money.Answer{Class: reward.AnswerNotSent, Err: err}
	}
	return money.Answer{Class: reward.AnswerPaid, Status: http.StatusOK, TransactionKey: "T-" + c.TargetID.String()}
}

func (p paysAtOnce) ChargeVoucher(ctx context.Context, c money.Charge, check money.CheckFunc) money.Answer {
	return p.ChargePoint(ctx, c, check)
}

func (paysAtOnce) Lookup(context.Context, reward.PromotionID, reward.TargetID) money.LookupResult {
	return money.LookupResult{}
}

// tracedEngine is a kind of engine of BenchmarkTraces, with what its rounds took.
type tracedEngine struct {
	name      string
	header    string // traceparent of each record; empty: none
	endpoint  string
	sample    int
	spans     map[string]float64 // by their result
	rates     []float64          // payouts per second
	cpuMicros []float64          // CPU microseconds of this process per payout
}

var spansOf = regexp.MustCompile(`largesse_trace_spans_total\{result="([A-Z]+)"\} (\S+)`)

// BenchmarkTraces measures what otel.endpoint costs. Engines with the embedded parts,
// which differ in their traces only, pay records of Kafka one after the other, in each
// round in another order. It reports the medians, and each divided by that without traces. Run it
// with -benchtime 9x: each iteration is a round.
func BenchmarkTraces(b *testing.B) {
	const targets = 4000
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		_, _ = io.Copy(io.Discard, req.Body)
	}))
	defer collector.Close()
	normal := config.Default().Otel.SampleOneIn
	engines := []*tracedEngine{
		{name: "off", sample: normal},
		{name: "default", endpoint: collector.URL, sample: normal},
		{name: "every-batch", endpoint: collector.URL, sample: 1},
		{name: "every-payout", endpoint: collector.URL, sample: normal, header: kafkaTrace},
	}
	for round := 0; b.Loop(); round++ {
		for i := range engines {
			engines[(i+round)%len(engines)].measure(b, targets)
		}
	}
	off := engines[0]
	for _, t := range engines {
		rate, cpu := median(t.rates), median(t.cpuMicros)
		b.ReportMetric(rate, t.name+"-payouts/s")
		b.ReportMetric(cpu, t.name+"-cpu-µs/payout")
		b.Logf("%-12s payouts/s %6.0f (%.3f of off)  CPU µs/payout %4.0f (%.3f of off)  spans %v", t.name, rate, rate/median(off.rates), cpu, cpu/median(off.cpuMicros), t.spans)
	}
}

// median returns the middle of some values.
func median(values []float64) float64 {
	return slices.Sorted(slices.Values(values))[len(values)/2]
}

// measure starts an engine, and measures it after some targets that warm it up.
func (t *tracedEngine) measure(b *testing.B, targets int) {
	b.Helper()
	cfg := config.Default()
	cfg.Data.Dir, cfg.Otel.Endpoint, cfg.Otel.SampleOneIn = b.TempDir(), t.endpoint, t.sample
	e := fixture.Must(New(cfg, obs.Log{}, WithoutListener(), WithProvider(paysAtOnce{})))(b)
	fixture.OK(b, e.Start(b.Context()))
	t.pay(b, e, 1, targets/4)
	took, cpu := t.pay(b, e, 2, targets)
	e.Stop()
	t.rates = append(t.rates, float64(targets)/took.Seconds())
	t.cpuMicros = append(t.cpuMicros, float64(cpu.Microseconds())/float64(targets))
	page := httptest.NewRecorder()
	e.metrics.Handler().ServeHTTP(page, httptest.NewRequestWithContext(b.Context(), http.MethodGet, "/metrics", nil))
	if t.spans == nil {
		t.spans = map[string]float64{}
	}
	for _, m := range spansOf.FindAllStringSubmatch(page.Body.String(), -1) {
		n := fixture.Must(strconv.ParseFloat(m[2], 64))(b)
		t.spans[m[1]] += n
	}
}

// pay publishes a promotion's targets and returns the time, and the CPU time of this
// process, until all are paid.
func (t *tracedEngine) pay(b *testing.B, e *Engine, id reward.PromotionID, targets int) (took, cpu time.Duration) {
	b.Helper()
	post := func(path, body string) {
		req := httptest.NewRequestWithContext(b.Context(), http.MethodPost, "http://any.example/v1/promotions"+path, strings.NewReader(body))
		req.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		if e.Handler().ServeHTTP(w, req); w.Code >= 300 {
			b.Fatalf("%s: %d %s", path, w.Code, w.Body)
		}
	}
	post("", fmt.Sprintf(`{"id":"%d","name":"bench","type":"POINT","amount":5}`, id))
	post(fmt.Sprintf("/%d/start", id), "")
	records := make([]bus.Record, targets)
	for n := range records {
		records[n] = bus.Record{
			Topic: bus.TopicPointPublish, Key: []byte(strconv.Itoa(n)),
			Value: fmt.Appendf(nil, `{"promotionId":%d,"targetId":%d,"userId":"u%d","amount":5}`, id, n, n),
		}
		if t.header != "" {
			records[n].Headers = []bus.Header{{Key: "traceparent", Value: []byte(t.header)}}
		}
	}
	began, used := time.Now(), cpuOf(b)
	fixture.OK(b, e.bus.Publish(b.Context(), records))
	for {
		v := fixture.Must(e.store.PromotionGet(b.Context(), id))(b)
		if v.Counts.Payouts[reward.Succeeded] == int64(targets) {
			return time.Since(began), cpuOf(b) - used
		}
		time.Sleep(2 * time.Millisecond) // polls a condition
	}
}

// cpuOf returns the CPU time that this process has used.
func cpuOf(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	fixture.OK(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
