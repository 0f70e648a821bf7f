package lab

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/config"
	"github.com/largesse/largesse/internal/engine"
	"github.com/largesse/largesse/internal/reward"
)

// OriginalsBench measures the headline cases of the two designs that Largesse comes from.
type OriginalsBench struct {
	Targets, AsDesigned []int // sizes of promotions: paid with the defaults, and as designed
}

// OriginalCase is a case of the original designs, with its figure there and here.
type OriginalCase struct {
	Case     string `json:"case"`
	Original string `json:"original"`
	// AsDesigned is the figure with the settings of the original, and Here the one
	// with the defaults of Largesse. "–": not measured.
	AsDesigned string `json:"asDesigned"`
	Here       string `json:"here"`
	Correct    bool   `json:"correct"`
	Detail     string `json:"detail"`
}

// OriginalCases is the result of an OriginalsBench.
type OriginalCases []OriginalCase

// Kept reports whether every case is correct.
func (c OriginalCases) Kept() bool {
	return !slices.ContainsFunc(c, func(one OriginalCase) bool { return !one.Correct })
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

// Run measures.
func (o OriginalsBench) Run(ctx context.Context, b Bench) (all OriginalCases, err error) {
	err = b.run(ctx, true, func(s *stage) error {
		sizes := slices.Concat(o.Targets, o.AsDesigned)
		slices.Sort(sizes)
		for _, n := range slices.Compact(sizes) {
			one, err := o.payouts(ctx, s, n)
			if err != nil {
				return err
			}
			all = append(all, one)
		}
		for _, measure := range []func(context.Context, *stage) ([]OriginalCase, error){o.partitions, o.rush, o.order} {
			more, err := measure(ctx, s)
			if err != nil {
				return err
			}
			all = append(all, more...)
		}
		return nil
	})
	return all, err
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

// paidText shows how fast targets were paid.
func paidText(targets int, seconds float64) string {
	rate, took := float64(targets)/seconds, fmt.Sprintf("%.1f s", seconds)
	if seconds >= 120 {
		took = fmt.Sprintf("%.1f min", seconds/60)
	}
	if rate < 100 {
		return fmt.Sprintf("%.1f/s, %s", rate, took)
	}
	return fmt.Sprintf("%s/s, %s", number(int64(rate)), took)
}

// payouts pays a promotion by four instances, as designed and with the defaults.
func (o OriginalsBench) payouts(ctx context.Context, s *stage, targets int) (OriginalCase, error) {
	consumers := originalConsumers(targets)
	rate := float64(originalInstances*consumers) / originalLatency.Seconds()
	one := OriginalCase{
		Case: number(int64(targets)) + " targets, 4 instances, 200 ms", Original: paidText(targets, float64(targets)/rate),
		AsDesigned: unmeasured, Here: unmeasured, Correct: true,
	}
	pay := func(run string, inFlight int, consumers *int) (string, error) {
		through := &provider{latency: originalLatency}
		all, stop, err := s.original(ctx, run, originalInstances, inFlight, through)
		if err != nil {
			return "", err
		}
		defer stop()
		api, err := client.New("http://"+all[0].Addr(), client.Options{})
		if err != nil {
			return "", err
		}
		id, workload, err := s.upload(ctx, api, client.NewPromotion{Name: run, ConsumersPerInstance: consumers}, targets)
		if err != nil {
			return "", err
		}
		if _, err := api.StartPromotion(ctx, id); err != nil {
			return "", err
		}
		last, correct, detail, err := s.settled(ctx, run, api, all[0], id, workload, through)
		if err != nil {
			return "", err
		}
		one.Correct, one.Detail = one.Correct && correct, detail
		return paidText(targets, last.FinishedAt.Sub(*last.StartedAt).Seconds()), nil
	}
	var err error
	if slices.Contains(o.AsDesigned, targets) {
		if one.AsDesigned, err = pay(fmt.Sprint("then", targets), 1, &consumers); err != nil {
			return one, err
		}
	}
	if slices.Contains(o.Targets, targets) {
		one.Here, err = pay(fmt.Sprint("now", targets), config.Default().Redis.Stream.InFlightPerConsumer, nil)
	}
	return one, err
}

// original starts instances with all roles.
func (s *stage) original(ctx context.Context, run string, n, inFlight int, through *provider) ([]*engine.Engine, func(), error) {
	return s.start(ctx, run, n, through, func(cfg *config.Config) { cfg.Redis.Stream.InFlightPerConsumer = inFlight })
}

// partitions pays targets that another system publishes. In the original before its
// streams, a partition had one call in flight.
func (OriginalsBench) partitions(ctx context.Context, s *stage) ([]OriginalCase, error) {
	const targets, id = 10_000, 710_001
	through := &provider{latency: originalLatency}
	all, stop, err := s.original(ctx, "topic", originalInstances, config.Default().Redis.Stream.InFlightPerConsumer, through)
	if err != nil {
		return nil, err
	}
	defer stop()
	workload, err := Publishing{Brokers: s.Brokers, TopicPrefix: s.name + "-topic-", PromotionID: id, Targets: targets}.Publish(ctx)
	if err != nil {
		return nil, err
	}
	api, err := client.New("http://"+all[0].Addr(), client.Options{})
	if err != nil {
		return nil, err
	}
	for {
		if _, err := api.Promotion(ctx, fmt.Sprint(id)); err == nil {
			break
		}
		if err := pause(ctx, benchPoll); err != nil {
			return nil, err
		}
	}
	_, correct, detail, err := s.settled(ctx, "topic", api, all[0], fmt.Sprint(id), workload, through)
	return []OriginalCase{{
		Case:     fmt.Sprintf("calls in flight, %s targets from %d partitions", number(targets), originalPartitions),
		Original: fmt.Sprintf("%d without streams", originalPartitions), AsDesigned: unmeasured, Here: number(through.openMax.Load()),
		Correct: correct, Detail: detail,
	}}, err
}

// rush has 10,000 users request 100 coupons of a template in KAFKA mode, as in the original.
func (OriginalsBench) rush(ctx context.Context, s *stage) ([]OriginalCase, error) {
	e, stop, err := s.coupons(ctx, "rush", config.RoleAPI, config.RoleIssuer)
	if err != nil {
		return nil, err
	}
	defer stop()
	watching, stopWatch := context.WithCancel(ctx)
	defer stopWatch()
	most := make(chan int64, 1)
	go func() { most <- s.transactionsMax(watching) }()
	users, verdicts, err := s.drop(ctx, e, reward.CouponTemplate{Mode: reward.ModeKafka, TotalQuantity: originalCoupons}, originalRequests, originalRequests)
	if err != nil {
		return nil, err
	}
	stopWatch()
	transactions := <-most
	// Order is not promised in this mode.
	verdicts = slices.DeleteFunc(verdicts, func(v Verdict) bool { return strings.Contains(v.Invariant, "ticket") })
	correct, detail := summarize(verdicts, func(v Verdict) string { return v.Detail })
	name := fmt.Sprintf("%s requests for %d coupons: ", number(originalRequests), originalCoupons)
	return []OriginalCase{{
		Case: name + "pass the gate", Original: fmt.Sprintf("%d, the others refused", originalCoupons), AsDesigned: unmeasured,
		Here:    fmt.Sprintf("%s, %s refused", number(users.admitted.Load()), number(users.soldOut.Load())),
		Correct: correct && users.admitted.Load() == originalCoupons && users.soldOut.Load() == originalRequests-originalCoupons, Detail: detail,
	}, {
		Case: name + "transactions at once", Original: fmt.Sprintf("at most %d", originalTransactions), AsDesigned: unmeasured,
		Here: fmt.Sprintf("at most %d seen", transactions), Correct: transactions > 0 && transactions <= originalTransactions,
		Detail: "all transactions of the instance, of any kind",
	}}, nil
}

// transactionsMax returns the highest number of transactions that it sees in the run's
// database at the same time, until ctx ends.
func (s *stage) transactionsMax(ctx context.Context) (most int64) {
	db, err := pgx.Connect(ctx, s.Bench.Database)
	if err != nil {
		return 0
	}
	defer func() { _ = db.Close(context.WithoutCancel(ctx)) }()
	for pause(ctx, time.Millisecond) == nil {
		var n int64
		const open = `SELECT count(*) FROM pg_stat_activity WHERE datname = $1 AND pid <> pg_backend_pid() AND state <> 'idle' AND xact_start IS NOT NULL`
		if db.QueryRow(ctx, open, s.name).Scan(&n) == nil {
			most = max(most, n)
		}
	}
	return most
}

// order issues coupons in the order of tickets, and by one worker with a transaction for each.
func (OriginalsBench) order(ctx context.Context, s *stage) ([]OriginalCase, error) {
	e, stop, err := s.coupons(ctx, "order", config.RoleAPI, config.RoleIssuer)
	if err != nil {
		return nil, err
	}
	defer stop()
	users, verdicts, err := s.drop(ctx, e, reward.CouponTemplate{Mode: reward.ModeStream, TotalQuantity: originalRequests}, originalRequests, originalRequests)
	if err != nil {
		return nil, err
	}
	took, err := issueByHand(ctx, s.database, 1, originalByHand)
	correct, detail := summarize(verdicts, func(v Verdict) string { return v.Detail })
	return []OriginalCase{{
		Case: number(originalRequests) + " coupons in the order of requests", Original: "in order, no figure",
		AsDesigned: number(int64(originalByHand/took.Seconds())) + "/s, one worker", Here: number(int64(originalRequests/users.took.Seconds())) + "/s",
		Correct: correct, Detail: detail,
	}}, err
}
