package main

import (
	"io"
	"strings"
	"testing"
	"time"
)

// TestAFailedTestRunsAgain runs a module with a test that fails the first time only,
// and one that always fails.
func TestAFailedTestRunsAgain(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		always        string
		flaky, failed int
	}{
		"AndIsFlakyIfItPasses":  {always: "", flaky: 2, failed: 0}, // the test and its subtest
		"AndFailsIfItFails":     {always: "it is slow", flaky: 0, failed: 3},
		"ButNotAfterADoublePay": {always: "u1 was paid twice", flaky: 0, failed: 3},
		"ButNotAfterADataRace":  {always: "WARNING: DATA RACE", flaky: 0, failed: 3},
		"ButNotAfterAPanic":     {always: "panic", flaky: 0, failed: 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			code := `package p

import (
	"os"
	"testing"
)

func TestSlow(t *testing.T) {
	t.Run("Part", func(t *testing.T) {
		if _, err := os.Stat("ran"); err != nil {
			os.WriteFile("ran", nil, 0o600)
			t.Error("it took too long")
		}
	})
}
`
			switch c.always {
			case "":
			case "panic":
				code += "func TestOther(t *testing.T) { panic(\"nil map\") }\n"
			default:
				code += "func TestOther(t *testing.T) { t.Error(\"" + c.always + "\") }\n"
			}
			root := moduleOf(t, map[string]string{"go.mod": "module " + module + "\n\ngo 1.26\n", "p/p.go": "package p\n", "p/p_test.go": code})
			r := runner{root: root, out: io.Discard, progress: &progress{out: io.Discard}}
			chosen := []suite{{name: "rest", everyOther: true}}
			results := r.stage(t.Context(), chosen)
			r.again(t.Context(), chosen, results)
			res := results[0]
			if len(res.flaky) != c.flaky || len(res.failures) != c.failed {
				t.Errorf("flaky %v and failed %v, want %d and %d", res.flaky, res.failures, c.flaky, c.failed)
			}
			var out strings.Builder
			(&report{began: time.Now(), results: results}).print(&out)
			if failedAgain := name == "AndFailsIfItFails"; strings.Contains(out.String(), "It ran again, and failed:\n") != failedAgain {
				t.Errorf("failed again: %v\n%s", failedAgain, out.String())
			}
			if want := "flaky, failed once and then passed: rest: p TestSlow/Part\n  because: p_test.go:12: it took too long\n"; strings.Contains(out.String(), want) != (c.flaky > 0) {
				t.Errorf("%q is in the report: %v\n%s", want, c.flaky == 0, out.String())
			}
		})
	}
}

func TestManyFailuresDoNotRunAgain(t *testing.T) {
	t.Parallel()
	res := newResult("rest", nil)
	for _, name := range []string{"A", "B", "C", "D", "E", "F"} {
		res.failTest(testName{module + "/p", "Test" + name}, "it took too long")
	}
	// A runner without a module would add a failure if it tried.
	runner{root: t.TempDir(), out: io.Discard}.again(t.Context(), []suite{{name: "rest", everyOther: true}}, []*result{res})
	if len(res.failures) != 6 || len(res.flaky) != 0 || res.took != 0 {
		t.Errorf("failed %d, flaky %d", len(res.failures), len(res.flaky))
	}
}
