package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/largesse/largesse/internal/lab"
)

// benchmark is a command of bench.
type benchmark struct {
	about   *cobra.Command
	several bool   // it runs several instances, which need a Kafka
	redis   string // which one it needs, for the help
	creates string // what the user of the database creates, for the help
	flags   func(*pflag.FlagSet)
	run     func(context.Context, lab.Bench) (benchResult, error)
	broken  string // the error if a limit is not kept
}

// benchResult is what a benchmark measured: lab.Figures or lab.OriginalCases.
type benchResult interface{ Kept() bool }

func (c *cli) benchCommand() *cobra.Command {
	cmd := group(&cobra.Command{
		Use:     "bench",
		Short:   "Measure this build on real servers",
		Example: "  largesse bench payouts --database-url postgres://… --redis-url redis://127.0.0.1:6379",
	})
	for _, b := range []benchmark{payoutsBenchmark(), governorBenchmark(), couponsBenchmark(), idleBenchmark(), originalsBenchmark()} {
		cmd.AddCommand(c.benchmarkCommand(b))
	}
	return cmd
}

func (c *cli) benchmarkCommand(b benchmark) *cobra.Command {
	var on lab.Bench
	cmd := b.about
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		switch missing := on.Database == "" || on.Redis == ""; {
		case b.several && (missing || len(on.Brokers) == 0):
			return wrongUse("bench %s runs several instances that share servers: set --database-url, --redis-url and --kafka-brokers", cmd.Name())
		case missing:
			return wrongUse("bench %s measures real servers: set --database-url and --redis-url", cmd.Name())
		}
		show := newBars(c.quiet())
		on.Log, on.Progress = c.stderr, show.Update
		result, err := b.run(cmd.Context(), on)
		show.Close()
		if err == nil {
			err = c.printBench(result)
		}
		if err == nil && !result.Kept() {
			err = errors.New(b.broken)
		}
		return err
	}
	flags := cmd.Flags()
	b.flags(flags)
	flags.StringVar(&on.Database, "database-url", "", "PostgreSQL URL of a user who may create a "+b.creates+" (required)")
	flags.StringVar(&on.Redis, "redis-url", "", b.redis+" (required)")
	brokers := "Kafka brokers (required)"
	if !b.several {
		brokers = "Kafka brokers; default: the embedded broker"
	}
	flags.StringSliceVar(&on.Brokers, "kafka-brokers", nil, brokers)
	return cmd
}

func (c *cli) printBench(result benchResult) error {
	name := "figures"
	switch measured := result.(type) {
	case lab.OriginalCases:
		if name = "cases"; c.output == outputTable {
			return c.printOriginals(measured)
		}
	case lab.Figures:
		if c.output == outputTable {
			d := c.details()
			for _, one := range measured {
				d.add(one.Name, one.Text)
			}
			return d.flush()
		}
	}
	return c.printJSON(map[string]any{name: result, "kept": result.Kept()})
}

func (c *cli) printOriginals(cases lab.OriginalCases) error {
	fmt.Fprintf(c.stdout, "%d cores, %s, all instances in one process\n\n", runtime.NumCPU(), runtime.Version())
	return printList(c, each(cases, nil), listing[lab.OriginalCase]{
		header: []string{"CASE", "ORIGINAL", "AS DESIGNED", "HERE", "CORRECT", "CHECKED"},
		row: func(one lab.OriginalCase) []string {
			correct := "yes"
			if !one.Correct {
				correct = "NO"
			}
			return []string{one.Case, one.Original, one.AsDesigned, one.Here, correct, one.Detail}
		},
		wrap: true,
	})
}

func atLeast(flag string, numbers []int, least int) error {
	for _, n := range numbers {
		if n < least {
			return wrongUse("--%s %d must be at least %d", flag, n, least)
		}
	}
	return nil
}

func payoutsBenchmark() benchmark {
	var p lab.PayoutBench
	return benchmark{
		about: &cobra.Command{
			Use:   "payouts",
			Short: "Measure payouts per second, compared with a bare pipeline of the same commands",
			Long: `Pay targets from a file through a provider in this process, on a real PostgreSQL
and Redis. Then process the same file through a bare pipeline of the same SQL and
stream commands, without any guarantee. Finally pay through a provider that takes
200 ms, with 2,000 calls in flight.

The run creates its own schema, key prefix and topic prefix, and removes them.`,
			Example: `  largesse bench payouts --database-url postgres://postgres@127.0.0.1/postgres --redis-url redis://127.0.0.1:6379 --kafka-brokers 127.0.0.1:9092
  largesse bench payouts --targets 100000 --database-url postgres://postgres@127.0.0.1/postgres --redis-url redis://127.0.0.1:6379`,
		},
		redis: "Redis or Valkey URL", creates: "schema",
		flags: func(flags *pflag.FlagSet) {
			countFlag(flags, &p.Targets, "targets", 1_000_000, "targets in the file, at least 1000", 1000, 0)
			countFlag(flags, &p.SlowTargets, "slow-targets", 150_000, "targets paid through the slow provider; 0: skip that run", 0, 0)
		},
		run:    func(ctx context.Context, on lab.Bench) (benchResult, error) { return p.Run(ctx, on) },
		broken: "the books do not balance",
	}
}

