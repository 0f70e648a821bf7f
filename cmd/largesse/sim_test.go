package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestSim(t *testing.T) {
	t.Parallel()
	const seed, steps = "3", "60"

	t.Run("BalancesItsBooks", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		r := largesseRun(t.Context(), "", nil, "sim", "--seed", seed, "--steps", steps, "--data", dir)
		if r.code != exitDone || strings.Contains(r.stdout, "BROKEN") || r.stderr != "" {
			t.Fatalf("%+v", r)
		}
		for _, want := range []string{
			"seed 3, 60 steps\n", "\nPROMOTION  ", "\nTEMPLATE  ", "  holds   no target is charged more than once (",
			"run the same plan again with: largesse sim --seed 3 --steps 60\n",
		} {
			if !strings.Contains(r.stdout, want) {
				t.Errorf("it lacks %q:\n%s", want, r.stdout)
			}
		}
		trace, err := os.ReadFile(filepath.Join(dir, "trace.log"))
		if err != nil || strings.Count(string(trace), " step 60: {") != 1 {
			t.Errorf("the trace has not every step (%v)", err)
		}
	})

	t.Run("SpeaksJSON", func(t *testing.T) {
		t.Parallel()
		r := largesseRun(t.Context(), "", nil, "sim", "--seed", "2", "--steps", "15", "--output", "json")
		var out simJSON
		if err := json.Unmarshal([]byte(r.stdout), &out); err != nil || r.code != exitDone {
			t.Fatalf("%v: %+v", err, r)
		}
		done := 0
		for act, n := range out.Acts {
			if act != "asking" {
				done += n.Done + n.Refused + n.Lost
			}
		}
		if out.Seed != 2 || out.Steps != 15 || !out.Holds || done != 15 || len(out.Promotions) == 0 || len(out.Templates) == 0 || len(out.Invariants) < 15 {
			t.Errorf("%d acts: %s", done, r.stdout)
		}
	})
}

//nolint:paralleltest // TMPDIR belongs to the process
func TestSimTidiesUp(t *testing.T) {
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	t.Run("WhenItHolds", func(t *testing.T) {
		if r := largesseRun(t.Context(), "", nil, "sim", "--seed", "2", "--steps", "3"); r.code != exitDone {
			t.Errorf("%+v", r)
		}
		mustBeEmpty(t, temp)
	})
	t.Run("WhenInterrupted", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var stderr bytes.Buffer
		code := run(ctx, []string{"sim", "--seed", "2", "--steps", "200"}, world{stdout: onceWriter{cancel, nil}, stderr: &stderr})
		if code != exitFailed || !strings.HasPrefix(stderr.String(), "largesse: interrupted: ") || strings.Count(stderr.String(), "\n") != 1 {
			t.Errorf("code %d, stderr %q", code, &stderr)
		}
		mustBeEmpty(t, temp)
	})
}

func TestSimPlan(t *testing.T) {
	t.Parallel()
	r := largesseRun(t.Context(), "", nil, "sim", "--seed", "7", "--steps", "30", "--plan")
	again := largesseRun(t.Context(), "", nil, "sim", "--seed", "7", "--steps", "30", "--plan")
	if r != again || r.code != exitDone || strings.Count(r.stdout, "\n") != 30 {
		t.Errorf("%+v\nand then %+v", r, again)
	}
}
