//go:build nightly

package test

import (
	"bytes"
	"context"
	"encoding/json"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/lab/fleet"
)

// TestNightlyBenchCouponsReportsLines checks that `largesse bench coupons` reports the cost of
// watchers, the waits that they were told, and the load of a gate with a line. The size
// here is small; the figures of large runs are in docs/dev/bench.md.
func TestNightlyBenchCouponsReportsLines(t *testing.T) {
	path, err := program()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, path, "bench", "coupons", "--output", "json",
		"--database-url", fixture.Address(t, fleet.VariablePostgres), "--redis-url", fixture.Own(t, fleet.NewRedis).Address(),
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

// TestNightlyBenchOriginals runs the cases of the original designs with small promotions, and
// checks that each is correct. At this size, the figures say little.
func TestNightlyBenchOriginals(t *testing.T) {
	path, err := program()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, path, "bench", "originals", "--output", "json", "--targets", "100", "--as-designed", "40",
		"--database-url", fixture.Address(t, fleet.VariablePostgres), "--redis-url", fixture.Address(t, fleet.VariableRedis),
		"--kafka-brokers", fixture.Address(t, fleet.VariableKafka))
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	failed := cmd.Run()
	var told struct {
		Cases []struct {
			Case, Original, AsDesigned, Here, Detail string
			Correct                                  bool
		}
		Kept bool
	}
	if err := json.Unmarshal(stdout.Bytes(), &told); err != nil {
		t.Fatalf("%v, %v: %s%s", failed, err, stdout.String(), stderr.String())
	}
	original := map[string]string{
		"40 targets, 4 instances, 200 ms":                       "20.0/s, 2.0 s",
		"100 targets, 4 instances, 200 ms":                      "20.0/s, 5.0 s",
		"calls in flight, 10,000 targets from 12 partitions":    "12 without streams",
		"10,000 requests for 100 coupons: pass the gate":        "100, the others refused",
		"10,000 requests for 100 coupons: transactions at once": "at most 10",
		"10,000 coupons in the order of requests":               "in order, no figure",
	}
	for _, one := range told.Cases {
		t.Logf("%+v", one)
		if original[one.Case] != one.Original || !one.Correct {
			t.Errorf("%s: %q there, correct %t: %s", one.Case, one.Original, one.Correct, one.Detail)
		}
		delete(original, one.Case)
	}
	if len(original) > 0 || failed != nil || !told.Kept {
		t.Errorf("missing %v, %v: %s", original, failed, stderr.String())
	}
}
