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

	mu      sync.Mutex    // protects what follows
	closed  string        // detail of the 503 while handler is nil
	handler http.Handler  // nil while closed
	router  *Router       // nil while closed
	open    int           // number of requests in progress
	none    chan struct{} // closed when open is 0; nil while Close does not wait
	cut     context.Context
	cutAll  context.CancelFunc // cancels cut, which ends all requests in progress
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
	m.cut, m.cutAll = context.WithCancel(context.Background())
	m.router, m.handler = api, m.limits.handler(guard(api, m.cross, "", m.origins))
	api.Undrain()
}

// Close drains the Router, lets requests in progress end for up to five seconds, and
// then cuts the remaining ones. Later requests get 503 with the reason why. Close
// does nothing if the Mount is closed.
func (m *Mount) Close(why string) {
	m.mu.Lock()
	api := m.router
	if api == nil {
		m.mu.Unlock()
		return
	}
	m.router, m.handler, m.closed = nil, nil, why
	none := make(chan struct{})
	if m.none = none; m.open == 0 {
		close(none)
		m.none = nil
	}
	cutAll := m.cutAll
	m.mu.Unlock()

	api.Drain()
	wait, cancel := context.WithTimeout(context.Background(), drainTimeout)
	defer cancel()
	select {
	case <-none:
	case <-wait.Done():
	}
	cutAll()
	api.CloseStreams(wait)
	timer := time.NewTimer(cutTimeout)
	defer timer.Stop()
	select {
	case <-none:
	case <-timer.C: // a handler that ignores its context may still run
	}
}

// begin counts a request. It returns the handler of the request and the context that
// cuts it. While the Mount is closed, it returns the reason instead.
func (m *Mount) begin() (h http.Handler, cut context.Context, closed string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.handler == nil {
		return nil, nil, m.closed
	}
	m.open++
	return m.handler, m.cut, ""
}

func (m *Mount) end() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.open--; m.open == 0 && m.none != nil {
		close(m.none)
		m.none = nil
	}
}

// ServeHTTP answers one request.
func (m *Mount) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h, cut, closed := m.begin()
	if h == nil {
		r = identified(w, r, nil)
		p := NewProblem(http.StatusServiceUnavailable, CodeUnavailable, closed)
		p.RequestID = RequestID(r.Context())
		writeProblem(w, p)
		return
	}
	defer m.end()
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	// Cancelling a context does not interrupt a read or write; a deadline does.
	var mu sync.Mutex // protects over
	over := false
	stop := context.AfterFunc(cut, func() {
		cancel()
		mu.Lock()
		defer mu.Unlock()
		if !over {
			rc, past := http.NewResponseController(w), time.Unix(1, 0)
			_ = rc.SetReadDeadline(past)  // some writers have no deadlines
			_ = rc.SetWriteDeadline(past) // likewise
		}
	})
	defer func() {
		stop()
		mu.Lock()
		over = true
		mu.Unlock()
	}()
	h.ServeHTTP(w, r.WithContext(ctx))
}
