package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/largesse/largesse/internal/doctor"
	"github.com/largesse/largesse/internal/engine"
)

func (c *cli) doctorCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check the settings and every engine they name",
		Long: `Check the settings and every engine they name, as an instance would use them:
reachability, version, schema, eviction, persistence, topics, clocks and so on. Each
check prints one line: ok, warn (it works, but read the advice) or fail, with a
remedy.

doctor takes the settings of serve. It needs no running instance, can run next to
one, changes nothing, and ends within seconds.

--after-restore first records that the database was restored from a backup: for one
day, the provider is asked about every payout before it is charged. Run it before
the instances start again.

Exit codes: 0 no check failed, 1 a check failed, 2 wrong use.`,
		Example: `  largesse doctor --config largesse.yaml
  largesse doctor --database-url postgres://largesse@db.internal/largesse --output json
  largesse doctor --config largesse.yaml --after-restore`,
	}
	settings := withSettings(cmd)
	restored := cmd.Flags().Bool("after-restore", false, "first record that the database was restored from a backup")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if *restored {
			cfg, err := settings.load(c.world)
			if err != nil {
				return err
			}
			at, err := engine.MarkRestored(cmd.Context(), cfg)
			if err != nil {
				return fmt.Errorf("%w; nothing was recorded: check that the settings name the restored database, and run this again before an instance starts", err)
			}
			if _, err := fmt.Fprintf(c.stderr, "recorded: database restored at %s; until %s, every payout is looked up before it is charged\n",
				at.UTC().Format(time.RFC3339), at.UTC().Add(24*time.Hour).Format(time.RFC3339)); err != nil {
				return err
			}
		}
		checks, err := doctor.Run(cmd.Context(), doctor.Params{Settings: settings.params(c.world), Version: buildVersion().Version})
		switch {
		case errors.Is(err, context.Canceled):
			return err
		case err != nil:
			return &usageError{err.Error()} // the settings file cannot be read
		}
		return c.printChecks(checks)
	}
	return cmd
}

func (c *cli) printChecks(checks []doctor.Check) error {
	err := printList(c, each(checks, nil), listing[doctor.Check]{
		header: []string{"STATUS", "CHECK", "FOUND"},
		row: func(check doctor.Check) []string {
			said := check.Found
			if check.Advice != "" {
				said += "; " + check.Advice
			}
			return []string{string(check.Status), check.Name, said}
		},
		wrap: true,
	})
	if err != nil {
		return err
	}
	failed := int64(0)
	for _, check := range checks {
		if check.Status == doctor.CheckFail {
			failed++
		}
	}
	if failed > 0 {
		return fmt.Errorf("%s of %s failed: follow the advice on each line", number(failed), countOf(int64(len(checks)), "check"))
	}
	return nil
}
