package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"
	"github.com/spf13/cobra"

	"github.com/largesse/largesse/internal/config"
	"github.com/largesse/largesse/internal/engine"
	"github.com/largesse/largesse/internal/lab"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
)

// couponBench is one run of bench coupons.
type couponBench struct {
	payoutBench
	users, workers, byHand int
	watchers, line         int
	tool                   string
}

// The limits of the printed ratios.
const (
	gateRatioMin  = 1.0
	issueRatioMin = 25.0
	byHandOpen    = 10 // connections that issue one coupon per transaction
)

func (c *cli) benchCouponsCommand() *cobra.Command {
	b := couponBench{payoutBench: payoutBench{cli: c}}
	cmd := &cobra.Command{
		Use:   "coupons",
		Short: "Measure coupons per second, compared with hand-written code",
		Long: `Measure on a real PostgreSQL, Redis and Kafka, in one run:

  - the gate: users per second that the engine admits, each with a ticket and a
    rank, compared with redis-benchmark -P 16 of a hand-written script that does
    the same for one user (ratio at least 1.0);
  - from request to committed coupon, in the order of tickets, compared with one
    transaction per coupon with SELECT … FOR UPDATE on 10 connections (ratio at
    least 25);
  - the watchers of a line that moves ten times per second: the CPU of this process,
    compared with the same line without watchers, and the waits that they were told,
    compared with their real ones, also after the database slowed down fivefold;
  - a load of the gate of a very long line: its time, compared with the time in which
    the line was filled, and the longest pause of Redis.

The exit code is 1 if a ratio is too low or a coupon is missing. The run creates its
own schema, key prefix and topic prefix, and removes them.`,
		Example: `  largesse bench coupons --database-url postgres://postgres@127.0.0.1/postgres --redis-url redis://127.0.0.1:6379 --kafka-brokers 127.0.0.1:9092`,
		Args:    args(),
		RunE:    func(cmd *cobra.Command, _ []string) error { return b.run(cmd.Context()) },
	}
	flags := cmd.Flags()
	flags.IntVar(&b.users, "askers", 300_000, "users, at least 1000; each requests one coupon")
	flags.IntVar(&b.workers, "at-once", 1024, "concurrent requests, at least 1")
	flags.IntVar(&b.byHand, "by-hand", 5_000, "coupons issued in one transaction each, at least 10")
	flags.IntVar(&b.watchers, "watchers", 10_000, "watchers of the line, at most 100000; 0: skip that run")
	flags.IntVar(&b.line, "line", 2_000_000, "users in line while the gate is loaded; 0: skip that run")
	flags.StringVar(&b.tool, "redis-benchmark", "redis-benchmark", "path of the program redis-benchmark, from Redis or Valkey")
	flags.StringVar(&b.database, "database-url", "", "PostgreSQL URL of a user who may create a schema (required)")
	flags.StringVar(&b.redis, "redis-url", "", "Redis or Valkey URL of a single server (required)")
	flags.StringSliceVar(&b.brokers, "kafka-brokers", nil, "Kafka brokers; default: the embedded broker")
	return cmd
}

func (b *couponBench) run(ctx context.Context) error {
	if b.database == "" || b.redis == "" {
		return wrongUse("bench coupons measures real servers: set --database-url and --redis-url")
	}
	if b.users < 1000 || b.workers < 1 || b.byHand < 10 {
		return wrongUse("--askers must be at least 1000, --at-once at least 1, --by-hand at least 10")
	}
	if b.watchers < 0 || b.watchers > lineUsers || b.line < 0 {
		return wrongUse("--watchers must be 0 to %d, --line at least 0", lineUsers)
	}
	leave, err := b.begin(ctx)
	if err != nil {
		return err
	}
	defer leave()
	defer b.removeKeys(context.WithoutCancel(ctx))
	gateRate, err := b.measureGate(ctx)
	if err != nil {
		return err
	}
	handGate, err := b.measureHandGate(ctx)
	if err != nil {
		return err
	}
	issue, err := b.measureIssue(ctx)
	if err != nil {
		return err
	}
	took, err := lab.BareIssue{PostgresURL: b.schema, Connections: byHandOpen, Coupons: b.byHand}.Run(ctx)
	if err != nil {
		return err
	}
	handIssue := float64(b.byHand) / took.Seconds()
	var f figures
	ratio := func(value, least float64) {
		text := fmt.Sprintf("%.2f (at least %.1f)", value, least)
		if value < least {
			text = fmt.Sprintf("%.2f (TOO LOW: at least %.1f)", value, least)
		}
		f.judge("ratio", value, text, value >= least)
	}
	f.note("machine", fmt.Sprintf("%d cores, %s", runtime.NumCPU(), runtime.Version()))
	f.add("gate through the engine", gateRate, fmt.Sprintf("%s requests/s, %s at once", number(int64(gateRate)), number(int64(b.workers))))
	f.add("hand-written script, redis-benchmark -P 16", handGate, number(int64(handGate))+" requests/s")
	ratio(gateRate/handGate, gateRatioMin)
	f.add("request to committed coupon, in order", issue.rate, number(int64(issue.rate))+" coupons/s")
	f.add(fmt.Sprintf("one transaction per coupon, FOR UPDATE, %d connections", byHandOpen), handIssue, number(int64(handIssue))+" coupons/s")
	ratio(issue.rate/handIssue, issueRatioMin)
	f.correct("correct", issue.detail, issue.correct)
	if b.watchers > 0 {
		if err := b.measureWatchers(ctx, &f); err != nil {
			return err
		}
	}
	if b.line > 0 {
		if err := b.measureLoad(ctx, &f); err != nil {
			return err
		}
	}
	if err := b.printFigures(f); err != nil {
		return err
	}
	if !f.kept() {
		return errors.New("a ratio is too low, or a coupon is missing: see the table above")
	}
	return nil
}

