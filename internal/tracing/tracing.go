// Package tracing makes the spans of a trace (OpenTelemetry) and exports them by OTLP.
// A trace comes with the header traceparent of a Kafka record, or of an HTTP request from
// a trusted proxy. The row of a payout carries it on to the consumer that charges the
// payout, and the header traceparent of the charge carries it to the provider.
//
// Spans never delay work: a span for which the queue of the exporter has no space is
// counted and dropped. Only sampled traces are followed. The header of a trace that is
// not sampled is ignored, as is one that cannot be parsed.
package tracing

import (
	"context"
	"net/http"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
)

// Header is the header that names a trace and a span in it (W3C Trace Context).
const Header = "traceparent"

// RowsPerRequest limits the targets of one request that belong to its trace. A trace of
// a million payouts would be of no use, and no collector would take it.
const RowsPerRequest = 100

const (
	// queueMax limits the spans that wait for the collector, including those that are
	// being sent.
	queueMax = 4096
	// batchMax limits the spans of one request to the collector.
	batchMax = 512
	// exportInterval is the longest time that a span waits for others.
	exportInterval = time.Second
	// exportTimeout limits the tries to send one batch.
	exportTimeout = 10 * time.Second
	// stopTimeout limits the time that Stop takes to send the last spans.
	stopTimeout = 2 * time.Second
	// headerMax limits a header that is parsed, in bytes. Version 00 has 55.
	headerMax = 256
)

// Config configures a Tracer.
type Config struct {
	// Endpoint is the base URL of an OTLP collector (HTTP, protobuf).
	Endpoint string
	// SampleOneIn samples one of so many requests and batches that come without a
	// sampled trace. Zero samples none.
	SampleOneIn int
	// Instance and Version identify this instance in its spans.
	Instance, Version string
	Metrics           *obs.Metrics
	Log               obs.Log
}

// Tracer makes spans. A nil Tracer makes none, and its methods return at once. It is
// safe for concurrent use.
type Tracer struct {
	provider *sdk.TracerProvider
	tracer   trace.Tracer
	sender   *sender
}

// New returns a Tracer that exports spans until Stop. It does not call the collector.
func New(cfg Config) *Tracer {
	s := newSender(cfg.Endpoint)
	q := &queue{metrics: cfg.Metrics}
	q.SpanProcessor = sdk.NewBatchSpanProcessor(
		&counted{SpanExporter: otlptrace.NewUnstarted(s), queue: q, report: cfg.Log.For(obs.Traces).Streak("exporting spans failed", "spans exported again")},
		sdk.WithMaxQueueSize(queueMax), sdk.WithMaxExportBatchSize(batchMax),
		sdk.WithBatchTimeout(exportInterval), sdk.WithExportTimeout(exportTimeout),
	)
	ratio := 0.0
	if cfg.SampleOneIn > 0 {
		ratio = 1 / float64(cfg.SampleOneIn)
	}
	provider := sdk.NewTracerProvider(
		sdk.WithSpanProcessor(q), sdk.WithSampler(sdk.ParentBased(sdk.TraceIDRatioBased(ratio))),
		sdk.WithResource(resource.NewSchemaless(
			attribute.String("service.name", "largesse"), attribute.String("service.version", cfg.Version),
			attribute.String("service.instance.id", cfg.Instance),
		)),
	)
	return &Tracer{provider: provider, tracer: provider.Tracer("github.com/largesse/largesse"), sender: s}
}

// Stop sends the spans that wait, for at most 2 s, and stops the export.
func (t *Tracer) Stop() {
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	_ = t.provider.Shutdown(ctx) // the exporter reports its own failures
	t.sender.end()               // otherwise it would send what is left, each batch for up to exportTimeout
	t.sender.client.CloseIdleConnections()
}

// Span is a step of a trace. The zero Span belongs to no trace: its methods do nothing.
type Span struct{ span trace.Span }

// Set adds an attribute.
func (s Span) Set(key, value string) {
	if s.span != nil {
		s.span.SetAttributes(attribute.String(key, value))
	}
}

// SetInt adds an attribute that is a number.
func (s Span) SetInt(key string, value int64) {
	if s.span != nil {
		s.span.SetAttributes(attribute.Int64(key, value))
	}
}

// End ends the span. An error marks it as failed.
func (s Span) End(err error) {
	if s.span == nil {
		return
	}
	if err != nil {
		s.span.SetStatus(codes.Error, err.Error())
	}
	s.span.End()
}

// start returns a recording span, or the zero Span for a trace that is not sampled.
func (t *Tracer) start(ctx context.Context, name string, kind trace.SpanKind, attrs ...attribute.KeyValue) (context.Context, Span) {
	inner, span := t.tracer.Start(ctx, name, trace.WithSpanKind(kind), trace.WithAttributes(attrs...))
	if !span.IsRecording() {
		return ctx, Span{}
	}
	return inner, Span{span}
}

