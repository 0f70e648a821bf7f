package web

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/largesse/largesse/internal/auth"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/service"
)

const drainTimeout = 5 * time.Second

// ServerConfig configures a Server.
type ServerConfig struct {
	// Listen is host:port. Port 0 means any free port.
	Listen string
	// AuthMode is auth.ModeNone, auth.ModeAPIKey or auth.ModeJWT. With auth.ModeNone,
	// Listen must be a loopback address.
	AuthMode string
	// Origins lists the origins of web pages that may call the API, e.g.
	// https://shop.example.
	Origins []string
	// TLSCert and TLSKey are PEM files. They are reread when they change. If they
	// are empty, the Server uses plain HTTP.
	TLSCert, TLSKey string
	// Only lists the paths that the Server serves, for every host name and page; empty
	// means all of the Router. Without lists paths that it does not serve.
	Only, Without []string
	Limits        Limits
	Log           obs.Log
}

// Server serves a Router on a TCP address. It is safe for concurrent use.
type Server struct {
	base service.Base
	cfg  ServerConfig
	log  obs.Log
	// cross lets a page change data only if its origin is that of the server or is
	// configured.
	cross *http.CrossOriginProtection
	cert  *certificate // nil: plain HTTP

	mu    sync.Mutex   // protects what follows
	bound net.Listener // set by Bind until Start serves it
	addr  string
	live  bool
}

// NewServer checks the configuration and returns a Server that is not bound yet.
func NewServer(cfg ServerConfig) (*Server, error) {
	if modes := []string{auth.ModeNone, auth.ModeAPIKey, auth.ModeJWT}; !slices.Contains(modes, cfg.AuthMode) {
		return nil, fmt.Errorf("auth.mode %q is unknown; use one of %s", cfg.AuthMode, strings.Join(modes, ", "))
	}
	host, _, err := net.SplitHostPort(cfg.Listen)
	if err != nil {
		return nil, fmt.Errorf("http.listen %q is not host:port: %w", cfg.Listen, err)
	}
	if cfg.AuthMode == auth.ModeNone && len(cfg.Only) == 0 && !auth.IsLoopback(host) {
		return nil, fmt.Errorf("http.listen %q is not a loopback address; with auth.mode none, everybody who can reach it could pay: listen on 127.0.0.1, or set auth.mode", cfg.Listen)
	}
	cross, err := crossOrigin(cfg.Origins)
	if err != nil {
		return nil, err
	}
	cfg.Limits = cfg.Limits.withDefaults()
	s := &Server{cfg: cfg, cross: cross, log: cfg.Log.For(obs.API)}
	if cfg.TLSCert != "" {
		if s.cert, err = newCertificate(cfg.TLSCert, cfg.TLSKey, s.log); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// crossOrigin returns the check that a page which changes something is of one of the origins.
func crossOrigin(origins []string) (*http.CrossOriginProtection, error) {
	cross := http.NewCrossOriginProtection()
	for _, origin := range origins {
		if err := cross.AddTrustedOrigin(origin); err != nil {
			return nil, fmt.Errorf("http.allowed-origins: %w", err)
		}
	}
	return cross, nil
}

// Bind binds the address, so that an address in use is found before anything
// else starts. Clients that connect wait until Start. A second Bind does nothing.
func (s *Server) Bind(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bindLocked(ctx)
}

func (s *Server) bindLocked(ctx context.Context) error {
	if s.live || s.bound != nil {
		return nil
	}
	ln, err := newListenConfig().Listen(ctx, "tcp", s.cfg.Listen)
	if err != nil {
		hint := ""
		if errors.Is(err, syscall.EADDRINUSE) {
			hint = "; stop the program that listens there (largesse doctor reports whether it is an instance), or set http.listen to another port; port 0 means any free port"
		}
		return fmt.Errorf("listening for the API on %s failed: %w%s", s.cfg.Listen, err, hint)
	}
	s.bound, s.addr = ln, ln.Addr().String()
	return nil
}

// Start binds the address unless Bind did, and serves api in the background
// until Stop is called or ctx ends. Start does nothing if the Server is running.
func (s *Server) Start(ctx context.Context, api *Router) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.live {
		return nil
	}
	if err := s.bindLocked(ctx); err != nil {
		return err
	}
	ln := s.bound
	s.bound, s.live = nil, true
	if len(s.cfg.Only) == 0 {
		api.Undrain()
	}
	s.base.Stop() // a previous run has set live to false: wait until it has returned
	s.base.Start(ctx, func(ctx context.Context) {
		s.serve(ctx, ln, api)
		s.mu.Lock()
		s.live = false
		s.mu.Unlock()
	})
	return nil
}

// Stop drains the Router, lets requests in progress end for up to five seconds,
// and then closes the remaining connections. If the address was only bound, Stop
// releases it. Stop may be called more than once.
func (s *Server) Stop() {
	s.mu.Lock()
	if s.bound != nil {
		_ = s.bound.Close() // nothing was served yet
		s.bound = nil
	}
	s.mu.Unlock()
	s.base.Stop()
}

// Addr returns the address that Bind or Start bound, or "" before that.
func (s *Server) Addr() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.addr
}

