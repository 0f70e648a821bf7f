package web

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
)

// TestALateServiceIsUnavailable checks that a time limit of the server, or a database that
// is away, is no failure of the server: the caller may try again. It says nothing about the
// caller's own limit.
func TestALateServiceIsUnavailable(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	log := fixture.Must(obs.NewLog(&out, "info", "json"))(t)
	a := NewRouter(RouterConfig{Title: "test", Version: "1", Log: log})
	for detail, cause := range map[string]error{
		lateDetail: context.DeadlineExceeded,
		awayDetail: fmt.Errorf("%w: %w", errors.New("connection refused"), reward.ErrUnreachable),
	} {
		out.Reset()
		p := a.ProblemOf(t.Context(), fmt.Errorf("store a reconciliation: %w", cause))
		if p.Status != http.StatusServiceUnavailable || p.Code != CodeUnavailable || p.GetHeaders().Get("Retry-After") == "" || p.Detail != detail {
			t.Errorf("%+v", p)
		}
		if !strings.Contains(out.String(), "store a reconciliation") {
			t.Errorf("the cause is not logged: %s", out.String())
		}
	}
	if p := a.ProblemOf(t.Context(), fmt.Errorf("no limit: %w", context.Canceled)); p.Status != http.StatusInternalServerError {
		t.Errorf("%+v", p)
	}
}
