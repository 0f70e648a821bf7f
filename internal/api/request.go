package api

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/http"
	"runtime/debug"
	"time"

	"github.com/largesse/largesse/internal/obs"
)

const requestIDHeader = "X-Request-Id"

type requestIDKey struct{}

// requestID returns the id of the request that ctx belongs to, "" without one.
func requestID(ctx context.Context) string {
	id, _ := ctx.Value(requestIDKey{}).(string)
	return id
}

// ServeHTTP answers one request: gives it an id, turns panics and unknown
// routes into problems, and leaves the rest to the routes.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	began := time.Now()
	id := r.Header.Get(requestIDHeader)
	if !goodRequestID(id) {
		id = rand.Text()
	}
	w.Header().Set(requestIDHeader, id)
	w.Header().Set("X-Content-Type-Options", "nosniff")
	r = r.WithContext(context.WithValue(r.Context(), requestIDKey{}, id))
	tw := &trackedWriter{ResponseWriter: w}
	defer func() {
		a.recovered(tw, r, recover())
		a.log.Debug(obs.Processed, "request_id", id, "method", r.Method, "path", r.URL.Path,
			"status", tw.status, "millis", time.Since(began).Milliseconds())
	}()
	h, pattern := a.mux.Handler(r)
	if pattern == "" {
		a.unrouted(tw, r, h)
		return
	}
	acting, err := withActor(r)
	if err != nil {
		a.fail(tw, r, err)
		return
	}
	a.mux.ServeHTTP(tw, acting)
}

// recovered answers a panic. When part of the answer has gone out, or the
// panic asks for it, the connection is cut, so that nobody takes half an
// answer for a whole one.
func (a *API) recovered(w *trackedWriter, r *http.Request, v any) {
	if v == nil {
		return
	}
	if v == http.ErrAbortHandler { //nolint:errorlint // net/http compares it so
		panic(v)
	}
	a.log.Error(obs.Failed, fmt.Errorf("panic: %v", v), "request_id", requestID(r.Context()),
		"method", r.Method, "path", r.URL.Path, "stack", string(debug.Stack()))
	if w.status != 0 {
		panic(http.ErrAbortHandler)
	}
	p := newProblem(http.StatusInternalServerError, CodeInternal, internalDetail)
	p.RequestID = requestID(r.Context())
	writeProblem(w, p)
}

// unrouted answers with the mux's status (404, or 405 and its Allow header),
// as a problem.
func (a *API) unrouted(w http.ResponseWriter, r *http.Request, h http.Handler) {
	probe := &statusProbe{header: make(http.Header)}
	h.ServeHTTP(probe, r)
	p := newProblem(http.StatusNotFound, CodeRouteNotFound, "there is nothing at this path; GET /openapi.json lists what there is")
	if probe.status == http.StatusMethodNotAllowed {
		allow := probe.header.Get("Allow")
		w.Header().Set("Allow", allow)
		p = newProblem(probe.status, CodeMethodNotAllowed, "the path takes "+allow)
	}
	p.RequestID = requestID(r.Context())
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

// statusProbe takes an answer that is not to be sent.
type statusProbe struct {
	header http.Header
	status int
}

func (p *statusProbe) Header() http.Header         { return p.header }
func (p *statusProbe) Write(b []byte) (int, error) { return len(b), nil }
func (p *statusProbe) WriteHeader(status int)      { p.status = status }
