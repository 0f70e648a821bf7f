package lab

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"time"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/money/moneysim"
)

// GovernorBench measures how well the governor uses and keeps its limits.
type GovernorBench struct {
	Open, Rate, BigTargets int
}

// SmallTargets is the size of the promotion that is paid in addition to a huge one.
const SmallTargets = 1000

// The limits of the printed measurements.
const (
	shareOfOpenMin  = 0.95
	shareOfRateMin  = 0.92
	anySecondMax    = 1.05
	slowerThanAlone = 3.0

	rateLasts = 30 * time.Second
)

// Run measures.
func (g GovernorBench) Run(ctx context.Context, b Bench) (f Figures, err error) {
	line := func(what string, value, limit float64, ok bool, sense string) {
		verdict := "kept"
		if !ok {
			verdict = "NOT KEPT"
		}
		f.judge(what, value, fmt.Sprintf("%.3f  %s %.2f  %s", value, sense, limit, verdict), ok)
	}
	err = b.run(ctx, false, func(s *stage) error {
		share, err := g.noLimit(ctx, s)
		line(fmt.Sprintf("no limit, provider of 200 ms: share of %d in flight ÷ latency", g.Open), share, shareOfOpenMin, share >= shareOfOpenMin, "at least")
		return err
	})
	if err != nil {
		return f, err
	}
	err = b.run(ctx, false, func(s *stage) error {
		mean, busiest, err := g.limited(ctx, s)
		line(fmt.Sprintf("%d per second over 3 instances, one killed: mean", g.Rate), mean, shareOfRateMin, mean >= shareOfRateMin, "at least")
		line("  busiest second", busiest, anySecondMax, busiest <= anySecondMax, "at most")
		return err
	})
	if err != nil {
		return f, err
	}
	err = b.run(ctx, false, func(s *stage) error {
		slower, err := g.fairness(ctx, s)
		line(fmt.Sprintf("%s targets in addition to %s: times as long as alone", number(SmallTargets), number(int64(g.BigTargets))),
			slower, slowerThanAlone, slower < slowerThanAlone, "under")
		return err
	})
	return f, err
}

// startMoney starts a simulated provider, and returns its URL.
func startMoney(faults moneysim.Faults, seed uint64) (*moneysim.Server, string, error) {
	sim, err := moneysim.New(moneysim.Config{Faults: faults, Seed: seed})
	if err != nil {
		return nil, "", err
	}
	address, err := sim.Start("127.0.0.1:0")
	return sim, "http://" + address, err
}

// slowMoney starts a simulated provider that takes so long per call.
func slowMoney(latency time.Duration) (*moneysim.Server, string, error) {
	return startMoney(moneysim.Faults{LatencyMs: int(latency.Milliseconds())}, 1)
}

// process is an instance in a process of this binary.
type process struct {
	cmd *exec.Cmd
	api *client.Client
}

// serve starts a process.
func (s *stage) serve(money string, more ...string) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	data, err := os.MkdirTemp(s.dir, "data-")
	if err != nil {
		return nil, err
	}
	args := append([]string{
		"serve", "--output", "json", "--listen", "127.0.0.1:0", "--log-level", "error",
		"--data-dir", data, "--database-url", s.database, "--money-url", money, "--redis-url", s.Redis, "--redis-key-prefix", s.name + ":",
		"--kafka-brokers", s.Brokers[0], "--kafka-topic-prefix", s.name + "-",
	}, more...)
	p := &process{cmd: exec.Command(self, args...)} //nolint:noctx // stop lets it drain, a context would kill it
	p.cmd.Stderr = s.Log
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	var said struct{ Server string }
	if err := json.NewDecoder(bufio.NewReader(stdout)).Decode(&said); err != nil {
		p.stop()
		return nil, fmt.Errorf("start an instance: %w", err)
	}
	p.api, err = client.New(said.Server, client.Options{})
	return p, err
}

func (p *process) stop() {
	_ = p.cmd.Process.Signal(os.Interrupt) // it may have exited already
	_ = p.cmd.Wait()
}

// begin creates a promotion with targets, and starts it.
func (s *stage) begin(ctx context.Context, api *client.Client, name string, targets int) (id string, err error) {
	if id, _, err = s.upload(ctx, api, client.NewPromotion{Name: name}, targets); err != nil {
		return "", err
	}
	_, err = api.StartPromotion(ctx, id)
	return id, err
}

