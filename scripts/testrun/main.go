// Command testrun runs the test suites of make test, and with -long those of
// make test-long. It installs and starts the real servers that the suites need,
// runs the suites, stops the servers and prints the counts. The servers listen
// on free loopback ports and keep their data in a temporary folder, so several
// runs can share a machine.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/largesse/largesse/internal/lab/fleet"
)

// errParentGone ends a run whose `go run` was killed: a kill does not reach the
// child of `go run`.
var errParentGone = errors.New("the process that started this run is gone")

// options are the flags.
type options struct {
	suites  []string // names; empty means all of make test or of make test-long
	long    bool
	keep    bool   // keep the servers up until the run is interrupted
	run     string // as in go test -run
	verbose bool
	minutes float64 // start no suite that would end later; 0 means no limit
	slow    float64 // how much longer a suite takes on this machine, in percent
	again   bool    // run failed tests once more
	seed    int     // of the suite openapi; 0 means that of schemathesis.toml
}

func main() {
	opts := options{}
	names := flag.String("suite", "", "run only these suites, separated by commas: "+strings.Join(suiteNames(), ", "))
	flag.BoolVar(&opts.long, "long", false, "run the suites of make test-long")
	flag.BoolVar(&opts.keep, "keep", false, "print the servers' addresses and keep them up until interrupted; run only the suites named by -suite")
	flag.StringVar(&opts.run, "run", "", "run only the tests that match, as in go test -run")
	flag.IntVar(&opts.seed, "seed", 0, "seed of the requests of the suite openapi; 0 means that of schemathesis.toml, which make test uses")
	flag.Float64Var(&opts.minutes, "minutes", 0, "start no long suite that would not end within so many minutes, and report it as skipped; 0 means no limit")
	flag.Float64Var(&opts.slow, "slow", 100, "percentage of the usual time that suites take on this machine, for -minutes")
	flag.BoolVar(&opts.again, "again", false, "run each failed test once more when all others have ended; one that then passes is reported as flaky, not as failed")
	flag.BoolVar(&opts.verbose, "v", false, "show all output of the tests")
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "testrun: unexpected argument %q; see -help\n", flag.Arg(0))
		os.Exit(2)
	}
	if *names != "" {
		opts.suites = strings.Split(*names, ",")
	}
	if err := checkSuiteNames(opts.suites); err != nil {
		fmt.Fprintf(os.Stderr, "testrun: %v\n", err)
		os.Exit(2)
	}

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx = endWithParent(ctx)
	if !run(ctx, opts, os.Stdout) {
		os.Exit(1)
	}
}

// run runs the chosen suites, prints the report and reports whether everything
// passed.
func run(ctx context.Context, opts options, out io.Writer) (ok bool) {
	report := &report{began: time.Now()}
	defer func() { // deferred, so that a panic does not lose the report
		report.print(out)
		ok = report.failed() == 0
	}()
	root, err := fleet.ModuleRoot()
	if err != nil {
		report.fail("setup", "module root", err.Error())
		return
	}
	progress := startProgress(out)
	defer progress.stop()
	chosen := choose(opts)
	servers := func() (*fleet.Fleet, error) { return &fleet.Fleet{}, nil }
	if opts.keep || slices.ContainsFunc(chosen, suite.needsServers) {
		servers = startServers(ctx, out)
		defer removeServers(servers)
	}
	r := runner{root: root, run: opts.run, verbose: opts.verbose, seed: opts.seed, out: out, progress: progress}
	for _, stage := range stages(chosen) {
		stage = slices.DeleteFunc(stage, func(s suite) bool {
			if opts.fits(time.Since(report.began), s) {
				return false
			}
			res := newResult(s.name, progress)
			res.skipped = []string{fmt.Sprintf("%s: it takes about %.0f minutes, which were not left", s.name, s.minutes*opts.slow/100)}
			report.results = append(report.results, res)
			return true
		})
		if len(stage) == 0 {
			continue
		}
		if len(stage) > 1 {
			// Fills the build cache first: on a new machine, several builds at the same time
			// would each compile everything. The suites report what does not build.
			_, _ = fleet.Output(ctx, root, nil, "go", "build", "-o", os.DevNull, "./cmd/largesse")
		}
		var running *fleet.Fleet
		if slices.ContainsFunc(stage, suite.needsServers) {
			if running, err = servers(); err != nil {
				report.fail("servers", "start", err.Error())
				return
			}
			r.env = running.Env()
		}
		if ctx.Err() != nil {
			report.fail(stage[0].name, "interrupted", "the run was interrupted before this suite")
			continue
		}
		results := r.stage(ctx, stage)
		if running != nil {
			checkServers(running, results[0])
		}
		report.results = append(report.results, results...)
	}
	if opts.again {
		r.repeatFailures(ctx, opts, chosen, report, servers)
	}
	if opts.keep {
		if err := keepServers(ctx, servers, out); err != nil {
			report.fail("servers", "start", err.Error())
		}
	}
	return
}

// fits reports whether a suite ends in time if it begins after some time.
func (o options) fits(after time.Duration, s suite) bool {
	return o.minutes <= 0 || after.Minutes()+s.minutes*o.slow/100 <= o.minutes
}

// startServers starts one server of each kind while the caller continues. The
// returned function waits for them.
func startServers(ctx context.Context, out io.Writer) func() (*fleet.Fleet, error) {
	servers := sync.OnceValues(func() (*fleet.Fleet, error) {
		in, err := fleet.NewInstaller(out)
		if err != nil {
			return nil, err
		}
		return fleet.Start(ctx, in, out)
	})
	go servers() //nolint:errcheck // whoever needs the servers gets the error
	return servers
}

func removeServers(servers func() (*fleet.Fleet, error)) {
	running, err := servers()
	if err != nil {
		return // fleet.Start leaves nothing running then
	}
	if err := running.Remove(); err != nil {
		fmt.Fprintf(os.Stderr, "testrun: %v\n", err)
	}
}

// keepServers prints the servers' addresses and waits until the run is
// interrupted.
func keepServers(ctx context.Context, servers func() (*fleet.Fleet, error), out io.Writer) error {
	running, err := servers()
	if err != nil {
		return err
	}
	for _, e := range running.Env() {
		fmt.Fprintf(out, "export %s\n", e)
	}
	fmt.Fprintf(out, "The servers stay up until this is interrupted (Ctrl-C). A single test: go test -tags servers -run TestName ./internal/…\n")
	<-ctx.Done()
	return nil
}

// checkServers adds a failure for each server that crashed during a suite.
func checkServers(servers *fleet.Fleet, res *result) {
	endings := servers.Endings()
	for _, name := range slices.Sorted(maps.Keys(endings)) {
		for _, text := range endings[name] {
			res.fail("server "+name, text)
		}
	}
}

// endWithParent returns a context that also ends when the parent process dies.
func endWithParent(ctx context.Context) context.Context {
	parent := os.Getppid()
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		ticker := time.NewTicker(time.Second)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
				if os.Getppid() != parent {
					cancel(errParentGone)
					return
				}
			}
		}
	}()
	return ctx
}
