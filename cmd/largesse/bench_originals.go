package main

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"slices"
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

// originalsBench is one run of bench originals.
type originalsBench struct {
	payoutBench
	targets, asDesigned []int

	log   obs.Log
	cases []originalCase
}

// originalCase is a case of the original designs, with its figure there and here.
type originalCase struct {
	Case     string `json:"case"`
	Original string `json:"original"`
	// AsDesigned is the figure with the settings of the original, and Here the one
	// with the defaults of Largesse. "–": not measured.
	AsDesigned string `json:"asDesigned"`
	Here       string `json:"here"`
	Correct    bool   `json:"correct"`
	Detail     string `json:"detail"`
}

// What the original designs assume.
const (
	originalInstances    = 4
	originalLatency      = 200 * time.Millisecond
	originalPartitions   = 12
	originalTransactions = 10
	originalRequests     = 10_000
	originalCoupons      = 100

	originalByHand = 1000 // coupons that the one worker issues
	unmeasured     = "–"
)

func (c *cli) benchOriginalsCommand() *cobra.Command {
	b := originalsBench{payoutBench: payoutBench{cli: c}}
	cmd := &cobra.Command{
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
		Args: args(),
		RunE: func(cmd *cobra.Command, _ []string) error { return b.run(cmd.Context()) },
	}
	flags := cmd.Flags()
	flags.IntSliceVar(&b.targets, "targets", []int{1000, 10_000, 100_000}, "sizes of promotions, at least 10 each")
	flags.IntSliceVar(&b.asDesigned, "as-designed", []int{1000}, "those sizes that are also paid as designed, which takes as long as it did there")
	flags.StringVar(&b.database, "database-url", "", "PostgreSQL URL of a user who may create a database (required)")
	flags.StringVar(&b.redis, "redis-url", "", "Redis or Valkey URL (required)")
	flags.StringSliceVar(&b.brokers, "kafka-brokers", nil, "Kafka brokers (required)")
	return cmd
}

