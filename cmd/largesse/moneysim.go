package main

import (
	"fmt"
	"net"
	"time"

	"github.com/spf13/cobra"

	"github.com/largesse/largesse/internal/money/moneysim"
)

func (c *cli) moneySimCommand() *cobra.Command {
	var (
		listen          string
		latency, jitter time.Duration
		seed            uint64
		faults          moneysim.Faults
	)
	cmd := &cobra.Command{
		Use:   "moneysim",
		Short: "Run a stand-in for the Money API, for tests and rehearsals",
		Long: `Run a stand-in for the provider that pays. It keeps books (GET /stats, GET
/charges), never charges a key twice, and misbehaves as much as it is told to;
PUT /faults changes that while it runs. It moves no money.`,
		Example: `  largesse moneysim
  largesse moneysim --listen 127.0.0.1:8090 --latency 200ms --jitter 50ms
  largesse moneysim --error-rate 0.05 --timeout-rate 0.01 --lost-reply-rate 0.01 --seed 7
  curl -X PUT 127.0.0.1:8090/faults -d '{"latencyMs": 200, "throttleRate": 0.1}'`,
		Args: args(),
	}
	flags := cmd.Flags()
	flags.StringVar(&listen, "listen", "127.0.0.1:8090", "host:port to listen on; port 0: any free one")
	flags.DurationVar(&latency, "latency", 0, "wait before each answer")
	flags.DurationVar(&jitter, "jitter", 0, "how much the wait varies, either way")
	flags.Float64Var(&faults.ErrorRate, "error-rate", 0, "share of requests, 0 to 1, that get a 500 and charge nothing")
	flags.Float64Var(&faults.RefuseRate, "refuse-rate", 0, "share of targets, 0 to 1, that are refused for good")
	flags.Float64Var(&faults.TimeoutRate, "timeout-rate", 0, "share of requests, 0 to 1, that get no answer; half of them are charged")
	flags.Float64Var(&faults.LostReplyRate, "lost-reply-rate", 0, "share of requests, 0 to 1, that are charged and lose their answer")
	flags.Float64Var(&faults.SlowDripRate, "slow-drip-rate", 0, "share of requests, 0 to 1, that are charged and answered byte by byte without an end")
	flags.Float64Var(&faults.DuplicateRate, "duplicate-rate", 0, "share of requests, 0 to 1, that arrive twice at once, as through a proxy that repeats")
	flags.Float64Var(&faults.ThrottleRate, "throttle-rate", 0, "share of requests, 0 to 1, that get a 429 with Retry-After: 1 and charge nothing")
	flags.Float64Var(&faults.ResetBeforeRate, "reset-before-rate", 0, "share of requests, 0 to 1, whose connection is reset before anything is charged")
	flags.Float64Var(&faults.ResetAfterRate, "reset-after-rate", 0, "share of requests, 0 to 1, that are charged and whose connection is then reset")
	flags.Float64Var(&faults.UnavailableRate, "unavailable-rate", 0, "share of requests, 0 to 1, that get a 503; half of them are charged")
	flags.IntVar(&faults.MisconfiguredStatus, "misconfigured-status", 0, "answer each call with this: 401, 403, 404, 405, 407, 413 or 415; 0: none")
	flags.BoolVar(&faults.Away, "away", false, "reset the connection of each call as soon as it comes")
	flags.Float64Var(&faults.RatePerSecond, "rate-per-second", 0, "requests a second that are let in, the rest get a 429; 0: no limit")
	flags.Uint64Var(&seed, "seed", 1, "decides who meets which fault: same seed, same faults")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if _, _, err := net.SplitHostPort(listen); err != nil {
			return wrongUse("--listen %q must be host:port, e.g. 127.0.0.1:8090", listen)
		}
		if latency < 0 || jitter < 0 {
			return wrongUse("--latency and --jitter must not be below 0s")
		}
		faults.LatencyMs, faults.JitterMs = int(latency.Milliseconds()), int(jitter.Milliseconds())
		sim, err := moneysim.New(moneysim.Config{Faults: faults, Seed: seed})
		if err != nil {
			return &usageError{err.Error()}
		}
		defer sim.Close()
		addr, err := sim.Start(listen)
		if err != nil {
			return err
		}
		if c.output == outputTable {
			fmt.Fprintf(c.stdout, "the simulated Money API listens on http://%s\n", addr)
		} else if err := c.printJSON(map[string]string{"url": "http://" + addr}); err != nil {
			return err
		}
		<-cmd.Context().Done()
		sim.Close()
		stats := sim.Stats()
		if c.output == outputJSON {
			return c.printJSON(stats)
		}
		_, err = fmt.Fprintf(c.stdout, "charges %d, amount %d, requests %d, of a charged key %d\n", stats.Charges, stats.Amount, stats.Requests, stats.DuplicateKeys)
		return err
	}
	return cmd
}