// engine starts an instance with some roles. Those of one run share their servers' data.
func (b *couponBench) engine(ctx context.Context, run string, roles ...string) (*engine.Engine, func(), error) {
	log, err := obs.NewLog(b.stderr, "warn", "text")
	if err != nil {
		return nil, nil, err
	}
	cfg := b.config(run, 1)
	cfg.Roles = roles
	if cfg.Data.Dir, err = os.MkdirTemp(b.dir, run); err != nil {
		return nil, nil, err
	}
	e, err := engine.New(cfg, log)
	if err != nil {
		return nil, nil, err
	}
	if err := e.Start(ctx); err != nil {
		return nil, nil, err
	}
	return e, e.Stop, nil
}

// template creates a template with enough coupons for a number of users.
func (b *couponBench) template(ctx context.Context, e *engine.Engine, users int) (reward.TemplateID, error) {
	v, err := e.Coupons().Catalog.Create(ctx, reward.CouponTemplate{Name: "Bench", TotalQuantity: int64(users), PerUserLimit: 1})
	return v.ID, err
}

// fill makes every user request a coupon. It returns how long that took.
func (b *couponBench) fill(ctx context.Context, e *engine.Engine, id reward.TemplateID, users int) (time.Duration, error) {
	res := lab.Rush{Issuing: e.Coupons().Intake, TemplateID: id, Users: users, Workers: b.workers}.Run(ctx)
	if res.In != int64(users) {
		return 0, fmt.Errorf("%d of %d users were admitted, %d responses asked to retry: %w", res.In, users, res.AskedAgain, res.FirstRefusal)
	}
	return res.Took, nil
}

// measureGate runs an instance without issuers, so that it measures the gate
// alone.
func (b *couponBench) measureGate(ctx context.Context) (float64, error) {
	e, stop, err := b.engine(ctx, "gate", config.RoleAPI)
	if err != nil {
		return 0, err
	}
	defer stop()
	id, err := b.template(ctx, e, b.users)
	if err != nil {
		return 0, err
	}
	res := lab.Rush{Issuing: e.Coupons().Intake, TemplateID: id, Users: b.users, Workers: b.workers}.Run(ctx)
	if res.In != int64(b.users) || res.AskedAgain > 0 {
		return 0, fmt.Errorf("%[2]d of %[1]d users were admitted, %[3]d responses asked to retry: %[4]w", b.users, res.In, res.AskedAgain, res.FirstRefusal)
	}
	return float64(b.users) / res.Took.Seconds(), nil
}

// connectRedis opens a connection of the bench itself. It returns the server's address.
func (b *payoutBench) connectRedis() (rueidis.Client, string, error) {
	option, err := rueidis.ParseURL(b.redis)
	if err != nil || len(option.InitAddress) != 1 {
		return nil, "", wrongUse("--redis-url must be one redis://host:port")
	}
	option.DisableCache = true
	c, err := rueidis.NewClient(option)
	if err != nil {
		return nil, "", fmt.Errorf("connect to --redis-url: %w", err)
	}
	return c, option.InitAddress[0], nil
}