// Request begins the span of an HTTP request. The trace is the one that the headers
// name, or a new one. route is the pattern of the request, such as "POST /v1/promotions".
func (t *Tracer) Request(r *http.Request, route, requestID string, headers ...string) (*http.Request, Span) {
	if t == nil {
		return r, Span{}
	}
	ctx, span := t.start(remote(r.Context(), Parse(headers...)), route, trace.SpanKindServer,
		attribute.String("http.request.method", r.Method), attribute.String("http.route", route),
		attribute.String("largesse.request_id", requestID))
	if span.span == nil {
		return r, span
	}
	return r.WithContext(ctx), span
}

// Answered ends the span of an HTTP request.
func (s Span) Answered(status int) {
	if s.span == nil {
		return
	}
	s.SetInt("http.response.status_code", int64(status))
	if status >= http.StatusInternalServerError {
		s.span.SetStatus(codes.Error, http.StatusText(status))
	}
	s.span.End()
}

// Payout begins the span of a step with a payout, in the trace of its row. Without one,
// it returns ctx.
func (t *Tracer) Payout(ctx context.Context, name string, row *reward.Payout) (context.Context, Span) {
	if t == nil || row.Trace == "" {
		return ctx, Span{}
	}
	parent := Parse(row.Trace)
	if parent == "" {
		return ctx, Span{}
	}
	return t.start(remote(ctx, parent), name, trace.SpanKindConsumer,
		attribute.Int64("largesse.promotion_id", int64(row.PromotionID)), attribute.Int64("largesse.target_id", int64(row.TargetID)),
		attribute.Int64("largesse.dispatch", int64(row.Dispatch)))
}

// Batch is the spans of a batch of Kafka records: one of its own, and one in each trace
// of a record. A nil Batch has none. It is not safe for concurrent use.
type Batch struct {
	tracer  *Tracer
	topic   string
	span    Span
	records []Span
}

// Batch begins the span of a batch of records.
func (t *Tracer) Batch(ctx context.Context, topic string, records int) *Batch {
	if t == nil {
		return nil
	}
	_, span := t.start(ctx, "save "+topic, trace.SpanKindConsumer,
		attribute.String("messaging.system", "kafka"), attribute.String("messaging.destination.name", topic),
		attribute.Int("messaging.batch.message_count", records))
	return &Batch{tracer: t, topic: topic, span: span}
}

// Record begins the span of a record, in the trace that its headers name, and returns
// the text with which its row carries on the trace. Without a sampled trace, it returns "".
func (b *Batch) Record(ctx context.Context, headers ...string) string {
	if b == nil {
		return ""
	}
	parent := Parse(headers...)
	if parent == "" {
		return ""
	}
	inner, span := b.tracer.start(remote(ctx, parent), "save record", trace.SpanKindConsumer,
		attribute.String("messaging.system", "kafka"), attribute.String("messaging.destination.name", b.topic))
	if span.span == nil {
		return ""
	}
	if b.span.span != nil {
		link := trace.Link{SpanContext: span.span.SpanContext()}
		b.span.span.AddLink(link) // the SDK limits the links of a span
		span.span.AddLink(trace.Link{SpanContext: b.span.span.SpanContext()})
	}
	b.records = append(b.records, span)
	return Parent(inner)
}

// End ends all spans of the batch.
func (b *Batch) End(err error) {
	if b == nil {
		return
	}
	for _, s := range b.records {
		s.End(err)
	}
	b.span.End(err)
}

// Call begins the span of a call to another system if ctx belongs to a trace, and sets
// the header that carries it on.
func Call(ctx context.Context, name string, h http.Header) Span {
	parent := trace.SpanFromContext(ctx)
	if !parent.IsRecording() {
		return Span{}
	}
	inner, span := parent.TracerProvider().Tracer("github.com/largesse/largesse").Start(ctx, name, trace.WithSpanKind(trace.SpanKindClient))
	h.Set(Header, Parent(inner))
	return Span{span}
}

// Parent returns the text that names the span of ctx, for a header or a row. It returns
// "" if ctx belongs to no sampled trace.
func Parent(ctx context.Context) string {
	if !trace.SpanContextFromContext(ctx).IsSampled() {
		return ""
	}
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	return carrier[Header]
}

// Parse returns the one value of a header in its canonical form. It returns "" for no
// value, several ones, one that cannot be parsed, and one of a trace that is not
// sampled.
func Parse(values ...string) string {
	if len(values) != 1 || len(values[0]) > headerMax {
		return ""
	}
	return Parent(propagation.TraceContext{}.Extract(context.Background(), propagation.MapCarrier{Header: values[0]}))
}

// remote returns a context whose next span is a child of the span that parent names.
func remote(ctx context.Context, parent string) context.Context {
	if parent == "" {
		return ctx
	}
	return propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{Header: parent})
}
