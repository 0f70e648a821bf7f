package main

import (
	"encoding/json"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/money/moneysim"
)

// TestServe pays a file through the whole program, by the command line alone.
func TestServe(t *testing.T) {
	t.Parallel()
	sim := fixture.Must(moneysim.New(moneysim.Config{Faults: moneysim.Faults{ErrorRate: 0.2}, Seed: 1}))(t)
	defer sim.Close()
	addr := fixture.Must(sim.Start("127.0.0.1:0"))(t)
	data := t.TempDir()
	if r := largesseRun(t.Context(), "", nil, "migrate", "--data-dir", data); r.code != exitDone || r.stdout != "the schema of the database is up to date\n" {
		t.Fatalf("migrate: %+v", r)
	}

	up := begin(t, nil, []string{"serve", "--data-dir", data, "--listen", "127.0.0.1:0", "--money-url", "http://" + addr})
	first := up.line(t)
	server, ok := strings.CutPrefix(strings.TrimSpace(first), "serving on ")
	server, kafka, _ := strings.Cut(server, ", Kafka at ")
	if _, _, err := net.SplitHostPort(kafka); err != nil || !ok {
		t.Errorf("serve says %q: no address of Kafka", first)
	}
	env := []string{"LARGESSE_SERVER=" + server}

	t.Run("LetsNobodyElseIntoItsData", func(t *testing.T) { //nolint:paralleltest // the server ends with the test
		r := largesseRun(t.Context(), "", nil, "migrate", "--data-dir", data)
		if r.code != exitFailed || !strings.Contains(r.stderr, "in use by another process") {
			t.Errorf("%+v", r)
		}
	})

	t.Run("PaysAFile", func(t *testing.T) { //nolint:paralleltest // the server ends with the test
		file := writeTargets(t, "targets.csv", "targetId\n1\n2\n3\nx\n")
		r := largesseRun(t.Context(), "", env, "promotion", "create", "--name", "Spring", "--type", "point", "--amount", "10", "--file", file, "--start", "--output", "json")
		var p created
		if err := json.Unmarshal([]byte(r.stdout), &p); err != nil || p.Upload.Accepted != 3 || p.Upload.Rejected != 1 {
			t.Fatalf("%v: %+v", err, r)
		}
		if r = largesseRun(t.Context(), "", env, "promotion", "watch", p.ID, "--every", "20ms"); r.code != exitDone || !strings.HasPrefix(lastLine(r.stdout), "COMPLETED 100% of 3, succeeded 3") {
			t.Errorf("watch: %+v", r)
		}
		if count, amount := sim.Charges(mustInt(t, p.ID)); count != 3 || amount != 30 || sim.MaxChargesPerKey() != 1 {
			t.Errorf("%d charges of %d, at most %d a target", count, amount, sim.MaxChargesPerKey())
		}
		if r = largesseRun(t.Context(), "", env, "promotion", "upload", p.ID, filepath.Clean(file)); r.code != exitDone || !strings.HasPrefix(r.stdout, "0 accepted (amount 0), 3 duplicates") {
			t.Errorf("the same file again: %+v", r)
		}
		if r = largesseRun(t.Context(), "", env, "promotion", "payouts", p.ID, "--state", "succeeded"); r.code != exitDone || strings.Count(r.stdout, "SUCCEEDED") != 3 {
			t.Errorf("payouts: %+v", r)
		}
		if r = largesseRun(t.Context(), "", env, "promotion", "payouts", p.ID, "--target", "2"); r.code != exitDone || !strings.HasPrefix(r.stdout, "target 2, user 2: SUCCEEDED") {
			t.Errorf("payout: %+v", r)
		}
		if r = largesseRun(t.Context(), "", env, "promotion", "start", p.ID); r.code != exitFailed || !strings.Contains(r.stderr, "(ILLEGAL_STATE)") {
			t.Errorf("start again: %+v", r)
		}
		if r = largesseRun(t.Context(), "", env, "deadletter", "list"); r.code != exitDone || r.stderr != "there are no dead letters\n" {
			t.Errorf("dead letters: %+v", r)
		}
	})

	if code := up.end(); code != exitDone {
		t.Errorf("serve ends with %d\n%s", code, up.stderr)
	}
}

// TestServeWithoutAnAPI tells that it is up all the same, and of a flag that
// comes in vain.
func TestServeWithoutAnAPI(t *testing.T) {
	t.Parallel()
	for output, want := range map[string]string{"table": "serving without an API, Kafka at 127.0.0.1:", "json": "{\n"} {
		t.Run(output, func(t *testing.T) {
			t.Parallel()
			up := begin(t, nil, []string{
				"serve", "--data-dir", t.TempDir(), "--roles", "ingest,payout", "--listen", "127.0.0.1:0",
				"--money-url", "http://127.0.0.1:1", "--log-level", "error", "--output", output,
			})
			first := up.line(t)
			if !strings.HasPrefix(first, want) {
				t.Errorf("serve says %q", first)
			}
			if output == "json" {
				var said map[string]string
				if err := json.NewDecoder(io.MultiReader(strings.NewReader(first), up.stdout)).Decode(&said); err != nil || said["server"] != "" || said["kafka"] == "" || len(said) != 2 {
					t.Errorf("%v, %v", said, err)
				}
			}
			if code := up.end(); code != exitDone {
				t.Errorf("serve ends with %d", code)
			}
			if got := up.stderr.String(); !strings.HasPrefix(got, "largesse: warning: http.listen 127.0.0.1:0 has no effect") || strings.Count(got, "\n") != 1 {
				t.Errorf("stderr: %s", got)
			}
		})
	}
}

func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return lines[len(lines)-1]
}

func mustInt(t *testing.T, text string) int64 {
	t.Helper()
	var n int64
	fixture.OK(t, json.Unmarshal([]byte(text), &n))
	return n
}
