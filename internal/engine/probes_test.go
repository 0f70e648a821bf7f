package engine

import (
	"context"
	"net"
	"net/http"
	"testing"

	"github.com/largesse/largesse/internal/auth"
	"github.com/largesse/largesse/internal/config"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/obs"
)

// TestProbesHaveTheirOwnPort takes every connection of the API with requests that never
// end. The probes and the metrics answer on their own port, and only there.
func TestProbesHaveTheirOwnPort(t *testing.T) {
	t.Parallel()
	cfg := config.Default()
	cfg.Data.Dir, cfg.Money.URL, cfg.Auth.Mode = t.TempDir(), "http://127.0.0.1:9", auth.ModeAPIKey
	cfg.HTTP.Listen, cfg.HTTP.ProbeListen, cfg.HTTP.MaxConnections = "127.0.0.1:0", "127.0.0.1:0", 50
	e := start(t, cfg, obs.Log{})
	get := func(address, path string) int { return statusAt(t, address, path) }
	for path, want := range map[string][2]int{
		"/healthz": {200, 200}, "/readyz": {200, 200}, "/metrics": {404, 200}, "/openapi.json": {200, 404}, "/v1/promotions": {401, 404},
	} {
		if got := [2]int{get(e.Addr(), path), get(e.probes.Addr(), path)}; got != want {
			t.Errorf("%s: %v, want %v", path, got, want)
		}
	}
	for range 2 * cfg.HTTP.MaxConnections {
		conn := fixture.Must(net.Dial("tcp", e.Addr()))(t)
		defer conn.Close()
		fixture.Must(conn.Write([]byte("POST /v1/promotions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{")))(t)
	}
	for _, path := range probePaths {
		if got := get(e.probes.Addr(), path); got != 200 {
			t.Errorf("%s while the API has no connection left: %d", path, got)
		}
	}
}

// statusAt returns the status of a response, 0 without one.
func statusAt(t *testing.T, address, path string) int {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), fixture.Patience)
	defer cancel()
	req := fixture.Must(http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+path, nil))(t)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := client.Do(req)
	if err != nil {
		return 0
	}
	_ = res.Body.Close()
	return res.StatusCode
}

// TestProbesWithoutTheAPI: an instance that only pays answers probes, and nothing else.
func TestProbesWithoutTheAPI(t *testing.T) {
	t.Parallel()
	cfg := config.Default()
	cfg.Data.Dir, cfg.Money.URL, cfg.HTTP.ProbeListen = t.TempDir(), "http://127.0.0.1:9", "127.0.0.1:0"
	cfg.Roles = []string{config.RolePayout}
	e := start(t, cfg, obs.Log{})
	for path, want := range map[string]int{"/healthz": 200, "/readyz": 200, "/metrics": 200, "/v1/promotions": 404, "/docs": 404} {
		if got := statusAt(t, e.probes.Addr(), path); got != want {
			t.Errorf("%s: %d, want %d", path, got, want)
		}
	}
}
