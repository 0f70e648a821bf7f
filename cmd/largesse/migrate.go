package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/largesse/largesse/internal/engine"
)

func (c *cli) migrateCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "Migrate the schema of the configured database",
		Long: `Migrate the schema of the configured database to the version of this binary. If it
has that version, nothing happens. Several instances may do this at the same time:
each does it when it starts.

With --to, take the schema back to an earlier version, so that an earlier version of
Largesse can use it. Stop all instances before. What later versions have added, such
as webhook endpoints, is removed with its rows. Payouts, coupons and their books stay.`,
		Example: `  largesse migrate --database-url postgres://largesse@db.internal/largesse
  largesse migrate --config largesse.yaml
  largesse migrate --config largesse.yaml --to 14`,
	}
	settings := withSettings(cmd)
	to := cmd.Flags().Int64("to", 0, "earlier schema version to go back to, as largesse doctor of that program shows it")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, err := settings.load(c.world)
		if err != nil {
			return err
		}
		if cmd.Flags().Changed("to") {
			err := engine.MigrateBack(cmd.Context(), cfg, *to)
			return c.show(map[string]int64{"version": *to}, err, fmt.Sprintf("the schema of the database has version %d", *to))
		}
		err = engine.Migrate(cmd.Context(), cfg, c.waitForOlder)
		return c.show(map[string]bool{"migrated": true}, err, "the schema of the database is up to date")
	}
	return cmd
}

// waitForOlder tells the user which instances the migration waits for.
func (c *cli) waitForOlder(instances []string) error {
	_, err := fmt.Fprintf(c.stderr, "waiting for instances of an older version to stop: %s; both versions must not issue coupons at the same time\n",
		strings.Join(instances, ", "))
	return err
}
