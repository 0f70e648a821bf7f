package web

import (
	"context"
	"io"
	"net"
	"net/http"
	"testing"

	"github.com/largesse/largesse/internal/auth"
	"github.com/largesse/largesse/internal/lab/fixture"
)

// TestIdleConnectionsGiveWay opens far more connections than the server may have, and
// leaves them idle: some never send anything, some send one request. A new client is
// answered all the same, and one with a request in progress keeps its connection.
func TestIdleConnectionsGiveWay(t *testing.T) {
	t.Parallel()
	const most, idle = 1000, 2000
	s := fixture.Must(NewServer(ServerConfig{Listen: "127.0.0.1:0", AuthMode: auth.ModeNone, Limits: Limits{Connections: most}}))(t)
	b := setup(t)
	began, finish := make(chan struct{}), make(chan struct{})
	b.api.Handle("alive", "GET /slow", func(w http.ResponseWriter, _ *http.Request) {
		close(began)
		<-finish
		w.WriteHeader(http.StatusOK)
	})
	fixture.OK(t, s.Start(t.Context(), b.api))
	t.Cleanup(s.Stop)
	busy := fixture.Must(net.Dial("tcp", s.Addr()))(t)
	defer busy.Close()
	fixture.Must(busy.Write([]byte("GET /slow HTTP/1.1\r\nHost: localhost\r\n\r\n")))(t)
	<-began
	for n := range idle {
		conn := fixture.Must(net.Dial("tcp", s.Addr()))(t)
		defer conn.Close()
		if n%2 == 0 && n < most {
			fixture.Must(conn.Write([]byte("GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")))(t)
		}
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for range 5 {
		ctx, cancel := context.WithTimeout(t.Context(), fixture.Patience)
		req := fixture.Must(http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.Addr()+"/healthz", nil))(t)
		res, err := client.Do(req)
		cancel()
		if err != nil {
			t.Fatalf("a new client: %v", err)
		}
		_ = res.Body.Close()
	}
	close(finish)
	first := make([]byte, len("HTTP/1.1 200"))
	if _, err := io.ReadFull(busy, first); err != nil || string(first) != "HTTP/1.1 200" {
		t.Errorf("the request in progress: %q, %v", first, err)
	}
}
