package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/largesse/largesse/internal/lab/fixture"
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

	t.Run("FindsABreach", func(t *testing.T) {
		t.Parallel()
		var stdout bytes.Buffer
		dir := filepath.Join(t.TempDir(), "kept")
		s := &simulation{cli: &cli{world: world{stdout: &stdout}, output: outputTable}, seed: 1, steps: 30, dir: dir, between: chargesTwice(t)}
		err := s.run(t.Context())
		if err == nil {
			t.Fatalf("nothing is found:\n%s", &stdout)
		}
		text, code := describe(t.Context(), (&cli{}).rootCommand(), err, "")
		want := "the books do not balance; the data, the engine's log and the trace are in " + dir + "; repeat the run with: largesse sim --seed 1 --steps 30"
		if text != want || code != exitFailed {
			t.Errorf("code %d, %q", code, text)
		}
		planted := []string{"no target is charged more than once (1 of ", "every succeeded payout was charged the right amount, ", "what must hold at any moment held at every check "}
		for _, want := range planted {
			want = "  BROKEN  " + want
			if !strings.Contains(stdout.String(), want) {
				t.Errorf("it lacks %q:\n%s", want, &stdout)
			}
		}
		if strings.Count(stdout.String(), "BROKEN") != len(planted) {
			t.Errorf("more is broken than was planted:\n%s", &stdout)
		}
		for _, left := range []string{"largesse.log", "trace.log", "data/largesse.db"} {
			if _, err := os.Stat(filepath.Join(dir, left)); err != nil {
				t.Error(err)
			}
		}
	})

	t.Run("SaysHowToReplayWhatCannotGoOn", func(t *testing.T) {
		t.Parallel()
		s := &simulation{cli: &cli{world: world{stdout: &bytes.Buffer{}}, output: outputTable}, seed: 5, steps: 10, dir: t.TempDir(), between: func(string) string { return "http://127.0.0.1:1" }}
		err := s.run(t.Context())
		if err == nil || !strings.Contains(err.Error(), "connection refused") || !strings.HasSuffix(err.Error(), "; repeat the run with: largesse sim --seed 5 --steps 10") {
			t.Errorf("%v", err)
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

// chargesTwice stands between the checker and the provider: the first charge
// that its ledger reports is there twice.
func chargesTwice(t *testing.T) func(provider string) string {
	return func(provider string) string {
		to := fixture.Must(url.Parse(provider))(t)
		proxy := httputil.NewSingleHostReverseProxy(to)
		transport := &http.Transport{DisableKeepAlives: true}
		proxy.Transport = transport
		var planted atomic.Int64
		proxy.ModifyResponse = func(res *http.Response) error {
			if res.Request.URL.Path != "/charges" {
				return nil
			}
			var page struct {
				Charges    []json.RawMessage `json:"charges"`
				NextCursor string            `json:"nextCursor,omitempty"`
			}
			if err := json.NewDecoder(res.Body).Decode(&page); err != nil {
				return err
			}
			if len(page.Charges) > 0 {
				page.Charges = append(page.Charges, page.Charges[0])
				planted.Add(1)
			}
			text, err := json.Marshal(page)
			if err != nil {
				return err
			}
			res.Body = io.NopCloser(bytes.NewReader(text))
			res.ContentLength = int64(len(text))
			res.Header.Del("Content-Length")
			return nil
		}
		server := httptest.NewServer(proxy)
		t.Cleanup(func() {
			server.Close()
			if planted.Load() == 0 {
				t.Error("nothing was charged, so that no breach was planted")
			}
		})
		return server.URL
	}
}

func TestSimPlan(t *testing.T) {
	t.Parallel()
	r := largesseRun(t.Context(), "", nil, "sim", "--seed", "7", "--steps", "30", "--plan")
	again := largesseRun(t.Context(), "", nil, "sim", "--seed", "7", "--steps", "30", "--plan")
	if r != again || r.code != exitDone || strings.Count(r.stdout, "\n") != 30 {
		t.Errorf("%+v\nand then %+v", r, again)
	}
}
