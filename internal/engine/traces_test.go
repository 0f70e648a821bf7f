package engine

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/largesse/largesse/internal/bus"
	"github.com/largesse/largesse/internal/config"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/obs"
)

// traceRig is a collector of traces, and a provider that notes who asks.
type traceRig struct {
	collector, provider *httptest.Server
	calls               chan http.Header

	mu    sync.Mutex // protects spans
	spans map[string]*tracepb.Span
}

func newTraceRig(t *testing.T) *traceRig {
	t.Helper()
	r := &traceRig{calls: make(chan http.Header, 1000), spans: make(map[string]*tracepb.Span)}
	r.collector = httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		var data tracepb.TracesData
		body, err := io.ReadAll(req.Body)
		if err != nil || proto.Unmarshal(body, &data) != nil {
			t.Errorf("%d bytes are no spans", len(body))
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, rs := range data.ResourceSpans {
			for _, ss := range rs.ScopeSpans {
				for _, s := range ss.Spans {
					r.spans[hex.EncodeToString(s.SpanId)] = s
				}
			}
		}
	}))
	r.provider = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		r.calls <- req.Header
		_, _ = fmt.Fprintf(w, `{"transactionKey":%q}`, req.Header.Get("Idempotency-Key"))
	}))
	t.Cleanup(func() { r.collector.Close(); r.provider.Close() })
	return r
}

// start starts an engine that exports to the rig.
func (r *traceRig) start(t *testing.T, change func(cfg *config.Config)) *Engine {
	t.Helper()
	cfg := config.Default()
	cfg.Data.Dir, cfg.Money.URL = t.TempDir(), r.provider.URL
	cfg.Otel.Endpoint, cfg.Otel.SampleOneIn = r.collector.URL, 0
	cfg.HTTP.TrustedProxies = []string{"192.0.2.1"} // the peer of httptest.NewRequest
	change(&cfg)
	return start(t, cfg, obs.Log{}, WithoutListener())
}

// pay has seven targets paid through api, with headers that reach them by HTTP and by
// Kafka. It returns the headers that the provider got, by idempotency key.
func (r *traceRig) pay(t *testing.T, api *Engine) map[string][]string {
	t.Helper()
	peer := "192.0.2.1:1234"
	do := func(path, body string, traces ...string) {
		t.Helper()
		req := httptest.NewRequest(http.MethodPost, "http://any.example/v1/promotions"+path, strings.NewReader(body))
		req.Header.Set("Content-Type", "application/json")
		if strings.HasSuffix(path, "/targets") {
			req.Header.Set("Content-Type", "text/csv")
		}
		req.Header["Traceparent"], req.RemoteAddr = traces, peer
		w := httptest.NewRecorder()
		if api.Handler().ServeHTTP(w, req); w.Code >= 300 {
			t.Fatalf("%s: %d %s", path, w.Code, w.Body)
		}
	}
	do("", `{"id":"77","name":"spring","type":"POINT","amount":5}`)
	do("/77/targets", "targetId\n1\n", httpTrace)
	do("/77/targets", "targetId\n2\n", httpTrace[:53]+"00") // not sampled
	do("/77/targets", "targetId\n3\n", httpTrace, httpTrace)
	peer = "192.0.2.2:1234" // no proxy of ours
	do("/77/targets", "targetId\n7\n", httpTrace)
	do("/77/start", "")
	record := func(target string, headers ...bus.Header) bus.Record {
		value := fixture.Must(json.Marshal(map[string]any{"promotionId": 77, "targetId": json.Number(target), "userId": "u", "amount": 5}))(t)
		return bus.Record{Topic: bus.TopicPointPublish, Key: []byte(target), Value: value, Headers: headers}
	}
	fixture.OK(t, api.bus.Publish(t.Context(), []bus.Record{
		record("4", bus.Header{Key: "traceparent", Value: []byte(kafkaTrace)}),
		record("5", bus.Header{Key: "traceparent", Value: []byte("00-zz\x00\xff")}),
		record("6"),
	}))
	got := make(map[string][]string)
	for len(got) < 7 {
		fixture.Until(t, "the provider is asked for seven targets", func() bool { return len(r.calls) > 0 })
		h := <-r.calls
		got[h.Get("Idempotency-Key")] = h.Values("traceparent")
	}
	return got
}

const (
	httpTrace  = "00-11111111111111111111111111111111-aaaaaaaaaaaaaaaa-01"
	kafkaTrace = "00-22222222222222222222222222222222-bbbbbbbbbbbbbbbb-01"
)

// check checks that the calls of the targets 1 and 4 end traces that begin with their
// headers, and that no other call belongs to one. The engines have stopped.
func (r *traceRig) check(t *testing.T, calls map[string][]string) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	for key, want := range map[string]struct {
		header string
		steps  []string
	}{
		"77:1": {httpTrace, []string{"charge", "pay payout", "POST /v1/promotions/{id}/targets"}},
		"77:4": {kafkaTrace, []string{"charge", "pay payout", "save record"}},
	} {
		if len(calls[key]) != 1 {
			t.Errorf("%s was asked for with the traces %v", key, calls[key])
			continue
		}
		var steps []string
		at := strings.Split(calls[key][0], "-")
		span, trace := at[2], at[1]
		for s := r.spans[span]; s != nil; s = r.spans[span] {
			if steps = append(steps, s.Name); hex.EncodeToString(s.TraceId) != trace {
				t.Errorf("%s: %s is in trace %x", key, s.Name, s.TraceId)
			}
			span = hex.EncodeToString(s.ParentSpanId)
		}
		if !slices.Equal(steps, want.steps) || !strings.Contains(want.header, trace+"-"+span) {
			t.Errorf("%s: steps %v below %s-%s, want %v below %s", key, steps, trace, span, want.steps, want.header)
		}
	}
	for _, key := range []string{"77:2", "77:3", "77:5", "77:6", "77:7"} {
		if _, asked := calls[key]; !asked || len(calls[key]) > 0 {
			t.Errorf("%s: asked %v, with the traces %v", key, asked, calls[key])
		}
	}
	if len(r.spans) != 6 {
		t.Errorf("%d spans, want 6: %v", len(r.spans), r.spans)
	}
}

// A trace goes from the header of a proxy's request or of a record to the request to the provider.
// Other headers change nothing.
func TestATraceReachesTheProvider(t *testing.T) {
	t.Parallel()
	r := newTraceRig(t)
	e := r.start(t, func(*config.Config) {})
	calls := r.pay(t, e)
	e.Stop()
	r.check(t, calls)
}
