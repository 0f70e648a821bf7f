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

// How callers prove who they are. AuthNone lets everybody in who can reach the
// address, which is why it must be a loopback one.
const (
	AuthNone   = auth.ModeNone
	AuthAPIKey = auth.ModeAPIKey
	AuthJWT    = auth.ModeJWT // or an API key
)

const (
	// drainWait is how long requests under way may take to end at a stop.
	drainWait = 5 * time.Second
)

// ServerConfig says where and how to listen.
type ServerConfig struct {
	// Listen is host:port; port 0 takes any free one.
	Listen   string
	AuthMode string
	// Origins are those of web pages that may call, e.g. https://shop.example.
	Origins []string
	// TLSCert and TLSKey are PEM files, which may change while the server runs;
	// empty: plain HTTP.
	TLSCert, TLSKey string
	Limits          Limits
	Log             obs.Log
}

// Server serves the API on a TCP address.
type Server struct {
	base service.Base
	cfg  ServerConfig
	log  obs.Log
	// cross lets pages of the named origins, and no others, change anything.
	cross *http.CrossOriginProtection
	cert  *certificate // nil = plain HTTP

	mu    sync.Mutex   // protects what follows
	bound net.Listener // by Bind, until Start serves there
	addr  string
	live  bool
}

// NewServer checks the settings; nothing is bound yet.
func NewServer(cfg ServerConfig) (*Server, error) {
	if modes := []string{AuthNone, AuthAPIKey, AuthJWT}; !slices.Contains(modes, cfg.AuthMode) {
		return nil, fmt.Errorf("auth.mode %q is not known; it is one of %s", cfg.AuthMode, strings.Join(modes, ", "))
	}
	host, _, err := net.SplitHostPort(cfg.Listen)
	if err != nil {
		return nil, fmt.Errorf("http.listen %q is not host:port: %w", cfg.Listen, err)
	}
	if cfg.AuthMode == AuthNone && !auth.IsLoopback(host) {
		return nil, fmt.Errorf("http.listen %q is not a loopback address; with auth.mode none anybody who reaches it may pay: listen on 127.0.0.1, or set auth.mode", cfg.Listen)
	}
	cross := http.NewCrossOriginProtection()
	for _, origin := range cfg.Origins {
		if err := cross.AddTrustedOrigin(origin); err != nil {
			return nil, fmt.Errorf("http.allowed-origins: %w", err)
		}
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

// Bind takes the address, so that a taken one is known before anything else is
// begun. Who connects is not answered before Start. Binding twice does nothing.
func (s *Server) Bind(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bindLocked(ctx)
}

func (s *Server) bindLocked(ctx context.Context) error {
	if s.live || s.bound != nil {
		return nil
	}
	ln, err := listenConfig().Listen(ctx, "tcp", s.cfg.Listen)
	if err != nil {
		hint := ""
		if errors.Is(err, syscall.EADDRINUSE) {
			hint = "; end what listens there (largesse doctor says whether it is an instance), or set http.listen to another port, 0 for any free one"
		}
		return fmt.Errorf("listen for the API on %s: %w%s", s.cfg.Listen, err, hint)
	}
	s.bound, s.addr = ln, ln.Addr().String()
	return nil
}

// Start binds the address, unless Bind has, and serves api there in the
// background until Stop, or until ctx ends. Starting what runs already does
// nothing.
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
	api.Undrain()
	s.base.Stop() // a run that has just ended may still be on its last step
	s.base.Start(ctx, func(ctx context.Context) {
		s.serve(ctx, ln, api)
		s.mu.Lock()
		s.live = false
		s.mu.Unlock()
	})
	return nil
}

// Stop says that no more work should be sent, lets requests under way end for
// up to five seconds, then cuts what is left. It gives back what was only bound.
// It may be called twice.
func (s *Server) Stop() {
	s.mu.Lock()
	if s.bound != nil {
		_ = s.bound.Close() // nobody was answered there yet
		s.bound = nil
	}
	s.mu.Unlock()
	s.base.Stop()
}

// Addr is the address that Bind or Start bound, "" before it.
func (s *Server) Addr() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.addr
}

func (s *Server) serve(ctx context.Context, ln net.Listener, api *Router) {
	srv := &http.Server{
		Handler:           s.cfg.Limits.handler(guard(api, s.cross, s.cfg.AuthMode, s.cfg.Origins)),
		ReadHeaderTimeout: s.cfg.Limits.Header,
		WriteTimeout:      s.cfg.Limits.Write, // what is written by Limits.handler has its own
		IdleTimeout:       s.cfg.Limits.Idle,
		MaxHeaderBytes:    headBytesMost, // headConn has refused more
		Protocols:         new(http.Protocols),
		ErrorLog:          s.log.Std("http: URL query contains semicolon"),
	}
	srv.Protocols.SetHTTP1(true)
	watchConns(srv)
	var secure *tls.Config
	if s.cert != nil {
		secure = s.cert.tlsConfig()
	}
	ln = newBoundedListener(ln, s.cfg.Limits.Connections, secure, s.log)
	served := make(chan error, 1)
	go func() { served <- srv.Serve(ln) }()
	s.log.Info(obs.Started, "address", ln.Addr().String())
	select {
	case err := <-served:
		s.log.Error(obs.Failed, err)
		return
	case <-ctx.Done():
	}
	api.Drain()
	s.log.Info(obs.Stopping, "address", ln.Addr().String())
	wait, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainWait)
	defer cancel()
	if err := srv.Shutdown(wait); err != nil {
		_ = srv.Close() // whatever it says, the connections are closed
	}
	api.streams.close(wait)
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		s.log.Error(obs.Failed, err)
	}
	s.log.Info(obs.Stopped, "address", ln.Addr().String())
}

// guard keeps web pages of others out: a page must not change anything here from
// an origin that is not named, nor, while nobody has to prove who he is, reach
// us under a name of its own that resolves to this machine. Named origins hear
// that they may read the answers.
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
		r = withRequestID(w, r)
		if err := cross.Check(r); err != nil {
			api.Fail(w, r, NewProblem(http.StatusForbidden, CodeCrossOrigin, "a page of another origin may not do this; http.allowed-origins names those that may"))
			return
		}
		if authMode == AuthNone && !auth.IsLoopback(hostOf(r.Host)) {
			api.Fail(w, r, NewProblem(http.StatusMisdirectedRequest, CodeWrongHost,
				"with auth.mode none this server answers to localhost and loopback addresses only"))
			return
		}
		api.ServeHTTP(w, r)
	})
}

// IdempotencyHeader is how callers name a request that they may repeat.
const IdempotencyHeader = "Idempotency-Key"

// allowOrigin says to a browser what a page of another origin may do. It sends
// no cookies, so there is nothing here that a page could use in somebody's name.
func allowOrigin(h http.Header, origin string) {
	h.Set("Access-Control-Allow-Origin", origin)
	h.Set("Access-Control-Allow-Methods", "GET, POST, PATCH, DELETE")
	h.Set("Access-Control-Allow-Headers", "Authorization, Content-Type, Content-Encoding, "+IdempotencyHeader+", If-None-Match, Last-Event-ID, Prefer, "+requestIDHeader)
	h.Set("Access-Control-Expose-Headers", "ETag, Location, Preference-Applied, Retry-After, "+requestIDHeader)
	h.Set("Access-Control-Max-Age", "600")
}

func hostOf(hostPort string) string {
	if host, _, err := net.SplitHostPort(hostPort); err == nil {
		return host
	}
	return strings.Trim(hostPort, "[]")
}
