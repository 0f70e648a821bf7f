// Command testrun is `make test`: it installs and starts the real servers that
// the tests need, runs every suite, stops what it started and closes with the
// counts. The servers listen on free loopback ports and keep their data in a
// temporary folder of their own, so several runs share a machine.
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
	"syscall"
	"time"

	"github.com/largesse/largesse/internal/lab/fleet"
)

// errParentGone ends a run whose `go run` was killed: a kill does not reach
// its child by itself.
var errParentGone = errors.New("the process that started this run is gone")

// options are the flags.
type options struct {
	suites  []string // names; empty = all
	keep    bool     // hold the servers until interrupted
	run     string   // go test -run
	verbose bool
}

func main() {
	opts := options{}
	names := flag.String("suite", "", "run only these suites, separated by commas (see the table at the end of a run)")
	flag.BoolVar(&opts.keep, "keep", false, "leave the servers up until interrupted and print their addresses; runs only the suites named by -suite")
	flag.StringVar(&opts.run, "run", "", "run only the tests that match, as in go test -run")
	flag.BoolVar(&opts.verbose, "v", false, "show all output of the tests")
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "testrun: %q is no flag; see -help\n", flag.Arg(0))
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

// run does the whole run and says whether everything passed.
func run(ctx context.Context, opts options, out io.Writer) (ok bool) {
	report := &report{}
	defer func() { // also while a panic passes
		report.print(out)
		ok = report.failed() == 0
	}()
	root, err := fleet.ModuleRoot()
	if err != nil {
		report.fail("set-up", "module root", err.Error())
		return
	}
	chosen := choose(opts)
	env := []string{}
	servers := &fleet.Fleet{}
	if opts.keep || slices.ContainsFunc(chosen, func(s suite) bool { return s.servers }) {
		started, err := startFleet(ctx, out)
		if err != nil {
			report.fail("servers", "start", err.Error())
			return
		}
		servers = started
		defer func() {
			if err := servers.Remove(); err != nil {
				fmt.Fprintf(os.Stderr, "testrun: %v\n", err)
			}
		}()
		env = servers.Env()
	}
	progress := newProgress(out)
	for _, s := range chosen {
		if ctx.Err() != nil {
			report.fail(s.name, "interrupted", "the run was interrupted before this suite")
			continue
		}
		started := time.Now()
		progress.begin(s.name)
		result := s.run(ctx, runner{root: root, env: env, run: opts.run, verbose: opts.verbose, out: out, progress: progress})
		result.took = time.Since(started)
		checkAlive(servers, result)
		progress.end(result)
		report.add(result)
	}
	if opts.keep && ctx.Err() == nil {
		for _, e := range env {
			fmt.Fprintf(out, "export %s\n", e)
		}
		fmt.Fprintf(out, "The servers stay up until this is interrupted (Ctrl-C). A single test: go test -tags servers -run TestName ./internal/…\n")
		<-ctx.Done()
	}
	return
}

func startFleet(ctx context.Context, out io.Writer) (*fleet.Fleet, error) {
	in, err := fleet.NewInstaller(out)
	if err != nil {
		return nil, err
	}
	return fleet.Start(ctx, in, out)
}

// checkAlive adds a failure for each server that ended during a suite.
func checkAlive(servers *fleet.Fleet, r *result) {
	endings := servers.Endings()
	for _, name := range slices.Sorted(maps.Keys(endings)) {
		for _, text := range endings[name] {
			r.fail("server "+name, text)
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
