package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/config"
	"github.com/largesse/largesse/internal/engine"
	"github.com/largesse/largesse/internal/lab"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
)

func (c *cli) benchCommand() *cobra.Command {
	cmd := group(&cobra.Command{
		Use:     "bench",
		Short:   "Measure this build on real servers",
		Example: "  largesse bench payouts --database-url postgres://… --redis-url redis://127.0.0.1:6379",
	})
	b := payoutBench{cli: c}
	payouts := &cobra.Command{
		Use:   "payouts",
		Short: "Measure payouts per second, compared with a bare pipeline of the same commands",
		Long: `Pay targets from a file through a provider in this process, on a real PostgreSQL
and Redis. Then process the same file through a bare pipeline of the same SQL and
stream commands, without any guarantee. Finally pay through a provider that takes
200 ms, with 2,000 calls in flight.

The run creates its own schema, key prefix and topic prefix, and removes them.`,
		Example: `  largesse bench payouts --database-url postgres://postgres@127.0.0.1/postgres --redis-url redis://127.0.0.1:6379 --kafka-brokers 127.0.0.1:9092
  largesse bench payouts --targets 100000 --database-url postgres://postgres@127.0.0.1/postgres --redis-url redis://127.0.0.1:6379`,
		Args: args(),
		RunE: func(cmd *cobra.Command, _ []string) error { return b.run(cmd.Context()) },
	}
	flags := payouts.Flags()
	flags.IntVar(&b.targets, "targets", 1_000_000, "targets in the file, at least 1000")
	flags.IntVar(&b.slowTargets, "slow-targets", 150_000, "targets paid through the slow provider; 0: skip that run")
	flags.StringVar(&b.database, "database-url", "", "PostgreSQL URL of a user who may create a schema (required)")
	flags.StringVar(&b.redis, "redis-url", "", "Redis or Valkey URL (required)")
	flags.StringSliceVar(&b.brokers, "kafka-brokers", nil, "Kafka brokers; default: the embedded broker")
	cmd.AddCommand(payouts, c.benchGovernorCommand(), c.benchCouponsCommand(), c.benchIdleCommand(), c.benchOriginalsCommand())
	return cmd
}

// payoutBench is one run of bench payouts.
type payoutBench struct {
	*cli
	targets, slowTargets int
	database, redis      string
	brokers              []string

	name   string // name of the schema, and start of the prefixes
	schema string // database URL with the schema as search path
	dir    string
}

const (
	slowLatency = 200 * time.Millisecond
	slowOpen    = 2000
)

func (b *payoutBench) run(ctx context.Context) error {
	if b.database == "" || b.redis == "" {
		return wrongUse("bench payouts measures real servers: set --database-url and --redis-url")
	}
	if b.targets < 1000 {
		return wrongUse("--targets %d must be at least 1000", b.targets)
	}
	leave, err := b.begin(ctx)
	if err != nil {
		return err
	}
	defer leave()
	fast, err := b.measureEngine(ctx, "fast", b.targets, &lab.Provider{}, 64)
	if err != nil {
		return err
	}
	bare, err := b.measureBare(ctx)
	if err != nil {
		return err
	}
	var f figures
	f.note("machine", fmt.Sprintf("%d cores, %s", runtime.NumCPU(), runtime.Version()))
	f.add("targets", float64(b.targets), number(int64(b.targets))+" from a file, provider in this process")
	f.add("engine, from upload to the last final row", fast.rate, fmt.Sprintf("%.1f s, %s payouts/s", fast.took.Seconds(), number(int64(fast.rate))))
	bareRate := float64(b.targets) / bare.Seconds()
	f.add("bare pipeline of the same commands", bareRate, fmt.Sprintf("%.1f s, %s payouts/s", bare.Seconds(), number(int64(bareRate))))
	f.add("ratio", fast.rate/bareRate, fmt.Sprintf("%.2f (at least 0.40)", fast.rate/bareRate))
	f.add("peak memory of the process", float64(fast.Memory), number(fast.Memory>>20)+" MB (under 300)")
	f.add("peak entries in Redis", float64(fast.Entries),
		fmt.Sprintf("%s (max-len %s)", number(fast.Entries), number(int64(config.Default().Redis.Stream.MaxLen))))
	f.correct("correct", fast.verdict(), fast.balanced)
	if b.slowTargets > 0 {
		slow, err := b.measureEngine(ctx, "slow", b.slowTargets, &lab.Provider{Latency: slowLatency}, slowOpen/16)
		if err != nil {
			return err
		}
		ideal := slowOpen / slowLatency.Seconds()
		f.add(fmt.Sprintf("provider of %v, %s calls in flight", slowLatency, number(slow.openMax)), slow.middleRate,
			fmt.Sprintf("%s payouts/s between 10 and 90 %% of %s", number(int64(slow.middleRate)), number(int64(b.slowTargets))))
		f.add("share of in flight ÷ latency", slow.middleRate/ideal, fmt.Sprintf("%.2f (at least 0.90)", slow.middleRate/ideal))
		f.correct("correct with the slow provider", slow.verdict(), slow.balanced)
	}
	if err := b.printFigures(f); err != nil {
		return err
	}
	if !f.kept() {
		return fmt.Errorf("the books do not balance")
	}
	return nil
}