func couponsBenchmark() benchmark {
	var b lab.CouponBench
	return benchmark{
		about: &cobra.Command{
			Use:   "coupons",
			Short: "Measure coupons per second, compared with hand-written code",
			Long: `Measure on a real PostgreSQL, Redis and Kafka, in one run:

  - the gate: users per second that the engine admits, each with a ticket and a
    rank, compared with redis-benchmark -P 16 of a hand-written script that does
    the same for one user (ratio at least 1.0);
  - from request to committed coupon, in the order of tickets, compared with one
    transaction per coupon with SELECT … FOR UPDATE on 10 connections (ratio at
    least 25);
  - the CPU of this process for a request over HTTP, without sockets, compared with a
    bare handler that runs that script: when the drop is sold out (at most 2.0 times
    as much), and until the coupon is committed, which the bare handler leaves out
    (at most 2.5);
  - the watchers of a line that moves ten times per second: the CPU of this process,
    compared with the same line without watchers, and the waits that they were told,
    compared with their real ones, also after the database slowed down fivefold;
  - a load of the gate of a very long line: its time, compared with the time in which
    the line was filled, and the longest pause of Redis.

The exit code is 1 if a ratio misses its limit or a coupon is missing. The run creates its
own schema, key prefix and topic prefix, and removes them.`,
			Example: `  largesse bench coupons --database-url postgres://postgres@127.0.0.1/postgres --redis-url redis://127.0.0.1:6379 --kafka-brokers 127.0.0.1:9092`,
		},
		redis: "Redis or Valkey URL of a single server", creates: "schema",
		flags: func(flags *pflag.FlagSet) {
			countFlag(flags, &b.Users, "askers", 300_000, "users, at least 1000; each requests one coupon", 1000, 0)
			countFlag(flags, &b.AtOnce, "at-once", 1024, "concurrent requests, at least 1", 1, 0)
			countFlag(flags, &b.ByHand, "by-hand", 5_000, "coupons issued in one transaction each, at least 10", 10, 0)
			countFlag(flags, &b.HTTP, "http", 100_000, "requests over HTTP; 0: skip that run", 0, 0)
			countFlag(flags, &b.Watchers, "watchers", 10_000, "watchers of the line, at most 100000; 0: skip that run", 0, 100_000)
			countFlag(flags, &b.Line, "line", 2_000_000, "users in line while the gate is loaded; 0: skip that run", 0, 0)
			flags.StringVar(&b.Tool, "redis-benchmark", "redis-benchmark", "path of the program redis-benchmark, from Redis or Valkey")
		},
		run:    func(ctx context.Context, on lab.Bench) (benchResult, error) { return b.Run(ctx, on) },
		broken: "a ratio misses its limit, or a coupon is missing: see the table above",
	}
}

func governorBenchmark() benchmark {
	var g lab.GovernorBench
	return benchmark{
		about: &cobra.Command{
			Use:   "governor",
			Short: "Measure how well the governor uses and keeps its limits",
			Long: `Run instances of this binary against a provider in this process and print

  - the share of calls in flight ÷ latency that is reached with a provider of 200 ms
    and no limit (at least 0.95);
  - what the provider sees of a limit that three instances share, one of which is
    killed half-way: the mean (at least 0.92 of the limit) and the busiest second
    (at most 1.05 of it);
  - how long a promotion of 1,000 targets takes in addition to a huge one, compared
    with alone (less than 3 times).

The exit code is 1 if a limit is not kept. The run creates its own schema, key
prefix and topic prefix, and removes them.`,
			Example: `  largesse bench governor --database-url postgres://postgres@127.0.0.1/postgres --redis-url redis://127.0.0.1:6379 --kafka-brokers 127.0.0.1:9092`,
		},
		several: true, redis: "Redis or Valkey URL", creates: "schema",
		flags: func(flags *pflag.FlagSet) {
			countFlag(flags, &g.Open, "open", 500, "calls in flight in the run without a limit, at least 1", 1, 0)
			countFlag(flags, &g.Rate, "rate", 500, "calls per second in the run with a limit, at least 10", 10, 0)
			countFlag(flags, &g.BigTargets, "big-targets", 1_000_000, "targets of the huge promotion, at least 10000", 10*lab.SmallTargets, 0)
		},
		run:    func(ctx context.Context, on lab.Bench) (benchResult, error) { return g.Run(ctx, on) },
		broken: "a limit was not kept: see the table above",
	}
}

