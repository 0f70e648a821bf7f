package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/reward"
)

func (c *cli) promotionRetryCommand() *cobra.Command {
	var code string
	cmd := &cobra.Command{
		Use:   "retry ID",
		Short: "Retry failed payouts, each under its own idempotency key",
		Example: `  largesse promotion retry 12345
  largesse promotion retry 12345 --code NO_ACCOUNT`,
		Args: promotionArgs(),
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := c.connect()
			if err != nil {
				return err
			}
			n, err := cl.RetryPayouts(cmd.Context(), args[0], code)
			if err != nil && passing(err) {
				return fmt.Errorf("%w; repeat the command to continue", err)
			}
			if err != nil {
				return err
			}
			if c.output == outputJSON {
				return c.printJSON(map[string]int64{"requeued": n})
			}
			_, err = fmt.Fprintf(c.stdout, "%s requeued\n", countOf(n, "payout"))
			return err
		},
	}
	cmd.Flags().StringVar(&code, "code", "", "only failed payouts with this error code")
	return cmd
}

// outcomes lists what a payout can be resolved to, in the form that users type.
var outcomes = []string{"succeeded", "failed"}

func (c *cli) promotionResolveCommand() *cobra.Command {
	var (
		r   client.Resolution
		yes bool
	)
	cmd := &cobra.Command{
		Use:   "resolve ID TARGET --outcome succeeded|failed --note WHY",
		Short: "Settle an UNKNOWN payout by what you learned from the provider",
		Example: `  largesse promotion resolve 12345 7 --outcome succeeded --transaction-key T-99 --note "on the statement of 21 Nov, line 7" --yes
  largesse promotion resolve 12345 8 --outcome failed --note "the provider's support: never received, ticket 4711" --yes`,
	}
	count := promotionArgs("a TARGET")
	cmd.Args = func(cmd *cobra.Command, given []string) error {
		if err := count(cmd, given); err != nil {
			return err
		}
		if _, err := reward.ParseTargetID(given[1]); err != nil {
			return wrongUse("%q is not a target ID: it must be a whole number from 0", given[1])
		}
		return nil
	}
	flags := cmd.Flags()
	flags.StringVar(&r.Outcome, "outcome", "", "what happened to the payout: "+strings.Join(outcomes, " or ")+" (required)")
	flags.StringVar(&r.TransactionKey, "transaction-key", "", "transaction key of the provider; only and always with --outcome succeeded")
	flags.StringVar(&r.Note, "note", "", "how you know the outcome; stored with the payout's attempts (required)")
	yesFlag(cmd, &yes)
	complete(cmd, "outcome", outcomes...)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		outcome := strings.ToLower(r.Outcome)
		switch {
		case !slices.Contains(outcomes, outcome):
			return wrongUse("--outcome must be succeeded or failed; see %s --help", cmd.CommandPath())
		case strings.TrimSpace(r.Note) == "":
			return wrongUse("--note is missing: write how you know the outcome; it is stored with the payout")
		case outcome == "succeeded" && r.TransactionKey == "":
			return wrongUse("--transaction-key is missing: a succeeded payout needs the key of the provider")
		case outcome == "failed" && r.TransactionKey != "":
			return wrongUse("--transaction-key needs --outcome succeeded")
		}
		r.Outcome = strings.ToUpper(outcome)
		cl, err := c.connect()
		if err != nil {
			return err
		}
		if err := c.confirm(yes, fmt.Sprintf("settle payout %s of promotion %s as %s", args[1], args[0], r.Outcome)); err != nil {
			return err
		}
		p, err := cl.ResolvePayout(cmd.Context(), args[0], args[1], r)
		if err != nil {
			return err
		}
		return c.printPayout(p)
	}
	return cmd
}

func (c *cli) promotionExportCommand() *cobra.Command {
	var f client.PayoutFilter
	cmd := &cobra.Command{
		Use:   "export ID",
		Short: "Write the payouts of a promotion to stdout as CSV or JSON",
		Example: `  largesse promotion export 12345 > payouts.csv
  largesse promotion export 12345 --state failed --code NO_ACCOUNT > failed.csv
  largesse promotion export 12345 --output json > payouts.json`,
		Args: promotionArgs(),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkState(f.State); err != nil {
				return err
			}
			f.State = strings.ToUpper(f.State)
			cl, err := c.connect()
			if err != nil {
				return err
			}
			if c.output == outputJSON {
				return printList(c, cl.Payouts(cmd.Context(), args[0], f), listing[client.Payout]{})
			}
			return cl.ExportPayouts(cmd.Context(), args[0], f, c.stdout)
		},
	}
	payoutFilterFlags(cmd, &f.State, &f.Code)
	return cmd
}

// payoutFilterFlags adds the flags that filter payouts.
func payoutFilterFlags(cmd *cobra.Command, state, code *string) {
	cmd.Flags().StringVar(state, "state", "", "only payouts in this state: "+strings.Join(payoutStates, ", "))
	cmd.Flags().StringVar(code, "code", "", "only payouts with this error code")
	complete(cmd, "state", payoutStates...)
}

// checkState checks the value of --state.
func checkState(state string) error {
	if state != "" && !slices.Contains(payoutStates, strings.ToLower(state)) {
		return wrongUse("--state %q must be one of %s", state, strings.Join(payoutStates, ", "))
	}
	return nil
}
