package main

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"sync"

	"github.com/largesse/largesse/internal/lab/fleet"
)

const (
	// fuzzTime is how long each fuzz function looks for a finding.
	fuzzTime = "5s"
	// fuzzShrink limits how often an input is tried to make it shorter, which takes
	// up to a minute each by default.
	fuzzShrink = "100x"
	// fuzzTries limits how often a function is started that was cut by the end of
	// its time.
	fuzzTries = 3
	// fuzzAtOnce is how many functions look at the same time, each with one worker.
	fuzzAtOnce = 2
)

// fuzzTarget is a fuzz function of a package.
type fuzzTarget struct{ pkg, name string }

func (t fuzzTarget) String() string { return testName{t.pkg, t.name}.String() }

// fuzz lets every fuzz function of the module look for a finding. A finding stays
// in the checkout, under testdata/fuzz, and fails every later run of its package
// until the fault is repaired. make test runs the seeds and these findings.
func fuzz(ctx context.Context, r runner, res *result) {
	only, err := regexp.Compile(r.run)
	if err != nil {
		res.fail("-run", err.Error())
		return
	}
	files, err := testFiles(ctx, r.root)
	if err != nil {
		res.fail("list of fuzz functions", err.Error())
		return
	}
	var mu sync.Mutex // protects res
	var workers sync.WaitGroup
	targets := make(chan fuzzTarget)
	for range fuzzAtOnce {
		workers.Go(func() {
			for target := range targets {
				text, err := fuzzOne(ctx, r.root, target)
				mu.Lock()
				if err != nil {
					res.fail(target.String(), fmt.Sprintf("%v\n%s", err, fleet.Tail(text, linesKept)))
				} else {
					res.pass()
				}
				mu.Unlock()
			}
		})
	}
	for _, target := range fuzzTargets(files) {
		if only.MatchString(target.name) {
			targets <- target
		}
	}
	close(targets)
	workers.Wait()
}

func fuzzOne(ctx context.Context, root string, target fuzzTarget) (text string, err error) {
	for range fuzzTries {
		text, err = fleet.Output(ctx, root, nil, "go", "test", "-vet=off", "-tags", "servers load", "-run", "^$", "-fuzz", "^"+target.name+"$",
			"-fuzztime", fuzzTime, "-fuzzminimizetime", fuzzShrink, "-parallel", "1", "-timeout", "10m", target.pkg)
		if err == nil || ctx.Err() != nil || !cutByTime(text) {
			break
		}
	}
	return text, err
}

// cutByTime reports whether a run failed only because its time ended, which the
// go command sometimes takes for a failure of the worker. A finding is a failure.
func cutByTime(text string) bool {
	return strings.Contains(text, "context deadline exceeded") && !strings.Contains(text, "Failing input written to") &&
		!strings.Contains(text, "failure while testing seed corpus entry")
}

// fuzzTargets lists the fuzz functions.
func fuzzTargets(files []testFile) []fuzzTarget {
	var targets []fuzzTarget
	for _, f := range files {
		for _, name := range f.functions {
			if strings.HasPrefix(name, "Fuzz") {
				targets = append(targets, fuzzTarget{f.pkg, name})
			}
		}
	}
	return targets
}
