package main

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/largesse/largesse/client"
)

func (c *cli) promotionPayoutsCommand() *cobra.Command {
	var (
		f      client.PayoutFilter
		target string
	)
	cmd := listCommand(c, &cobra.Command{
		Use:   "payouts ID",
		Short: "List the payouts of a promotion, or show one with its attempts",
		Example: `  largesse promotion payouts 12345
  largesse promotion payouts 12345 --state failed --limit 0 --output json
  largesse promotion payouts 12345 --target 7`,
	}, listing[client.Payout]{
		header: []string{"TARGET", "USER", "AMOUNT", "STATE", "ATTEMPTS", "TRANSACTION", "ERROR", "UPDATED"},
		row: func(p client.Payout) []string {
			return []string{
				p.TargetID, p.UserID, money(p.Amount, p.Currency), p.State, number(p.AttemptCount), p.TransactionKey,
				strings.TrimSpace(p.ErrorCode + " " + p.ErrorMessage), moment(&p.UpdatedAt),
			}
		},
		empty: "there are no such payouts",
		cuts:  []string{"USER", "TRANSACTION", "ERROR"},
	}, func(ctx context.Context, cl *client.Client, args []string) iter.Seq2[client.Payout, error] {
		return cl.Payouts(ctx, args[0], f)
	})
	list := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if target == "" {
			return list(cmd, args)
		}
		return c.calling(func(ctx context.Context, cl *client.Client, args []string) error {
			return c.showPayout(cl.Payout(ctx, args[0], target))
		})(cmd, args)
	}
	payoutFilterFlags(cmd, &f)
	addFlag(cmd.Flags(), &target, "target", "ID of one target to show with its attempts",
		matching(func(text string) bool { return checkTargetID(text) == nil }, "a whole number from 0"))
	return cmd
}

func (c *cli) showPayout(p client.PayoutDetail, err error) error {
	lines := []string{fmt.Sprintf("target %s, user %s: %s, amount %s, %s, updated %s",
		p.TargetID, p.UserID, p.State, money(p.Amount, p.Currency), countOf(p.AttemptCount, "attempt"), moment(&p.UpdatedAt))}
	if p.VoucherCode != "" {
		lines = append(lines, "voucher code "+p.VoucherCode)
	}
	if p.TransactionKey != "" {
		lines = append(lines, "transaction "+p.TransactionKey)
	}
	if p.ErrorCode != "" {
		lines = append(lines, strings.TrimSpace("error "+p.ErrorCode+" "+p.ErrorMessage))
	}
	for _, a := range p.Log {
		lines = append(lines, strings.TrimRight(fmt.Sprintf("  %s %s %s %s", moment(&a.At), a.Class, a.Code, a.Message), " "))
	}
	return c.show(p, err, lines...)
}

func (c *cli) promotionRetryCommand() *cobra.Command {
	var code string
	cmd := &cobra.Command{
		Use:   "retry ID",
		Short: "Retry failed payouts, each under its own idempotency key",
		Example: `  largesse promotion retry 12345
  largesse promotion retry 12345 --code NO_ACCOUNT`,
		RunE: c.calling(func(ctx context.Context, cl *client.Client, args []string) error {
			n, err := cl.RetryPayouts(ctx, args[0], code)
			if err != nil && passing(err) {
				err = fmt.Errorf("%w; repeat the command to continue", err)
			}
			return c.show(map[string]int64{"requeued": n}, err, countOf(n, "payout")+" requeued")
		}),
	}
	cmd.Flags().StringVar(&code, "code", "", "only failed payouts with this error code")
	return cmd
}

func (c *cli) promotionResolveCommand() *cobra.Command {
	var r client.Resolution
	outcomes := []string{"succeeded", "failed"}
	cmd := c.yesFlag(&cobra.Command{
		Use:   "resolve ID TARGET --outcome succeeded|failed --note WHY",
		Short: "Settle an UNKNOWN payout by what you learned from the provider",
		Example: `  largesse promotion resolve 12345 7 --outcome succeeded --transaction-key T-99 --note "on the statement of 21 Nov, line 7" --yes
  largesse promotion resolve 12345 8 --outcome failed --note "the provider's support: never received, ticket 4711" --yes`,
	})
	flags := cmd.Flags()
	flags.StringVar(&r.Outcome, "outcome", "", "what happened to the payout: "+strings.Join(outcomes, " or ")+" (required)")
	flags.StringVar(&r.TransactionKey, "transaction-key", "", "transaction key of the provider; only and always with --outcome succeeded")
	flags.StringVar(&r.Note, "note", "", "how you know the outcome; stored with the payout's attempts (required)")
	complete(cmd, "outcome", outcomes...)
	cmd.RunE = c.calling(func(ctx context.Context, cl *client.Client, args []string) error {
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
		if err := c.confirm(fmt.Sprintf("settle payout %s of promotion %s as %s", args[1], args[0], r.Outcome)); err != nil {
			return err
		}
		return c.showPayout(cl.ResolvePayout(ctx, args[0], args[1], r))
	})
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
		RunE: c.calling(func(ctx context.Context, cl *client.Client, args []string) error {
			if c.output == outputJSON {
				return printList(c, cl.Payouts(ctx, args[0], f), listing[client.Payout]{})
			}
			return cl.ExportPayouts(ctx, args[0], f, c.stdout)
		}),
	}
	payoutFilterFlags(cmd, &f)
	return cmd
}

func payoutFilterFlags(cmd *cobra.Command, f *client.PayoutFilter) {
	filterFlag(cmd, &f.State, "state", "only payouts in this state", "ready", "queued", "retrying", "unknown", "succeeded", "failed", "cancelled")
	cmd.Flags().StringVar(&f.Code, "code", "", "only payouts with this error code")
}