// begin creates the directory and the schema of a run. leave removes them.
func (b *payoutBench) begin(ctx context.Context) (leave func(), err error) {
	b.name = "bench_" + strings.ToLower(rand.Text()[:8])
	if b.dir, err = os.MkdirTemp("", "largesse-bench-"); err != nil {
		return nil, err
	}
	if err := b.makeSchema(ctx); err != nil {
		return nil, errors.Join(err, os.RemoveAll(b.dir))
	}
	return func() {
		b.dropSchema(context.WithoutCancel(ctx))
		_ = os.RemoveAll(b.dir)
	}, nil
}

func (b *payoutBench) makeSchema(ctx context.Context) error {
	u, err := url.Parse(b.database)
	if err != nil {
		return wrongUse("--database-url is not a URL: %v", err)
	}
	db, err := pgx.Connect(ctx, b.database)
	if err != nil {
		return fmt.Errorf("connect to --database-url: %w", err)
	}
	defer func() { _ = db.Close(ctx) }()
	if _, err := db.Exec(ctx, "CREATE SCHEMA "+b.name); err != nil {
		return fmt.Errorf("create the schema of the run: %w", err)
	}
	q := u.Query()
	q.Set("search_path", b.name)
	u.RawQuery = q.Encode()
	b.schema = u.String()
	return nil
}

func (b *payoutBench) dropSchema(ctx context.Context) {
	db, err := pgx.Connect(ctx, b.database)
	if err != nil {
		return
	}
	defer func() { _ = db.Close(ctx) }()
	_, _ = db.Exec(ctx, "DROP SCHEMA "+b.name+" CASCADE")
}

// benchResult holds the measurements of one run of the engine.
type benchResult struct {
	took       time.Duration
	rate       float64 // payouts per second, from the first uploaded byte to the last final row
	middleRate float64 // calls per second between 10 and 90 % of the calls
	lab.Peaks
	openMax  int64
	balanced bool
	detail   string
}

func (r benchResult) verdict() string {
	if r.balanced {
		return "every target was paid once: " + r.detail
	}
	return "NO: " + r.detail
}

func (b *payoutBench) config(run string, perConsumer int) config.Config {
	cfg := config.Default()
	cfg.Data.Dir = filepath.Join(b.dir, run)
	cfg.Database.URL = b.schema
	cfg.Redis.URL = b.redis
	cfg.Redis.KeyPrefix = b.name + "-" + run + ":"
	cfg.Kafka.Brokers = b.brokers
	cfg.Kafka.TopicPrefix = b.name + "-" + run + "-"
	cfg.HTTP.Listen = "127.0.0.1:0"
	cfg.Redis.Stream.InFlightPerConsumer = perConsumer
	return cfg
}

