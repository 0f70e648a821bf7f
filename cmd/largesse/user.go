package main

import (
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/largesse/largesse/client"
)

func (c *cli) userCommand() *cobra.Command {
	cmd := c.talks(group(&cobra.Command{
		Use:     "user",
		Aliases: []string{"users"},
		Short:   "Find out why a user did or did not get a coupon",
		Example: "  largesse user history u7 --template 42",
	}))
	cmd.AddCommand(c.userHistoryCommand())
	return cmd
}

func (c *cli) userHistoryCommand() *cobra.Command {
	var templates []string
	count := args("a USER")
	cmd := &cobra.Command{
		Use:   "history USER",
		Short: "Show how each request of a user ended, and when templates refused everybody",
		Long: `Show how each request of a user that was accepted ended, the latest first, and
when the templates that he asked at refused everybody. Who is refused at once
leaves nothing of his own: name the templates that he says he has asked at.`,
		Example: `  largesse user history u7
  largesse user history u7 --template 42 --template 43 --output json`,
		Args: func(cmd *cobra.Command, given []string) error {
			if err := count(cmd, given); err != nil {
				return err
			}
			return checkUser("user history", given[0])
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			for _, id := range templates {
				if err := checkTemplateID(id); err != nil {
					return err
				}
			}
			cl, err := c.connect()
			if err != nil {
				return err
			}
			h, err := cl.UserHistory(cmd.Context(), args[0], templates...)
			if err != nil {
				return err
			}
			return c.printHistory(h)
		},
	}
	cmd.Flags().StringSliceVar(&templates, "template", nil, "a template that he says he has asked at; may be repeated")
	return cmd
}

func (c *cli) printHistory(h client.History) error {
	if c.output == outputJSON {
		return c.printJSON(h)
	}
	if len(h.Items) == 0 {
		fmt.Fprintf(c.stderr, "no request of user %s was accepted and has ended; name templates by --template to see when they refused everybody\n", printable(h.UserID))
	}
	w := tabwriter.NewWriter(c.stdout, 0, 8, 2, ' ', 0)
	if len(h.Items) > 0 {
		fmt.Fprintln(w, "AT\tTEMPLATE\tTICKET\tSTATUS\tREASON\tCOUPON\tCOUPON STATUS")
	}
	for _, i := range h.Items {
		id, status := "", ""
		if i.Coupon != nil {
			id, status = i.Coupon.ID, i.Coupon.Status
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", moment(&i.At), printable(i.TemplateID), number(i.Ticket), printable(i.Status), printable(i.Reason), printable(id), printable(status))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, r := range h.Refusals {
		until := "to this day"
		if r.Until != nil {
			until = "until " + moment(r.Until)
		}
		if _, err := fmt.Fprintf(c.stdout, "template %s was %s for everybody from %s %s\n", printable(r.TemplateID), printable(r.Reason), moment(&r.Since), until); err != nil {
			return err
		}
	}
	return nil
}
