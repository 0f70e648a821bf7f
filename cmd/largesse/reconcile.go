package main

import (
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/largesse/largesse/client"
)

func (c *cli) reconcileCommand() *cobra.Command {
	var (
		promotion   string
		all, repair bool
	)
	cmd := c.talks(&cobra.Command{
		Use:   "reconcile --promotion ID | --all",
		Short: "Compare the books with the rows, the streams and the provider's charges",
		Long: `Compare, for a promotion or all active ones: the counts that are kept with the
rows, the streams with the rows, and what the provider has charged with the rows.
What differs is looked at again 10 s later before it counts. --repair sets kept
counts right and clears settled entries out of streams; money is for people. The
exit code is 1 when a difference is left.`,
		Example: `  largesse reconcile --all
  largesse reconcile --promotion 12345 --repair`,
		Args: args(),
	})
	cmd.Flags().StringVar(&promotion, "promotion", "", "this one")
	cmd.Flags().BoolVar(&all, "all", false, "all active ones")
	cmd.Flags().BoolVar(&repair, "repair", false, "repair what can be repaired")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if (promotion != "") == all {
			return wrongUse("reconcile needs either --promotion ID or --all; see %s --help", cmd.CommandPath())
		}
		if promotion != "" {
			if err := checkPromotionID(promotion); err != nil {
				return err
			}
		}
		cl, err := c.connect()
		if err != nil {
			return err
		}
		r, err := cl.Reconcile(cmd.Context(), promotion, repair)
		if err != nil {
			return err
		}
		if err := c.printReconciliation(r); err != nil {
			return err
		}
		if left := r.Left(); left > 0 {
			return fmt.Errorf("%s left; reconciliation %s keeps the report", countOf(int64(left), "difference"), r.ID)
		}
		return nil
	}
	return cmd
}

func (c *cli) printReconciliation(r client.Reconciliation) error {
	if c.output == outputJSON {
		return c.printJSON(r)
	}
	for _, s := range r.Skipped {
		fmt.Fprintln(c.stderr, "not compared: "+printable(s))
	}
	if len(r.Drifts) > 0 {
		w := tabwriter.NewWriter(c.stdout, 0, 8, 2, ' ', 0)
		fmt.Fprintln(w, "PROMOTION\tWHAT\tREPAIRED\tDETAIL")
		for _, d := range r.Drifts {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", printable(d.PromotionID), printable(d.What), yesNo(d.Repaired), printable(d.Detail))
		}
		if err := w.Flush(); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(c.stdout, "%s compared, %s\n", countOf(r.Checked, "promotion"), countOf(int64(len(r.Drifts)), "difference"))
	return err
}
