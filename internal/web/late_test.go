package web

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/largesse/largesse/internal/obs"
)

// TestALateServiceIsUnavailable checks that a time limit of the server is no failure of
// the server: the caller may try again. It says nothing about the caller's own limit.
func TestALateServiceIsUnavailable(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	log, err := obs.NewLog(&out, "info", "json")
	if err != nil {
		t.Fatal(err)
	}
	a := NewRouter(RouterConfig{Title: "test", Version: "1", Log: log})
	late := fmt.Errorf("store a reconciliation: %w", context.DeadlineExceeded)
	p := a.ProblemOf(t.Context(), late)
	if p.Status != http.StatusServiceUnavailable || p.Code != CodeUnavailable || p.GetHeaders().Get("Retry-After") == "" || strings.Contains(p.Detail, "reconciliation") {
		t.Errorf("%+v", p)
	}
	if !strings.Contains(out.String(), "store a reconciliation") {
		t.Errorf("the cause is not logged: %s", out.String())
	}
	if p := a.ProblemOf(t.Context(), fmt.Errorf("no limit: %w", context.Canceled)); p.Status != http.StatusInternalServerError {
		t.Errorf("%+v", p)
	}
}
