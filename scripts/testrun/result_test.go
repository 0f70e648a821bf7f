package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// feed lets a result read the events that go test prints.
func feed(r *result, events ...string) {
	builds := map[string][]string{}
	for _, line := range events {
		e := parseEvent(line)
		if e.Action == "build-output" {
			builds[e.ImportPath] = append(builds[e.ImportPath], e.Output)
			continue
		}
		r.read(e, builds)
	}
}

func closeResult(r *result, err error) { closeResults([]*result{r}, err) }

func ev(action, test, output string) string {
	return fmt.Sprintf(`{"Action":%q,"Package":"github.com/largesse/largesse/internal/x","Test":%q,"Output":%q}`, action, test, output)
}

func names(r *result) []string {
	var all []string
	for _, f := range r.failures {
		all = append(all, f.name)
	}
	return all
}

func TestResult(t *testing.T) {
	t.Parallel()
	exit1 := errors.New("exit status 1")

	t.Run("CountsTestsAndSubtests", func(t *testing.T) {
		t.Parallel()
		r := newResult("x", nil)
		feed(r, ev("start", "", ""), ev("run", "TestA", ""), ev("run", "TestA/One", ""), ev("run", "TestA/Two", ""),
			ev("output", "TestA/Two", "two is wrong\n"), ev("pass", "TestA/One", ""), ev("fail", "TestA/Two", ""),
			ev("fail", "TestA", ""), ev("run", "TestB", ""), ev("skip", "TestB", ""), ev("output", "", "FAIL\n"), ev("fail", "", ""))
		closeResult(r, exit1)
		if r.passed != 1 || len(r.skipped) != 1 {
			t.Errorf("%d passed, skipped %v", r.passed, r.skipped)
		}
		if want := []string{"internal/x TestA/Two", "internal/x TestA"}; !slices.Equal(names(r), want) {
			t.Errorf("failed %v, want %v", names(r), want)
		}
		if !strings.Contains(r.failures[0].output, "two is wrong") {
			t.Errorf("the failure's output is %q", r.failures[0].output)
		}
	})

	t.Run("AFailedBuildIsOneFailureWithTheCompilersOutput", func(t *testing.T) {
		t.Parallel()
		r := newResult("x", nil)
		feed(r, `{"ImportPath":"p [p.test]","Action":"build-output","Output":"undefined: foo\n"}`, `{"ImportPath":"p [p.test]","Action":"build-fail"}`,
			`{"Action":"fail","Package":"p","FailedBuild":"p [p.test]"}`)
		closeResult(r, exit1)
		if len(r.failures) != 1 || !strings.Contains(r.failures[0].output, "undefined: foo") {
			t.Errorf("failures %+v", r.failures)
		}
	})

	t.Run("ATestCutByAPanicFailsAndThePackageShowsWhy", func(t *testing.T) {
		t.Parallel()
		r := newResult("x", nil)
		feed(r, ev("run", "TestA", ""), ev("run", "TestB", ""), ev("pass", "TestB", ""), ev("output", "", "panic: test timed out\n"), ev("fail", "", ""))
		closeResult(r, exit1)
		if want := []string{"internal/x TestA", "internal/x"}; !slices.Equal(names(r), want) {
			t.Errorf("failed %v, want %v", names(r), want)
		}
		if !strings.Contains(r.failures[1].output, "test timed out") {
			t.Errorf("the package's output is %q", r.failures[1].output)
		}
	})

	t.Run("ALeakFoundAfterEveryTestPassedIsAFailure", func(t *testing.T) {
		t.Parallel()
		r := newResult("x", nil)
		feed(r, ev("run", "TestA", ""), ev("pass", "TestA", ""), ev("output", "", "goleak: found unexpected goroutines\n"), ev("fail", "", ""))
		closeResult(r, exit1)
		if r.passed != 1 || len(r.failures) != 1 || !strings.Contains(r.failures[0].output, "goleak") {
			t.Errorf("%d passed, failures %+v", r.passed, r.failures)
		}
	})

	t.Run("AGoCommandThatFailsWithoutAnEventIsAFailure", func(t *testing.T) {
		t.Parallel()
		r := newResult("x", nil)
		feed(r, "go: updates to go.mod needed")
		closeResult(r, exit1)
		if len(r.failures) != 1 || !strings.Contains(r.failures[0].output, "updates to go.mod needed") {
			t.Errorf("failures %+v", r.failures)
		}
	})

	t.Run("NoOutputIsAFailure", func(t *testing.T) {
		t.Parallel()
		r := newResult("x", nil)
		closeResult(r, nil)
		if len(r.failures) != 1 {
			t.Errorf("failures %+v", r.failures)
		}
	})

	t.Run("APackageWithoutTestsIsNoFailure", func(t *testing.T) {
		t.Parallel()
		r := newResult("x", nil)
		feed(r, ev("start", "", ""), ev("output", "", "?   \tp\t[no test files]\n"), ev("skip", "", ""))
		closeResult(r, nil)
		if len(r.failures) != 0 || r.passed != 0 || len(r.skipped) != 0 {
			t.Errorf("%d passed, skipped %v, failures %+v", r.passed, r.skipped, r.failures)
		}
	})
}

