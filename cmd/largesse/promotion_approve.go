package main

import (
	"context"
	"fmt"
	"iter"

	"github.com/spf13/cobra"

	"github.com/largesse/largesse/client"
)

// promotionApproveCommand approves what the caller is shown, and nothing else.
func (c *cli) promotionApproveCommand() *cobra.Command {
	return c.yesFlag(&cobra.Command{
		Use:     "approve ID",
		Short:   "Approve all targets that a promotion has now, as another person",
		Example: inBothForms("promotion approve 12345 --yes"),
		RunE: c.calling(func(ctx context.Context, cl *client.Client, args []string) error {
			seen, err := cl.Promotion(ctx, args[0])
			if err != nil {
				return err
			}
			if err := c.confirm(fmt.Sprintf("approve %s worth %s of %s", countOf(seen.TotalCount, "target"), money(seen.AmountTotal, seen.Currency), nameOf(seen))); err != nil {
				return err
			}
			p, err := cl.ApproveSeen(ctx, seen)
			return c.show(p, err, fmt.Sprintf("promotion %s is %s, approved by %s: %s", p.ID, p.Status, p.ApprovedBy, approved(p)))
		}),
	})
}

func (c *cli) promotionRejectCommand() *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use:     "reject ID --reason WHY",
		Short:   "Refuse or withdraw an approval; a RUNNING promotion becomes PAUSED",
		Example: `  largesse promotion reject 12345 --reason "the budget of this month is used up"`,
		RunE: c.calling(func(ctx context.Context, cl *client.Client, args []string) error {
			if reason == "" {
				return wrongUse("--reason is required")
			}
			p, err := cl.RejectPromotion(ctx, args[0], reason)
			return c.show(p, err, fmt.Sprintf("promotion %s is %s, rejected by %s", p.ID, p.Status, p.RejectedBy))
		}),
	}
	cmd.Flags().StringVar(&reason, "reason", "", "what must change, in 1 to 1000 characters")
	return cmd
}

func (c *cli) promotionUploadsCommand() *cobra.Command {
	return listCommand(c, &cobra.Command{
		Use:     "uploads ID",
		Short:   "List the uploads of a promotion, newest first",
		Example: inBothForms("promotion uploads 12345"),
	}, listing[client.Upload]{
		header: []string{"ID", "BY", "AT", "STATE", "BYTES", "ACCEPTED", "DUPLICATES", "CONFLICTS", "REJECTED", "AMOUNT"},
		row: func(u client.Upload) []string {
			return []string{
				u.ID, u.CreatedBy, moment(&u.CreatedAt), u.State, number(u.Bytes), number(u.Accepted), number(u.Duplicates),
				number(u.Conflicts), number(u.Rejected), money(u.Amount, u.Currency),
			}
		},
		empty: "no file was uploaded to this promotion",
		cuts:  []string{"BY"},
	}, func(ctx context.Context, cl *client.Client, args []string) iter.Seq2[client.Upload, error] {
		return cl.Uploads(ctx, args[0])
	})
}
