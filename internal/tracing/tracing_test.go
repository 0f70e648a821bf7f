package tracing

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
)

const sampled = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

// A header that cannot be parsed, or whose trace is not sampled, stands for none.
func TestParse(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		values []string
		want   string
	}{
		"Sampled":       {[]string{sampled}, sampled},
		"Random":        {[]string{sampled[:53] + "03"}, sampled[:53] + "03"},
		"LaterVersion":  {[]string{"cc" + sampled[2:] + "-what-comes-later"}, sampled},
		"NotSampled":    {[]string{sampled[:53] + "00"}, ""},
		"None":          {nil, ""},
		"Two":           {[]string{sampled, sampled}, ""},
		"Empty":         {[]string{""}, ""},
		"Cut":           {[]string{sampled[:54]}, ""},
		"Longer":        {[]string{sampled + "-00"}, ""},
		"UpperCase":     {[]string{strings.ToUpper(sampled)}, ""},
		"ZeroTrace":     {[]string{"00-" + strings.Repeat("0", 32) + sampled[35:]}, ""},
		"ZeroSpan":      {[]string{sampled[:36] + strings.Repeat("0", 16) + "-01"}, ""},
		"VersionFF":     {[]string{"ff" + sampled[2:]}, ""},
		"Megabyte":      {[]string{"cc" + sampled[2:] + "-" + strings.Repeat("x", 1<<20)}, ""},
		"ControlBytes":  {[]string{sampled[:54] + "\x00"}, ""},
		"InvalidUTF8":   {[]string{"00-\xff\xfe" + sampled[5:]}, ""},
		"LineBreak":     {[]string{sampled + "\r\nX-Evil: 1"}, ""},
		"SQL":           {[]string{"'; DROP TABLE payouts; --"}, ""},
		"SpacesOutside": {[]string{" " + sampled}, ""},
	} {
		if got := Parse(tc.values...); got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}

// collector is an OTLP collector that answers with a status.
type collector struct {
	*httptest.Server
	status atomic.Int64
	spans  atomic.Int64
	hold   chan struct{} // requests wait until it is closed
	posts  chan struct{} // gets one value per request
}

func newCollector(t *testing.T) *collector {
	t.Helper()
	c := &collector{hold: make(chan struct{}), posts: make(chan struct{}, 1000)}
	c.status.Store(http.StatusOK)
	c.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		status := int(c.status.Load())
		c.posts <- struct{}{}
		<-c.hold
		var data tracepb.TracesData
		if err != nil || proto.Unmarshal(body, &data) != nil || r.URL.Path != "/v1/traces" || r.Header.Get("Content-Type") != "application/x-protobuf" {
			t.Errorf("%s %s %v: %d bytes are no spans", r.Method, r.URL, r.Header, len(body))
		}
		if status == http.StatusOK {
			for _, rs := range data.ResourceSpans {
				for _, ss := range rs.ScopeSpans {
					c.spans.Add(int64(len(ss.Spans)))
				}
			}
		}
		w.WriteHeader(status)
	}))
	t.Cleanup(c.Close)
	return c
}

// results returns the values of largesse_trace_spans_total.
func results(t *testing.T, m *obs.Metrics) map[obs.SpanResult]int64 {
	t.Helper()
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", http.NoBody))
	out := make(map[obs.SpanResult]int64)
	for line := range strings.SplitSeq(w.Body.String(), "\n") {
		for _, r := range []obs.SpanResult{obs.SpanExported, obs.SpanFailed, obs.SpanDropped} {
			if value, ok := strings.CutPrefix(line, `largesse_trace_spans_total{result="`+string(r)+`"} `); ok {
				n := fixture.Must(strconv.ParseFloat(value, 64))(t)
				out[r] = int64(n)
			}
		}
	}
	return out
}

// While a collector does not answer, spans end without a wait. Those that the queue
// cannot hold are counted.
func TestASlowCollectorDelaysNothing(t *testing.T) {
	t.Parallel()
	c, m := newCollector(t), obs.NewMetrics()
	tracer := New(Config{Endpoint: c.URL, Metrics: m})
	span := func() {
		_, s := tracer.Payout(t.Context(), "pay payout", &reward.Payout{Trace: sampled})
		s.End(nil)
	}
	for range batchMax {
		span()
	}
	<-c.posts // the exporter waits for the collector from now on
	for range queueMax - batchMax + 1000 {
		span()
	}
	if got := results(t, m)[obs.SpanDropped]; got != 1000 {
		t.Errorf("%d spans are dropped, want 1000", got)
	}
	close(c.hold)
	tracer.Stop()
	got := results(t, m)
	if got[obs.SpanExported] != queueMax || c.spans.Load() != queueMax || got[obs.SpanFailed] != 0 {
		t.Errorf("results %v, and the collector has %d; want %d", got, c.spans.Load(), queueMax)
	}
}

