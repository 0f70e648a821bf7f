package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/largesse/largesse/client"
)

func (c *cli) userCommand() *cobra.Command {
	return c.talks(group(&cobra.Command{
		Use:     "user",
		Aliases: []string{"users"},
		Short:   "Show why a user did or did not get coupons and payouts",
		Example: "  largesse user history u7 --template 42",
	}, c.userHistoryCommand()))
}

func (c *cli) userHistoryCommand() *cobra.Command {
	var templates []string
	cmd := &cobra.Command{
		Use:   "history USER",
		Short: "Show the outcome of each request of a user, and the user's payouts",
		Long: `Show the outcome of each admitted request of a user, latest first, and the payouts,
those of the newest promotion first, with the provider's last response (with
--output json: all stored responses). At most 1000 requests and 1000 payouts are
shown.

A request that is refused at once leaves no record. Name its template with
--template to see when the template refused everyone.`,
		Example: `  largesse user history u7
  largesse user history u7 --template 42 --template 43 --output json`,
		RunE: c.calling(func(ctx context.Context, cl *client.Client, args []string) error {
			for _, id := range templates {
				if err := checkTemplateID(id); err != nil {
					return err
				}
			}
			h, err := cl.UserHistory(ctx, args[0], templates...)
			return showBy(c, h, err, func(h client.History) error { return c.printHistory(h, templates) })
		}),
	}
	cmd.Flags().StringSliceVar(&templates, "template", nil, "ID of a template at which the user says they made a request; can be repeated")
	return cmd
}

// printHistory prints a history that was read for these templates.
func (c *cli) printHistory(h client.History, templates []string) error {
	if len(h.Items) == 0 {
		hint := "; with --template ID, this also shows when that template refused everyone"
		if len(templates) > 0 {
			hint = ""
		}
		fmt.Fprintf(c.stderr, "user %s has no settled coupon request%s\n", printable(h.UserID), hint)
	}
	if err := printList(c, each(h.Items, nil), listing[client.HistoryItem]{
		header: []string{"AT", "TEMPLATE", "TICKET", "STATUS", "REASON", "COUPON", "COUPON STATUS"},
		row: func(i client.HistoryItem) []string {
			id, status := "", ""
			if i.Coupon != nil {
				id, status = i.Coupon.ID, i.Coupon.Status
				if i.Coupon.Reason != "" {
					status += " (" + i.Coupon.Reason + ")"
				}
				if i.Coupon.CancelledBy != "" {
					status += " by " + i.Coupon.CancelledBy
				}
			}
			return []string{moment(&i.At), i.TemplateID, number(i.Ticket), i.Status, i.Reason, id, status}
		},
	}); err != nil {
		return err
	}
	for _, id := range templates {
		if !slices.ContainsFunc(h.Refusals, func(r client.HistoryRefusal) bool { return r.TemplateID == id }) {
			fmt.Fprintf(c.stderr, "template %s has no record that it refused everyone\n", id)
		}
	}
	for _, r := range h.Refusals {
		until := "until now"
		if r.Until != nil {
			until = "until " + moment(r.Until)
		}
		if err := c.printLines(fmt.Sprintf("template %s was %s for everyone from %s %s", r.TemplateID, r.Reason, moment(&r.Since), until)); err != nil {
			return err
		}
	}
	return c.printHistoryPayouts(h)
}

func (c *cli) printHistoryPayouts(h client.History) error {
	if len(h.Payouts) == 0 {
		fmt.Fprintf(c.stderr, "user %s has no payouts\n", printable(h.UserID))
		return nil
	}
	if len(h.Items)+len(h.Refusals) > 0 {
		if _, err := fmt.Fprintln(c.stdout); err != nil {
			return err
		}
	}
	if err := printList(c, each(h.Payouts, nil), listing[client.HistoryPayout]{
		header: []string{"PROMOTION", "NAME", "STATUS", "TARGET", "AMOUNT", "STATE", "ATTEMPTS", "UPDATED", "TRANSACTION", "LAST ANSWER"},
		row: func(p client.HistoryPayout) []string {
			return []string{
				p.PromotionID, p.PromotionName, p.PromotionStatus, p.TargetID, money(p.Amount, p.Currency), p.State, number(p.AttemptCount),
				moment(&p.UpdatedAt), p.TransactionKey, lastAnswer(p),
			}
		},
		cuts: []string{"NAME", "TRANSACTION", "LAST ANSWER"},
	}); err != nil {
		return err
	}
	var unsure, why []string // why has one line per PAUSED or CANCELLED promotion
	for _, p := range h.Payouts {
		if p.MayBePaid {
			unsure = append(unsure, fmt.Sprintf("target %s of promotion %s may already be paid: do not pay by hand", p.TargetID, p.PromotionID))
		}
		if p.PauseReason != "" {
			why = append(why, fmt.Sprintf("promotion %s is %s: %s", p.PromotionID, p.PromotionStatus, p.PauseReason))
		}
	}
	return c.printLines(append(slices.Compact(why), unsure...)...)
}

// lastAnswer returns the last response of the provider, or of the person who
// resolved the payout. A successful charge is not logged; the state of the
// payout shows it.
func lastAnswer(p client.HistoryPayout) string {
	var last client.Attempt
	if n := len(p.Log); n > 0 {
		last = p.Log[n-1]
	}
	if p.State == "SUCCEEDED" && last.Class != "PAID" && last.Class != "RESOLVED" {
		return "PAID"
	}
	return strings.Join(strings.Fields(last.Class+" "+last.Code+" "+last.Message), " ")
}