// noLimit measures the share of calls in flight ÷ latency in the middle of a run.
func (g GovernorBench) noLimit(ctx context.Context, s *stage) (float64, error) {
	const latency = 200 * time.Millisecond
	targets := g.Open * 5 * 20 // twenty seconds
	sim, url, err := slowMoney(latency)
	if err != nil {
		return 0, err
	}
	defer sim.Close()
	p, err := s.serve(url, "--money-max-concurrency", fmt.Sprint(g.Open), "--redis-stream-min-consumer-per-instance", "16")
	if err != nil {
		return 0, err
	}
	defer p.stop()
	id, err := s.begin(ctx, p.api, "no limit", targets)
	if err != nil {
		return 0, err
	}
	count := func(share float64) func(client.Promotion) bool {
		return func(client.Promotion) bool { return float64(sim.Stats().Charges) >= share*float64(targets) }
	}
	if err := until(ctx, p.api, id, count(0.3)); err != nil {
		return 0, err
	}
	from, began := sim.Stats().Charges, time.Now()
	if err := until(ctx, p.api, id, count(0.9)); err != nil {
		return 0, err
	}
	rate := float64(sim.Stats().Charges-from) / time.Since(began).Seconds()
	return rate / (float64(g.Open) / latency.Seconds()), until(ctx, p.api, id, completed)
}

// limited measures what the provider sees of a limit that three instances share, one of
// which is killed half-way.
func (g GovernorBench) limited(ctx context.Context, s *stage) (mean, busiest float64, err error) {
	sim, url, err := slowMoney(50 * time.Millisecond)
	if err != nil {
		return 0, 0, err
	}
	defer sim.Close()
	var all []*process
	for range 3 {
		p, err := s.serve(url, "--money-rate-per-second", fmt.Sprint(g.Rate), "--money-timeout", "1s", "--redis-stream-lease-seconds", "3")
		if err != nil {
			return 0, 0, err
		}
		defer p.stop()
		all = append(all, p)
	}
	api := all[0].api
	id, err := s.begin(ctx, api, "limit", g.Rate*int(rateLasts.Seconds())*2)
	if err != nil {
		return 0, 0, err
	}
	begun := func(client.Promotion) bool { return sim.Stats().Charges >= int64(g.Rate) }
	if err := until(ctx, api, id, begun); err != nil {
		return 0, 0, err
	}
	from, began := sim.Stats().Requests, time.Now()
	after := func(d time.Duration) func(client.Promotion) bool {
		return func(client.Promotion) bool { return time.Since(began) >= d }
	}
	if err := until(ctx, api, id, after(rateLasts/2)); err != nil {
		return 0, 0, err
	}
	if err := all[2].cmd.Process.Kill(); err != nil {
		return 0, 0, err
	}
	if err := until(ctx, api, id, after(rateLasts)); err != nil {
		return 0, 0, err
	}
	mean = float64(sim.Stats().Requests-from) / time.Since(began).Seconds() / float64(g.Rate)
	return mean, float64(sim.Busiest(time.Second)) / float64(g.Rate), nil
}

// fairness measures how much longer a small promotion takes in addition to a huge one.
func (g GovernorBench) fairness(ctx context.Context, s *stage) (float64, error) {
	sim, url, err := slowMoney(100 * time.Millisecond)
	if err != nil {
		return 0, err
	}
	defer sim.Close()
	p, err := s.serve(url, "--money-max-concurrency", "64")
	if err != nil {
		return 0, err
	}
	defer p.stop()
	small := func(name string) (time.Duration, error) {
		id, _, err := s.upload(ctx, p.api, client.NewPromotion{Name: name}, SmallTargets)
		if err != nil {
			return 0, err
		}
		began := time.Now()
		if _, err := p.api.StartPromotion(ctx, id); err != nil {
			return 0, err
		}
		err = until(ctx, p.api, id, completed)
		return time.Since(began), err
	}
	alone, err := small("alone")
	if err != nil {
		return 0, err
	}
	huge, err := s.begin(ctx, p.api, "huge", g.BigTargets)
	if err != nil {
		return 0, err
	}
	under := func(p client.Promotion) bool { return p.Counts.Succeeded > SmallTargets }
	if err := until(ctx, p.api, huge, under); err != nil {
		return 0, err
	}
	shared, err := small("beside")
	if err != nil {
		return 0, err
	}
	_, err = p.api.CancelPromotion(ctx, huge)
	return shared.Seconds() / alone.Seconds(), err
}
