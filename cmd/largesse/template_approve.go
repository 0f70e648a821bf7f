package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/largesse/largesse/client"
)

// templateApproveCommand approves what the caller is shown, and nothing else.
func (c *cli) templateApproveCommand() *cobra.Command {
	return c.yesFlag(&cobra.Command{
		Use:     "approve ID",
		Short:   "Approve the quantity of a coupon template that waits, as another person",
		Example: inBothForms("template approve 42 --yes"),
		RunE: c.calling(func(ctx context.Context, cl *client.Client, args []string) error {
			seen, err := cl.Template(ctx, args[0])
			if err != nil {
				return err
			}
			if seen.AwaitingQuantity > 0 {
				codes := "generated codes"
				if seen.ImportedCodes != nil {
					codes = countOf(seen.ImportedCodes.Imported, "imported code")
				}
				if err := c.confirm(fmt.Sprintf("approve %s instead of %s of template %s (%s), with %s", countOf(seen.AwaitingQuantity, "coupon"),
					number(seen.TotalQuantity), printable(seen.Name), seen.ID, codes)); err != nil {
					return err
				}
			}
			t, err := cl.ApproveTemplate(ctx, seen)
			return showBy(c, t, err, line(c, decided("approved")))
		}),
	})
}

func decided(how string) func(client.Template) string {
	return func(t client.Template) string {
		return fmt.Sprintf("%s: template %s has %s", how, t.ID, countOf(t.TotalQuantity, "coupon"))
	}
}

// awaiting is a line that says that a quantity of a template waits for another person. It
// is empty if none does.
func awaiting(id string, inForce, waits int64) string {
	if waits == 0 {
		return ""
	}
	return fmt.Sprintf("its quantity is %s until another person approves %s: largesse template approve %s", number(inForce), number(waits), id)
}
