package web

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/validation"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/tracing"
)

const requestIDHeader = "X-Request-Id"

// requestInfo is what is known of each request before its operation.
type requestInfo struct {
	id      string
	request *http.Request // as it arrived
	proxies []netip.Prefix
}

type requestInfoKey struct{}

// infoOf returns nil for a context of no request.
func infoOf(ctx context.Context) *requestInfo {
	info, _ := ctx.Value(requestInfoKey{}).(*requestInfo)
	return info
}

// RequestID returns the ID of the request that ctx belongs to, or "" if there is
// none.
func RequestID(ctx context.Context) string {
	if info := infoOf(ctx); info != nil {
		return info.id
	}
	return ""
}

// ClientAddress returns the IP address of the client of the request that ctx belongs
// to, or "" for a request from this process.
func ClientAddress(ctx context.Context) string {
	if info := infoOf(ctx); info != nil {
		return clientAddress(info.request, info.proxies)
	}
	return ""
}

// identified records what is known of a request, unless that is recorded already, and gives
// its response the ID.
func identified(w http.ResponseWriter, r *http.Request, proxies []netip.Prefix) *http.Request {
	if infoOf(r.Context()) != nil {
		return r
	}
	id := r.Header.Get(requestIDHeader)
	if !validRequestID(id) {
		id = rand.Text()
	}
	w.Header()[requestIDHeader] = []string{id}
	return r.WithContext(context.WithValue(r.Context(), requestInfoKey{}, &requestInfo{id, r, proxies}))
}

// IDOf parses an ID. The error calls the thing that it identifies what, for
// example "API key".
func IDOf(what, text string) (int64, error) {
	id, err := strconv.ParseInt(text, 10, 64)
	if err != nil || id < 1 || strconv.FormatInt(id, 10) != text {
		return 0, fmt.Errorf("%s is not the ID of a %s: use a whole number from 1", reward.Quote(text), what)
	}
	return id, nil
}

// Headers of every response. Nobody keeps keys, secrets, tokens or exports; responses that
// may be kept say so.
var noSniff, noStore = []string{"nosniff"}, []string{"no-store"}

// traceHeaders returns the headers that name the trace of a request, if a trusted proxy
// sent it. Other callers do not decide which requests are traced: their spans would crowd
// out those of others, and they can choose trace IDs that any ratio samples.
func (a *Router) traceHeaders(r *http.Request) []string {
	values := r.Header.Values(tracing.Header)
	if len(values) > 0 && !fromProxy(r, a.cfg.TrustedProxies) {
		return nil
	}
	return values
}

// ServeHTTP answers one request. It gives the request an ID, asks the gate, turns
// panics and unknown routes into problems, and calls the operation.
func (a *Router) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	began := time.Now()
	r = identified(w, r, a.cfg.TrustedProxies)
	id := RequestID(r.Context())
	h := w.Header()
	h["X-Content-Type-Options"] = noSniff
	h["Cache-Control"] = noStore
	tw := &trackedWriter{ResponseWriter: w}
	operation := ""
	defer func() {
		defer func() {
			a.cfg.Metrics.RequestAnswered(operation, tw.status)
			if PreferredWait(r.Header.Values("Prefer")) == 0 { // else the caller decides how long it takes
				a.cfg.Metrics.RequestTook(operation, tw.status, time.Since(began))
			}
		}()
		a.recovered(tw, r, recover())
		if a.log.Debugs() {
			a.log.Debug("request handled", "request_id", id, "method", r.Method, "path", r.URL.Path,
				"status", tw.status, "millis", time.Since(began).Milliseconds(), "client", ClientAddress(r.Context()))
		}
	}()
	short := a.shortcutOf(r)
	pattern := short.pattern
	if short.answer == nil {
		resource, path := a.paths.Handler(r)
		_, pattern = a.mux.Handler(r)
		// The path decides before the method: GET on a path that supports only POST
		// must not become the GET of a path with an ID in the same place.
		if _, own, _ := strings.Cut(pattern, " "); own == "" || own != path {
			a.unrouted(tw, r, resource)
			return
		}
	}
	operation = a.operations[pattern]
	admitted, end, err := a.cfg.Gate(r, operation)
	if err != nil {
		a.Fail(tw, r, err)
		return
	}
	defer end()
	if _, path, _ := strings.Cut(pattern, " "); strings.HasPrefix(path, "/v1/") {
		traced, span := a.cfg.Tracer.Request(admitted, pattern, id, a.traceHeaders(r)...)
		admitted = traced
		defer func() { span.Answered(tw.status) }()
	}
	defer func() {
		if tw.status == http.StatusUnauthorized || tw.status == http.StatusForbidden {
			a.cfg.Refused(admitted, operation, tw.status)
		}
	}()
	if short.answer != nil && short.answer(tw, admitted) {
		return
	}
	if _, err := url.ParseQuery(r.URL.RawQuery); err != nil {
		// url.Values would leave out the malformed part, such as a filter or dryRun.
		a.Fail(tw, r, Malformed("query", "cannot be parsed: "+err.Error()))
		return
	}
	if !strings.HasPrefix(pattern, "GET /v1/") || r.Method != http.MethodGet {
		a.mux.ServeHTTP(tw, admitted)
		return
	}
	tagged := &taggedWriter{ResponseWriter: tw, ifNoneMatch: r.Header.Values("If-None-Match")}
	a.mux.ServeHTTP(tagged, admitted)
	tagged.end()
}

