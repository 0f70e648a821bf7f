package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/doctor"
)

func (c *cli) providerCommand() *cobra.Command {
	return group(&cobra.Command{
		Use:     "provider",
		Short:   "Check a provider, or call it again",
		Example: "  largesse provider check http://127.0.0.1:8090 --yes",
	}, c.providerCheckCommand(), c.providerUnblockCommand())
}

func (c *cli) providerUnblockCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "unblock",
		Short: "Let calls start again that wait for a Retry-After",
		Long: `Let calls start again that wait for a Retry-After, on all instances. If the provider
still answers payees in a row with Retry-After, calls wait again. A payout that was
answered so itself keeps its own time.`,
		Example: "  largesse provider unblock",
		RunE: c.calling(func(ctx context.Context, cl *client.Client, _ []string) error {
			err := cl.UnblockProvider(ctx)
			return c.show(map[string]bool{"unblocked": true}, err, "calls to the provider may start")
		}),
	}
}

func (c *cli) providerCheckCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "check [URL]",
		Short: "Check that a provider does what Largesse relies on",
		Long: `Check that a provider does what Largesse relies on: repeated and concurrent
charges of one key, lookups, lost responses, refusals, vouchers, malformed charges,
credentials, its list of charges, and its speed. Each check prints one line: ok,
warn (it works, but read the advice) or fail, with a remedy.

provider check makes real charges: some 20 of 1 minor unit each to --user, on a
promotion ID of its own, so that no payout is touched. It asks first, unless --yes
is set. With --refuse-user it also charges a user that the provider refuses. It takes
the settings of serve; URL overrides money.url.

Exit codes: 0 no check failed, 1 a check failed, 2 wrong use.`,
		Example: `  largesse provider check http://127.0.0.1:8090 --yes
  largesse provider check --config largesse.yaml --user test-1 --yes`,
		Args: atMostOne("one URL"),
	}
	settings := withSettings(cmd)
	var p doctor.ProviderCheckParams
	flags := cmd.Flags()
	flags.StringVar(&p.User, "user", "largesse-check", "ID of the user to pay")
	flags.StringVar(&p.RefuseUser, "refuse-user", "", "ID of a user that the provider refuses; without one, refusals are not checked")
	flags.StringVar(&p.VoucherCode, "voucher", "LARGESSE-CHECK", "code of the voucher to give")
	flags.DurationVar(&p.Wait, "wait", 3*time.Second, "time after which the first charge is looked up once more")
	flags.BoolVar(&c.yes, "yes", false, "make the charges without asking")
	cmd.RunE = func(cmd *cobra.Command, given []string) error {
		if len(given) == 1 {
			if err := cmd.Flags().Set("money-url", given[0]); err != nil {
				return err
			}
		}
		cfg, err := settings.load(c.world)
		if err != nil {
			return err
		}
		switch {
		case cfg.Money.URL == "":
			return wrongUse("provider check needs the URL of a provider, as an argument or as money.url")
		case p.User == "", p.VoucherCode == "":
			return wrongUse("--user and --voucher must not be empty")
		case p.Wait < 0 || p.Wait > time.Hour:
			return wrongUse("--wait must be from 0s to 1h")
		}
		if err := c.confirm(fmt.Sprintf("make about %d charges of 1 minor unit each to user %q at %s", doctor.ProviderCheckCharges, p.User, cfg.Money.URL)); err != nil {
			return err
		}
		checks, err := doctor.CheckProvider(cmd.Context(), cfg, p)
		if err != nil {
			return err
		}
		return c.printChecks(checks)
	}
	return cmd
}
