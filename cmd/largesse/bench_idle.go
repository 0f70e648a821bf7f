package main

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/largesse/largesse/internal/engine"
	"github.com/largesse/largesse/internal/lab"
	"github.com/largesse/largesse/internal/obs"
)

// idleBench is one run of bench idle.
type idleBench struct {
	payoutBench
	instances  int
	promotions []int
	window     time.Duration

	engines []*engine.Engine
	log     obs.Log
}

// The limits of the printed measurements, for each instance.
const (
	idleCoreMost     = 0.05
	idleCommandsMost = 100
	idleViewMost     = time.Second
)

func (c *cli) benchIdleCommand() *cobra.Command {
	b := idleBench{payoutBench: payoutBench{cli: c}}
	cmd := &cobra.Command{
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
		Args: args(),
		RunE: func(cmd *cobra.Command, _ []string) error { return b.run(cmd.Context()) },
	}
	flags := cmd.Flags()
	flags.IntVar(&b.instances, "instances", 3, "instances in this process, at least 1")
	flags.IntSliceVar(&b.promotions, "promotions", []int{10, 100, 1000, 10_000}, "numbers of promotions to measure with")
	flags.DurationVar(&b.window, "window", 20*time.Second, "how long each measurement lasts, at least 1s")
	flags.StringVar(&b.database, "database-url", "", "PostgreSQL URL of a user who may create a database (required)")
	flags.StringVar(&b.redis, "redis-url", "", "URL of a Redis or Valkey that nothing else uses (required)")
	flags.StringSliceVar(&b.brokers, "kafka-brokers", nil, "Kafka brokers (required)")
	return cmd
}

func (b *idleBench) run(ctx context.Context) error {
	if b.database == "" || b.redis == "" || len(b.brokers) == 0 {
		return wrongUse("bench idle runs several instances that share servers: set --database-url, --redis-url and --kafka-brokers")
	}
	slices.Sort(b.promotions)
	if b.instances < 1 || b.window < time.Second || len(b.promotions) == 0 || b.promotions[0] < 0 {
		return wrongUse("--instances must be at least 1, --window at least 1s, and --promotions must name numbers from 0 on")
	}
	var err error
	if b.log, err = obs.NewLog(b.stderr, "warn", "text"); err != nil {
		return err
	}
	leave, err := b.beginOwnDatabase(ctx)
	if err != nil {
		return err
	}
	defer leave()
	defer func() {
		for _, e := range b.engines {
			e.Stop()
		}
	}()
	for range b.instances {
		if err := b.start(ctx); err != nil {
			return err
		}
	}
	var f figures
	made := 0
	for _, n := range b.promotions {
		if err := lab.StartPromotions(ctx, b.engines[0].Store(), made+1, n); err != nil {
			return err
		}
		made = n
		if err := b.measure(ctx, n, &f); err != nil {
			return err
		}
	}
	if err := b.printFigures(f); err != nil {
		return err
	}
	if !f.kept() {
		return fmt.Errorf("an idle instance costs more than its limit")
	}
	return nil
}

// beginOwnDatabase is begin with a database instead of a schema: the server counts
// the transactions of each database.
func (b *payoutBench) beginOwnDatabase(ctx context.Context) (func(), error) {
	leave, err := b.begin(ctx)
	if err != nil {
		return nil, err
	}
	u, err := url.Parse(b.database)
	if err != nil {
		leave()
		return nil, err
	}
	u.Path = "/" + b.name
	b.schema = u.String()
	if err := b.tell(ctx, "CREATE DATABASE "+b.name); err != nil {
		leave()
		return nil, fmt.Errorf("create the database of the run: %w", err)
	}
	return func() {
		_ = b.tell(context.WithoutCancel(ctx), "DROP DATABASE "+b.name+" WITH (FORCE)")
		leave()
	}, nil
}

func (b *payoutBench) tell(ctx context.Context, sql string) error {
	db, err := pgx.Connect(ctx, b.database)
	if err != nil {
		return err
	}
	defer func() { _ = db.Close(ctx) }()
	_, err = db.Exec(ctx, sql)
	return err
}

func (b *idleBench) start(ctx context.Context) error {
	cfg := b.config("idle", 16)
	cfg.Database.MaxConnections, cfg.Coupon.ConsumerConcurrency = 5, 2 // many instances share one server
	cfg.Reconcile.Interval = 24 * time.Hour                            // new promotions are checked once, which is not idle
	e, err := engine.New(cfg, b.log, engine.WithProvider(&lab.Provider{}))
	if err != nil {
		return err
	}
	if err := e.Start(ctx); err != nil {
		return err
	}
	b.engines = append(b.engines, e)
	return nil
}

// measure measures with n promotions, once every instance knows them.
func (b *idleBench) measure(ctx context.Context, n int, f *figures) error {
	for _, e := range b.engines {
		for e.ActivePromotions() < n {
			if err := pause(ctx, 100*time.Millisecond); err != nil {
				return err
			}
		}
	}
	if err := pause(ctx, 5*time.Second); err != nil { // what the new promotions caused is over
		return err
	}
	before, err := lab.ReadCosts(ctx, b.schema, b.redis)
	if err != nil {
		return err
	}
	oldest := time.Duration(0)
	began := time.Now()
	for time.Since(began) < b.window {
		for _, e := range b.engines {
			oldest = max(oldest, e.ViewAge())
		}
		if err := pause(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
	took := time.Since(began)
	after, err := lab.ReadCosts(ctx, b.schema, b.redis)
	if err != nil {
		return err
	}
	costs := after.Since(before)
	each := took.Seconds() * float64(b.instances)
	share, commands := costs.CPU.Seconds()/each, float64(costs.Commands)/each
	name := fmt.Sprintf("%s promotions, %s: ", number(int64(n)), countOf(int64(b.instances), "instance"))
	statements := float64(costs.Transactions) / each
	f.add(name+"transactions per second", statements, strconv.FormatFloat(statements, 'f', 1, 64))
	f.judge(name+"Redis commands per second", commands, fmt.Sprintf("%.1f (at most %d)", commands, idleCommandsMost), commands <= idleCommandsMost)
	f.judge(name+"share of a core", share, fmt.Sprintf("%.2f %% (at most %.0f %%)", 100*share, 100*idleCoreMost), share <= idleCoreMost)
	f.judge(name+"oldest view", oldest.Seconds(), fmt.Sprintf("%d ms (below %v)", oldest.Milliseconds(), idleViewMost), oldest < idleViewMost)
	return nil
}

// pause waits, or returns the error of ctx.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
