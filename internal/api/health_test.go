package api

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestHealth(t *testing.T) {
	t.Parallel()
	b := setup(t, func(c *Config) {
		c.Degraded = func() []string { return []string{"redis"} }
	})
	if a := b.json(t, "GET", "/healthz", ""); a.status != 200 || a.text(t, "status") != "ok" {
		t.Errorf("%+v", a)
	}
	a := b.json(t, "GET", "/readyz", "")
	a.want(t, http.StatusOK)
	if diff := cmp.Diff([]any{"redis"}, a.object(t)["degraded"]); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	b.api.Drain()
	b.json(t, "GET", "/readyz", "").wantProblem(t, http.StatusServiceUnavailable, "DRAINING")
	b.api.Undrain()
	b.store.away = errors.New("dial tcp 10.0.0.1: refused")
	a = b.json(t, "GET", "/readyz", "")
	a.wantProblem(t, http.StatusServiceUnavailable, "UNAVAILABLE")
	if strings.Contains(a.body, "10.0.0.1") || a.header.Get("Retry-After") == "" {
		t.Errorf("%+v", a)
	}
	if a := b.json(t, "GET", "/healthz", ""); a.status != 200 {
		t.Errorf("healthz must not ask the store: %+v", a)
	}
}
