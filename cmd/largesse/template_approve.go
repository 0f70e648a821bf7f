package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/largesse/largesse/client"
)

// templateApproveCommand approves what the caller is shown, and nothing else.
func (c *cli) templateApproveCommand() *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use:   "approve ID",
		Short: "Approve the quantity of a coupon template that waits, as another person",
		Example: `  largesse template approve 42 --yes
  largesse template approve 42 --yes --output json`,
		Args: templateArgs(),
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := c.connect()
			if err != nil {
				return err
			}
			seen, err := cl.Template(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if err := c.ask(yes || seen.AwaitingQuantity == 0, func() (string, error) {
				codes := "generated codes"
				if seen.ImportedCodes != nil {
					codes = countOf(seen.ImportedCodes.Imported, "imported code")
				}
				return fmt.Sprintf("approve %s instead of %s of template %s (%s), with %s", countOf(seen.AwaitingQuantity, "coupon"), number(seen.TotalQuantity),
					printable(seen.Name), seen.ID, codes), nil
			}); err != nil {
				return err
			}
			t, err := cl.ApproveTemplate(cmd.Context(), seen)
			return c.decided(t, "approved", err)
		},
	}
	yesFlag(cmd, &yes)
	return cmd
}

func (c *cli) templateRejectCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "reject ID",
		Short:   "Drop the quantity of a coupon template that waits for an approval",
		Example: "  largesse template reject 42\n  largesse template reject 42 --output json",
		Args:    templateArgs(),
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := c.connect()
			if err != nil {
				return err
			}
			t, err := cl.RejectTemplate(cmd.Context(), args[0])
			return c.decided(t, "rejected", err)
		},
	}
}

// decided prints a template after a decision.
func (c *cli) decided(t client.Template, how string, err error) error {
	switch {
	case err != nil:
		return err
	case c.output == outputJSON:
		return c.printJSON(t)
	}
	_, err = fmt.Fprintf(c.stdout, "%s: template %s has %s\n", how, printable(t.ID), countOf(t.TotalQuantity, "coupon"))
	return err
}

// awaiting is a line that says that a quantity of a template waits for another person. It
// is empty if none does.
func awaiting(id string, inForce, waits int64) string {
	if waits == 0 {
		return ""
	}
	return fmt.Sprintf("its quantity is %s until another person approves %s: largesse template approve %s\n", number(inForce), number(waits), printable(id))
}
