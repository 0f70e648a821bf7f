package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/lab"
	"github.com/largesse/largesse/internal/money/moneysim"
)

// governorBench is one run of bench governor.
type governorBench struct {
	payoutBench
	openCalls, rate, big int
}

// The limits of the printed measurements.
const (
	shareOfOpenMin  = 0.95
	shareOfRateMin  = 0.92
	anySecondMax    = 1.05
	slowerThanAlone = 3.0

	smallTargets = 1000
	rateLasts    = 30 * time.Second
)

func (c *cli) benchGovernorCommand() *cobra.Command {
	b := governorBench{payoutBench: payoutBench{cli: c}}
	cmd := &cobra.Command{
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
		Args:    args(),
		RunE:    func(cmd *cobra.Command, _ []string) error { return b.run(cmd.Context()) },
	}
	flags := cmd.Flags()
	flags.IntVar(&b.openCalls, "open", 500, "calls in flight in the run without a limit, at least 1")
	flags.IntVar(&b.rate, "rate", 500, "calls per second in the run with a limit, at least 10")
	flags.IntVar(&b.big, "big-targets", 1_000_000, "targets of the huge promotion, at least 10000")
	flags.StringVar(&b.database, "database-url", "", "PostgreSQL URL of a user who may create a schema (required)")
	flags.StringVar(&b.redis, "redis-url", "", "Redis or Valkey URL (required)")
	flags.StringSliceVar(&b.brokers, "kafka-brokers", nil, "Kafka brokers (required)")
	return cmd
}

func (b *governorBench) run(ctx context.Context) error {
	if b.database == "" || b.redis == "" || len(b.brokers) == 0 {
		return wrongUse("bench governor runs several instances that share servers: set --database-url, --redis-url and --kafka-brokers")
	}
	if b.openCalls < 1 || b.rate < 10 || b.big < 10*smallTargets {
		return wrongUse("--open must be at least 1, --rate at least 10, --big-targets at least %d", 10*smallTargets)
	}
	var f figures
	line := func(what string, value, limit float64, ok bool, sense string) {
		verdict := "kept"
		if !ok {
			verdict = "NOT KEPT"
		}
		f.judge(what, value, fmt.Sprintf("%.3f  %s %.2f  %s", value, sense, limit, verdict), ok)
	}
	share, err := b.noLimit(ctx)
	if err != nil {
		return err
	}
	line(fmt.Sprintf("no limit, provider of 200 ms: share of %d in flight ÷ latency", b.openCalls), share, shareOfOpenMin, share >= shareOfOpenMin, "at least")
	mean, busiest, err := b.limited(ctx)
	if err != nil {
		return err
	}
	line(fmt.Sprintf("%d per second over 3 instances, one killed: mean", b.rate), mean, shareOfRateMin, mean >= shareOfRateMin, "at least")
	line("  busiest second", busiest, anySecondMax, busiest <= anySecondMax, "at most")
	slower, err := b.fairness(ctx)
	if err != nil {
		return err
	}
	line(fmt.Sprintf("%s targets in addition to %s: times as long as alone", number(smallTargets), number(int64(b.big))), slower, slowerThanAlone, slower < slowerThanAlone, "under")
	if err := b.printFigures(f); err != nil {
		return err
	}
	if !f.kept() {
		return errors.New("a limit was not kept: see the table above")
	}
	return nil
}

// provider starts a simulated provider.
func (b *governorBench) provider(latency time.Duration) (*moneysim.Server, string, error) {
	sim, err := moneysim.New(moneysim.Config{Faults: moneysim.Faults{LatencyMs: int(latency.Milliseconds())}, Seed: 1})
	if err != nil {
		return nil, "", err
	}
	addr, err := sim.Start("127.0.0.1:0")
	if err != nil {
		return nil, "", err
	}
	return sim, "http://" + addr, nil
}

// instance is a process of this binary.
type instance struct {
	cmd *exec.Cmd
	api *client.Client
}

// serve starts an instance for a run.
func (b *governorBench) serve(run, n, money string, more ...string) (*instance, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	args := append([]string{
		"serve", "--output", "json", "--listen", "127.0.0.1:0", "--log-level", "error",
		"--data-dir", filepath.Join(b.dir, run+n), "--database-url", b.schema, "--money-url", money,
		"--redis-url", b.redis, "--redis-key-prefix", b.name + "-" + run + ":",
		"--kafka-brokers", b.brokers[0], "--kafka-topic-prefix", b.name + "-" + run + "-",
	}, more...)
	in := &instance{cmd: exec.Command(self, args...)} //nolint:noctx // stop lets it drain, a context would kill it
	in.cmd.Stderr = b.stderr
	stdout, err := in.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := in.cmd.Start(); err != nil {
		return nil, err
	}
	var said struct{ Server string }
	if err := json.NewDecoder(bufio.NewReader(stdout)).Decode(&said); err != nil {
		in.stop()
		return nil, fmt.Errorf("start an instance: %w", err)
	}
	in.api, err = client.New(said.Server, client.Options{})
	return in, err
}

func (in *instance) stop() {
	_ = in.cmd.Process.Signal(os.Interrupt) // it may have exited already
	_ = in.cmd.Wait()
}