func (b *originalsBench) run(ctx context.Context) error {
	if b.database == "" || b.redis == "" || len(b.brokers) == 0 {
		return wrongUse("bench originals runs several instances that share servers: set --database-url, --redis-url and --kafka-brokers")
	}
	sizes := slices.Concat(b.targets, b.asDesigned)
	slices.Sort(sizes)
	if sizes = slices.Compact(sizes); len(sizes) > 0 && sizes[0] < 10 {
		return wrongUse("--targets and --as-designed name sizes of at least 10")
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
	defer b.removeKeys(context.WithoutCancel(ctx))
	for _, n := range sizes {
		if err := b.payouts(ctx, n); err != nil {
			return err
		}
	}
	for _, one := range []func(context.Context) error{b.partitions, b.rush, b.order} {
		if err := one(ctx); err != nil {
			return err
		}
	}
	return b.print()
}

func (b *originalsBench) print() error {
	kept := !slices.ContainsFunc(b.cases, func(one originalCase) bool { return !one.Correct })
	if b.output == outputJSON {
		if err := b.printJSON(map[string]any{"cases": b.cases, "kept": kept}); err != nil {
			return err
		}
	} else {
		fmt.Fprintf(b.stdout, "%d cores, %s, all instances in one process\n\n", runtime.NumCPU(), runtime.Version())
		t := b.table("CASE", "ORIGINAL", "AS DESIGNED", "HERE", "CORRECT", "CHECKED")
		t.wrap = true
		for _, one := range b.cases {
			correct := "yes"
			if !one.Correct {
				correct = "NO"
			}
			if err := t.add(one.Case, one.Original, one.AsDesigned, one.Here, correct, one.Detail); err != nil {
				return err
			}
		}
		if err := t.flush(); err != nil {
			return err
		}
	}
	if !kept {
		return fmt.Errorf("a case is not correct: see the table above")
	}
	return nil
}

// originalConsumers is the number of consumers per instance in the original.
func originalConsumers(targets int) int {
	for i, most := range []int{1000, 10_000, 100_000, 500_000, 1_000_000} {
		if targets <= most {
			return 1 << i
		}
	}
	return 32
}

// fleet starts instances that share a run's data and a provider. Without roles they
// have all of them.
func (b *originalsBench) fleet(ctx context.Context, run string, n, inFlight int, provider *lab.Provider, roles ...string) (all []*engine.Engine, stop func(), err error) {
	stop = func() {
		for _, e := range all {
			e.Stop()
		}
	}
	for range n {
		cfg := b.config(run, inFlight)
		if len(roles) > 0 {
			cfg.Roles = roles
		}
		if cfg.Data.Dir, err = os.MkdirTemp(b.dir, run); err != nil {
			break
		}
		if n > 1 {
			cfg.Database.MaxConnections, cfg.Coupon.ConsumerConcurrency = 5, 2 // many instances share one server
		}
		var e *engine.Engine
		if e, err = engine.New(cfg, b.log, engine.WithProvider(provider)); err != nil {
			break
		}
		if err = e.Start(ctx); err != nil {
			break
		}
		all = append(all, e)
	}
	if err != nil {
		stop()
		return nil, nil, err
	}
	return all, stop, nil
}

// paid is how targets were paid.
type paid struct {
	rate, seconds float64
	openMax       int64
	correct       bool
	detail        string
}

func (p paid) String() string {
	return fmt.Sprintf("%s/s, %s", perSecondText(p.rate), timeText(p.seconds))
}

func perSecondText(rate float64) string {
	if rate < 100 {
		return fmt.Sprintf("%.1f", rate)
	}
	return number(int64(rate))
}

func timeText(seconds float64) string {
	if seconds < 120 {
		return fmt.Sprintf("%.1f s", seconds)
	}
	return fmt.Sprintf("%.1f min", seconds/60)
}

// payouts pays a promotion by four instances, as designed and with the defaults.
func (b *originalsBench) payouts(ctx context.Context, targets int) error {
	consumers := originalConsumers(targets)
	rate := float64(originalInstances*consumers) / originalLatency.Seconds()
	one := originalCase{
		Case:       number(int64(targets)) + " targets, 4 instances, 200 ms",
		Original:   paid{rate: rate, seconds: float64(targets) / rate}.String(),
		AsDesigned: unmeasured, Here: unmeasured, Correct: true,
	}
	note := func(p paid) string {
		one.Correct = one.Correct && p.correct
		one.Detail = p.detail
		return p.String()
	}
	if slices.Contains(b.asDesigned, targets) {
		p, err := b.pay(ctx, fmt.Sprint("then", targets), targets, 1, &consumers)
		if err != nil {
			return err
		}
		one.AsDesigned = note(p)
	}
	if slices.Contains(b.targets, targets) {
		p, err := b.pay(ctx, fmt.Sprint("now", targets), targets, config.Default().Redis.Stream.InFlightPerConsumer, nil)
		if err != nil {
			return err
		}
		one.Here = note(p)
	}
	b.cases = append(b.cases, one)
	return nil
}

// pay uploads the targets first, and measures from the start to the end of the
// promotion.
func (b *originalsBench) pay(ctx context.Context, run string, targets, inFlight int, consumers *int) (paid, error) {
	provider := &lab.Provider{Latency: originalLatency, Total: int64(targets)}
	all, stop, err := b.fleet(ctx, run, originalInstances, inFlight, provider)
	if err != nil {
		return paid{}, err
	}
	defer stop()
	path := b.dir + "/" + run + ".csv"
	workload, err := writeTargetsFile(path, targets)
	if err != nil {
		return paid{}, err
	}
	file, err := os.Open(path)
	if err != nil {
		return paid{}, err
	}
	defer func() { _ = file.Close() }()
	api, err := client.New("http://"+all[0].Addr(), client.Options{})
	if err != nil {
		return paid{}, err
	}
	p, err := api.CreatePromotion(ctx, client.NewPromotion{Name: run, Type: "POINT", ConsumersPerInstance: consumers})
	if err != nil {
		return paid{}, err
	}
	if _, err := api.UploadTargets(ctx, p.ID, file, client.UploadOptions{}); err != nil {
		return paid{}, err
	}
	if _, err := api.StartPromotion(ctx, p.ID); err != nil {
		return paid{}, err
	}
	return b.finished(ctx, run, api, all[0], p.ID, workload, provider)
}

// finished waits for the end of a promotion, and checks it.
func (b *originalsBench) finished(
	ctx context.Context, run string, api *client.Client, e *engine.Engine, id string, want lab.Workload, provider *lab.Provider,
) (paid, error) {
	show := newBars(b.quiet())
	defer show.close()
	var last client.Promotion
	err := until(ctx, api, id, func(p client.Promotion) bool {
		last = p
		show.update(run, p.Counts.Done(), int64(want.Good))
		return completed(p)
	})
	if err != nil {
		return paid{}, err
	}
	promotion, err := reward.ParsePromotionID(id)
	if err != nil {
		return paid{}, err
	}
	rows, err := e.Store().SummaryRecount(ctx, promotion)
	if err != nil {
		return paid{}, err
	}
	out := paid{seconds: last.FinishedAt.Sub(*last.StartedAt).Seconds(), openMax: provider.OpenMax()}
	out.rate = float64(want.Good) / out.seconds
	succeeded, calls := rows.Payouts[reward.Succeeded], provider.Calls()
	out.correct = succeeded == int64(want.Good) && calls == succeeded && rows.AmountTotal() == reward.Amount(want.Amount)
	out.detail = fmt.Sprintf("%s rows succeeded, %s calls", number(succeeded), number(calls))
	return out, nil
}

// partitions pays targets that another system publishes. In the original before
// its streams, a partition had one call in flight.
func (b *originalsBench) partitions(ctx context.Context) error {
	const targets = 10_000
	provider := &lab.Provider{Latency: originalLatency, Total: targets}
	all, stop, err := b.fleet(ctx, "topic", originalInstances, config.Default().Redis.Stream.InFlightPerConsumer, provider)
	if err != nil {
		return err
	}
	defer stop()
	const id = 710_001
	sent := lab.Publishing{Brokers: b.brokers, TopicPrefix: b.name + "-topic-", PromotionID: id, Targets: targets}
	workload, err := sent.Publish(ctx)
	if err != nil {
		return err
	}
	api, err := client.New("http://"+all[0].Addr(), client.Options{})
	if err != nil {
		return err
	}
	for {
		if _, err := api.Promotion(ctx, fmt.Sprint(id)); err == nil {
			break
		}
		if err := pause(ctx, demoPoll); err != nil {
			return err
		}
	}
	p, err := b.finished(ctx, "topic", api, all[0], fmt.Sprint(id), workload, provider)
	if err != nil {
		return err
	}
	b.cases = append(b.cases, originalCase{
		Case:     fmt.Sprintf("calls in flight, %s targets from %d partitions", number(targets), originalPartitions),
		Original: fmt.Sprintf("%d without streams", originalPartitions), AsDesigned: unmeasured, Here: number(p.openMax),
		Correct: p.correct, Detail: p.detail,
	})
	return nil
}

// rush has 10,000 users request 100 coupons of a template in KAFKA mode, as in
// the original.
func (b *originalsBench) rush(ctx context.Context) error {
	all, stop, err := b.fleet(ctx, "rush", 1, 1, &lab.Provider{}, config.RoleAPI, config.RoleIssuer)
	if err != nil {
		return err
	}
	defer stop()
	watching, stopWatch := context.WithCancel(ctx)
	defer stopWatch()
	most := make(chan int64, 1)
	go func() { most <- b.transactionsMax(watching) }()
	res, verdicts, err := b.drop(ctx, all[0], reward.ModeKafka, originalCoupons)
	if err != nil {
		return err
	}
	stopWatch()
	transactions := <-most
	// Order is not promised in this mode.
	verdicts = slices.DeleteFunc(verdicts, func(v lab.Verdict) bool { return strings.Contains(v.Invariant, "ticket") })
	correct, detail := summarize(verdicts)
	name := fmt.Sprintf("%s requests for %d coupons: ", number(originalRequests), originalCoupons)
	b.cases = append(b.cases, originalCase{
		Case: name + "pass the gate", Original: fmt.Sprintf("%d, the others refused", originalCoupons), AsDesigned: unmeasured,
		Here:    fmt.Sprintf("%s, %s refused", number(res.In), number(res.SoldOut)),
		Correct: correct && res.In == originalCoupons && res.SoldOut == originalRequests-originalCoupons, Detail: detail,
	}, originalCase{
		Case: name + "transactions at once", Original: fmt.Sprintf("at most %d", originalTransactions), AsDesigned: unmeasured,
		Here: fmt.Sprintf("at most %d seen", transactions), Correct: transactions > 0 && transactions <= originalTransactions,
		Detail: "all transactions of the instance, of any kind",
	})
	return nil
}

// transactionsMax returns the highest number of transactions that it sees in the
// run's database at the same time, until ctx ends.
func (b *originalsBench) transactionsMax(ctx context.Context) (most int64) {
	db, err := pgx.Connect(ctx, b.database)
	if err != nil {
		return 0
	}
	defer func() { _ = db.Close(context.WithoutCancel(ctx)) }()
	for pause(ctx, time.Millisecond) == nil {
		var n int64
		const open = `SELECT count(*) FROM pg_stat_activity WHERE datname = $1 AND pid <> pg_backend_pid() AND state <> 'idle' AND xact_start IS NOT NULL`
		if db.QueryRow(ctx, open, b.name).Scan(&n) == nil {
			most = max(most, n)
		}
	}
	return most
}

// order issues coupons in the order of tickets, and by one worker with a
// transaction for each.
func (b *originalsBench) order(ctx context.Context) error {
	all, stop, err := b.fleet(ctx, "order", 1, 1, &lab.Provider{}, config.RoleAPI, config.RoleIssuer)
	if err != nil {
		return err
	}
	defer stop()
	res, verdicts, err := b.drop(ctx, all[0], reward.ModeStream, originalRequests)
	if err != nil {
		return err
	}
	rate := originalRequests / res.Took.Seconds()
	took, err := lab.BareIssue{PostgresURL: b.schema, Connections: 1, Coupons: originalByHand}.Run(ctx)
	if err != nil {
		return err
	}
	correct, detail := summarize(verdicts)
	b.cases = append(b.cases, originalCase{
		Case: number(originalRequests) + " coupons in the order of requests", Original: "in order, no figure",
		AsDesigned: number(int64(originalByHand/took.Seconds())) + "/s, one worker", Here: number(int64(rate)) + "/s",
		Correct: correct, Detail: detail,
	})
	return nil
}

// drop has 10,000 users request the coupons of a new template, and waits until all
// that were admitted have one. Took lasts from the first request to the last coupon.
func (b *originalsBench) drop(ctx context.Context, e *engine.Engine, mode reward.IssueMode, coupons int) (lab.RushResult, []lab.Verdict, error) {
	t, err := e.Coupons().Catalog.Create(ctx, reward.CouponTemplate{Name: "Bench", Mode: mode, TotalQuantity: int64(coupons), PerUserLimit: 1})
	if err != nil {
		return lab.RushResult{}, nil, err
	}
	crowd := lab.Rush{Issuing: e.Coupons().Intake, TemplateID: t.ID, Users: originalRequests, Workers: originalRequests}
	first := crowd
	first.Users, first.Workers = 1, 1
	first.Run(ctx) // until the gate is loaded; u0 is then in line, and has no second request
	began := time.Now()
	res := crowd.Run(ctx)
	if res.FirstRefusal != nil {
		return res, nil, res.FirstRefusal
	}
	for {
		now, err := e.Store().TemplateGet(ctx, t.ID)
		if err != nil {
			return res, nil, err
		}
		if now.IssuedTotal >= res.In {
			res.Took = time.Since(began)
			break
		}
		if err := pause(ctx, 5*time.Millisecond); err != nil {
			return res, nil, err
		}
	}
	verdicts, err := lab.CheckDrop(ctx, e.Store(), t.ID, int64(coupons))
	return res, verdicts, err
}

// summarize reports whether all verdicts hold, with their details.
func summarize(verdicts []lab.Verdict) (holds bool, detail string) {
	holds = true
	var details []string
	for _, v := range verdicts {
		holds = holds && v.Holds
		details = append(details, v.Detail)
	}
	return holds, strings.Join(details, "; ")
}
