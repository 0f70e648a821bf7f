package web

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/http"
	"net/url"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
)

const requestIDHeader = "X-Request-Id"

type requestIDKey struct{}

// RequestID returns the id of the request that ctx belongs to, "" without one.
func RequestID(ctx context.Context) string {
	id, _ := ctx.Value(requestIDKey{}).(string)
	return id
}

// withRequestID gives a request and its answer an id, unless it has one.
func withRequestID(w http.ResponseWriter, r *http.Request) *http.Request {
	if RequestID(r.Context()) != "" {
		return r
	}
	id := r.Header.Get(requestIDHeader)
	if !goodRequestID(id) {
		id = rand.Text()
	}
	w.Header().Set(requestIDHeader, id)
	return r.WithContext(context.WithValue(r.Context(), requestIDKey{}, id))
}

// IDOf reads the id of something, said as what it is the id of: "API key".
func IDOf(what, text string) (int64, error) {
	id, err := strconv.ParseInt(text, 10, 64)
	if err != nil || id < 1 || strconv.FormatInt(id, 10) != text {
		return 0, fmt.Errorf("%s is the id of no %s: that is a whole number from 1", reward.Quote(text), what)
	}
	return id, nil
}

// ServeHTTP answers one request: gives it an id, turns panics and unknown
// routes into problems, and leaves the rest to the routes.
func (a *Router) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	began := time.Now()
	r = withRequestID(w, r)
	id := RequestID(r.Context())
	w.Header().Set("X-Content-Type-Options", "nosniff")
	tw := &trackedWriter{ResponseWriter: w}
	operation := ""
	defer func() {
		defer func() { a.metrics.RequestAnswered(operation, tw.status) }()
		a.recovered(tw, r, recover())
		a.log.Debug(obs.Processed, "request_id", id, "method", r.Method, "path", r.URL.Path,
			"status", tw.status, "millis", time.Since(began).Milliseconds())
	}()
	_, pattern := a.mux.Handler(r)
	resource, path := a.paths.Handler(r)
	// The path decides before the method does: GET on a path that takes POST only
	// is not the GET of a path with an id in the same place.
	if _, own, _ := strings.Cut(pattern, " "); own == "" || own != path {
		a.unrouted(tw, r, resource)
		return
	}
	operation = a.operations[pattern]
	admitted, end, err := a.gate(r, operation)
	if err != nil {
		a.Fail(tw, r, err)
		return
	}
	defer end()
	if _, err := url.ParseQuery(r.URL.RawQuery); err != nil {
		// What cannot be read would be left out: a filter, or that it is a dry run.
		a.Fail(tw, r, Malformed("query", "cannot be read: "+err.Error()))
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

// checkQuery refuses query parameters that would count for less than they say:
// one that is there twice, and one without a value that is no free text.
func (a *Router) checkQuery(ctx huma.Context, next func(huma.Context)) {
	u := ctx.URL()
	query := u.Query()
	for _, p := range ctx.Operation().Parameters {
		values := query[p.Name]
		var wrong string
		switch {
		case p.In != "query":
		case len(values) > 1 && p.Schema.Type != huma.TypeArray:
			wrong = "is there twice"
		case slices.Contains(values, "") && (p.Schema.Type != huma.TypeString || p.Schema.Enum != nil):
			wrong = "is empty; give it a value or leave it out"
		}
		if wrong != "" {
			_ = huma.WriteErr(a.huma, ctx, http.StatusBadRequest, "validation failed", // the caller may have gone
				&huma.ErrorDetail{Location: "query." + p.Name, Message: wrong})
			return
		}
	}
	next(ctx)
}

// recovered answers a panic. When part of the answer has gone out, or the
// panic asks for it, the connection is cut, so that nobody takes half an
// answer for a whole one.
func (a *Router) recovered(w *trackedWriter, r *http.Request, v any) {
	if v == nil {
		return
	}
	if v == http.ErrAbortHandler { //nolint:errorlint // net/http compares it so
		panic(v)
	}
	a.log.Error(obs.Failed, fmt.Errorf("panic: %v", v), "request_id", RequestID(r.Context()),
		"method", r.Method, "path", r.URL.Path, "stack", string(debug.Stack()))
	if w.status != 0 {
		panic(http.ErrAbortHandler)
	}
	p := NewProblem(http.StatusInternalServerError, CodeInternal, internalDetail)
	p.RequestID = RequestID(r.Context())
	writeProblem(w, p)
}

// methods are those that a path takes.
type methods struct{ names []string }

// ServeHTTP is never called: a.paths only looks up.
func (*methods) ServeHTTP(http.ResponseWriter, *http.Request) {}

// note notes the operation of a pattern, and that its path takes its method.
func (a *Router) note(operation, pattern string) {
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

// unrouted answers for a path that is not there, or does not take the method.
func (a *Router) unrouted(w http.ResponseWriter, r *http.Request, resource http.Handler) {
	p := NewProblem(http.StatusNotFound, CodeRouteNotFound, "there is nothing at this path; GET /openapi.json lists what there is")
	if m, ok := resource.(*methods); ok {
		allow := strings.Join(m.names, ", ")
		w.Header().Set("Allow", allow)
		p = NewProblem(http.StatusMethodNotAllowed, CodeMethodNotAllowed, "the path takes "+allow)
	}
	p.RequestID = RequestID(r.Context())
	writeProblem(w, p)
}

// goodRequestID says whether a caller's id can stand in a log and a header.
func goodRequestID(id string) bool {
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

// trackedWriter remembers the status that went out; 0 = nothing yet.
type trackedWriter struct {
	http.ResponseWriter
	status int
}

// WriteHeader notes the first final status.
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
