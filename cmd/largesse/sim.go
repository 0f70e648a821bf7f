package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/largesse/largesse/internal/config"
	"github.com/largesse/largesse/internal/engine"
	"github.com/largesse/largesse/internal/lab"
	"github.com/largesse/largesse/internal/money/moneysim"
	"github.com/largesse/largesse/internal/obs"
)

const (
	simSteps    = 200
	simStepsMax = 20_000
)

func (c *cli) simCommand() *cobra.Command {
	s := simulation{cli: c}
	var plan bool
	cmd := &cobra.Command{
		Use:   "sim",
		Short: "Run a seeded sequence of faults on the embedded engines and check the books",
		Long: `Create promotions, files, Kafka records, coupon templates and crowds of users in
this process. Meanwhile cancel, pause, retry and resize, stop the engine (in order,
or by cutting everything off at once), and inject every provider fault of moneysim.

Then remove all faults, wait until nothing is open, restart the engine once more,
and compare the books of both sides: each target is charged at most once, nothing
is charged that FAILED or was cancelled, counts and sums match the rows, no template
has more live coupons than its quantity, tickets have no gap, and so on. If a check
fails, the exit code is 1, and the seed, the data, the engine's log and trace.log
remain for you to inspect.

The seed decides the plan: which actions in which order, with which arguments and
pauses (--plan prints it), and which provider call gets which fault. It does not
decide how threads and the clock interleave them, so a failure that depends on
timing may need several runs.`,
		Example: `  largesse sim --seed 7
  largesse sim --seed 7 --steps 1000
  largesse sim --seed 7 --steps 20 --plan`,
		Args: args(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if s.steps < 1 || s.steps > simStepsMax {
				return wrongUse("--steps %d must be from 1 to %d", s.steps, simStepsMax)
			}
			if !cmd.Flags().Changed("seed") {
				s.seed = rand.Uint64N(1_000_000) //nolint:gosec // the seed is printed, so it is not a secret
			}
			if plan {
				return s.printPlan()
			}
			return s.run(cmd.Context())
		},
	}
	flags := cmd.Flags()
	flags.Uint64Var(&s.seed, "seed", 0, "seed that decides the plan; default: a random seed, which is printed")
	flags.IntVar(&s.steps, "steps", simSteps, "actions of the plan, 1 to 20000")
	flags.StringVar(&s.dir, "data", "", "directory for the data of the run, retained; default: a temporary one, retained only if a check fails")
	flags.BoolVar(&plan, "plan", false, "print the plan, one JSON object per line, and exit")
	return cmd
}

// simulation is one run of sim.
type simulation struct {
	*cli
	seed  uint64
	steps int
	dir   string
	// between returns the address at which to read the provider's books and set
	// its faults. Nil: that of the provider.
	between func(provider string) string
}

func (s *simulation) printPlan() error {
	for _, step := range lab.NewPlan(s.seed, s.steps) {
		if _, err := fmt.Fprintln(s.stdout, step); err != nil {
			return err
		}
	}
	return nil
}

// replay returns the command that repeats the run.
func (s *simulation) replay() string {
	return fmt.Sprintf("largesse sim --seed %d --steps %d", s.seed, s.steps)
}

func (s *simulation) run(ctx context.Context) (err error) {
	temporary := s.dir == ""
	if temporary {
		if s.dir, err = os.MkdirTemp("", "largesse-sim-"); err != nil {
			return fmt.Errorf("create a directory for the run: %w", err)
		}
	} else if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return fmt.Errorf("create the directory of --data: %w", err)
	}
	if left, err := os.ReadDir(s.dir); err != nil || len(left) > 0 {
		return errors.Join(err, wrongUse("--data %s is not empty: use a new or empty directory", s.dir))
	}
	report, err := s.simulate(ctx)
	switch {
	case err == nil && report.Holds():
		if temporary {
			_ = os.RemoveAll(s.dir)
		}
		return s.print(report)
	case ctx.Err() != nil:
		if temporary {
			_ = os.RemoveAll(s.dir)
		}
		return err
	case err != nil:
		return fmt.Errorf("%w; the engine's log and the trace are in %s; repeat the run with: %s", err, s.dir, s.replay())
	}
	if err := s.print(report); err != nil {
		return err
	}
	return fmt.Errorf("the books do not balance; the data, the engine's log and the trace are in %s; repeat the run with: %s", s.dir, s.replay())
}

