package api

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
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
			if _, err := NewServer(ServerConfig{Listen: listen, AuthMode: AuthNone, API: b.api}); err == nil {
				t.Errorf("%s was taken", listen)
			}
		}
		if _, err := NewServer(ServerConfig{Listen: "127.0.0.1:0", AuthMode: "apikey", API: b.api}); err == nil {
			t.Error("an unknown mode was taken")
		}
	})

	t.Run("StartStopStress", func(t *testing.T) {
		t.Parallel()
		s, err := NewServer(ServerConfig{Listen: "localhost:0", AuthMode: AuthNone, API: setup(t).api})
		if err != nil {
			t.Fatal(err)
		}
		s.Stop()
		client := &http.Client{Transport: &http.Transport{}}
		defer client.CloseIdleConnections()
		for range 20 {
			if err := errors.Join(s.Start(t.Context()), s.Start(t.Context())); err != nil {
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
		s, err := NewServer(ServerConfig{Listen: strings.TrimPrefix(other.url, "http://"), AuthMode: AuthNone, API: other.api})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Start(t.Context()); err == nil {
			t.Error("an address was bound twice")
		}
	})

	t.Run("KeepsPagesOfOthersOut", func(t *testing.T) {
		t.Parallel()
		s, err := NewServer(ServerConfig{Listen: "127.0.0.1:0", AuthMode: AuthNone, API: b.api})
		if err != nil {
			t.Fatal(err)
		}
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
			s.guard().ServeHTTP(w, r)
			if w.Code != tt.status {
				t.Errorf("%+v: status %d", tt, w.Code)
			}
		}
	})

	t.Run("AnUploadUnderWayEndsAtAStop", func(t *testing.T) {
		t.Parallel()
		own := setup(t)
		own.store.edit(1, func(v *store.PromotionView) { v.ID, v.Type, v.Amount = 1, reward.Point, 5 })
		s, err := NewServer(ServerConfig{Listen: "127.0.0.1:0", AuthMode: AuthNone, API: own.api})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Start(t.Context()); err != nil {
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
		if _, err := io.WriteString(feed, "targetId\n1\n"); err != nil {
			t.Fatal(err)
		}
		waitFor(t, func() bool { defer own.store.lock()(); return own.store.gets > 0 })
		stopped := make(chan struct{})
		go func() { s.Stop(); close(stopped) }()
		waitFor(t, func() bool { return own.api.draining.Load() })
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
