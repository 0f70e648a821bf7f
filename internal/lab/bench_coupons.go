package lab

import (
	"context"
	"fmt"
	"os/exec"
	"regexp"
	"runtime"
	"strconv"
	"strings"

	"github.com/largesse/largesse/internal/config"
	"github.com/largesse/largesse/internal/engine"
	"github.com/largesse/largesse/internal/reward"
)

// CouponBench measures coupons per second, compared with hand-written code.
type CouponBench struct {
	Users, AtOnce  int
	ByHand         int    // coupons issued in one transaction each
	HTTP           int    // requests over HTTP; 0: that run is skipped
	Watchers, Line int    // 0: that run is skipped
	Tool           string // path of redis-benchmark
}

// The limits of the printed ratios.
const (
	gateRatioMin  = 1.0
	issueRatioMin = 25.0
	byHandOpen    = 10 // connections that issue one coupon per transaction
)

// Run measures.
func (c CouponBench) Run(ctx context.Context, b Bench) (f Figures, err error) {
	err = b.run(ctx, false, func(s *stage) error { return c.measure(ctx, s, &f) })
	return f, err
}

func (c CouponBench) measure(ctx context.Context, s *stage, f *Figures) error {
	gateRate, err := c.gate(ctx, s)
	if err != nil {
		return err
	}
	handGate, err := c.handGate(ctx, s)
	if err != nil {
		return err
	}
	e, stop, err := s.coupons(ctx, "issue", config.RoleAPI, config.RoleIssuer)
	if err != nil {
		return err
	}
	users, verdicts, err := s.drop(ctx, e, reward.CouponTemplate{TotalQuantity: int64(c.Users)}, c.Users, c.AtOnce)
	stop()
	if err != nil {
		return err
	}
	took, err := issueByHand(ctx, s.database, byHandOpen, c.ByHand)
	if err != nil {
		return err
	}
	issue, handIssue := float64(c.Users)/users.took.Seconds(), float64(c.ByHand)/took.Seconds()
	ratio := func(value, least float64) {
		text := fmt.Sprintf("%.2f (at least %.1f)", value, least)
		if value < least {
			text = fmt.Sprintf("%.2f (TOO LOW: at least %.1f)", value, least)
		}
		f.judge("ratio", value, text, value >= least)
	}
	f.note("machine", fmt.Sprintf("%d cores, %s", runtime.NumCPU(), runtime.Version()))
	f.add("gate through the engine", gateRate, fmt.Sprintf("%s requests/s, %s at once", number(int64(gateRate)), number(int64(c.AtOnce))))
	f.add("hand-written script, redis-benchmark -P 16", handGate, number(int64(handGate))+" requests/s")
	ratio(gateRate/handGate, gateRatioMin)
	f.add("request to committed coupon, in order", issue, number(int64(issue))+" coupons/s")
	f.add(fmt.Sprintf("one transaction per coupon, FOR UPDATE, %d connections", byHandOpen), handIssue, number(int64(handIssue))+" coupons/s")
	ratio(issue/handIssue, issueRatioMin)
	correct, detail := summarize(verdicts, func(v Verdict) string { return v.Invariant + ": " + v.Detail })
	f.correct("correct", detail, correct && users.admitted.Load() == int64(c.Users))
	if c.HTTP > 0 {
		if err := c.overHandlers(ctx, s, f); err != nil {
			return err
		}
	}
	if c.Watchers > 0 {
		if err := c.watchers(ctx, s, f); err != nil {
			return err
		}
	}
	if c.Line > 0 {
		return c.load(ctx, s, f)
	}
	return nil
}

// coupons starts an instance with some roles.
func (s *stage) coupons(ctx context.Context, run string, roles ...string) (*engine.Engine, func(), error) {
	all, stop, err := s.start(ctx, run, 1, &provider{}, func(cfg *config.Config) {
		cfg.Roles, cfg.Redis.Stream.InFlightPerConsumer = roles, 1
	})
	if err != nil {
		return nil, nil, err
	}
	return all[0], stop, nil
}

// fill makes people request a coupon of a new template, on an instance that issues none.
func (c CouponBench) fill(ctx context.Context, e *engine.Engine, quantity, people int) (reward.TemplateID, *crowd, error) {
	id, err := newTemplate(ctx, e, reward.CouponTemplate{TotalQuantity: int64(quantity)})
	if err != nil {
		return 0, nil, err
	}
	users := &crowd{people: people, atOnce: c.AtOnce, request: inProcess(e, id)}
	if err := users.run(ctx); err != nil {
		return 0, nil, err
	}
	if n := users.admitted.Load(); n != int64(people) {
		return 0, nil, fmt.Errorf("%d of %d users were admitted", n, people)
	}
	return id, users, nil
}

// gate measures an instance without issuers, and so the gate alone.
func (c CouponBench) gate(ctx context.Context, s *stage) (float64, error) {
	e, stop, err := s.coupons(ctx, "gate", config.RoleAPI)
	if err != nil {
		return 0, err
	}
	defer stop()
	_, users, err := c.fill(ctx, e, c.Users, c.Users)
	if err != nil {
		return 0, err
	}
	if n := users.askedAgain.Load(); n > 0 {
		return 0, fmt.Errorf("%d responses asked to retry", n)
	}
	return float64(c.Users) / users.took.Seconds(), nil
}

var perSecond = regexp.MustCompile(`([0-9.]+) requests per second`)

// handGate runs redis-benchmark with a script that admits one user.
func (c CouponBench) handGate(ctx context.Context, s *stage) (float64, error) {
	redis, addresses, err := connectRedis(s.Redis)
	if err != nil {
		return 0, err
	}
	defer redis.Close()
	if len(addresses) != 1 {
		return 0, Misuse("--redis-url must be one redis://host:port")
	}
	sha, keys, err := s.bareTemplate(ctx, redis, c.Users)
	if err != nil {
		return 0, err
	}
	host, port, _ := strings.Cut(addresses[0], ":")
	// Draw from a hundred times as many users as requests, so that nearly every
	// user requests once.
	args := append([]string{
		"-h", host, "-p", port, "-P", "16", "-c", "50", "-n", strconv.Itoa(c.Users), "-r", strconv.Itoa(100 * c.Users), "-q",
		"EVALSHA", sha, "5",
	}, keys...)
	out, err := exec.CommandContext(ctx, c.Tool, append(args, "u__rand_int__")...).CombinedOutput()
	if err != nil {
		return 0, fmt.Errorf("%s: %w: %s", c.Tool, err, strings.TrimSpace(string(out)))
	}
	found := perSecond.FindAllSubmatch(out, -1)
	if len(found) == 0 {
		return 0, fmt.Errorf("%s printed no rate: %s", c.Tool, strings.TrimSpace(string(out)))
	}
	waiting, err := redis.Do(ctx, redis.B().Zcard().Key(keys[1]).Build()).AsInt64()
	if err != nil || waiting < int64(c.Users)*9/10 {
		return 0, fmt.Errorf("the hand-written script admitted only %d of %d users: %w", waiting, c.Users, err)
	}
	_ = redis.Do(ctx, redis.B().Unlink().Key(keys...).Build()).Error() // the end of the run removes what is left
	return strconv.ParseFloat(string(found[len(found)-1][1]), 64)
}
