package main

import (
	"context"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/largesse/largesse/internal/lab/fleet"
)

const (
	// fuzzTime is how long each fuzz target looks for a finding.
	fuzzTime = "5s"
	// fuzzShrink bounds how often an input is tried to make it shorter, which by
	// default takes up to a minute each.
	fuzzShrink = "100x"
	// fuzzTries is how often a target is begun that the end of its time has cut.
	fuzzTries = 3
)

// fuzzTarget is a fuzz function of a package.
type fuzzTarget struct{ pkg, name string }

func (t fuzzTarget) String() string { return testName{t.pkg, t.name}.String() }

// fuzz lets every fuzz function of the repository look for a finding for a short
// time, one after the other. What is found stays in the checkout, under
// testdata/fuzz, and fails every test run of its package until it is mended.
func fuzz(ctx context.Context, r runner, res *result) {
	targets, err := fuzzTargets(ctx, r.root)
	if err != nil {
		res.fail("list of fuzz functions", err.Error())
		return
	}
	only, err := regexp.Compile(r.run)
	if err != nil {
		res.fail("-run", err.Error())
		return
	}
	for _, target := range targets {
		if !only.MatchString(target.name) {
			continue
		}
		if text, err := fuzzOne(ctx, r.root, target); err != nil {
			res.fail(target.String(), fmt.Sprintf("%v\n%s", err, fleet.Tail(text, linesKept)))
		} else {
			res.passed++
		}
		r.progress.update(res)
	}
}

func fuzzOne(ctx context.Context, root string, target fuzzTarget) (text string, err error) {
	for range fuzzTries {
		text, err = fleet.Output(ctx, root, nil, "go", "test", "-run", "^$", "-fuzz", "^"+target.name+"$",
			"-fuzztime", fuzzTime, "-fuzzminimizetime", fuzzShrink, "-timeout", "5m", target.pkg)
		if err == nil || ctx.Err() != nil || !cutByTime(text) {
			break
		}
	}
	return text, err
}

// cutByTime tells a run that failed for nothing but the end of its time, which
// the go command sometimes takes for a failure of the worker, from a finding.
func cutByTime(text string) bool {
	return strings.Contains(text, "context deadline exceeded") && !strings.Contains(text, "Failing input written to") &&
		!strings.Contains(text, "failure while testing seed corpus entry")
}

// fuzzTargets lists the fuzz functions. One behind a build tag is an error, for
// it would never run.
func fuzzTargets(ctx context.Context, root string) ([]fuzzTarget, error) {
	plain, err := fuzzTargetsWith(ctx, root, "")
	if err != nil {
		return nil, err
	}
	all, err := fuzzTargetsWith(ctx, root, "servers load")
	if err != nil {
		return nil, err
	}
	for _, target := range all {
		if !slices.Contains(plain, target) {
			return nil, fmt.Errorf("%s stands in a file with a build tag, where it is never run: move it to one without", target)
		}
	}
	return plain, nil
}

func fuzzTargetsWith(ctx context.Context, root, tags string) ([]fuzzTarget, error) {
	packages, err := listPackages(ctx, root, tags)
	if err != nil {
		return nil, err
	}
	var targets []fuzzTarget
	for _, p := range packages {
		for _, file := range slices.Concat(p.TestGoFiles, p.XTestGoFiles) {
			names, err := functionsIn(filepath.Join(p.Dir, file), "Fuzz")
			if err != nil {
				return nil, err
			}
			for _, name := range names {
				targets = append(targets, fuzzTarget{p.ImportPath, name})
			}
		}
	}
	return targets, nil
}
