package api

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/service"
)

// AuthNone lets everybody in who can reach the address, which is why it must
// be a loopback one. It is the only mode so far.
const AuthNone = "none"

const (
	// drainWait is how long requests under way may take to end at a stop.
	drainWait      = 5 * time.Second
	headerWait     = 10 * time.Second
	keepAliveWait  = 2 * time.Minute
	headerBytesMax = 64 << 10
)

// ServerConfig says where and how to listen.
type ServerConfig struct {
	// Listen is host:port; port 0 takes any free one.
	Listen   string
	AuthMode string // AuthNone
	Log      obs.Log
}

// Server serves the API on a TCP address.
type Server struct {
	base service.Base
	cfg  ServerConfig
	log  obs.Log

	mu    sync.Mutex   // protects what follows
	bound net.Listener // by Bind, until Start serves there
	addr  string
	live  bool
}

// NewServer checks the settings; nothing is bound yet.
func NewServer(cfg ServerConfig) (*Server, error) {
	if cfg.AuthMode != AuthNone {
		return nil, fmt.Errorf("auth.mode %q is not known; this version knows only %q", cfg.AuthMode, AuthNone)
	}
	host, _, err := net.SplitHostPort(cfg.Listen)
	if err != nil {
		return nil, fmt.Errorf("http.listen %q is not host:port: %w", cfg.Listen, err)
	}
	if !isLoopback(host) {
		return nil, fmt.Errorf("http.listen %q is not a loopback address; with auth.mode none anybody who reaches it may pay: listen on 127.0.0.1", cfg.Listen)
	}
	return &Server{cfg: cfg, log: cfg.Log.For(obs.API)}, nil
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
	ln, err := new(net.ListenConfig).Listen(ctx, "tcp", s.cfg.Listen)
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
func (s *Server) Start(ctx context.Context, api *API) error {
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

func (s *Server) serve(ctx context.Context, ln net.Listener, api *API) {
	srv := &http.Server{
		Handler:           guard(api),
		ReadHeaderTimeout: headerWait,
		IdleTimeout:       keepAliveWait,
		MaxHeaderBytes:    headerBytesMax,
	}
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
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		s.log.Error(obs.Failed, err)
	}
	s.log.Info(obs.Stopped, "address", ln.Addr().String())
}

// guard keeps web pages of others out while nobody has to prove who he is: a
// page must neither post here from its own origin, nor reach us under a name
// of its own that resolves to this machine.
func guard(api *API) http.Handler {
	cross := http.NewCrossOriginProtection()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := cross.Check(r); err != nil {
			writeProblem(w, newProblem(http.StatusForbidden, CodeCrossOrigin, "a page of another origin may not do this"))
			return
		}
		if !isLoopback(hostOf(r.Host)) {
			writeProblem(w, newProblem(http.StatusMisdirectedRequest, CodeWrongHost,
				"with auth.mode none this server answers to localhost and loopback addresses only"))
			return
		}
		api.ServeHTTP(w, r)
	})
}

func hostOf(hostPort string) string {
	if host, _, err := net.SplitHostPort(hostPort); err == nil {
		return host
	}
	return strings.Trim(hostPort, "[]")
}

func isLoopback(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}
