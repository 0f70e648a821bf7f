package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/largesse/largesse/internal/doctor"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/money/moneysim"
)

func TestDoctor(t *testing.T) {
	t.Parallel()
	sim := fixture.Must(moneysim.New(moneysim.Config{Seed: 1}))(t)
	defer sim.Close()
	provider := fixture.Must(sim.Start("127.0.0.1:0"))(t)
	data := t.TempDir()
	fixture.OK(t, os.Chmod(data, 0o700))
	well := []string{"doctor", "--listen", "127.0.0.1:0", "--data-dir", data, "--money-url", "http://" + provider}
	const closed = "127.0.0.1:1"

	t.Run("AllWell", func(t *testing.T) { //nolint:paralleltest // the provider ends with the test
		r := largesseRun(t.Context(), "", nil, well...)
		if r.code != exitDone || r.stderr != "" || !strings.HasPrefix(r.stdout, "STATUS  CHECK") || strings.Contains(r.stdout, "\nfail") || strings.Contains(r.stdout, "\nwarn") {
			t.Errorf("%+v", r)
		}
		if left, err := os.ReadDir(data); err != nil || len(left) > 0 {
			t.Errorf("left behind: %v, error %v", left, err)
		}
	})

	t.Run("AWarningIsNoFailure", func(t *testing.T) { //nolint:paralleltest // the provider ends with the test
		r := largesseRun(t.Context(), "", []string{"LARGESSE_MONY_URL=x"}, append(well, "--money-settle-after", "1s")...)
		if r.code != exitDone || r.stderr != "" || strings.Count(r.stdout, "\nwarn") != 2 || !strings.Contains(r.stdout, "did you mean LARGESSE_MONEY_URL?") {
			t.Errorf("%+v", r)
		}
	})

	t.Run("AFailureIsExitCode1", func(t *testing.T) { //nolint:paralleltest // the provider ends with the test
		r := largesseRun(t.Context(), "", nil, append(well, "--redis-url", "redis://u:sekret@"+closed, "--output", "json")...)
		if r.code != exitFailed || !strings.HasPrefix(r.stderr, "largesse: 1 of ") || strings.Contains(r.stdout+r.stderr, "sekret") {
			t.Errorf("%+v", r)
		}
		var checks []doctor.Check
		if err := json.Unmarshal([]byte(r.stdout), &checks); err != nil {
			t.Fatalf("%v: %s", err, r.stdout)
		}
		for _, c := range checks {
			if failed := c.Name == "redis"; failed != (c.Status == doctor.CheckFail) || failed != (c.Advice != "") {
				t.Errorf("%+v", c)
			}
		}
	})

	t.Run("WrongUseIsExitCode2", func(t *testing.T) {
		t.Parallel()
		for _, args := range [][]string{
			{"doctor", "--config", filepath.Join(t.TempDir(), "none.yaml")}, {"doctor", "--redis-uri", "x"}, {"doctor", "now"}, {"doctor", "--output", "xml"},
		} {
			if r := largesseRun(t.Context(), "", nil, args...); r.code != exitWrongUse || r.stdout != "" || !strings.HasPrefix(r.stderr, "largesse: ") {
				t.Errorf("%v: %+v", args, r)
			}
		}
	})
}
