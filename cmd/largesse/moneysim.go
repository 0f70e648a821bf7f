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
		Short: "Run a simulated Money API that moves no money",
		Long: `Run a simulated Money API, for tests and rehearsals. It moves no money, never
charges a key twice, and keeps a ledger (GET /stats, GET /charges). The flags set
its faults; PUT /faults changes them while it runs. The faults are tried in a fixed
order, and --seed decides which request gets which fault.`,
		Example: `  largesse moneysim
  largesse moneysim --listen 127.0.0.1:8090 --latency 200ms --jitter 50ms
  largesse moneysim --error-rate 0.05 --timeout-rate 0.01 --lost-reply-rate 0.01 --seed 7
  curl -X PUT 127.0.0.1:8090/faults -d '{"latencyMs": 200, "throttleRate": 0.1}'`,
	}
	flags := cmd.Flags()
	flags.StringVar(&listen, "listen", "127.0.0.1:8090", "host:port to listen on; port 0: any free port")
	flags.DurationVar(&latency, "latency", 0, "time before each response")
	flags.DurationVar(&jitter, "jitter", 0, "maximum random change of the latency, up or down")
	flags.Float64Var(&faults.ErrorRate, "error-rate", 0, "share of requests, 0 to 1, that get a 500 and charge nothing")
	flags.Float64Var(&faults.RefuseRate, "refuse-rate", 0, "share of targets, 0 to 1, that are always refused with a 422")
	flags.Float64Var(&faults.TimeoutRate, "timeout-rate", 0, "share of requests, 0 to 1, that get no response; half of them are charged")
	flags.Float64Var(&faults.LostReplyRate, "lost-reply-rate", 0, "share of requests, 0 to 1, that are charged and get no response")
	flags.Float64Var(&faults.SlowDripRate, "slow-drip-rate", 0, "share of requests, 0 to 1, that are charged and get an endless response, byte by byte")
	flags.Float64Var(&faults.DuplicateRate, "duplicate-rate", 0, "share of requests, 0 to 1, that arrive twice at once, as if a proxy repeated them")
	flags.Float64Var(&faults.ThrottleRate, "throttle-rate", 0, "share of requests, 0 to 1, that get a 429 with Retry-After: 1 and charge nothing")
	flags.Float64Var(&faults.ResetBeforeRate, "reset-before-rate", 0, "share of requests, 0 to 1, that are not charged and whose connection is reset")
	flags.Float64Var(&faults.ResetAfterRate, "reset-after-rate", 0, "share of requests, 0 to 1, that are charged and whose connection is reset")
	flags.Float64Var(&faults.UnavailableRate, "unavailable-rate", 0, "share of requests, 0 to 1, that get a 503; half of them are charged")
	flags.IntVar(&faults.MisconfiguredStatus, "misconfigured-status", 0, "status of every response: 401, 403, 404, 405, 407, 413 or 415; 0: none")
	flags.BoolVar(&faults.Away, "away", false, "outage: reset of every connection")
	flags.Float64Var(&faults.RatePerSecond, "rate-per-second", 0, "maximum charge requests per second, the others get a 429; 0: unlimited")
	flags.Uint64Var(&seed, "seed", 1, "seed that decides which request gets which fault")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if _, _, err := net.SplitHostPort(listen); err != nil {
			return wrongUse("--listen %q must look like host:port, e.g. 127.0.0.1:8090", listen)
		}
		if latency < 0 || jitter < 0 {
			return wrongUse("--latency and --jitter must be at least 0s")
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
