package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/largesse/largesse/internal/lab"
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
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !cmd.Flags().Changed("seed") {
				s.Seed = rand.Uint64N(1_000_000) //nolint:gosec // the seed is printed, so it is not a secret
			}
			if !plan {
				return s.run(cmd.Context())
			}
			for _, step := range lab.NewPlan(s.Seed, s.Steps) {
				if _, err := fmt.Fprintln(s.stdout, step); err != nil {
					return err
				}
			}
			return nil
		},
	}
	flags := cmd.Flags()
	flags.Uint64Var(&s.Seed, "seed", 0, "seed that decides the plan; default: a random seed, which is printed")
	countFlag(flags, &s.Steps, "steps", 200, "actions of the plan, 1 to 20000", 1, 20_000)
	flags.StringVar(&s.Dir, "data", "", "directory for the data of the run, retained; default: a temporary one, retained only if a check fails")
	flags.BoolVar(&plan, "plan", false, "print the plan, one JSON object per line, and exit")
	return cmd
}

type simulation struct {
	*cli
	lab.Simulation
}

func (s *simulation) run(ctx context.Context) error {
	w := s.quiet()
	show := newBars(w)
	s.Version, s.Out, s.Progress = buildVersion().Version, w.stdout, show.Update
	report, err := s.Run(ctx)
	show.Close()
	if err != nil {
		return err
	}
	if err := s.print(report); err != nil || report.Holds() {
		return err
	}
	return fmt.Errorf("the books do not balance; the data, the engine's log and the trace are in %s; repeat the run with: %s", s.Dir, s.Replay())
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
	Invariants []lab.Verdict           `json:"invariants"`
}

func (s *simulation) print(r *lab.SimReport) error {
	if s.output == outputJSON {
		return s.printJSON(simJSON{
			Seed: s.Seed, Steps: s.Steps, Seconds: r.Took.Seconds(), Holds: r.Holds(),
			Acts: r.Acts, Promotions: r.Promotions, Templates: r.Templates, Invariants: r.Verdicts,
		})
	}
	return errors.Join(s.printActs(r.Acts), s.printPromotionBooks(r.Promotions), s.printTemplateBooks(r.Templates), s.printVerdicts(r))
}

func (s *simulation) printActs(acts map[string]lab.ActCount) error {
	return printList(s.cli, each(slices.Sorted(maps.Keys(acts)), nil), listing[string]{
		header: []string{"ACT", "DONE", "REFUSED", "NO ANSWER"},
		row: func(name string) []string {
			n := acts[name]
			return []string{name, number(int64(n.Done)), number(int64(n.Refused)), number(int64(n.Lost))}
		},
	})
}

func (s *simulation) printPromotionBooks(books []lab.PromotionBooks) error {
	if len(books) > 0 {
		fmt.Fprintln(s.stdout)
	}
	return printList(s.cli, each(books, nil), listing[lab.PromotionBooks]{
		header: []string{"PROMOTION", "TYPE", "STATUS", "TARGETS", "SUCCEEDED", "FAILED", "CANCELLED", "CHARGES", "PAID, OURS", "PROVIDER'S"},
		row: func(b lab.PromotionBooks) []string {
			return []string{
				b.ID, b.Type, b.Status, number(b.Targets), number(b.Counts.Succeeded), number(b.Counts.Failed), number(b.Counts.Cancelled),
				number(b.Charges), number(b.Paid), number(b.Charged),
			}
		},
	})
}

func (s *simulation) printTemplateBooks(books []lab.TemplateBooks) error {
	if len(books) > 0 {
		fmt.Fprintln(s.stdout)
	}
	return printList(s.cli, each(books, nil), listing[lab.TemplateBooks]{
		header: []string{"TEMPLATE", "MODE", "QUANTITY", "LIVE", "ISSUED", "CANCELLED", "OUTCOMES"},
		row: func(b lab.TemplateBooks) []string {
			return []string{b.ID, b.Mode, number(b.Quantity), number(b.Live), number(b.Issued), number(b.Cancelled), number(b.Outcomes)}
		},
	})
}

func (s *simulation) printVerdicts(r *lab.SimReport) error {
	var b strings.Builder
	b.WriteString("\nInvariants\n")
	for _, v := range r.Verdicts {
		fmt.Fprintf(&b, "  %s  %s (%s)\n", v.Mark(), v.Invariant, printable(v.Detail))
	}
	fmt.Fprintf(&b, "\nTook %.1f s; run the same plan again with: %s\n", r.Took.Seconds(), s.Replay())
	_, err := fmt.Fprint(s.stdout, b.String())
	return err
}
