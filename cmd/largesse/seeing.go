package main

import (
	"context"
	"fmt"
	"iter"
	"regexp"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/largesse/largesse/client"
)

func (c *cli) meCommand() *cobra.Command {
	return c.talks(&cobra.Command{
		Use:     "me",
		Short:   "Show who you are to the server, and your role",
		Example: inBothForms("me"),
		RunE: c.calling(func(ctx context.Context, cl *client.Client, _ []string) error {
			me, err := cl.Me(ctx)
			line := fmt.Sprintf("%s, role %s", me.Name, me.Role)
			if me.ExpiresAt != nil {
				line += ", until " + moment(me.ExpiresAt)
			}
			return c.show(me, err, line)
		}),
	})
}

func (c *cli) payoutCommand() *cobra.Command {
	return c.talks(group(&cobra.Command{
		Use:     "payout",
		Aliases: []string{"payouts"},
		Short:   "Show payouts over all promotions",
		Example: `  largesse payout unknown --older-than 15m`,
	}, c.payoutUnknownCommand()))
}

var age = regexp.MustCompile(`^[0-9]{1,5}[smhd]$`)

func (c *cli) payoutUnknownCommand() *cobra.Command {
	var f client.UnknownFilter
	cmd := listCommand(c, &cobra.Command{
		Use:   "unknown",
		Short: "List the UNKNOWN payouts of all promotions, oldest first",
		Long: `List the UNKNOWN payouts of all promotions, oldest first. Largesse looks them up
automatically. Settle one that stays UNKNOWN with: largesse promotion resolve`,
		Example: `  largesse payout unknown
  largesse payout unknown --older-than 2h --output json
  largesse payout unknown --user u7`,
	}, listing[client.UnknownPayout]{
		header: []string{"SINCE", "PROMOTION", "TARGET", "USER", "AMOUNT", "ATTEMPTS", "ERROR"},
		row: func(p client.UnknownPayout) []string {
			return []string{
				moment(&p.UpdatedAt), p.PromotionID, p.TargetID, p.UserID, money(p.Amount, p.Currency), number(p.AttemptCount), p.ErrorCode + " " + p.ErrorMessage,
			}
		},
		empty: "there are no such payouts",
		cuts:  []string{"USER", "ERROR"},
	}, func(ctx context.Context, cl *client.Client, _ []string) iter.Seq2[client.UnknownPayout, error] {
		return cl.UnknownPayouts(ctx, f)
	})
	addFlag(cmd.Flags(), &f.OlderThan, "older-than", "only payouts that have been UNKNOWN for at least so long, e.g. 15m or 2d",
		matching(age.MatchString, "a number and s, m, h or d, e.g. 15m"))
	cmd.Flags().StringVar(&f.UserID, "user", "", "only payouts of this user")
	return cmd
}

func (c *cli) printErrors(errors []client.PromotionError) error {
	if len(errors) == 0 {
		return c.printLines("no payout has an error")
	}
	return printList(c, each(errors, nil), listing[client.PromotionError]{
		header: []string{"CODE", "CLASS", "FAILED", "RETRYING", "UNKNOWN", "EXAMPLE"},
		row: func(e client.PromotionError) []string {
			return []string{e.Code, e.Class, number(e.Failed), number(e.Retrying), number(e.Unknown), "target " + e.ExampleTargetID + ": " + e.Example}
		},
	})
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
		RunE: c.calling(func(ctx context.Context, cl *client.Client, args []string) error {
			line, err := cl.PromotionTimeline(ctx, args[0], client.TimelineSpan{Points: points})
			return showBy(c, line, err, c.printTimeline)
		}),
	}
	countFlag(cmd.Flags(), &points, "points", 20, "number of steps, from 2 to 1000", 2, 1000)
	return cmd
}

func (c *cli) printTimeline(line client.PromotionTimeline) error {
	return printList(c, each(line.Points, nil), listing[client.PromotionPoint]{
		header: []string{"FROM", "SECONDS", "SUCCEEDED", "FAILED", "RETRYING", "UNKNOWN", "IN FLIGHT", "WAITING", "P50 MS", "P99 MS"},
		row: func(p client.PromotionPoint) []string {
			return []string{
				moment(&p.At), number(line.StepSeconds), known(p.Succeeded), known(p.Failed), known(p.Retrying), known(p.Unknown),
				decimal(p.InFlight), known(p.Waiting), decimal(p.P50Millis), decimal(p.P99Millis),
			}
		},
	})
}

// decimal returns a number, or nothing if it is not known.
func decimal(v *float64) string {
	if v == nil {
		return ""
	}
	return strconv.FormatFloat(*v, 'f', -1, 64)
}

// known is like decimal for a whole number.
func known(n *int64) string {
	if n == nil {
		return ""
	}
	return number(*n)
}