// simulate executes the plan with its own provider and engine.
func (s *simulation) simulate(ctx context.Context) (*lab.SimReport, error) {
	logFile, err := os.Create(filepath.Join(s.dir, "largesse.log"))
	if err != nil {
		return nil, fmt.Errorf("open the run's log: %w", err)
	}
	defer logFile.Close()
	log, err := obs.NewLog(logFile, "debug", "text")
	if err != nil {
		return nil, err
	}
	trace, err := os.Create(filepath.Join(s.dir, "trace.log"))
	if err != nil {
		return nil, fmt.Errorf("open the run's trace: %w", err)
	}
	defer trace.Close()
	provider, err := moneysim.New(moneysim.Config{Seed: s.seed})
	if err != nil {
		return nil, err
	}
	defer provider.Close()
	addr, err := provider.Start("127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	money := "http://" + addr
	ledger := money
	if s.between != nil {
		ledger = s.between(money)
	}
	if s.output == outputTable {
		if _, err := fmt.Fprintf(s.stdout, "seed %d, %s\n", s.seed, countOf(int64(s.steps), "step")); err != nil {
			return nil, err
		}
	}
	show := newBars(s.quiet())
	defer show.Close()
	return lab.Simulation{
		Plan: lab.NewPlan(s.seed, s.steps), Money: ledger, Trace: trace,
		Start:    func(ctx context.Context) (lab.Instance, error) { return s.startEngine(ctx, money, log) },
		Progress: func(done int) { show.Update("steps", int64(done), int64(s.steps)) },
	}.Run(ctx)
}

// startEngine starts the engine on the data of the run so far. Its timeouts and
// intervals are short, so that the run takes seconds.
func (s *simulation) startEngine(ctx context.Context, money string, log obs.Log) (lab.Instance, error) {
	cfg := config.Default()
	cfg.Data.Dir = filepath.Join(s.dir, "data")
	cfg.HTTP.Listen = "127.0.0.1:0"
	cfg.Money.URL = money
	cfg.Money.Timeout = 300 * time.Millisecond
	cfg.Money.SettleAfter = 500 * time.Millisecond
	cfg.Redis.Stream.LeaseSeconds = 1
	cfg.Redis.Stream.InFlightPerConsumer = 4 // slow enough that faults interrupt something
	cfg.Reconcile.Interval = 2 * time.Second
	e, err := engine.New(cfg, log, engine.WithVersion(buildVersion().Version))
	if err != nil {
		return lab.Instance{}, err
	}
	life, cut := context.WithCancel(context.WithoutCancel(ctx))
	if err := e.Start(life); err != nil {
		cut()
		return lab.Instance{}, err
	}
	return lab.Instance{
		Server: "http://" + e.Addr(), Brokers: e.Brokers(), Lost: e.Lost(),
		Stop: func(orderly bool) error {
			defer cut()
			if !orderly {
				cut() // crash: everything ends at once, with work pending
			}
			e.Stop()
			return nil
		},
	}, nil
}

// simJSON is the result of a run, for scripts.
type simJSON struct {
	Seed       uint64                  `json:"seed"`
	Steps      int                     `json:"steps"`
	Seconds    float64                 `json:"seconds"`
	Holds      bool                    `json:"holds"`
	Acts       map[string]lab.ActCount `json:"acts"`
	Promotions []lab.PromotionBooks    `json:"promotions"`
	Templates  []lab.TemplateBooks     `json:"templates"`
	Invariants []invariantJSON         `json:"invariants"`
}

// invariantJSON is one invariant, and whether it holds.
type invariantJSON struct {
	Invariant string `json:"invariant"`
	Holds     bool   `json:"holds"`
	Detail    string `json:"detail"`
}

func invariants(verdicts []lab.Verdict) []invariantJSON {
	out := make([]invariantJSON, len(verdicts))
	for i, v := range verdicts {
		out[i] = invariantJSON(v)
	}
	return out
}

// print prints the books of both sides, and the invariants.
func (s *simulation) print(r *lab.SimReport) error {
	if s.output == outputJSON {
		return s.printJSON(simJSON{
			Seed: s.seed, Steps: s.steps, Seconds: r.Took.Seconds(), Holds: r.Holds(),
			Acts: r.Acts, Promotions: r.Promotions, Templates: r.Templates, Invariants: invariants(r.Verdicts),
		})
	}
	return errors.Join(s.printActs(r.Acts), s.printPromotionBooks(r.Promotions), s.printTemplateBooks(r.Templates), s.printVerdicts(r))
}

func (s *simulation) printActs(acts map[string]lab.ActCount) error {
	t := s.table("ACT", "DONE", "REFUSED", "NO ANSWER")
	names := make([]string, 0, len(acts))
	for name := range acts {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		n := acts[name]
		if err := t.add(name, number(int64(n.Done)), number(int64(n.Refused)), number(int64(n.Lost))); err != nil {
			return err
		}
	}
	return t.flush()
}

func (s *simulation) printPromotionBooks(books []lab.PromotionBooks) error {
	if len(books) == 0 {
		return nil
	}
	fmt.Fprintln(s.stdout)
	t := s.table("PROMOTION", "TYPE", "STATUS", "TARGETS", "SUCCEEDED", "FAILED", "CANCELLED", "CHARGES", "PAID, OURS", "PROVIDER'S")
	for _, b := range books {
		err := t.add(b.ID, b.Type, b.Status, number(b.Targets), number(b.Counts.Succeeded), number(b.Counts.Failed), number(b.Counts.Cancelled),
			number(b.Charges), number(b.Paid), number(b.Charged))
		if err != nil {
			return err
		}
	}
	return t.flush()
}

func (s *simulation) printTemplateBooks(books []lab.TemplateBooks) error {
	if len(books) == 0 {
		return nil
	}
	fmt.Fprintln(s.stdout)
	t := s.table("TEMPLATE", "MODE", "QUANTITY", "LIVE", "ISSUED", "CANCELLED", "OUTCOMES")
	for _, b := range books {
		if err := t.add(b.ID, b.Mode, number(b.Quantity), number(b.Live), number(b.Issued), number(b.Cancelled), number(b.Outcomes)); err != nil {
			return err
		}
	}
	return t.flush()
}

func (s *simulation) printVerdicts(r *lab.SimReport) error {
	var b strings.Builder
	b.WriteString("\nInvariants\n")
	for _, v := range r.Verdicts {
		fmt.Fprintf(&b, "  %s  %s (%s)\n", verdictMark(v), v.Invariant, printable(v.Detail))
	}
	fmt.Fprintf(&b, "\nTook %.1f s; run the same plan again with: %s\n", r.Took.Seconds(), s.replay())
	_, err := fmt.Fprint(s.stdout, b.String())
	return err
}
