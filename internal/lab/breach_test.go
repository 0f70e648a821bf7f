package lab

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/largesse/largesse/internal/lab/fixture"
)

func TestSimulation(t *testing.T) {
	t.Parallel()
	simulation := func(seed uint64, steps int, dir string, ledger func(string) string) *Simulation {
		return &Simulation{Seed: seed, Steps: steps, Dir: dir, Out: io.Discard, Progress: func(string, int64, int64) {}, ledger: ledger}
	}

	t.Run("FindsABreach", func(t *testing.T) {
		t.Parallel()
		dir := filepath.Join(t.TempDir(), "kept")
		report := fixture.Must(simulation(1, 30, dir, chargesTwice(t)).Run(t.Context()))(t)
		planted := []string{"no target is charged more than once", "every succeeded payout was charged the right amount, ", "what must hold at any moment held at every check"}
		for _, v := range report.Verdicts {
			if !v.Holds && (len(planted) == 0 || !strings.HasPrefix(v.Invariant, planted[0])) {
				t.Errorf("more is broken than was planted: %+v", v)
			} else if !v.Holds {
				planted = planted[1:]
			}
		}
		if len(planted) > 0 || report.Holds() {
			t.Errorf("not found: %q", planted)
		}
		for _, left := range []string{"largesse.log", "trace.log", "data/largesse.db"} {
			if _, err := os.Stat(filepath.Join(dir, left)); err != nil {
				t.Error(err)
			}
		}
	})

	t.Run("SaysHowToReplayWhatCannotGoOn", func(t *testing.T) {
		t.Parallel()
		_, err := simulation(5, 10, t.TempDir(), func(string) string { return "http://127.0.0.1:1" }).Run(t.Context())
		if err == nil || !strings.Contains(err.Error(), "connection refused") || !strings.HasSuffix(err.Error(), "; repeat the run with: largesse sim --seed 5 --steps 10") {
			t.Errorf("%v", err)
		}
	})
}

// chargesTwice stands between the checker and the provider: the first charge of each page
// of its ledger is there twice.
func chargesTwice(t *testing.T) func(provider string) string {
	first := regexp.MustCompile(`"charges":\[(\{[^}]*\})`)
	return func(provider string) string {
		proxy := httputil.NewSingleHostReverseProxy(fixture.Must(url.Parse(provider))(t))
		proxy.Transport = &http.Transport{DisableKeepAlives: true}
		proxy.ModifyResponse = func(res *http.Response) error {
			text, err := io.ReadAll(res.Body)
			text = first.ReplaceAll(text, []byte(`"charges":[$1,$1`))
			res.Body, res.ContentLength = io.NopCloser(bytes.NewReader(text)), int64(len(text))
			res.Header.Del("Content-Length")
			return err
		}
		server := httptest.NewServer(proxy)
		t.Cleanup(server.Close)
		return server.URL
	}
}