// Stop leaves no request behind that a collector has not answered, and does not wait for it.
func TestStopEndsTheExport(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		left, in := make(chan struct{}), fixture.NewListener()
		c := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			<-r.Context().Done()
			close(left)
		})}
		go func() { _ = c.Serve(in) }()
		defer c.Close()
		tracer := New(Config{Endpoint: "http://collector.example", Metrics: obs.NewMetrics()})
		tracer.sender.client.Transport = &http.Transport{DialContext: in.Dial}
		_, s := tracer.Payout(t.Context(), "pay payout", &reward.Payout{Trace: sampled})
		s.End(nil)
		began := time.Now()
		tracer.Stop()
		<-left
		if took := time.Since(began); took >= exportTimeout {
			t.Errorf("the request ended after %v", took)
		}
	})
}

// A collector that refuses spans costs these spans, and one that is overloaded is
// asked again.
func TestFailuresAreCounted(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		status int
		want   obs.SpanResult
	}{
		"Refused":    {http.StatusBadRequest, obs.SpanFailed},
		"Redirected": {http.StatusFound, obs.SpanFailed},
		"Overloaded": {http.StatusServiceUnavailable, obs.SpanExported},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, m := newCollector(t), obs.NewMetrics()
			c.status.Store(int64(tc.status))
			tracer := New(Config{Endpoint: c.URL + "/", Metrics: m})
			_, s := tracer.Payout(t.Context(), "pay payout", &reward.Payout{Trace: sampled})
			s.End(errors.New("refused"))
			stopped := make(chan struct{})
			go func() {
				defer close(stopped)
				tracer.Stop()
			}()
			<-c.posts
			if tc.want == obs.SpanExported {
				c.status.Store(http.StatusOK) // of the next request
			}
			close(c.hold)
			<-stopped
			if got := results(t, m); got[tc.want] != 1 || got[obs.SpanExported]+got[obs.SpanFailed]+got[obs.SpanDropped] != 1 {
				t.Errorf("results %v, want one %s", got, tc.want)
			}
		})
	}
}

// What comes without a sampled trace is sampled by the setting.
func TestSampling(t *testing.T) {
	t.Parallel()
	for oneIn, want := range map[int]int64{0: 0, 1: 10} {
		c, m := newCollector(t), obs.NewMetrics()
		close(c.hold)
		tracer := New(Config{Endpoint: c.URL, SampleOneIn: oneIn, Metrics: m})
		for range 10 {
			_, s := tracer.Request(httptest.NewRequest(http.MethodGet, "/v1/me", http.NoBody), "GET /v1/me", "1")
			s.Answered(http.StatusOK)
		}
		tracer.Stop()
		if got := c.spans.Load(); got != want {
			t.Errorf("one in %d: %d spans, want %d", oneIn, got, want)
		}
	}
}

// Without otel.endpoint, a payout costs no memory more, and hardly any time.
func TestWithoutATracerNothingIsAllocated(t *testing.T) {
	ctx, h := context.Background(), http.Header{}
	r, row := httptest.NewRequest(http.MethodGet, "/v1/me", http.NoBody), &reward.Payout{Trace: sampled}
	if n := testing.AllocsPerRun(100, func() { offOnce(ctx, r, row, h) }); n != 0 || len(h) != 0 {
		t.Errorf("%v allocations, header %v", n, h)
	}
}

// offOnce does what a payout does for its trace, from the request to the call.
func offOnce(ctx context.Context, r *http.Request, row *reward.Payout, h http.Header) {
	var none *Tracer
	_, request := none.Request(r, "GET /v1/me", "1")
	_ = Parent(r.Context())
	batch := none.Batch(ctx, "topic", 1)
	batch.Record(ctx)
	batch.End(nil)
	ctx, payout := none.Payout(ctx, "pay payout", row)
	call := Call(ctx, "charge", h)
	call.SetInt("http.response.status_code", 200)
	call.End(nil)
	payout.Set("largesse.answer", "PAID")
	payout.End(nil)
	request.Answered(http.StatusOK)
}