// checkQuery refuses query parameters that huma would ignore in part: a
// parameter given twice, and one without a value unless it is free text.
func (a *Router) checkQuery(ctx huma.Context, next func(huma.Context)) {
	u := ctx.URL()
	query := u.Query()
	for _, p := range ctx.Operation().Parameters {
		values := query[p.Name]
		var wrong string
		switch {
		case p.In != "query":
		case len(values) > 1 && p.Schema.Type != huma.TypeArray:
			wrong = "is given twice"
		case slices.Contains(values, "") && (p.Schema.Type != huma.TypeString || p.Schema.Enum != nil || p.Schema.Format == "date-time"):
			wrong = "is empty; set a value or omit it"
		}
		if wrong != "" {
			_ = huma.WriteErr(a.huma, ctx, http.StatusBadRequest, "validation failed", // the caller may have left
				&huma.ErrorDetail{Location: "query." + p.Name, Message: wrong})
			return
		}
	}
	next(ctx)
}

const unusedBodyMax = 64 << 10

// checkNoBody refuses a body with fields at an operation that takes none: huma would
// ignore it, and with it what the caller asks for. An empty body and an empty object
// are allowed.
func (a *Router) checkNoBody(ctx huma.Context, next func(huma.Context)) {
	op, body := ctx.Operation(), ctx.BodyReader()
	if op.RequestBody != nil || op.Method == http.MethodGet || body == nil {
		next(ctx)
		return
	}
	if op.BodyReadTimeout > 0 {
		_ = ctx.SetReadDeadline(time.Now().Add(op.BodyReadTimeout)) // only test writers have no deadlines
	}
	data, err := io.ReadAll(io.LimitReader(body, unusedBodyMax+1))
	if err == nil && len(bytes.TrimSpace(data)) == 0 {
		next(ctx)
		return
	}
	var fields map[string]json.RawMessage
	status := http.StatusBadRequest
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		status, err = http.StatusRequestTimeout, errors.New("the body arrived too slowly; this operation needs none")
	case err != nil:
		err = errors.New("the body ended early, or its chunks cannot be parsed; this operation needs none")
	case len(data) > unusedBodyMax:
		err = errors.New("this operation takes no body")
	default:
		err = unmarshalStrict(data, &fields)
	}
	if err != nil {
		_ = huma.WriteErr(a.huma, ctx, status, err.Error()) // the caller may have left
		return
	}
	var wrong []error
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		wrong = append(wrong, &huma.ErrorDetail{Location: "body." + name, Message: validation.MsgUnexpectedProperty})
	}
	if len(wrong) > 0 {
		_ = huma.WriteErr(a.huma, ctx, http.StatusUnprocessableEntity, "validation failed", wrong...) // the caller may have left
		return
	}
	next(ctx)
}

