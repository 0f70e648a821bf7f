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
	API      *API
	Log      obs.Log
}

// Server serves the API on a TCP address.
type Server struct {
	base service.Base
	cfg  ServerConfig
	log  obs.Log

	mu   sync.Mutex // protects what follows
	addr string
	live bool
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

// Start binds the address and serves in the background until Stop, or until
// ctx ends. Starting what runs already does nothing.
func (s *Server) Start(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.live {
		return nil
	}
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "tcp", s.cfg.Listen)
	if err != nil {
		return fmt.Errorf("listen for the API on %s: %w", s.cfg.Listen, err)
	}
	s.addr, s.live = ln.Addr().String(), true
	s.cfg.API.Undrain()
	s.base.Stop() // a run that has just ended may still be on its last step
	s.base.Start(ctx, func(ctx context.Context) {
		s.serve(ctx, ln)
		s.mu.Lock()
		s.live = false
		s.mu.Unlock()
	})
	return nil
}

// Stop says that no more work should be sent, lets requests under way end for
// up to five seconds, then cuts what is left.
func (s *Server) Stop() { s.base.Stop() }

// Addr is the address that Start bound, "" before it.
func (s *Server) Addr() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.addr
}

func (s *Server) serve(ctx context.Context, ln net.Listener) {
	srv := &http.Server{
		Handler:           s.guard(),
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
	s.cfg.API.Drain()
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
func (s *Server) guard() http.Handler {
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
		s.cfg.API.ServeHTTP(w, r)
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
