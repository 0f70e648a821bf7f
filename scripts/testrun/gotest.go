package main

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/largesse/largesse/internal/lab/fleet"
)

// call is one call of `go test`.
type call struct {
	flags    []string
	packages []string
	tests    []string // names of functions; empty means all
	timeout  string   // of the tests of one package; empty means 30m
}

// packageTests tests every package of these suites, in their order. It leaves the
// race detector to the race suite: with it a clean clone takes ten minutes more.
func packageTests(files []testFile, suites []string) call {
	// Most tests wait for servers and timers, so more can run than there are cores.
	c := call{flags: []string{"-tags", "servers", "-p", "3", "-parallel", "6"}, timeout: "25m"}
	for _, name := range suites {
		c.packages = append(c.packages, callOf(files, func(f testFile, _ string) bool { return !f.load && ownerOf(f.pkg) == name }).packages...)
	}
	return c
}

// raceTests tests every package under the race detector. SQLite, which is Go code
// translated from C, is left out: under the detector it is 25 times slower, and
// statements then take longer than their time limits. Our own code is not left out,
// except for the models of the protocols: they have one goroutine and much to compute.
// With -short, tests are left out that only start the program, which is built without
// the detector, and random sequences are a fifth as many.
func raceTests(files []testFile) call {
	c := raced(files, func(f testFile) bool { return f.pkg != module && !strings.HasPrefix(f.pkg, module+"/internal/models/") })
	c.flags = append(c.flags, "-p", "3", "-parallel", "6")
	return c
}

// raceSystemTests tests the whole product under the race detector, few tests at a
// time: an instance that waits seconds for a processor says that its servers hang.
func raceSystemTests(files []testFile) call {
	c := raced(files, func(f testFile) bool { return f.pkg == module })
	c.flags = append(c.flags, "-parallel", "3")
	return c
}

// raced returns the call that tests packages under the race detector.
func raced(files []testFile, wanted func(f testFile) bool) call {
	c := callOf(files, func(f testFile, _ string) bool { return !f.load && wanted(f) })
	return call{packages: c.packages, flags: []string{"-tags", "servers", "-race", "-short", "-gcflags=modernc.org/...=-race=false"}}
}

// measured are packages, and single tests of others, whose load tests compare
// speeds, so they run alone.
var (
	measured      = []string{"internal/payout", "internal/pool", "internal/queue", "internal/store"}
	measuredAlone = []string{"TestWaitsAreHonestOnRealServers", "TestWaitsAreHonestInKafkaMode", "TestIdlePromotionsCostNothing"}
)

func isMeasured(f testFile, name string) bool {
	return isBelow(f.pkg, measured) || slices.Contains(measuredAlone, name)
}

// computed are packages, and single tests of others, whose load tests need nothing but
// the processor, so they run apart from those that wait for instances.
var (
	computed      = []string{"internal/models", "scripts/release"}
	computedAlone = []string{"TestModelAtLength"}
)

func isComputed(f testFile, name string) bool {
	return isBelow(f.pkg, computed) || slices.Contains(computedAlone, name)
}

// deployFiles and faultFiles are the load tests of the product as a whole that do not
// belong to the suite load, by the names of their files without _load_test.go.
var (
	deployFiles = []string{"alerts", "backup", "deploy", "upgrade"}
	faultFiles  = []string{"chaos", "faults", "hostile", "pools", "provider"}
)

// isOf reports whether a file of tests of the product as a whole has one of the names.
func isOf(f testFile, names []string) bool {
	return f.pkg == module && slices.Contains(names, strings.TrimSuffix(filepath.Base(f.path), "_load_test.go"))
}

// deployTests runs the load tests of what it takes to run Largesse: upgrades, backups,
// alerts, the chart.
func deployTests(files []testFile) call {
	return longTests(files, func(f testFile) bool { return isOf(f, deployFiles) })
}

// faultTests runs the load tests of faults and hostile clients.
func faultTests(files []testFile) call {
	return longTests(files, func(f testFile) bool { return isOf(f, faultFiles) })
}

// loadTests runs the load tests that no other suite runs.
func loadTests(files []testFile) call {
	return longTests(files, func(f testFile) bool { return !isOf(f, deployFiles) && !isOf(f, faultFiles) })
}

// longTests returns the call that runs the load tests of some files without the race
// detector. They wait for much of their time, so two packages run at once.
func longTests(files []testFile, wanted func(f testFile) bool) call {
	c := callOf(files, func(f testFile, name string) bool {
		return f.load && wanted(f) && !slices.Contains(campaigns, name) && !isMeasured(f, name) && !isComputed(f, name)
	})
	// The parallel ones wait most of their time, and run after all others.
	c.flags = []string{"-tags", "servers load", "-p", "2", "-parallel", "4"}
	c.timeout = "40m"
	return c
}

// measuredTests runs the load tests that compare speeds, one package after the
// other.
func measuredTests(files []testFile) call {
	c := callOf(files, func(f testFile, name string) bool { return f.load && isMeasured(f, name) })
	c.flags = []string{"-tags", "servers load", "-p", "1"}
	return c
}

// computedTests runs the load tests that need nothing but the processor.
func computedTests(files []testFile) call {
	c := callOf(files, func(f testFile, name string) bool { return f.load && isComputed(f, name) })
	c.flags = []string{"-tags", "servers load", "-p", "2"}
	return c
}

// campaignTests runs the load tests that make test keeps.
func campaignTests(files []testFile) call {
	c := callOf(files, func(f testFile, name string) bool { return f.load && slices.Contains(campaigns, name) })
	c.flags = []string{"-tags", "servers load", "-p", "1"}
	return c
}

// callOf returns the call that runs the wanted functions of the packages that
// have any.
func callOf(files []testFile, wanted func(f testFile, name string) bool) call {
	c := call{}
	for _, f := range files {
		for _, name := range f.functions {
			if !wanted(f, name) {
				continue
			}
			c.tests = append(c.tests, name)
			if !slices.Contains(c.packages, f.pkg) {
				c.packages = append(c.packages, f.pkg)
			}
		}
	}
	return c
}

// commandLine returns the arguments of the go command. A non-empty run replaces
// the names of the tests.
func (c call) commandLine(run string) []string {
	if run == "" && len(c.tests) > 0 {
		run = "^(" + strings.Join(c.tests, "|") + ")$"
	}
	// golangci-lint has vetted all packages with more checks than go test does.
	args := append([]string{"test", "-json", "-count=1", "-vet=off", "-timeout", cmp.Or(c.timeout, "30m")}, c.flags...)
	if run != "" {
		args = append(args, "-run", run)
	}
	return slices.Concat(args, c.packages)
}

// goTest runs a call and counts every test in the result of the suite that owns
// its package, or in the only result.
func (r runner) goTest(ctx context.Context, c call, results []*result) {
	if len(c.packages) == 0 {
		results[0].fail("go test", "the suite has no tests")
		return
	}
	shared := results[0] // takes what belongs to no package
	builds := map[string][]string{}
	err := fleet.Lines(ctx, r.root, r.env, func(line string) {
		e := parseEvent(line)
		if r.verbose {
			fmt.Fprint(r.out, e.Output)
		}
		if e.Action == "build-output" {
			builds[e.ImportPath] = keepEnds(append(builds[e.ImportPath], e.Output))
			return
		}
		res := shared
		for _, other := range results {
			if e.Package != "" && len(results) > 1 && other.suite == ownerOf(e.Package) {
				res = other
			}
		}
		res.read(e, builds)
	}, "go", c.commandLine(r.run)...)
	closeResults(results, err)
}
