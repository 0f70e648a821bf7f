package main

import (
	"context"
	"fmt"
	"iter"
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
