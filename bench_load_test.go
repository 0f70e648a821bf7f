//go:build servers && load

package largesse_test

import (
	"bytes"
	"context"
	"encoding/json"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// TestBenchCouponsReportsLines checks that `largesse bench coupons` reports the cost of
// watchers, the waits that they were told, and the load of a gate with a line. The size
// here is small; the figures of large runs are in docs/dev/bench.md.
func TestBenchCouponsReportsLines(t *testing.T) {
	path, err := program()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, path, "bench", "coupons", "--output", "json",
		"--database-url", server(t, "LARGESSE_TEST_POSTGRES"), "--redis-url", ownRedis(t).Address(),
		"--askers", "2000", "--by-hand", "50", "--watchers", "1000", "--line", "20000")
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	failed := cmd.Run() // a small run may miss a ratio
	var told struct {
		Figures []struct {
			Name, Text string
			Value      *float64
			Kept       *bool
		}
	}
	if err := json.Unmarshal(stdout.Bytes(), &told); err != nil {
		t.Fatalf("%v, %v: %s%s", failed, err, stdout.String(), stderr.String())
	}
	missing := map[string]bool{
		"CPU while a line moves ten times per second": true, "the same with 1,000 watchers": true, "told ÷ real waits": true,
		"told ÷ real waits after a fivefold slowdown": true, "load of a gate with 20,000 in line": true,
		"the longest PING of Redis during the load": true,
	}
	loaded := false
	var lines strings.Builder
	for _, f := range told.Figures {
		lines.WriteString("\n" + f.Name + ": " + f.Text)
		if f.Value != nil && *f.Value > 0 {
			delete(missing, f.Name)
		}
		loaded = loaded || f.Name == "loaded gate" && f.Kept != nil && *f.Kept
	}
	t.Log(lines.String())
	if len(missing) > 0 || !loaded {
		t.Errorf("missing %v, loaded %v: %s", missing, loaded, stderr.String())
	}
}
