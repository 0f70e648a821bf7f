package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/largesse/largesse/internal/lab/fleet"
)

const module = "github.com/largesse/largesse"

// suite is one row of the closing table. Exactly one of dirs, everyOther, call
// and check is set.
type suite struct {
	name string
	// long suites run in make test-long, all others in make test.
	long bool
	// minutes is how long a long suite takes on an idle machine with 2 cores.
	minutes float64
	// joined starts the suite together with the one before it.
	joined bool
	// dirs are folders; the suite tests every package in and below them. A package
	// belongs to the first suite that names it, so none is tested twice.
	dirs []string
	// everyOther takes the packages that no suite names, so that a new package is
	// tested without a change here.
	everyOther bool
	// call returns the call of `go test` that the suite consists of.
	call func(files []testFile) call
	// check does anything else and counts it in res.
	check func(ctx context.Context, r runner, res *result)
}

// suites is the order of a run. To add a suite, add a row. Suites of packages run
// in one call of `go test`, which starts their packages in this order: the slowest
// are first, so that the others fill the time while they wait.
var suites = []suite{
	{name: "rest", everyOther: true},
	{name: "payout", dirs: []string{"internal/payout", "internal/campaign", "internal/books", "internal/models/payout"}},
	{name: "store", dirs: []string{"internal/store"}},
	{name: "coupon", dirs: []string{"internal/coupon", "internal/gate", "internal/models/coupon"}},
	{name: "lab", dirs: []string{"internal/lab"}},
	{name: "queue", dirs: []string{"internal/queue", "internal/pool"}},
	{name: "money", dirs: []string{"internal/money"}},
	{name: "bus", dirs: []string{"internal/bus"}},
	{name: "house", dirs: []string{"scripts", "internal/reward", "internal/service", "internal/obs"}},
	{name: "openapi", check: openapi, joined: true},
	{name: "browser", check: browserShort, joined: true},
	{name: "campaigns", call: campaignTests},
	{name: "lint", long: true, minutes: 4, check: lint},
	{name: "race", long: true, minutes: 15, call: raceTests},
	{name: "race-system", long: true, minutes: 6, call: raceSystemTests},
	{name: "computed", long: true, minutes: 5, call: computedTests},
	{name: "tools", long: true, minutes: 3, joined: true, check: buildTools},
	{name: "fuzz", long: true, minutes: 1.6, check: fuzz},
	{name: "browser-long", long: true, minutes: 8, check: browserLong},
	{name: "clients", long: true, minutes: 1, joined: true, check: clients},
	{name: "console", long: true, minutes: 1, joined: true, check: consoleBuild},
	{name: "measured", long: true, minutes: 6, call: measuredTests},
	{name: "deploy", long: true, minutes: 5, call: deployTests},
	{name: "faults", long: true, minutes: 6.5, call: faultTests},
	{name: "load", long: true, minutes: 12, call: loadTests},
}

// campaigns are the load tests that stay in make test.
var campaigns = []string{"TestTwoCampaignsAtOnce", "TestAnInstanceIsKilledBesideAnother", "TestAnUploadIsCut"}

func suiteNames() []string {
	var names []string
	for _, s := range suites {
		names = append(names, s.name)
	}
	return names
}

// checkSuiteNames returns an error for names that are in no row.
func checkSuiteNames(names []string) error {
	for _, name := range names {
		if !slices.Contains(suiteNames(), name) {
			return fmt.Errorf("there is no suite %q; the suites are %s", name, strings.Join(suiteNames(), ", "))
		}
	}
	return nil
}

// choose returns the suites to run, in their order.
func choose(opts options) []suite {
	if len(opts.suites) == 0 && opts.keep {
		return nil
	}
	var chosen []suite
	for _, s := range suites {
		if slices.Contains(opts.suites, s.name) || len(opts.suites) == 0 && s.long == opts.long {
			chosen = append(chosen, s)
		}
	}
	return chosen
}

// stages groups suites that run at the same time: suites of packages, and those
// that run together with the suite before them.
func stages(chosen []suite) [][]suite {
	var all [][]suite
	for i, s := range chosen {
		if i > 0 && (s.joined || s.ofPackages() && chosen[i-1].ofPackages()) {
			all[len(all)-1] = append(all[len(all)-1], s)
		} else {
			all = append(all, []suite{s})
		}
	}
	return all
}

