package web

import (
	"bytes"
	"errors"
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