// benchPromotion creates a promotion with targets as a DRAFT.
func benchPromotion(ctx context.Context, api *client.Client, name string, targets int) (id string, err error) {
	var file bytes.Buffer
	if _, err := lab.WriteTargets(&file, targets, false); err != nil {
		return "", err
	}
	p, err := api.CreatePromotion(ctx, client.NewPromotion{Name: name, Type: "POINT"})
	if err != nil {
		return "", err
	}
	_, err = api.UploadTargets(ctx, p.ID, &file, client.UploadOptions{})
	return p.ID, err
}

// until waits until a promotion fulfils a condition.
func until(ctx context.Context, api *client.Client, id string, so func(client.Promotion) bool) error {
	for {
		p, err := api.Promotion(ctx, id)
		if err != nil || so(p) {
			return err
		}
		select {
		case <-time.After(demoPoll):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func completed(p client.Promotion) bool { return p.Status == "COMPLETED" }

// noLimit measures the share of calls in flight ÷ latency in the middle of a
// run.
func (b *governorBench) noLimit(ctx context.Context) (float64, error) {
	const latency = 200 * time.Millisecond
	targets := b.openCalls * 5 * 20 // twenty seconds
	leave, err := b.begin(ctx)
	if err != nil {
		return 0, err
	}
	defer leave()
	sim, url, err := b.provider(latency)
	if err != nil {
		return 0, err
	}
	defer sim.Close()
	in, err := b.serve("open", "", url, "--money-max-concurrency", fmt.Sprint(b.openCalls), "--redis-stream-min-consumer-per-instance", "16")
	if err != nil {
		return 0, err
	}
	defer in.stop()
	id, err := benchPromotion(ctx, in.api, "no limit", targets)
	if err != nil {
		return 0, err
	}
	if _, err := in.api.StartPromotion(ctx, id); err != nil {
		return 0, err
	}
	count := func(share float64) func(client.Promotion) bool {
		return func(client.Promotion) bool { return float64(sim.Stats().Charges) >= share*float64(targets) }
	}
	if err := until(ctx, in.api, id, count(0.3)); err != nil {
		return 0, err
	}
	from, began := sim.Stats().Charges, time.Now()
	if err := until(ctx, in.api, id, count(0.9)); err != nil {
		return 0, err
	}
	rate := float64(sim.Stats().Charges-from) / time.Since(began).Seconds()
	if err := until(ctx, in.api, id, completed); err != nil {
		return 0, err
	}
	return rate / (float64(b.openCalls) / latency.Seconds()), nil
}

// limited measures what the provider sees of a limit that three instances
// share, one of which is killed half-way.
func (b *governorBench) limited(ctx context.Context) (mean, busiest float64, err error) {
	leave, err := b.begin(ctx)
	if err != nil {
		return 0, 0, err
	}
	defer leave()
	sim, url, err := b.provider(50 * time.Millisecond)
	if err != nil {
		return 0, 0, err
	}
	defer sim.Close()
	var all []*instance
	for i := range 3 {
		in, err := b.serve("rate", fmt.Sprint(i), url, "--money-rate-per-second", fmt.Sprint(b.rate),
			"--money-timeout", "1s", "--redis-stream-lease-seconds", "3")
		if err != nil {
			return 0, 0, err
		}
		defer in.stop()
		all = append(all, in)
	}
	api := all[0].api
	id, err := benchPromotion(ctx, api, "limit", b.rate*int(rateLasts.Seconds())*2)
	if err != nil {
		return 0, 0, err
	}
	if _, err := api.StartPromotion(ctx, id); err != nil {
		return 0, 0, err
	}
	begun := func(client.Promotion) bool { return sim.Stats().Charges >= int64(b.rate) }
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
	mean = float64(sim.Stats().Requests-from) / time.Since(began).Seconds() / float64(b.rate)
	return mean, float64(sim.Busiest(time.Second)) / float64(b.rate), nil
}

// fairness measures how much longer a small promotion takes in addition to a
// huge one.
func (b *governorBench) fairness(ctx context.Context) (float64, error) {
	leave, err := b.begin(ctx)
	if err != nil {
		return 0, err
	}
	defer leave()
	sim, url, err := b.provider(100 * time.Millisecond)
	if err != nil {
		return 0, err
	}
	defer sim.Close()
	in, err := b.serve("fair", "", url, "--money-max-concurrency", "64")
	if err != nil {
		return 0, err
	}
	defer in.stop()
	small := func(name string) (time.Duration, error) {
		id, err := benchPromotion(ctx, in.api, name, smallTargets)
		if err != nil {
			return 0, err
		}
		began := time.Now()
		if _, err := in.api.StartPromotion(ctx, id); err != nil {
			return 0, err
		}
		err = until(ctx, in.api, id, completed)
		return time.Since(began), err
	}
	alone, err := small("alone")
	if err != nil {
		return 0, err
	}
	huge, err := benchPromotion(ctx, in.api, "huge", b.big)
	if err != nil {
		return 0, err
	}
	if _, err := in.api.StartPromotion(ctx, huge); err != nil {
		return 0, err
	}
	under := func(p client.Promotion) bool { return p.Counts.Succeeded > smallTargets }
	if err := until(ctx, in.api, huge, under); err != nil {
		return 0, err
	}
	shared, err := small("beside")
	if err != nil {
		return 0, err
	}
	_, err = in.api.CancelPromotion(ctx, huge)
	return shared.Seconds() / alone.Seconds(), err
}
