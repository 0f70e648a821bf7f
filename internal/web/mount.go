package web

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"
)

// Mount serves a Router through the HTTP server of another program. Before
// Open and after Close it answers 503. Unlike a Server it answers under every
// host name, because the program decides who reaches it. It is safe for
// concurrent use.
type Mount struct {
	cross   *http.CrossOriginProtection
	origins []string
	limits  Limits

	mu      sync.Mutex    // protects what follows
	closed  string        // why nobody is answered, while handler is nil
	handler http.Handler  // nil while closed
	router  *Router       // of the handler
	open    int           // requests
	none    chan struct{} // closed when open is 0; nil while nobody waits for that
	cut     context.Context
	cutAll  context.CancelFunc // ends the requests that are open
}

// cutWait bounds how long Close waits for requests that it has cut.
const cutWait = time.Second

// NewMount returns a Mount that is closed; why says why, for callers. Pages of
// the given origins may call it from a browser.
func NewMount(origins []string, why string) (*Mount, error) {
	m := &Mount{cross: http.NewCrossOriginProtection(), origins: origins, limits: Limits{}.withDefaults(), closed: why}
	for _, origin := range origins {
		if err := m.cross.AddTrustedOrigin(origin); err != nil {
			return nil, fmt.Errorf("http.allowed-origins: %w", err)
		}
	}
	return m, nil
}

// Open makes the Mount answer by api.
func (m *Mount) Open(api *Router) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.cut, m.cutAll = context.WithCancel(context.Background())
	m.router, m.handler = api, m.limits.handler(guard(api, m.cross, "", m.origins))
	api.Undrain()
}

// Close ends the answers that wait for something and lets the other requests
// end for up to five seconds, then cuts what is left. Later requests are
// answered with 503; why says why. Closing a closed Mount does nothing.
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
	wait, cancel := context.WithTimeout(context.Background(), drainWait)
	defer cancel()
	select {
	case <-none:
	case <-wait.Done():
	}
	cutAll()
	api.CloseStreams(wait)
	timer := time.NewTimer(cutWait)
	defer timer.Stop()
	select {
	case <-none:
	case <-timer.C: // what they use ends without them
	}
}

// begin counts a request. It returns the handler of the request and the context
// that cuts it, or why there is none.
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
		r = withRequestID(w, r)
		p := NewProblem(http.StatusServiceUnavailable, CodeUnavailable, closed)
		p.RequestID = RequestID(r.Context())
		writeProblem(w, p)
		return
	}
	defer m.end()
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	// A context alone does not wake a handler that reads or writes.
	var mu sync.Mutex // protects over
	over := false
	stop := context.AfterFunc(cut, func() {
		cancel()
		mu.Lock()
		defer mu.Unlock()
		if !over {
			rc, past := http.NewResponseController(w), time.Unix(1, 0)
			_ = rc.SetReadDeadline(past)  // not every writer has deadlines
			_ = rc.SetWriteDeadline(past) // the same
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
