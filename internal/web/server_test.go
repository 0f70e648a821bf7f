package web

import (
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"strings"
	"sync"
	"testing"

	"github.com/largesse/largesse/internal/auth"
	"github.com/largesse/largesse/internal/lab/fixture"
)

func TestServer(t *testing.T) {
	t.Parallel()
	b := setup(t)

	t.Run("RefusesWhatIsNotLoopback", func(t *testing.T) {
		t.Parallel()
		for _, listen := range []string{"0.0.0.0:0", ":0", "192.0.2.1:80", "[::]:0", "example.com:80", "127.0.0.1"} {
			if _, err := NewServer(ServerConfig{Listen: listen, AuthMode: auth.ModeNone}); err == nil {
				t.Errorf("%s was taken", listen)
			}
		}
		if _, err := NewServer(ServerConfig{Listen: "127.0.0.1:0", AuthMode: "open"}); err == nil {
			t.Error("an unknown mode was taken")
		}
	})

	t.Run("StartStopStress", func(t *testing.T) {
		t.Parallel()
		s := fixture.Must(NewServer(ServerConfig{Listen: "localhost:0", AuthMode: auth.ModeNone}))(t)
		s.Stop()
		client := &http.Client{Transport: &http.Transport{}}
		defer client.CloseIdleConnections()
		for range 20 {
			fixture.OK(t, errors.Join(s.Start(t.Context(), b.api), s.Start(t.Context(), b.api)))
			req := fixture.Must(http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+s.Addr()+"/readyz", nil))(t)
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
		s := fixture.Must(NewServer(ServerConfig{Listen: strings.TrimPrefix(other.url, "http://"), AuthMode: auth.ModeNone}))(t)
		for _, err := range []error{s.Bind(t.Context()), s.Start(t.Context(), other.api)} {
			if err == nil || !strings.Contains(err.Error(), "http.listen") {
				t.Errorf("an address was bound twice: %v", err)
			}
		}
	})

	t.Run("AnswersOnceItServesWhatIsBound", func(t *testing.T) {
		t.Parallel()
		s := fixture.Must(NewServer(ServerConfig{Listen: "127.0.0.1:0", AuthMode: auth.ModeNone}))(t)
		defer s.Stop()
		fixture.OK(t, errors.Join(s.Bind(t.Context()), s.Bind(t.Context())))
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
		if err := s.Start(t.Context(), setup(t).api); err != nil || s.Addr() != addr {
			t.Fatalf("%v, %s became %s", err, addr, s.Addr())
		}
		if status := <-answered; status != http.StatusOK {
			t.Errorf("status %d", status)
		}
	})

	t.Run("StopReleasesWhatIsBound", func(t *testing.T) {
		t.Parallel()
		s := fixture.Must(NewServer(ServerConfig{Listen: fixture.FreeAddress(t), AuthMode: auth.ModeNone}))(t)
		fixture.OK(t, s.Bind(t.Context()))
		s.Stop()
		s.Stop()
		again := fixture.Must(net.Listen("tcp", s.Addr()))(t)
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
			guard(b.api, http.NewCrossOriginProtection(), auth.ModeNone, nil).ServeHTTP(w, r)
			if w.Code != tt.status {
				t.Errorf("%+v: status %d", tt, w.Code)
			}
		}
	})
}

func TestOrigins(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const shop = "https://shop.example"
	s := fixture.Must(NewServer(ServerConfig{Listen: "127.0.0.1:0", AuthMode: auth.ModeNone, Origins: []string{shop}}))(t)
	h := guard(b.api, s.cross, auth.ModeNone, []string{shop})
	ask := func(method, origin string, more ...string) *httptest.ResponseRecorder {
		r := httptest.NewRequestWithContext(t.Context(), method, "http://127.0.0.1/v1/things", strings.NewReader(`{"name":"Spring","type":"POINT","amount":5}`))
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Origin", origin)
		r.Header.Set("Sec-Fetch-Site", "cross-site")
		for i := 0; i < len(more); i += 2 {
			r.Header.Set(more[i], more[i+1])
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w
	}
	if w := ask("OPTIONS", shop, "Access-Control-Request-Method", "POST"); w.Code != http.StatusNoContent ||
		w.Header().Get("Access-Control-Allow-Origin") != shop || !strings.Contains(w.Header().Get("Access-Control-Allow-Headers"), "Idempotency-Key") || w.Header().Get("Access-Control-Allow-Credentials") != "" {
		t.Errorf("%d %v", w.Code, w.Header())
	}
	if w := ask("POST", shop); w.Code != http.StatusCreated || w.Header().Get("Access-Control-Allow-Origin") != shop || w.Header().Get("Vary") != "Origin" {
		t.Errorf("%d %v %s", w.Code, w.Header(), w.Body)
	}
	for _, origin := range []string{"https://evil.example", "https://shop.example.evil.example", "http://shop.example", "null"} {
		if w := ask("POST", origin); w.Code != http.StatusForbidden || w.Header().Get("Access-Control-Allow-Origin") != "" || !strings.Contains(w.Body.String(), CodeCrossOrigin) {
			t.Errorf("%s: %d %v", origin, w.Code, w.Header())
		}
		if w := ask("OPTIONS", origin, "Access-Control-Request-Method", "POST"); w.Header().Get("Access-Control-Allow-Origin") != "" || w.Code == http.StatusNoContent {
			t.Errorf("%s: %d %v", origin, w.Code, w.Header())
		}
	}
	if _, err := NewServer(ServerConfig{Listen: "127.0.0.1:0", AuthMode: auth.ModeNone, Origins: []string{"shop"}}); err == nil {
		t.Error("an origin that is none was taken")
	}
}
