package main

import (
	"fmt"

	"github.com/spf13/cobra"
)

func (c *cli) configCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Print the settings that an instance would use, and where each came from",
		Long: `Print the settings that an instance would use, as a YAML file. A comment after each
setting says where its value came from. Secrets are masked. The last line says which
promotions the provider can pay, if not all.`,
		Example: `  largesse config
  largesse config --config largesse.yaml
  LARGESSE_REDIS_STREAM_MAX_LEN=5000 largesse config --output json`,
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
		if limits := cfg.Money.Payable().Limits(); limits != "" {
			text += "# The provider pays " + limits + ".\n"
		}
		_, err = fmt.Fprint(c.stdout, text)
		return err
	}
	return cmd
}
