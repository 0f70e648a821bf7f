package main

import (
	"fmt"
	"regexp"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/largesse/largesse/client"
)

func (c *cli) meCommand() *cobra.Command {
	return c.talks(&cobra.Command{
		Use:   "me",
		Short: "Show who you are to the server, and your role",
		Example: `  largesse me
  largesse me --output json`,
		Args: args(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cl, err := c.connect()
			if err != nil {
				return err
			}
			me, err := cl.Me(cmd.Context())
			if err != nil {
				return err
			}
			if c.output == outputJSON {
				return c.printJSON(me)
			}
			line := fmt.Sprintf("%s, role %s", me.Name, me.Role)
			if me.ExpiresAt != nil {
				line += ", until " + moment(me.ExpiresAt)
			}
			_, err = fmt.Fprintln(c.stdout, printable(line))
			return err
		},
	})
}

func (c *cli) payoutCommand() *cobra.Command {
	cmd := c.talks(group(&cobra.Command{
		Use:     "payout",
		Aliases: []string{"payouts"},
		Short:   "Show payouts over all promotions",
		Example: `  largesse payout unknown --older-than 15m`,
	}))
	cmd.AddCommand(c.payoutUnknownCommand())
	return cmd
}

// age matches the values of --older-than.
var age = regexp.MustCompile(`^[0-9]{1,5}[smhd]$`)

func (c *cli) payoutUnknownCommand() *cobra.Command {
	var (
		limit int
		f     client.UnknownFilter
	)
	cmd := &cobra.Command{
		Use:   "unknown",
		Short: "List the UNKNOWN payouts of all promotions, oldest first",
		Long: `List the UNKNOWN payouts of all promotions, oldest first. Largesse looks them up
automatically. Settle one that stays UNKNOWN with: largesse promotion resolve`,
		Example: `  largesse payout unknown
  largesse payout unknown --older-than 2h --output json
  largesse payout unknown --user u7`,
		Args: args(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkLimit(limit); err != nil {
				return err
			}
			if f.OlderThan != "" && !age.MatchString(f.OlderThan) {
				return wrongUse("--older-than %q must be a number and s, m, h or d, e.g. 15m", f.OlderThan)
			}
			cl, err := c.connect()
			if err != nil {
				return err
			}
			return printList(c, cl.UnknownPayouts(cmd.Context(), f), listing[client.UnknownPayout]{
				header: []string{"SINCE", "PROMOTION", "TARGET", "USER", "AMOUNT", "ATTEMPTS", "ERROR"},
				row: func(p client.UnknownPayout) []string {
					return []string{
						moment(&p.UpdatedAt), p.PromotionID, p.TargetID, p.UserID, money(p.Amount, p.Currency), number(p.AttemptCount), p.ErrorCode + " " + p.ErrorMessage,
					}
				},
				limit: limit,
				empty: "there are no such payouts",
				cuts:  []string{"USER", "ERROR"},
			})
		},
	}
	limitFlag(cmd, &limit)
	cmd.Flags().StringVar(&f.OlderThan, "older-than", "", "only payouts that have been UNKNOWN for at least so long, e.g. 15m or 2d")
	cmd.Flags().StringVar(&f.UserID, "user", "", "only payouts of this user")
	return cmd
}

func (c *cli) promotionErrorsCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "errors ID",
		Short: "Count the payouts of a promotion by error code, most first",
		Example: `  largesse promotion errors 12345
  largesse promotion errors 12345 --output json`,
		Args: promotionArgs(),
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := c.connect()
			if err != nil {
				return err
			}
			errors, err := cl.PromotionErrors(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if c.output == outputJSON {
				return c.printJSON(errors)
			}
			if len(errors) == 0 {
				_, err := fmt.Fprintln(c.stdout, "no payout has an error")
				return err
			}
			t := c.table("CODE", "CLASS", "FAILED", "RETRYING", "UNKNOWN", "EXAMPLE")
			for _, e := range errors {
				if err := t.add(e.Code, e.Class, number(e.Failed), number(e.Retrying), number(e.Unknown), "target "+e.ExampleTargetID+": "+e.Example); err != nil {
					return err
				}
			}
			return t.flush()
		},
	}
}

func (c *cli) promotionTimelineCommand() *cobra.Command {
	var points int
	cmd := &cobra.Command{
		Use:   "timeline ID",
		Short: "Show what happened to a promotion over time",
		Long: `Show what happened to a promotion over time, in at most as many steps as --points
says. A step without numbers is one in which no instance recorded anything.`,
		Example: `  largesse promotion timeline 12345
  largesse promotion timeline 12345 --points 300 --output json`,
		Args: promotionArgs(),
		RunE: func(cmd *cobra.Command, args []string) error {
			if points < 2 || points > 1000 {
				return wrongUse("--points %d must be from 2 to 1000", points)
			}
			cl, err := c.connect()
			if err != nil {
				return err
			}
			line, err := cl.PromotionTimeline(cmd.Context(), args[0], client.TimelineSpan{Points: points})
			if err != nil {
				return err
			}
			if c.output == outputJSON {
				return c.printJSON(line)
			}
			t := c.table("FROM", "SECONDS", "SUCCEEDED", "FAILED", "RETRYING", "UNKNOWN", "IN FLIGHT", "WAITING", "P50 MS", "P99 MS")
			for _, p := range line.Points {
				if err := t.add(moment(&p.At), number(line.StepSeconds), known(p.Succeeded), known(p.Failed), known(p.Retrying), known(p.Unknown),
					decimal(p.InFlight), known(p.Waiting), decimal(p.P50Millis), decimal(p.P99Millis)); err != nil {
					return err
				}
			}
			return t.flush()
		},
	}
	cmd.Flags().IntVar(&points, "points", 20, "number of steps, from 2 to 1000")
	return cmd
}

// decimal returns a number, or nothing if it is not known.
func decimal(v *float64) string {
	if v == nil {
		return ""
	}
	return strconv.FormatFloat(*v, 'f', -1, 64)
}

// listReconciliations prints earlier reconciliations.
func (c *cli) listReconciliations(cmd *cobra.Command, limit int) error {
	if err := checkLimit(limit); err != nil {
		return err
	}
	cl, err := c.connect()
	if err != nil {
		return err
	}
	return printList(c, cl.Reconciliations(cmd.Context()), listing[client.ReconciliationSummary]{
		header: []string{"ID", "AT", "COMPARED", "DIFFERENCES", "REPAIRED"},
		row: func(r client.ReconciliationSummary) []string {
			return []string{r.ID, moment(&r.At), known(r.Checked), known(r.Drifts), known(r.Repaired)}
		},
		limit: limit,
		empty: "there are no reconciliations",
	})
}

// known returns a number, or nothing if it is not known.
func known(n *int64) string {
	if n == nil {
		return ""
	}
	return number(*n)
}
