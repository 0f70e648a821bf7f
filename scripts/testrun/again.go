package main

import (
	"context"
	"errors"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/largesse/largesse/internal/lab/fleet"
)

// repeatedMost limits the tests, without their subtests, that are tried again: more of
// them have a cause in common.
const repeatedMost = 5

// repeatedTime limits how long they may take, also beyond the minutes of -minutes.
const repeatedTime = 8 * time.Minute

// never matches the output of failures that are never tried again: a data race, a panic,
// a leak, and whatever says that money was paid twice or that stock was oversold. One
// such failure in a thousand runs is a defect.
var never = regexp.MustCompile(`DATA RACE|race detected|(?m:^\s*panic: )|fatal error: |goroutines|(?i:invariant|\btwice\b|oversold)`)

// neverIn are packages whose tests wait for nothing, so that a slow machine cannot make
// them fail.
var neverIn = []string{"internal/models", "internal/rules", "internal/reward"}

// again tries each failed test once more, when all suites have ended and nothing else
// uses the machine. A suite whose failures all pass then has no failures left, but flaky
// tests. Nothing is tried again if one of the failures is of a kind that a slow machine
// does not explain.
func (r runner) again(ctx context.Context, chosen []suite, results []*result) {
	tests := map[testName]bool{}
	for _, res := range results {
		if slices.ContainsFunc(res.failures, failure.isFinal) {
			return
		}
		for _, f := range res.failures {
			tests[f.whole()] = true
		}
	}
	if len(tests) > repeatedMost {
		return
	}
	for _, res := range results {
		i := slices.IndexFunc(chosen, func(s suite) bool { return s.name == res.suite })
		if i < 0 || len(res.failures) == 0 {
			continue
		}
		second := newResult(res.suite, r.progress)
		if err := r.repeat(ctx, chosen[i], res.failures, second); err != nil {
			second.fail("run again", err.Error())
		}
		res.takeAgain(second)
	}
}

// isFinal reports whether the failure is not tried again.
func (f failure) isFinal() bool {
	return f.test.Test == "" || isBelow(f.test.Package, neverIn) || never.MatchString(f.output)
}

// whole names the test with all its subtests. Those of the browser have none.
func (f failure) whole() testName {
	if f.test.Package == "" {
		return f.test
	}
	name, _, _ := strings.Cut(f.test.Test, "/")
	return testName{f.test.Package, name}
}

// takeAgain takes the outcome of failed tests that ran again.
func (r *result) takeAgain(second *result) {
	r.took += second.took
	if len(second.failures) > 0 || second.passed == 0 {
		for i := range r.failures {
			for _, f := range second.failures {
				if f.name == r.failures[i].name {
					r.failures[i].output += "\nIt ran again, and failed:\n" + f.output
				}
			}
		}
		return
	}
	r.passed += len(r.failures)
	r.flaky, r.failures = r.failures, nil
}

// repeat runs the tests of the failures again.
func (r runner) repeat(ctx context.Context, s suite, failures []failure, second *result) error {
	packages, names := []string{}, []string{}
	for _, f := range failures {
		packages, names = append(packages, f.test.Package), append(names, regexp.QuoteMeta(f.whole().Test))
	}
	slices.Sort(packages)
	slices.Sort(names)
	r.run = "^(" + strings.Join(slices.Compact(names), "|") + ")$"
	if s.check != nil {
		s.check(ctx, r, second)
		return nil
	}
	files, err := testFiles(ctx, r.root)
	if err != nil {
		return err
	}
	var c call
	if s.ofPackages() {
		c = packageTests(files, []string{s.name})
	} else {
		c = s.call(files)
	}
	c.packages = slices.Compact(packages)
	// The last of two equal flags counts.
	c.flags = append(c.flags, "-p", "1")
	r.goTest(ctx, c, []*result{second})
	return nil
}

// repeatFailures is the step of a run that tries failed tests again.
func (r runner) repeatFailures(ctx context.Context, opts options, chosen []suite, report *report, servers func() (*fleet.Fleet, error)) {
	running, err := servers()
	if err = errors.Join(err, ctx.Err()); err != nil {
		return // a failure of the report says so
	}
	r.env = running.Env()
	end := time.Now()
	if limit := report.began.Add(time.Duration(opts.minutes * float64(time.Minute))); opts.minutes > 0 && limit.Before(end) {
		end = limit
	}
	ctx, cancel := context.WithDeadline(ctx, end.Add(repeatedTime))
	defer cancel()
	r.again(ctx, chosen, report.results)
}
