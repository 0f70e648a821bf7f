package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/largesse/largesse/client"
)

// promotionApproveCommand approves what the caller is shown, and nothing else.
func (c *cli) promotionApproveCommand() *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use:   "approve ID",
		Short: "Approve all targets that a promotion has now, as another person",
		Example: `  largesse promotion approve 12345 --yes
  largesse promotion approve 12345 --yes --output json`,
		Args: promotionArgs(),
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := c.connect()
			if err != nil {
				return err
			}
			seen, err := cl.Promotion(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if err := c.ask(yes, func() (string, error) {
				return fmt.Sprintf("approve %s worth %s of %s", countOf(seen.TotalCount, "target"), money(seen.AmountTotal, seen.Currency), nameOf(seen)), nil
			}); err != nil {
				return err
			}
			p, err := cl.ApproveSeen(cmd.Context(), seen)
			if err != nil {
				return err
			}
			if c.output == outputJSON {
				return c.printJSON(p)
			}
			_, err = fmt.Fprintln(c.stdout, printable(fmt.Sprintf("promotion %s is %s, approved by %s: %s worth %s",
				p.ID, p.Status, p.ApprovedBy, countOf(p.ApprovedCount, "target"), money(p.ApprovedAmount, p.Currency))))
			return err
		},
	}
	yesFlag(cmd, &yes)
	return cmd
}

func (c *cli) promotionRejectCommand() *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use:     "reject ID --reason WHY",
		Short:   "Refuse or withdraw an approval; a RUNNING promotion becomes PAUSED",
		Example: `  largesse promotion reject 12345 --reason "the budget of this month is used up"`,
		Args:    promotionArgs(),
		RunE: func(cmd *cobra.Command, args []string) error {
			if reason == "" {
				return wrongUse("--reason is required")
			}
			cl, err := c.connect()
			if err != nil {
				return err
			}
			p, err := cl.RejectPromotion(cmd.Context(), args[0], reason)
			if err != nil {
				return err
			}
			if c.output == outputJSON {
				return c.printJSON(p)
			}
			_, err = fmt.Fprintln(c.stdout, printable(fmt.Sprintf("promotion %s is %s, rejected by %s", p.ID, p.Status, p.RejectedBy)))
			return err
		},
	}
	cmd.Flags().StringVar(&reason, "reason", "", "what must change, in 1 to 1000 characters")
	return cmd
}

func (c *cli) promotionUploadsCommand() *cobra.Command {
	var limit int
	cmd := &cobra.Command{
		Use:     "uploads ID",
		Short:   "List the uploads of a promotion, newest first",
		Example: "  largesse promotion uploads 12345\n  largesse promotion uploads 12345 --output json",
		Args:    promotionArgs(),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkLimit(limit); err != nil {
				return err
			}
			cl, err := c.connect()
			if err != nil {
				return err
			}
			return printList(c, cl.Uploads(cmd.Context(), args[0]), listing[client.Upload]{
				header: []string{"ID", "BY", "AT", "STATE", "BYTES", "ACCEPTED", "DUPLICATES", "CONFLICTS", "REJECTED", "AMOUNT"},
				row: func(u client.Upload) []string {
					return []string{
						u.ID, u.CreatedBy, moment(&u.CreatedAt), u.State, number(u.Bytes), number(u.Accepted), number(u.Duplicates),
						number(u.Conflicts), number(u.Rejected), money(u.Amount, u.Currency),
					}
				},
				limit: limit,
				empty: "no file was uploaded to this promotion",
				cuts:  []string{"BY"},
			})
		},
	}
	limitFlag(cmd, &limit)
	return cmd
}
