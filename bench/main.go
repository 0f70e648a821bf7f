// Command bench pays the same targets through Largesse, River, asynq, Watermill with Redis
// Streams, and a bare pipeline, in turns on the same PostgreSQL and Redis. Each engine runs
// in a process of its own. docs/benchmarks.md explains the figures.
//
//	make bench-peers
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	run := runBench
	if len(os.Args) > 3 && os.Args[1] == "worker" {
		run = func(ctx context.Context) error { return workerMain(ctx, os.Args[2:]) }
	}
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// options are the flags.
type options struct {
	postgres, redis    string
	engines, scenarios string // names with commas; "": all
	targets, turns     int
	quick              bool
	limit              time.Duration
	keep, page         string
	largesse           string
}

func runBench(ctx context.Context) error {
	var o options
	flag.StringVar(&o.postgres, "postgres", os.Getenv("LARGESSE_TEST_POSTGRES"), "URL of PostgreSQL on this machine, as a superuser")
	flag.StringVar(&o.redis, "redis", os.Getenv("LARGESSE_TEST_REDIS"), "URL of an empty Redis on this machine; each turn removes all keys")
	flag.StringVar(&o.engines, "engines", "", "engines with commas; empty: all")
	flag.StringVar(&o.scenarios, "scenarios", "", "scenarios with commas; empty: all, or without the kill with -quick")
	flag.IntVar(&o.targets, "targets", 100_000, "targets of a turn")
	flag.IntVar(&o.turns, "turns", 5, "turns of each engine in each scenario")
	flag.BoolVar(&o.quick, "quick", false, "one turn of 20,000 targets without the kill, compared with the last kept one")
	flag.DurationVar(&o.limit, "limit", 20*time.Minute, "longest time of a turn; what is then not recorded counts as lost or unknown")
	flag.StringVar(&o.keep, "keep", "", "folder for the figures as JSON and the chart; empty: keep nothing")
	flag.StringVar(&o.page, "page", "", "page whose figures are replaced, with -keep")
	flag.StringVar(&o.largesse, "largesse", "", "path of the program largesse, whose own benchmarks run, too; empty: none")
	flag.Parse()
	name := "bench-peers"
	if o.quick {
		name, o.targets, o.turns = name+"-quick", 20_000, 1
		if o.scenarios == "" {
			o.scenarios = "fast,slow,lost"
		}
	}
	report, err := o.measure(ctx)
	if err != nil {
		return err
	}
	report.write(os.Stdout)
	if o.keep == "" {
		return nil
	}
	last, err := lastKept(o.keep, name)
	if err != nil {
		return err
	}
	if last != nil {
		fmt.Println()
		report.writeFallen(os.Stdout, last)
	}
	path, err := report.keep(o.keep, name)
	if err != nil || o.page == "" {
		return err
	}
	return report.rewritePage(o.page, path+".svg")
}

// measure measures all engines in turns.
func (o options) measure(ctx context.Context) (report *Report, err error) {
	chosen, err := o.chosen()
	if err != nil {
		return nil, err
	}
	s, err := openServers(ctx, o.postgres, o.redis)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.close(context.WithoutCancel(ctx))) }()
	report = newReport(ctx, o.targets)
	if report.Servers, err = s.versions(ctx); err != nil {
		return nil, err
	}
	for turn := range o.turns {
		for _, sc := range chosen.scenarios {
			for i := range chosen.engines {
				e := chosen.engines[(i+turn)%len(chosen.engines)] // another one begins each turn
				if e.unsafe && (sc.losesReplies || sc.kills) || sc.alone() && (turn > 0 || e.name != engines[0].name) {
					continue
				}
				t, err := s.measure(ctx, e, sc, cmp.Or(sc.size.targets, o.targets), o.limit)
				if err != nil {
					return nil, fmt.Errorf("%s, %s: %w", e.name, sc.name, err)
				}
				fmt.Fprintf(os.Stderr, "turn %d of %d, %s, %s: %.0f payouts per second, %.1f s\n", turn+1, o.turns, sc.name, e.name, t.Rate, t.Seconds)
				report.add(e.name, sc.name, t)
			}
		}
	}
	report.sort()
	if o.largesse == "" {
		return report, nil
	}
	for _, args := range [][]string{
		{"payouts", "--targets", "200000", "--slow-targets", "0"}, // for the upload: the rest is measured above
		{"coupons", "--watchers", "0", "--line", "0"},             // the gate, the issuer and requests over HTTP
	} {
		own, err := o.own(ctx, args)
		if err != nil {
			return nil, err
		}
		report.Own = append(report.Own, own)
	}
	return report, nil
}

// own runs a benchmark of largesse bench.
func (o options) own(ctx context.Context, args []string) (OwnFigures, error) {
	measured := OwnFigures{Benchmark: strings.Join(args, " ")}
	args = append([]string{"bench", "--output", "json", "--database-url", o.postgres, "--redis-url", o.redis}, args...)
	run := exec.CommandContext(ctx, o.largesse, args...)
	run.Stderr = os.Stderr
	out, failed := run.Output() // also if a ratio misses its limit
	if err := json.Unmarshal(out, &measured); err != nil {
		return measured, fmt.Errorf("largesse bench %s: %w", measured.Benchmark, errors.Join(failed, err))
	}
	return measured, nil
}

// choice is what is measured.
type choice struct {
	engines   []engine
	scenarios []scenario
}

// chosen returns what the flags name.
func (o options) chosen() (c choice, err error) {
	engineNames, scenarioNames := list(o.engines), list(o.scenarios)
	for _, e := range engines {
		if engineNames == nil || slices.Contains(engineNames, e.name) {
			c.engines = append(c.engines, e)
		}
	}
	for _, sc := range scenarios {
		if scenarioNames == nil || slices.Contains(scenarioNames, sc.name) {
			c.scenarios = append(c.scenarios, sc)
		}
	}
	if engineNames != nil && len(c.engines) != len(engineNames) || scenarioNames != nil && len(c.scenarios) != len(scenarioNames) {
		return c, errors.New("-engines or -scenarios has an unknown name")
	}
	return c, nil
}

func list(names string) []string {
	if names == "" {
		return nil
	}
	return strings.Split(names, ",")
}
