package main

import (
	"context"
	"fmt"
	"iter"

	"github.com/spf13/cobra"

	"github.com/largesse/largesse/client"
)

func (c *cli) reconcileCommand() *cobra.Command {
	var (
		promotion, template  string
		all, repair, earlier bool
	)
	cmd := c.talks(&cobra.Command{
		Use:   "reconcile --promotion ID | --template ID | --all | --list",
		Short: "Compare the books with the database rows",
		Long: `Compare the books with the database rows. For promotions: the stored counts, the
streams and the provider's charges. Differences that may be temporary are checked
again after 10 s. For coupon templates: the counters and the gate in Redis.

--repair corrects stored counts, removes settled entries from streams and corrects
gates. It never moves money. The exit code is 1 if a difference remains.`,
		Example: `  largesse reconcile --all
  largesse reconcile --promotion 12345 --repair --yes
  largesse reconcile --template 42 --repair --yes
  largesse reconcile --list --limit 5`,
	})
	cmd.Flags().StringVar(&promotion, "promotion", "", "promotion to compare")
	cmd.Flags().StringVar(&template, "template", "", "coupon template to compare")
	cmd.Flags().BoolVar(&all, "all", false, "compare all active promotions and coupon templates")
	cmd.Flags().BoolVar(&repair, "repair", false, "repair the differences that can be repaired")
	cmd.Flags().BoolVar(&earlier, "list", false, "list earlier reconciliations, newest first")
	c.yesFlag(c.limitFlag(cmd))
	cmd.RunE = c.calling(func(ctx context.Context, cl *client.Client, _ []string) error {
		if countTrue(promotion != "", template != "", all, earlier) != 1 || earlier && repair || !earlier && cmd.Flags().Changed("limit") {
			return wrongUse("reconcile needs either --promotion ID, --template ID, --all or --list; see %s --help", cmd.CommandPath())
		}
		if earlier {
			return c.listReconciliations(cl.Reconciliations(ctx))
		}
		run, id, thing := (*client.Client).Reconcile, "", "book"
		switch {
		case promotion != "":
			if err := checkPromotionID(promotion); err != nil {
				return err
			}
			id, thing = promotion, "promotion"
		case template != "":
			if err := checkTemplateID(template); err != nil {
				return err
			}
			run, id, thing = (*client.Client).ReconcileTemplate, template, "template"
		}
		if repair {
			what := thing + " " + id
			if all {
				what = "all active promotions and templates"
			}
			if err := c.confirm("repair the books of " + what); err != nil {
				return err
			}
		}
		r, err := run(cl, ctx, id, repair)
		if err := showBy(c, r, err, func(r client.Reconciliation) error { return c.printReconciliation(r, thing) }); err != nil {
			return err
		}
		if left := r.Left(); left > 0 {
			return fmt.Errorf("%s left; see the report of reconciliation %s", countOf(int64(left), "difference"), r.ID)
		}
		return nil
	})
	return cmd
}

func (c *cli) listReconciliations(all iter.Seq2[client.ReconciliationSummary, error]) error {
	return printList(c, all, listing[client.ReconciliationSummary]{
		header: []string{"ID", "AT", "COMPARED", "DIFFERENCES", "REPAIRED"},
		row: func(r client.ReconciliationSummary) []string {
			return []string{r.ID, moment(&r.At), known(r.Checked), known(r.Drifts), known(r.Repaired)}
		},
		limit: c.limit,
		empty: "there are no reconciliations",
	})
}

// printReconciliation prints a report. thing names what was compared.
func (c *cli) printReconciliation(r client.Reconciliation, thing string) error {
	for _, s := range r.Skipped {
		fmt.Fprintln(c.stderr, "not compared: "+printable(s))
	}
	if err := printList(c, each(r.Drifts, nil), listing[client.Drift]{
		header: []string{"OF", "WHAT", "REPAIRED", "DETAIL"},
		row: func(d client.Drift) []string {
			of := "promotion " + d.PromotionID
			if d.TemplateID != "" {
				of = "template " + d.TemplateID
			}
			return []string{of, d.What, yesNo(d.Repaired), d.Detail}
		},
		wrap: true,
	}); err != nil {
		return err
	}
	return c.printLines(fmt.Sprintf("%s compared, %s", countOf(r.Checked, thing), countOf(int64(len(r.Drifts)), "difference")))
}
