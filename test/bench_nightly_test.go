//go:build nightly

package test

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"testing"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/lab/fleet"
)

// figures is what a benchmark measured.
type figures struct {
	Figures []struct {
		Name, Text string
		Value      float64 // 0 without a number
		Kept       bool    // false without a limit
	}
}

// log shows the figures in the log of a test.
func (f figures) log(t *testing.T) {
	t.Helper()
	for _, one := range f.Figures {
		t.Log(one.Name + ": " + one.Text)
	}
}

// bench runs `largesse bench`, and reads what it says into told. It returns the log, and
// the error of a figure that misses its limit.
func bench(t *testing.T, told any, args ...string) (log string, failed error) {
	t.Helper()
	path := fixture.Must(program())(t)
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(t.Context(), path,
		append([]string{"bench", args[0], "--output", "json", "--database-url", fixture.Address(t, fleet.VariablePostgres)}, args[1:]...)...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	failed = cmd.Run()
	if err := json.Unmarshal(stdout.Bytes(), told); err != nil {
		t.Fatalf("%v, %v: %s%s", failed, err, stdout.String(), stderr.String())
	}
	return stderr.String(), failed
}

// TestNightlyBenchCouponsReportsLines checks that `largesse bench coupons` reports the cost of
// requests over HTTP and of watchers, the waits that they were told, and the load of a gate with a line. The size
// here is small; the figures of large runs are in docs/dev/bench.md.
func TestNightlyBenchCouponsReportsLines(t *testing.T) {
	var told figures
	// A small run may miss a ratio.
	log, _ := bench(t, &told, "coupons", "--redis-url", fixture.Own(t, fleet.NewRedis).Address(),
		"--askers", "2000", "--by-hand", "50", "--http", "20000", "--watchers", "1000", "--line", "20000")
	missing := map[string]bool{
		"coupon request over HTTP, sold out": true, "coupon request over HTTP, admitted and issued": true,
		"CPU while a line moves ten times per second": true, "the same with 1,000 watchers": true, "told ÷ real waits": true,
		"told ÷ real waits after a fivefold slowdown": true, "load of a gate with 20,000 in line": true,
		"the longest PING of Redis during the load": true,
	}
	loaded := false
	for _, f := range told.Figures {
		if f.Value > 0 {
			delete(missing, f.Name)
		}
		loaded = loaded || f.Name == "loaded gate" && f.Kept
	}
	told.log(t)
	if len(missing) > 0 || !loaded {
		t.Errorf("missing %v, loaded %v: %s", missing, loaded, log)
	}
}

// TestNightlyBenchOriginals runs the cases of the original designs with small promotions, and
// checks that each is correct. At this size, the figures say little.
func TestNightlyBenchOriginals(t *testing.T) {
	var told struct {
		Cases []struct {
			Case, Original, AsDesigned, Here, Detail string
			Correct                                  bool
		}
		Kept bool
	}
	log, failed := bench(t, &told, "originals", "--targets", "100", "--as-designed", "40",
		"--redis-url", fixture.Address(t, fleet.VariableRedis), "--kafka-brokers", fixture.Address(t, fleet.VariableKafka))
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
		t.Errorf("missing %v, %v: %s", original, failed, log)
	}
}

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
	args = append([]string{
		"idle", "--window", "10s", "--redis-url", fixture.Own(t, fleet.NewRedis).Address(),
		"--kafka-brokers", fixture.Address(t, fleet.VariableKafka),
	}, args...)
	const tries = 3
	for range tries {
		var told figures
		_, failed := bench(t, &told, args...)
		told.log(t)
		if failed == nil {
			rates := make(map[string]float64)
			for _, f := range told.Figures {
				rates[f.Name] = f.Value
			}
			return rates
		}
	}
	t.Fatalf("a limit was not kept in each of %d runs", tries)
	return nil
}
