package web

import (
	"context"
	"net/http"
	"sync"
	"time"
)

// Mount serves a Router through the HTTP server of another program. Before Open and
// after Close it answers 503. Unlike a Server, it accepts every host name, because
// the program controls who can reach it. A Mount is safe for concurrent use.
type Mount struct {
	cross   *http.CrossOriginProtection
	origins []string
	limits  Limits

	mu     sync.Mutex // protects what follows, and what is in now
	closed string     // detail of the 503 while now is nil
	now    *opening   // nil while closed
}

// opening is the time from Open to Close.
type opening struct {
	handler  http.Handler
	router   *Router
	requests map[*mounted]struct{} // in progress
	none     chan struct{}         // closed when there are none; nil while Close does not wait
}

// mounted is a request in progress.
type mounted struct {
	w      http.ResponseWriter
	cancel context.CancelFunc
}

// cut ends a request that has not been answered yet. Cancelling a context does not
// interrupt a read or write; a deadline does.
func (r *mounted) cut() {
	r.cancel()
	rc, past := http.NewResponseController(r.w), time.Unix(1, 0)
	_ = rc.SetReadDeadline(past)  // some writers have no deadlines
	_ = rc.SetWriteDeadline(past) // likewise
}

// cutTimeout is the time that Close waits for requests after it has cut them.
const cutTimeout = time.Second

// NewMount returns a closed Mount. why is the reason that it gives to callers. Web
// pages of the given origins may call it.
func NewMount(origins []string, why string) (*Mount, error) {
	cross, err := crossOrigin(origins)
	if err != nil {
		return nil, err
	}
	return &Mount{cross: cross, origins: origins, limits: Limits{}.withDefaults(), closed: why}, nil
}

// Open makes the Mount serve api. The Mount must be closed.
func (m *Mount) Open(api *Router) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.now = &opening{handler: m.limits.handler(guard(api, m.cross, "", m.origins)), router: api, requests: make(map[*mounted]struct{})}
	api.Undrain()
}

// Close drains the Router, lets requests in progress end for up to five seconds, and
// then cuts the remaining ones. Later requests get 503 with the reason why. Close
// does nothing if the Mount is closed.
func (m *Mount) Close(why string) {
	m.mu.Lock()
	o := m.now
	if o == nil {
		m.mu.Unlock()
		return
	}
	m.now, m.closed = nil, why
	none := make(chan struct{})
	if o.none = none; len(o.requests) == 0 {
		close(none)
	}
	m.mu.Unlock()

	o.router.Drain()
	wait, cancel := context.WithTimeout(context.Background(), drainTimeout)
	defer cancel()
	select {
	case <-none:
	case <-wait.Done():
	}
	m.cut(o)
	o.router.CloseStreams(wait)
	timer := time.NewTimer(cutTimeout)
	defer timer.Stop()
	select {
	case <-none:
	case <-timer.C: // a handler that ignores its context may still run
	}
}

// cut ends the requests in progress.
func (m *Mount) cut(o *opening) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for r := range o.requests {
		r.cut()
	}
}

// begin adds a request. While the Mount is closed, it returns the reason instead.
func (m *Mount) begin(r *mounted) (o *opening, closed string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.now != nil {
		m.now.requests[r] = struct{}{}
	}
	return m.now, m.closed
}

func (m *Mount) end(o *opening, r *mounted) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if delete(o.requests, r); len(o.requests) == 0 && o.none != nil {
		close(o.none)
	}
}

// ServeHTTP answers one request.
func (m *Mount) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	one := &mounted{w, cancel}
	o, closed := m.begin(one)
	if o == nil {
		r = identified(w, r, nil)
		p := NewProblem(http.StatusServiceUnavailable, CodeUnavailable, closed)
		p.RequestID = RequestID(r.Context())
		writeProblem(w, p)
		return
	}
	defer m.end(o, one)
	o.handler.ServeHTTP(w, r.WithContext(ctx))
}
