package main

import (
	"fmt"

	"github.com/spf13/cobra"
)

func (c *cli) configCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Show the settings an instance would run with, and where each came from",
		Long: `Show the settings an instance would run with, as a YAML file. A comment behind
each says where it came from. Passwords are masked.`,
		Example: `  largesse config
  largesse config --config largesse.yaml
  LARGESSE_REDIS_STREAM_MAX_LEN=5000 largesse config --output json`,
		Args: args(),
	}
	settings := withSettings(cmd)
	cmd.RunE = func(*cobra.Command, []string) error {
		cfg, err := settings.load(c.world)
		if err != nil {
			return err
		}
		if c.output == outputJSON {
			return c.printJSON(cfg.Values())
		}
		text, err := cfg.Masked()
		if err != nil {
			return err
		}
		_, err = fmt.Fprint(c.stdout, text)
		return err
	}
	return cmd
}
