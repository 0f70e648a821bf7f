// Package web is the HTTP plumbing of the API. A Router answers requests: it gives
// them IDs, asks who may call an operation, and writes problems, ETags, CSV and
// event streams. A Server serves a Router on a TCP address and protects it from
// slow, greedy and hostile clients. The package knows no operation; those are in
// package api.
package web

import (
	"context"
	"maps"
	"net/http"
	"net/netip"
	"regexp"
	"strings"
	"sync"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/tracing"
)

// Gate decides whether a request may call an operation. It returns the request
// to pass on, whose context carries what the gate found out, and a function
// that is called when the request has been answered. Instead of these it
// returns the error to answer with.
type Gate func(r *http.Request, operation string) (*http.Request, func(), error)

// RouterConfig configures a Router.
type RouterConfig struct {
	// Title and Version head the description of the API.
	Title, Version string
	// Gate is asked before each operation. It must not be nil.
	Gate Gate
	// Metrics counts the responses. Nil counts nothing.
	Metrics *obs.Metrics
	// TrustedProxies are the networks of proxies whose Forwarded and X-Forwarded-For
	// headers name the client, and whose traceparent names the trace.
	TrustedProxies []netip.Prefix
	// Refused is called for requests that are answered with 401, 403 or 421 although the
	// gate let them pass or was not asked. Nil means nobody.
	Refused func(r *http.Request, operation string, status int)
	// Tracer makes a span of each request to /v1 that the gate let pass. Nil makes none.
	Tracer *tracing.Tracer
	Log    obs.Log
}

// Router answers HTTP requests. It gives each request an ID, finds its operation,
// asks the gate, and turns errors, panics and unknown paths into problems. It does
// not know what the operations do. All operations must be added before the first
// request. After that, a Router is safe for concurrent use.
type Router struct {
	drain
	cfg     RouterConfig
	log     obs.Log
	outage  *outage
	mux     *http.ServeMux
	huma    huma.API
	streams openStreams
	// operations maps the patterns of mux to operations.
	operations map[string]string
	shortcuts  []shortcut
	paths      *http.ServeMux      // finds a path whatever the method
	methods    map[string]*methods // by path
}

// NewRouter returns a Router without operations.
func NewRouter(cfg RouterConfig) *Router {
	a := &Router{
		cfg: cfg, log: cfg.Log.For(obs.API), mux: http.NewServeMux(),
		operations: make(map[string]string), paths: http.NewServeMux(), methods: make(map[string]*methods),
	}
	if cfg.Refused == nil {
		a.cfg.Refused = func(*http.Request, string, int) {}
	}
	a.Undrain()
	a.outage = newOutage(a.log)
	hc := huma.DefaultConfig(cfg.Title, descriptionVersion(cfg.Version))
	// The description is served once it is complete. The docs page of huma would
	// load scripts of other servers, and $schema would be an undocumented field.
	hc.OpenAPIPath, hc.DocsPath, hc.SchemasPath, hc.CreateHooks = "", "", "", nil
	hc.RejectUnknownQueryParameters = true
	hc.Formats = jsonFormats
	a.huma = humago.New(a.mux, hc)
	a.huma.UseMiddleware(a.checkQuery, a.checkNoBody)
	return a
}

// release matches the version of a release, perhaps of a candidate.
var release = regexp.MustCompile(`^v?(\d+\.\d+\.\d+)(-(?:alpha|beta|rc)\.?\d+$)?`)

// descriptionVersion returns the version of the description, which generated clients have
// as theirs: package managers refuse what does not follow both semantic versioning and
// PEP 440, such as devel. Every build between two releases is X.Y.Z-dev.
func descriptionVersion(version string) string {
	m := release.FindStringSubmatch(version)
	switch {
	case m == nil:
		return "0.0.0-dev"
	case m[0] == version:
		return m[1] + m[2]
	}
	return m[1] + "-dev"
}

// OpenAPI returns the description of the operations, for additions.
func (a *Router) OpenAPI() *huma.OpenAPI { return a.huma.OpenAPI() }

// Handle adds an operation that f answers, without huma.
func (a *Router) Handle(operation, pattern string, f http.HandlerFunc) {
	a.record(operation, pattern)
	a.mux.HandleFunc(pattern, f)
}

// Register adds an operation with a JSON body and a JSON response. Errors of f
// become problems.
func Register[I, O any](a *Router, op huma.Operation, f func(ctx context.Context, in *I) (*O, error)) {
	a.record(op.OperationID, op.Method+" "+op.Path)
	huma.Register(a.huma, op, func(ctx context.Context, in *I) (*O, error) {
		out, err := f(ctx, in)
		if err != nil {
			return nil, a.ProblemOf(ctx, err)
		}
		return out, nil
	})
}

// Shortcut answers a request without huma, or returns false before it has written anything.
// What it has read of the body it has put back then.
type Shortcut func(w http.ResponseWriter, r *http.Request) bool

// shortcut answers requests whose path has digits between prefix and suffix.
type shortcut struct {
	pattern, method, prefix, suffix string
	answer                          Shortcut
}

// Shorten has requests of an operation that was added, whose path has one parameter, go
// through a shortcut first if that parameter is a number.
func (a *Router) Shorten(method, path string, s Shortcut) {
	prefix, rest, _ := strings.Cut(path, "{")
	_, suffix, _ := strings.Cut(rest, "}")
	a.shortcuts = append(a.shortcuts, shortcut{method + " " + path, method, prefix, suffix, s})
}

// shortcutOf finds a request's shortcut, which is much faster than to find its operation.
func (a *Router) shortcutOf(r *http.Request) shortcut {
	for _, s := range a.shortcuts {
		id, begins := strings.CutPrefix(r.URL.Path, s.prefix)
		id, ends := strings.CutSuffix(id, s.suffix)
		other := func(c rune) bool { return c < '0' || c > '9' }
		if begins && ends && r.Method == s.method && r.URL.RawPath == "" && r.URL.RawQuery == "" && id != "" && !strings.ContainsFunc(id, other) {
			return s
		}
	}
	return shortcut{}
}

// Operations returns the operation of each pattern.
func (a *Router) Operations() map[string]string { return maps.Clone(a.operations) }

// OpenStreams returns the number of open event streams, and how many of them took
// over their connection.
func (a *Router) OpenStreams() (streams, connections int) {
	a.streams.mu.Lock()
	defer a.streams.mu.Unlock()
	return a.streams.open, len(a.streams.conns)
}

// CloseStreams waits until all event streams have ended, which they do while the
// Router drains. When ctx ends, it closes the connections of the remaining ones.
func (a *Router) CloseStreams(ctx context.Context) { a.streams.close(ctx) }

// drain is the part of a Router that ends the responses which wait for something and would
// delay a stop. It is safe for concurrent use.
type drain struct {
	mu   sync.Mutex      // protects what follows
	ctx  context.Context // ends when draining begins
	stop context.CancelFunc
}

// Drain ends the responses that wait for something, such as event streams.
func (d *drain) Drain() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.stop()
}

// Undrain reverts Drain.
func (d *drain) Undrain() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ctx == nil || d.ctx.Err() != nil {
		d.ctx, d.stop = context.WithCancel(context.Background())
	}
}

// IsDraining reports whether the Router drains.
func (d *drain) IsDraining() bool {
	select {
	case <-d.DrainBegins():
		return true
	default:
		return false
	}
}

// DrainBegins returns a channel that is closed once draining begins, or has begun.
func (d *drain) DrainBegins() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.ctx.Done()
}
