package web

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
)

// TestUnavailableIsSampled checks that two minutes of refused requests cost a few log
// lines, and that the next outage is reported at once.
func TestUnavailableIsSampled(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const refused = 11_455
		var out bytes.Buffer
		log := fixture.Must(obs.NewLog(&out, "info", "json"))(t)
		a := NewRouter(RouterConfig{Title: "test", Version: "1", Log: log})
		lines := func() int { return strings.Count(out.String(), "\n") }
		refuse := func() {
			e := reward.NewError(reward.KindUnavailable, reward.CodeUnavailable, "try again")
			e.Err = errors.New("the gate does not answer")
			if p := a.ProblemOf(t.Context(), e); p.Status != 503 {
				t.Fatalf("%+v", p)
			}
		}
		for range refused {
			refuse()
			time.Sleep(2 * time.Minute / refused)
		}
		if n := lines(); n > 14 {
			t.Errorf("%d lines for %d refused requests", n, refused)
		}
		if !strings.Contains(out.String(), `"failures":8192`) {
			t.Errorf("no line says how many: %s", out.String())
		}
		before := lines()
		time.Sleep(outageQuiet + time.Second)
		refuse()
		if lines() != before+1 {
			t.Errorf("the next outage is not reported")
		}
	})
}

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
