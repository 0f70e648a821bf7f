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

// TestNightlyIdleInstancesCostLittle: with 10,000 active promotions that have nothing to do,
// each of 20 instances uses under 5 % of a core and under 100 Redis commands per
// second, and its view of the promotions stays fresher than a second. `bench idle`
// keeps these limits. With three instances, the database and Redis have no more to do
// for 10,000 promotions than for 10.
func TestNightlyIdleInstancesCostLittle(t *testing.T) {
	t.Run("OfTwenty", func(t *testing.T) {
		benchIdle(t, "--instances", "20", "--promotions", "10000")
	})
	t.Run("OfThree", func(t *testing.T) {
		rates := benchIdle(t, "--instances", "3", "--promotions", "10,10000")
		for _, what := range []string{"transactions per second", "Redis commands per second"} {
			few, many := rates["10 promotions, 3 instances: "+what], rates["10,000 promotions, 3 instances: "+what]
			if many > 2*few+10 {
				t.Errorf("%s: %.1f with 10 promotions, %.1f with 10,000", what, few, many)
			}
		}
	})
}

// benchIdle runs `largesse bench idle` on a Redis of its own and returns its figures.
// A machine that was busy with something else gets another try.
func benchIdle(t *testing.T, args ...string) map[string]float64 {
	t.Helper()
	path, err := program()
	if err != nil {
		t.Fatal(err)
	}
	redis := fixture.Own(t, fleet.NewRedis)
	args = append([]string{
		"bench", "idle", "--window", "10s", "--output", "json", "--database-url", fixture.Address(t, fleet.VariablePostgres), "--redis-url", redis.Address(),
		"--kafka-brokers", fixture.Address(t, fleet.VariableKafka),
	}, args...)
	const tries = 3
	for range tries {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		var stdout, stderr bytes.Buffer
		cmd := exec.CommandContext(ctx, path, args...)
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		failed := cmd.Run()
		cancel()
		var told struct {
			Figures []struct {
				Name, Text string
				Value      float64
			}
		}
		if err := json.Unmarshal(stdout.Bytes(), &told); err != nil {
			t.Fatalf("%v, %v: %s%s", failed, err, stdout.String(), stderr.String())
		}
		rates := make(map[string]float64)
		var lines strings.Builder
		for _, f := range told.Figures {
			rates[f.Name] = f.Value
			lines.WriteString("\n" + f.Name + ": " + f.Text)
		}
		t.Log(lines.String())
		if failed == nil {
			return rates
		}
	}
	t.Fatalf("a limit was not kept in each of %d runs", tries)
	return nil
}