func idleBenchmark() benchmark {
	var b lab.IdleBench
	return benchmark{
		about: &cobra.Command{
			Use:   "idle",
			Short: "Measure what instances cost while promotions have nothing to do",
			Long: `Run instances with all roles in this process, next to RUNNING promotions that wait
for their first target. For each number of promotions, print what one instance
costs:

  - transactions of the database per second, nearly all of one statement;
  - Redis commands per second (at most 100);
  - the share of a core (at most 5 %);
  - the age of the oldest view of the promotions (below 1 s).

Reconciliation is off: it takes at most a tenth of a second per second.

The exit code is 1 if a limit is not kept. Nothing else may use that Redis
meanwhile, because its commands count. The run creates its own database, key prefix
and topic prefix, and removes them.`,
			Example: `  largesse bench idle --database-url postgres://postgres@127.0.0.1/postgres --redis-url redis://127.0.0.1:6379 --kafka-brokers 127.0.0.1:9092
  largesse bench idle --instances 20 --promotions 10000 --database-url postgres://postgres@127.0.0.1/postgres --redis-url redis://127.0.0.1:6379 --kafka-brokers 127.0.0.1:9092`,
		},
		several: true, redis: "URL of a Redis or Valkey that nothing else uses", creates: "database",
		flags: func(flags *pflag.FlagSet) {
			countFlag(flags, &b.Instances, "instances", 3, "instances in this process, at least 1", 1, 0)
			flags.IntSliceVar(&b.Promotions, "promotions", []int{10, 100, 1000, 10_000}, "numbers of promotions to measure with")
			b.Window = 20 * time.Second
			addFlag(flags, &b.Window, "window", "how long each measurement lasts, at least 1s", bounded(time.ParseDuration, time.Second, 0, ""))
		},
		run: func(ctx context.Context, on lab.Bench) (benchResult, error) {
			if err := atLeast("promotions", b.Promotions, 0); err != nil {
				return nil, err
			}
			return b.Run(ctx, on)
		},
		broken: "an idle instance costs more than its limit",
	}
}

func originalsBenchmark() benchmark {
	var o lab.OriginalsBench
	return benchmark{
		about: &cobra.Command{
			Use:   "originals",
			Short: "Measure the headline cases of the two designs that Largesse comes from",
			Long: `Run the cases that the two original designs calculate or promise, and print their
figures next to those of this build:

  - targets paid by four instances through a provider that takes 200 ms;
  - calls in flight for targets that come from a topic with 12 partitions;
  - 10,000 requests for 100 coupons: how many pass the gate, and how many transactions
    of the database run at the same time;
  - coupons issued in order, one transaction each as in the original, and in batches.

"As designed" uses the settings of the original: its number of consumers, each with
one call in flight, or its one worker. "Here" uses the defaults of Largesse. Each case
is checked: every target paid once, every coupon issued once and in order.

The exit code is 1 if a case is not correct. All instances run in this process. The run
creates its own database, key prefix and topic prefix, and removes them.`,
			Example: `  largesse bench originals --database-url postgres://postgres@127.0.0.1/postgres --redis-url redis://127.0.0.1:6379 --kafka-brokers 127.0.0.1:9092
  largesse bench originals --targets 1000000 --as-designed 10000 --database-url postgres://postgres@127.0.0.1/postgres --redis-url redis://127.0.0.1:6379 --kafka-brokers 127.0.0.1:9092`,
		},
		several: true, redis: "Redis or Valkey URL", creates: "database",
		flags: func(flags *pflag.FlagSet) {
			flags.IntSliceVar(&o.Targets, "targets", []int{1000, 10_000, 100_000}, "sizes of promotions, at least 10 each")
			flags.IntSliceVar(&o.AsDesigned, "as-designed", []int{1000}, "those sizes that are also paid as designed, which takes as long as it did there")
		},
		run: func(ctx context.Context, on lab.Bench) (benchResult, error) {
			if err := cmp.Or(atLeast("targets", o.Targets, 10), atLeast("as-designed", o.AsDesigned, 10)); err != nil {
				return nil, err
			}
			return o.Run(ctx, on)
		},
		broken: "a case is not correct: see the table above",
	}
}