func TestResultsOfOneCall(t *testing.T) {
	t.Parallel()

	t.Run("ATestThatDidNotFinishFailsItsSuite", func(t *testing.T) {
		t.Parallel()
		a, b := newResult("a", nil), newResult("b", nil)
		feed(a, ev("run", "TestA", ""), ev("pass", "TestA", ""), ev("pass", "", ""))
		feed(b, ev("run", "TestB", ""))
		closeResults([]*result{a, b}, errors.New("killed"))
		if len(a.failures) != 0 || len(b.failures) != 1 {
			t.Errorf("failed %v and %v", names(a), names(b))
		}
	})

	t.Run("ASuiteOfWhichNothingRanFails", func(t *testing.T) {
		t.Parallel()
		a, b := newResult("a", nil), newResult("b", nil)
		feed(a, ev("pass", "", ""))
		closeResults([]*result{a, b}, nil)
		if len(a.failures) != 0 || len(b.failures) != 1 {
			t.Errorf("failed %v and %v", names(a), names(b))
		}
	})

	t.Run("TheTimeOfPackagesAddsUp", func(t *testing.T) {
		t.Parallel()
		r := newResult("x", nil)
		feed(r, `{"Action":"pass","Package":"p","Elapsed":1.5}`, `{"Action":"pass","Package":"q","Elapsed":2}`)
		if r.took != 3500*time.Millisecond {
			t.Errorf("it took %s, want 3.5 s", r.took)
		}
	})
}

func TestReportEndsWithALineOfCounts(t *testing.T) {
	t.Parallel()
	good, bad := newResult("good", nil), newResult("bad", nil)
	good.passed, bad.passed = 120, 3
	bad.fail("internal/x TestA", "it is wrong")
	rep := &report{began: time.Now(), results: []*result{good, bad}}
	var out strings.Builder
	rep.print(&out)
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	if last := lines[len(lines)-1]; last != "123 passed, 1 failed" {
		t.Errorf("the last line is %q", last)
	}
	for _, want := range []string{"--- FAILED bad: internal/x TestA\nit is wrong\n", "failed: bad: internal/x TestA\n  because: it is wrong\n123 passed"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing in\n%s", want, out.String())
		}
	}
}

func TestTheReasonsOfAFailure(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ output, want string }{
		"WhatTheTestSaid":        {"=== RUN TestA\n  a_test.go:7: it is wrong\n    a log line\n", "a_test.go:7: it is wrong"},
		"APanic":                 {"=== RUN TestA\npanic: nil map\n\ngoroutine 7\n", "panic: nil map"},
		"TheLastLinesOtherwise":  {"1\n2\n3\n4\n5\n6\n\n7\n", "2|3|4|5|6|7"},
		"OneOfEachLineOfCode":    {"a_test.go:1: x\na_test.go:1: y\nb_test.go:1: z\n", "a_test.go:1: x|b_test.go:1: z"},
		"NotTooMany":             {"a_test.go:1: x\na_test.go:2: x\na_test.go:3: x\na_test.go:4: x\na_test.go:5: x\na_test.go:6: x\na_test.go:7: x\n", "a_test.go:1: x|a_test.go:2: x|a_test.go:3: x|a_test.go:4: x|a_test.go:5: x|a_test.go:6: x"},
		"NotTooLong":             {strings.Repeat("é", 200) + "\n", strings.Repeat("é", 150) + "…"},
		"NothingOfAnEmptyOutput": {"\n", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := strings.Join(failure{output: c.output}.reasons(), "|"); got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

func TestTheLongestTestsAreShown(t *testing.T) {
	t.Parallel()
	r := newResult("x", nil)
	for i := range 3 * longestKept {
		feed(r, fmt.Sprintf(`{"Action":"pass","Package":"p","Test":"Test%d","Elapsed":%d}`, i, i), `{"Action":"pass","Package":"p","Test":"TestOther/Part","Elapsed":999}`)
	}
	var out strings.Builder
	(&report{began: time.Now(), results: []*result{r}}).print(&out)
	last := 3*longestKept - 1
	for text, want := range map[string]bool{
		fmt.Sprintf("%7.1f  p Test%d\n", float64(last), last): true, "p Test2\n": false, "TestOther": false,
	} {
		if strings.Contains(out.String(), text) != want {
			t.Errorf("%q is in the report: %v, want %v\n%s", text, !want, want, out.String())
		}
	}
}

func TestAFailureIsPrintedAtOnce(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	r := newResult("x", &progress{out: &out})
	r.fail("internal/x TestA", "it is wrong")
	if want := "failed: x: internal/x TestA\n"; out.String() != want {
		t.Errorf("printed %q, want %q", out.String(), want)
	}
}

func TestTheEndsOfALongOutputAreKept(t *testing.T) {
	t.Parallel()
	var many []string
	for i := range 10_000 {
		many = keepEnds(append(many, fmt.Sprint(i)))
	}
	if len(many) > 2*linesKept || many[len(many)-1] != "9999" || many[0] != "0" || !slices.Contains(many, "…\n") {
		t.Errorf("%d lines kept, from %q to %q", len(many), many[0], many[len(many)-1])
	}
}
