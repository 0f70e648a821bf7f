package api

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

func TestServer(t *testing.T) {
	t.Parallel()
	b := setup(t)

	t.Run("RefusesWhatIsNotLoopback", func(t *testing.T) {
		t.Parallel()
		for _, listen := range []string{"0.0.0.0:0", ":0", "192.0.2.1:80", "[::]:0", "example.com:80", "127.0.0.1"} {
			if _, err := NewServer(ServerConfig{Listen: listen, AuthMode: AuthNone}); err == nil {
				t.Errorf("%s was taken", listen)
			}
		}
		if _, err := NewServer(ServerConfig{Listen: "127.0.0.1:0", AuthMode: "open"}); err == nil {
			t.Error("an unknown mode was taken")
		}
	})

	t.Run("StartStopStress", func(t *testing.T) {
		t.Parallel()
		s, err := NewServer(ServerConfig{Listen: "localhost:0", AuthMode: AuthNone})
		if err != nil {
			t.Fatal(err)
		}
		s.Stop()
		client := &http.Client{Transport: &http.Transport{}}
		defer client.CloseIdleConnections()
		for range 20 {
			if err := errors.Join(s.Start(t.Context(), b.api.Router), s.Start(t.Context(), b.api.Router)); err != nil {
				t.Fatal(err)
			}
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+s.Addr()+"/readyz", nil)
			if err != nil {
				t.Fatal(err)
			}
			res, err := client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			_ = res.Body.Close()
			if res.StatusCode != http.StatusOK {
				t.Fatalf("status %d", res.StatusCode)
			}
			// Two at a time do no harm. Both are awaited: a late one would stop
			// the server of the next round.
			var stops sync.WaitGroup
			stops.Go(s.Stop)
			s.Stop()
			stops.Wait()
		}
	})

	t.Run("TakenAddress", func(t *testing.T) {
		t.Parallel()
		other := setup(t)
		s, err := NewServer(ServerConfig{Listen: strings.TrimPrefix(other.url, "http://"), AuthMode: AuthNone})
		if err != nil {
			t.Fatal(err)
		}
		for _, err := range []error{s.Bind(t.Context()), s.Start(t.Context(), other.api.Router)} {
			if err == nil || !strings.Contains(err.Error(), "http.listen") {
				t.Errorf("an address was bound twice: %v", err)
			}
		}
	})

	t.Run("AnswersOnceItServesWhatIsBound", func(t *testing.T) {
		t.Parallel()
		s, err := NewServer(ServerConfig{Listen: "127.0.0.1:0", AuthMode: AuthNone})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Stop()
		if err := errors.Join(s.Bind(t.Context()), s.Bind(t.Context())); err != nil {
			t.Fatal(err)
		}
		addr := s.Addr()
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		answered := make(chan int, 1)
		connected := make(chan struct{})
		go func() {
			trace := &httptrace.ClientTrace{WroteRequest: func(httptrace.WroteRequestInfo) { close(connected) }}
			req, err := http.NewRequestWithContext(httptrace.WithClientTrace(t.Context(), trace), http.MethodGet, "http://"+addr+"/healthz", nil)
			if err != nil {
				answered <- 0
				return
			}
			res, err := client.Do(req)
			if err != nil {
				answered <- 0
				return
			}
			_ = res.Body.Close()
			answered <- res.StatusCode
		}()
		<-connected
		select {
		case status := <-answered:
			t.Fatalf("answered %d before it serves", status)
		default:
		}
		if err := s.Start(t.Context(), setup(t).api.Router); err != nil || s.Addr() != addr {
			t.Fatalf("%v, %s became %s", err, addr, s.Addr())
		}
		if status := <-answered; status != http.StatusOK {
			t.Errorf("status %d", status)
		}
	})

	t.Run("StopGivesBackWhatIsBound", func(t *testing.T) {
		t.Parallel()
		s, err := NewServer(ServerConfig{Listen: "127.0.0.1:0", AuthMode: AuthNone})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Bind(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.Stop()
		s.Stop()
		again, err := net.Listen("tcp", s.Addr())
		if err != nil {
			t.Fatal(err)
		}
		_ = again.Close()
	})

	t.Run("KeepsPagesOfOthersOut", func(t *testing.T) {
		t.Parallel()
		for _, tt := range []struct {
			method, host, site string
			status             int
		}{
			{"GET", "127.0.0.1:8080", "", 200},
			{"GET", "[::1]:8080", "", 200},
			{"GET", "localhost", "", 200},
			{"GET", "evil.example:8080", "", 421},
			{"POST", "127.0.0.1:8080", "cross-site", 403},
		} {
			r := httptest.NewRequestWithContext(t.Context(), tt.method, "/healthz", nil)
			r.Host = tt.host
			if tt.site != "" {
				r.Header.Set("Sec-Fetch-Site", tt.site)
			}
			w := httptest.NewRecorder()
			guard(b.api.Router, http.NewCrossOriginProtection(), AuthNone, nil).ServeHTTP(w, r)
			if w.Code != tt.status {
				t.Errorf("%+v: status %d", tt, w.Code)
			}
		}
	})

	t.Run("AnUploadUnderWayEndsAtAStop", func(t *testing.T) {
		t.Parallel()
		own := setup(t)
		own.store.edit(1, func(v *store.PromotionView) { v.ID, v.Type, v.Amount = 1, reward.Point, 5 })
		s, err := NewServer(ServerConfig{Listen: "127.0.0.1:0", AuthMode: AuthNone})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Start(t.Context(), own.api.Router); err != nil {
			t.Fatal(err)
		}
		body, feed := io.Pipe()
		// A transport of its own: the shared one may hold a dead connection to
		// the same port, and a body from a pipe cannot be sent again.
		client := &http.Client{Transport: &http.Transport{}}
		defer client.CloseIdleConnections()
		done := make(chan int, 1)
		go func() {
			req, err := http.NewRequestWithContext(context.WithoutCancel(t.Context()), http.MethodPost, "http://"+s.Addr()+"/v1/promotions/1/targets", body)
			if err != nil {
				done <- 0
				return
			}
			req.Header.Set("Content-Type", "text/csv")
			res, err := client.Do(req)
			if err != nil {
				done <- 0
				return
			}
			_ = res.Body.Close()
			done <- res.StatusCode
		}()
		if _, err := io.WriteString(feed, "targetId\n"+strings.Repeat("1\n", uploadHead)); err != nil {
			t.Fatal(err)
		}
		waitFor(t, func() bool { defer own.store.lock()(); return own.store.gets > 0 })
		stopped := make(chan struct{})
		go func() { s.Stop(); close(stopped) }()
		waitFor(t, func() bool { return own.api.draining.active() })
		if _, err := io.WriteString(feed, "2\n"); err != nil {
			t.Fatal(err)
		}
		_ = feed.Close()
		if status := <-done; status != http.StatusOK {
			t.Errorf("status %d", status)
		}
		<-stopped
		if len(own.store.rows) != 2 {
			t.Errorf("%d rows", len(own.store.rows))
		}
	})
}

// waitFor polls until ok, for at most ten seconds.
func waitFor(t *testing.T, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !ok(); {
		if time.Now().After(deadline) {
			t.Fatal("it did not happen within 10 s")
		}
		time.Sleep(time.Millisecond)
	}
}