// removeKeys removes the keys of the run.
func (b *payoutBench) removeKeys(ctx context.Context) {
	c, _, err := b.connectRedis()
	if err != nil {
		return
	}
	defer c.Close()
	for cursor := uint64(0); ; {
		page, err := c.Do(ctx, c.B().Scan().Cursor(cursor).Match(b.name+"*").Count(1000).Build()).AsScanEntry()
		if err != nil {
			return
		}
		if len(page.Elements) > 0 {
			_ = c.Do(ctx, c.B().Unlink().Key(page.Elements...).Build()).Error() // what is left does no harm
		}
		if cursor = page.Cursor; cursor == 0 {
			return
		}
	}
}

var perSecond = regexp.MustCompile(`([0-9.]+) requests per second`)

// measureHandGate runs redis-benchmark with a script that admits one user.
func (b *couponBench) measureHandGate(ctx context.Context) (float64, error) {
	c, address, err := b.connectRedis()
	if err != nil {
		return 0, err
	}
	defer c.Close()
	sha, err := c.Do(ctx, c.B().ScriptLoad().Script(lab.BareGate).Build()).ToString()
	if err != nil {
		return 0, fmt.Errorf("load the hand-written script: %w", err)
	}
	keys := make([]string, 5)
	for i, name := range []string{"template", "line", "holders", "stream", "stock"} {
		keys[i] = b.name + ":{1}:" + name
	}
	defer c.Do(context.WithoutCancel(ctx), c.B().Del().Key(keys...).Build())
	template := c.B().Hset().Key(keys[0]).FieldValue().FieldValue("opens", "0").FieldValue("closes", "9e15").
		FieldValue("total", strconv.Itoa(b.users)).FieldValue("live", "0").FieldValue("next", "0").Build()
	if err := c.Do(ctx, template).Error(); err != nil {
		return 0, fmt.Errorf("prepare the hand-written script: %w", err)
	}
	host, port, _ := strings.Cut(address, ":")
	// Draw from a hundred times as many users as requests, so that nearly every
	// user requests once.
	args := append([]string{
		"-h", host, "-p", port, "-P", "16", "-c", "50", "-n", strconv.Itoa(b.users), "-r", strconv.Itoa(100 * b.users), "-q",
		"EVALSHA", sha, "5",
	}, keys...)
	out, err := exec.CommandContext(ctx, b.tool, append(args, "u__rand_int__")...).CombinedOutput()
	if err != nil {
		return 0, fmt.Errorf("%s: %w: %s", b.tool, err, strings.TrimSpace(string(out)))
	}
	found := perSecond.FindAllSubmatch(out, -1)
	if len(found) == 0 {
		return 0, fmt.Errorf("%s printed no rate: %s", b.tool, strings.TrimSpace(string(out)))
	}
	if waiting, err := c.Do(ctx, c.B().Zcard().Key(keys[1]).Build()).AsInt64(); err != nil || waiting < int64(b.users)*9/10 {
		return 0, fmt.Errorf("the hand-written script admitted only %d of %d users: %w", waiting, b.users, err)
	}
	return strconv.ParseFloat(string(found[len(found)-1][1]), 64)
}

// issueResult holds the measurements of one run that issues.
type issueResult struct {
	rate    float64
	correct bool
	detail  string
}

// measureIssue measures from the first request to the last committed coupon.
func (b *couponBench) measureIssue(ctx context.Context) (issueResult, error) {
	e, stop, err := b.engine(ctx, "issue", config.RoleAPI, config.RoleIssuer)
	if err != nil {
		return issueResult{}, err
	}
	defer stop()
	id, err := b.template(ctx, e, b.users)
	if err != nil {
		return issueResult{}, err
	}
	began := time.Now()
	res := lab.Rush{Issuing: e.Coupons().Intake, TemplateID: id, Users: b.users, Workers: b.workers}.Run(ctx)
	for {
		t, err := e.Store().TemplateGet(ctx, id)
		if err != nil {
			return issueResult{}, err
		}
		if t.Settled >= res.In {
			break
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			return issueResult{}, ctx.Err()
		}
	}
	took := time.Since(began)
	verdicts, err := lab.CheckDrop(ctx, e.Store(), id, int64(b.users))
	if err != nil {
		return issueResult{}, err
	}
	out := issueResult{rate: float64(b.users) / took.Seconds(), correct: res.In == int64(b.users)}
	var details []string
	for _, v := range verdicts {
		out.correct = out.correct && v.Holds
		details = append(details, v.Invariant+": "+v.Detail)
	}
	out.detail = strings.Join(details, "; ")
	return out, nil
}