// recovered answers a panic with a problem. If a part of the response was sent, or
// the panic is http.ErrAbortHandler, it closes the connection instead, so that
// the caller sees that the response is incomplete.
func (a *Router) recovered(w *trackedWriter, r *http.Request, v any) {
	if v == nil {
		return
	}
	if v == http.ErrAbortHandler { //nolint:errorlint // net/http compares it so
		panic(v)
	}
	a.log.Error("request handler panicked", fmt.Errorf("panic: %v", v), "request_id", RequestID(r.Context()),
		"method", r.Method, "path", r.URL.Path, "stack", string(debug.Stack()))
	if w.status != 0 {
		panic(http.ErrAbortHandler)
	}
	p := NewProblem(http.StatusInternalServerError, CodeInternal, internalDetail)
	p.RequestID = RequestID(r.Context())
	writeProblem(w, p)
}

// methods lists the methods that a path supports.
type methods struct{ names []string }

// ServeHTTP does nothing: a.paths is used for lookups only.
func (*methods) ServeHTTP(http.ResponseWriter, *http.Request) {}

func (a *Router) record(operation, pattern string) {
	a.operations[pattern] = operation
	method, path, _ := strings.Cut(pattern, " ")
	m := a.methods[path]
	if m == nil {
		m = &methods{}
		a.methods[path] = m
		a.paths.Handle(path, m)
	}
	m.names = append(m.names, method)
	if method == http.MethodGet {
		m.names = append(m.names, http.MethodHead)
	}
	slices.Sort(m.names)
}

// unrouted answers requests with an unknown path, or with a method that the path
// does not support.
func (a *Router) unrouted(w http.ResponseWriter, r *http.Request, resource http.Handler) {
	p := NewProblem(http.StatusNotFound, CodeRouteNotFound, "no operation has this path; GET /openapi.json lists all operations")
	if m, ok := resource.(*methods); ok {
		allow := strings.Join(m.names, ", ")
		w.Header().Set("Allow", allow)
		p = NewProblem(http.StatusMethodNotAllowed, CodeMethodNotAllowed, "the path supports "+allow)
	}
	p.RequestID = RequestID(r.Context())
	writeProblem(w, p)
}

// validRequestID reports whether a caller's ID can be used in logs and headers.
func validRequestID(id string) bool {
	if id == "" || len(id) > 128 {
		return false
	}
	for _, c := range []byte(id) {
		letter := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
		if !letter && c != '-' && c != '_' && c != '.' && c != ':' {
			return false
		}
	}
	return true
}

// trackedWriter records the status that was sent; 0 means none yet.
type trackedWriter struct {
	http.ResponseWriter
	status int
}

// WriteHeader records the first final status.
func (w *trackedWriter) WriteHeader(status int) {
	if w.status == 0 && status >= http.StatusOK {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *trackedWriter) Write(b []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	return w.ResponseWriter.Write(b)
}

// Unwrap lets http.ResponseController reach the connection.
func (w *trackedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Location returns the value of the Location header for an escaped path of the API,
// such as "/v1/promotions/1". If the Router is mounted below a prefix, for example
// with http.StripPrefix, the value starts with that prefix.
func Location(ctx context.Context, path string) string {
	if info := infoOf(ctx); info != nil {
		return mountPrefix(info.request) + path
	}
	return path
}

// mountPrefix returns the escaped path that a handler in front of the Router removed
// from the URL of a request: the path of RequestURI without its end, which is the
// path of r.URL. It returns "" if nothing was removed. The caller controls
// RequestURI, so only its path counts, never its host, and a path that is not clean,
// such as "//evil.example", counts as no prefix.
func mountPrefix(r *http.Request) string {
	if r.RequestURI == r.URL.Path && r.URL.RawPath == "" {
		return ""
	}
	full, err := url.ParseRequestURI(r.RequestURI)
	if err != nil {
		return ""
	}
	prefix, ok := strings.CutSuffix(full.EscapedPath(), r.URL.EscapedPath())
	if !ok || !strings.HasPrefix(prefix, "/") || path.Clean(prefix) != prefix {
		return ""
	}
	return prefix
}
