package tracing

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/service"
)

// queue passes spans on to be exported, at most queueMax at a time. It drops and counts
// the others.
type queue struct {
	sdk.SpanProcessor
	metrics *obs.Metrics
	waiting atomic.Int64
}

// OnEnd implements sdk.SpanProcessor. It never blocks.
func (q *queue) OnEnd(s sdk.ReadOnlySpan) {
	if !s.SpanContext().IsSampled() {
		return
	}
	if q.waiting.Add(1) > queueMax {
		q.waiting.Add(-1)
		q.metrics.SpansEnded(obs.SpanDropped, 1)
		return
	}
	q.SpanProcessor.OnEnd(s)
}

// counted counts the spans that were exported, and reports failures. It returns no
// error: the SDK would print it.
type counted struct {
	sdk.SpanExporter
	queue  *queue
	report func(err error, attrs ...any)
}

// ExportSpans implements sdk.SpanExporter.
func (c *counted) ExportSpans(ctx context.Context, spans []sdk.ReadOnlySpan) error {
	err := c.SpanExporter.ExportSpans(ctx, spans)
	c.queue.waiting.Add(-int64(len(spans)))
	result := obs.SpanExported
	if err != nil {
		result = obs.SpanFailed
	}
	c.queue.metrics.SpansEnded(result, len(spans))
	c.report(err)
	return nil
}

// sender sends spans to a collector. The sender of the OpenTelemetry project would do
// the same, but links gRPC (docs/adr/0020).
type sender struct {
	url    string
	client *http.Client
	ended  context.Context //nolint:containedctx // it ends all requests
	end    context.CancelFunc
}

var _ otlptrace.Client = (*sender)(nil)

func newSender(endpoint string) *sender {
	ended, end := context.WithCancel(context.Background())
	return &sender{
		ended: ended, end: end,
		url: strings.TrimRight(endpoint, "/") + "/v1/traces",
		client: &http.Client{
			Transport:     &http.Transport{Proxy: http.ProxyFromEnvironment, IdleConnTimeout: time.Minute, MaxConnsPerHost: 1},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
}

// Start implements otlptrace.Client.
func (s *sender) Start(context.Context) error { return nil }

// Stop implements otlptrace.Client.
func (s *sender) Stop(context.Context) error { return nil }

// UploadTraces sends spans. It tries again until ctx ends if the collector asks for
// that, or cannot be reached. It gives up when the sender is ended.
func (s *sender) UploadTraces(ctx context.Context, spans []*tracepb.ResourceSpans) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.ended, cancel)()
	// A TracesData has the encoding of an ExportTraceServiceRequest, whose package
	// imports gRPC.
	body, err := proto.Marshal(&tracepb.TracesData{ResourceSpans: spans})
	if err != nil {
		return fmt.Errorf("encode spans: %w", err)
	}
	for try := 0; ; try++ {
		again, err := s.post(ctx, body)
		if err == nil || !again || !service.Sleep(ctx, service.Backoff(try, 500*time.Millisecond, 5*time.Second)) {
			return err
		}
	}
}

// post sends one request. It reports whether the same request may succeed later.
func (s *sender) post(ctx context.Context, body []byte) (again bool, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url, bytes.NewReader(body))
	if err != nil {
		return false, errors.New("otel.endpoint is not a valid URL")
	}
	req.Header.Set("Content-Type", "application/x-protobuf")
	req.Header.Set("User-Agent", "largesse")
	resp, err := s.client.Do(req)
	if err != nil {
		return true, fmt.Errorf("send spans to otel.endpoint: %w", err)
	}
	defer func() { _ = resp.Body.Close() }()
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 64<<10)) // to use the connection again
	switch resp.StatusCode {
	case http.StatusOK, http.StatusAccepted, http.StatusNoContent:
		return false, nil
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		again = true
	}
	return again, fmt.Errorf("the collector at otel.endpoint responded %s", resp.Status)
}
