package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/largesse/largesse/client"
)

func (c *cli) reconcileCommand() *cobra.Command {
	var (
		promotion, template  string
		all, repair, earlier bool
		limit                int
		yes                  bool
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
		Args: args(),
	})
	cmd.Flags().StringVar(&promotion, "promotion", "", "promotion to compare")
	cmd.Flags().StringVar(&template, "template", "", "coupon template to compare")
	cmd.Flags().BoolVar(&all, "all", false, "compare all active promotions and coupon templates")
	cmd.Flags().BoolVar(&repair, "repair", false, "repair the differences that can be repaired")
	cmd.Flags().BoolVar(&earlier, "list", false, "list earlier reconciliations, newest first")
	limitFlag(cmd, &limit)
	yesFlag(cmd, &yes)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		given := 0
		for _, one := range []bool{promotion != "", template != "", all, earlier} {
			if one {
				given++
			}
		}
		if given != 1 || earlier && repair || !earlier && cmd.Flags().Changed("limit") {
			return wrongUse("reconcile needs either --promotion ID, --template ID, --all or --list; see %s --help", cmd.CommandPath())
		}
		if earlier {
			return c.listReconciliations(cmd, limit)
		}
		run, thing := (*client.Client).Reconcile, "book"
		id := ""
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
		cl, err := c.connect()
		if err != nil {
			return err
		}
		if repair {
			what := thing + " " + id
			if all {
				what = "all active promotions and templates"
			}
			if err := c.confirm(yes, "repair the books of "+what); err != nil {
				return err
			}
		}
		r, err := run(cl, cmd.Context(), id, repair)
		if err != nil {
			return err
		}
		if err := c.printReconciliation(r, thing); err != nil {
			return err
		}
		if left := r.Left(); left > 0 {
			return fmt.Errorf("%s left; see the report of reconciliation %s", countOf(int64(left), "difference"), r.ID)
		}
		return nil
	}
	return cmd
}

// printReconciliation prints a report. thing names what was compared.
func (c *cli) printReconciliation(r client.Reconciliation, thing string) error {
	if c.output == outputJSON {
		return c.printJSON(r)
	}
	for _, s := range r.Skipped {
		fmt.Fprintln(c.stderr, "not compared: "+printable(s))
	}
	if len(r.Drifts) > 0 {
		t := c.table("OF", "WHAT", "REPAIRED", "DETAIL")
		t.wrap = true
		for _, d := range r.Drifts {
			of := "promotion " + d.PromotionID
			if d.TemplateID != "" {
				of = "template " + d.TemplateID
			}
			if err := t.add(of, d.What, yesNo(d.Repaired), d.Detail); err != nil {
				return err
			}
		}
		if err := t.flush(); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(c.stdout, "%s compared, %s\n", countOf(r.Checked, thing), countOf(int64(len(r.Drifts)), "difference"))
	return err
}