func (b *payoutBench) measureEngine(ctx context.Context, run string, targets int, provider *lab.Provider, perConsumer int) (benchResult, error) {
	path := filepath.Join(b.dir, run+".csv")
	workload, err := writeTargetsFile(path, targets)
	if err != nil {
		return benchResult{}, err
	}
	log, err := obs.NewLog(b.stderr, "warn", "text")
	if err != nil {
		return benchResult{}, err
	}
	cfg := b.config(run, perConsumer)
	e, err := engine.New(cfg, log, engine.WithProvider(provider))
	if err != nil {
		return benchResult{}, err
	}
	if err := e.Start(ctx); err != nil {
		return benchResult{}, err
	}
	defer e.Stop()
	api, err := client.New("http://"+e.Addr(), client.Options{})
	if err != nil {
		return benchResult{}, err
	}
	p, err := api.CreatePromotion(ctx, client.NewPromotion{Name: "Bench " + run, Type: "POINT"})
	if err != nil {
		return benchResult{}, err
	}
	id, err := reward.ParsePromotionID(p.ID)
	if err != nil {
		return benchResult{}, err
	}
	watching, stopWatch := context.WithCancel(ctx)
	peaks := make(chan lab.Peaks, 1)
	go func() { peaks <- lab.WatchPeaks(watching, e.Queue(), id) }()
	defer stopWatch()

	provider.Total = int64(targets)
	began := time.Now()
	file, err := os.Open(path)
	if err != nil {
		return benchResult{}, err
	}
	defer func() { _ = file.Close() }()
	upload := func() error {
		_, err := api.UploadTargets(ctx, p.ID, file, client.UploadOptions{})
		return err
	}
	start := func() error {
		_, err := api.StartPromotion(ctx, p.ID)
		return err
	}
	// Upload first in the slow run: it measures the provider's share, not the
	// upload.
	steps := []func() error{start, upload}
	if provider.Latency > 0 {
		steps = []func() error{upload, start}
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return benchResult{}, err
		}
	}
	show := newBars(b.quiet())
	for {
		if p, err = api.Promotion(ctx, p.ID); err != nil {
			return benchResult{}, err
		}
		show.update(run, p.Counts.Done(), int64(targets))
		if p.Status == "COMPLETED" && p.TotalCount == int64(targets) {
			break
		}
		select {
		case <-time.After(demoPoll):
		case <-ctx.Done():
			return benchResult{}, ctx.Err()
		}
	}
	show.close()
	stopWatch()
	res := benchResult{Peaks: <-peaks}
	res.took = p.FinishedAt.Sub(began)
	res.rate = float64(targets) / res.took.Seconds()
	res.middleRate = provider.MiddleRate()
	res.openMax = provider.OpenMax()
	recount, err := e.Store().SummaryRecount(ctx, id)
	if err != nil {
		return benchResult{}, err
	}
	calls := provider.Calls()
	res.balanced = recount.Payouts[reward.Succeeded] == int64(targets) && recount.AmountTotal() == reward.Amount(workload.Amount) && calls == int64(targets)
	res.detail = fmt.Sprintf("%s rows succeeded, %s calls", number(recount.Payouts[reward.Succeeded]), number(calls))
	return res, nil
}

func writeTargetsFile(path string, n int) (lab.Workload, error) {
	file, err := os.Create(path)
	if err != nil {
		return lab.Workload{}, err
	}
	workload, err := lab.WriteTargets(file, n, false)
	if err != nil {
		return workload, err
	}
	return workload, file.Close()
}

func (b *payoutBench) measureBare(ctx context.Context) (time.Duration, error) {
	file, err := os.Open(filepath.Join(b.dir, "fast.csv"))
	if err != nil {
		return 0, err
	}
	defer func() { _ = file.Close() }()
	return lab.Bare{PostgresURL: b.schema, RedisURL: b.redis, Prefix: b.name + "-"}.Run(ctx, io.Reader(file), b.targets)
}