// ofPackages reports whether the suite tests whole packages.
func (s suite) ofPackages() bool { return s.everyOther || len(s.dirs) > 0 }

// needsServers reports whether the suite's tests connect to the real servers.
func (s suite) needsServers() bool { return s.check == nil }

// isBelow reports whether a package is in or below one of the folders.
func isBelow(importPath string, dirs []string) bool {
	dir := strings.TrimPrefix(strings.TrimPrefix(importPath, module), "/")
	return slices.ContainsFunc(dirs, func(d string) bool { return dir == d || strings.HasPrefix(dir, d+"/") })
}

// ownerOf names the suite that tests a package.
func ownerOf(importPath string) string {
	other := ""
	for _, s := range suites {
		if s.everyOther {
			other = s.name
		}
		if isBelow(importPath, s.dirs) {
			return s.name
		}
	}
	return other
}

// runner is what a suite needs to run.
type runner struct {
	root     string
	env      []string // addresses of the servers
	run      string   // as in go test -run; empty means all
	verbose  bool
	seed     int // of the suite openapi; 0 means that of schemathesis.toml
	out      io.Writer
	progress *progress
}

// stage runs suites at the same time, those of packages in one call of `go test`.
func (r runner) stage(ctx context.Context, chosen []suite) []*result {
	r.progress.begin(chosen)
	var results, ofPackages []*result
	var running sync.WaitGroup
	for _, s := range chosen {
		res := newResult(s.name, r.progress)
		results = append(results, res)
		if s.ofPackages() {
			ofPackages = append(ofPackages, res)
			continue
		}
		running.Go(func() {
			began := time.Now()
			defer func() { res.took = time.Since(began) }()
			if s.check != nil {
				s.check(ctx, r, res)
				return
			}
			files, err := testFiles(ctx, r.root)
			if err != nil {
				res.fail("list of tests", err.Error())
				return
			}
			r.goTest(ctx, s.call(files), []*result{res})
		})
	}
	if len(ofPackages) > 0 {
		running.Go(func() { r.testPackages(ctx, ofPackages) })
	}
	running.Wait()
	return results
}

// testPackages tests the packages of several suites in one call of `go test`.
func (r runner) testPackages(ctx context.Context, results []*result) {
	files, err := testFiles(ctx, r.root)
	if err != nil {
		results[0].fail("list of packages", err.Error())
		return
	}
	var wanted []string
	for _, res := range results {
		wanted = append(wanted, res.suite)
	}
	r.goTest(ctx, packageTests(files, wanted), results)
}

// lint runs golangci-lint, which also vets and checks the format; see
// .golangci.yml. The second command checks the format of the modules under
// examples too, which the first one does not see.
func lint(ctx context.Context, r runner, res *result) {
	for _, args := range [][]string{{"run", "--timeout", "15m", "./..."}, {"fmt", "--diff", "."}} {
		args = append([]string{"tool", "-modfile=tools/go.mod", "golangci-lint"}, args...)
		if text, err := fleet.Output(ctx, r.root, nil, "go", args...); err != nil {
			res.fail("golangci-lint "+args[3], fmt.Sprintf("%v\n%s", err, text))
		} else {
			res.pass()
		}
	}
}

// buildTools builds the programs that the load tests call. It takes minutes of both
// processors, so no test that waits for a limited time may run at the same time.
func buildTools(ctx context.Context, r runner, res *result) {
	in, err := fleet.NewInstaller(r.out)
	if err == nil {
		_, err = in.Promtool(ctx)
	}
	if err != nil {
		res.fail("promtool", err.Error())
	} else {
		res.pass()
	}
	if text, err := fleet.Output(ctx, r.root, nil, "go", "build", "-modfile=tools/deploy/go.mod", "-o", os.DevNull, "tool"); err != nil {
		res.fail("tools/deploy", fmt.Sprintf("%v\n%s", err, fleet.Tail(text, 20)))
		return
	}
	res.pass()
}

// consoleBuild checks the types of the console against the API, and that the
// committed build is what its sources give.
func consoleBuild(ctx context.Context, r runner, res *result) {
	if text, err := fleet.Output(ctx, r.root, nil, "scripts/console", "--check"); err != nil {
		res.fail("scripts/console --check", fmt.Sprintf("%v\n%s", err, fleet.Tail(text, 40)))
		return
	}
	res.pass()
}