func (s *Server) serve(ctx context.Context, ln net.Listener, api *Router) {
	srv := &http.Server{
		Handler:           s.cfg.Limits.handler(s.handler(api)),
		ReadHeaderTimeout: s.cfg.Limits.Header,
		WriteTimeout:      s.cfg.Limits.Write, // Limits.handler sets its own deadlines
		IdleTimeout:       s.cfg.Limits.Idle,
		MaxHeaderBytes:    headerBytesMax, // headConn refuses larger ones
		Protocols:         new(http.Protocols),
		ErrorLog:          s.log.Std("http: URL query contains semicolon"),
	}
	srv.Protocols.SetHTTP1(true)
	trackRequests(srv)
	var secure *tls.Config
	if s.cert != nil {
		secure = s.cert.tlsConfig()
	}
	ln = newLimitedListener(ln, s.cfg.Limits.Connections, secure, s.log)
	served := make(chan error, 1)
	go func() { served <- srv.Serve(ln) }()
	s.log.Info("API server started", "address", ln.Addr().String())
	select {
	case err := <-served:
		s.log.Error("API server failed", err)
		return
	case <-ctx.Done():
	}
	if len(s.cfg.Only) == 0 {
		api.Drain()
	}
	s.log.Info("API server stopping", "address", ln.Addr().String())
	wait, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTimeout)
	defer cancel()
	if err := srv.Shutdown(wait); err != nil {
		_ = srv.Close() // the connections are closed even if it returns an error
	}
	if len(s.cfg.Only) == 0 {
		api.streams.close(wait)
	}
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		s.log.Error("API shutdown failed", err)
	}
	s.log.Info("API server stopped", "address", ln.Addr().String())
}

func (s *Server) handler(api *Router) http.Handler {
	var all http.Handler = api
	if len(s.cfg.Only) == 0 {
		all = guard(api, s.cross, s.cfg.AuthMode, s.cfg.Origins)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		path := r.URL.Path
		if len(s.cfg.Only) > 0 && !slices.Contains(s.cfg.Only, path) || slices.Contains(s.cfg.Without, path) {
			r = identified(w, r, api.cfg.TrustedProxies)
			api.Fail(w, r, NewProblem(http.StatusNotFound, CodeRouteNotFound, "this path is not served at this address; see http.probe-listen"))
			return
		}
		all.ServeHTTP(w, r)
	})
}

// guard protects the API from web pages of origins that are not configured. Such a
// page cannot change data. With auth.ModeNone, it also cannot reach the API under a host name of
// its own that resolves to this machine. Pages of the configured origins may call
// the API and read the responses.
func guard(api *Router, cross *http.CrossOriginProtection, authMode string, origins []string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if len(origins) > 0 {
			w.Header().Add("Vary", "Origin")
		}
		if origin := r.Header.Get("Origin"); slices.Contains(origins, origin) {
			allowOrigin(w.Header(), origin)
			if r.Method == http.MethodOptions && r.Header.Get("Access-Control-Request-Method") != "" {
				w.WriteHeader(http.StatusNoContent)
				return
			}
		}
		r = identified(w, r, api.cfg.TrustedProxies)
		if err := cross.Check(r); err != nil {
			api.cfg.Refused(r, "", http.StatusForbidden)
			api.Fail(w, r, NewProblem(http.StatusForbidden, CodeCrossOrigin, "pages of this origin may not do this; http.allowed-origins lists the origins that may"))
			return
		}
		if authMode == auth.ModeNone && !auth.IsLoopback(hostOf(r.Host)) {
			api.cfg.Refused(r, "", http.StatusMisdirectedRequest)
			api.Fail(w, r, NewProblem(http.StatusMisdirectedRequest, CodeWrongHost,
				"with auth.mode none, this server accepts only localhost and loopback addresses as the host"))
			return
		}
		api.ServeHTTP(w, r)
	})
}

// IdempotencyHeader is the header with the key that a caller chooses for an API
// request that may be repeated. A payout's idempotency key is something else.
const IdempotencyHeader = "Idempotency-Key"

// CrossOriginHeaders are the request headers that a page of an allowed origin may send.
const CrossOriginHeaders = "Authorization, Content-Type, Content-Encoding, " + IdempotencyHeader + ", If-Match, If-None-Match, Largesse-Actor, Last-Event-ID, Prefer, " + requestIDHeader

// allowOrigin tells a browser what a page of another origin may do. Cookies are
// not allowed, so a page cannot act with the credentials of its visitor.
func allowOrigin(h http.Header, origin string) {
	h.Set("Access-Control-Allow-Origin", origin)
	h.Set("Access-Control-Allow-Methods", "GET, POST, PATCH, DELETE")
	h.Set("Access-Control-Allow-Headers", CrossOriginHeaders)
	h.Set("Access-Control-Expose-Headers", "ETag, Idempotent-Replayed, Location, Preference-Applied, Retry-After, "+requestIDHeader)
	h.Set("Access-Control-Max-Age", "600")
}

func hostOf(hostPort string) string {
	if host, _, err := net.SplitHostPort(hostPort); err == nil {
		return host
	}
	return strings.Trim(hostPort, "[]")
}
