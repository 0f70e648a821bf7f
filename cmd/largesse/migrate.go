package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/largesse/largesse/internal/engine"
)

func (c *cli) migrateCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "Bring the database's schema up to date",
		Long: `Bring the schema of the configured database up to date. Running it again does
nothing, and several instances may run it at once. An instance that serves does
the same at its start.`,
		Example: `  largesse migrate --database-url postgres://largesse@db.internal/largesse
  largesse migrate --config largesse.yaml`,
		Args: args(),
	}
	settings := withSettings(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, err := settings.load(c.world)
		if err != nil {
			return err
		}
		if err := engine.Migrate(cmd.Context(), cfg); err != nil {
			return err
		}
		if c.output == outputJSON {
			return c.printJSON(map[string]bool{"migrated": true})
		}
		_, err = fmt.Fprintln(c.stdout, "the database is up to date")
		return err
	}
	return cmd
}
