package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/reward"
)

func (c *cli) promotionPayoutsCommand() *cobra.Command {
	var (
		f      client.PayoutFilter
		target string
	)
	cmd := c.limitFlag(&cobra.Command{
		Use:   "payouts ID",
		Short: "List the payouts of a promotion, or show one with its attempts",
		Example: `  largesse promotion payouts 12345
  largesse promotion payouts 12345 --state failed --limit 0 --output json
  largesse promotion payouts 12345 --target 7`,
		Args: promotionArgs(),
		RunE: c.calling(func(ctx context.Context, cl *client.Client, args []string) error {
			if target != "" {
				if _, err := reward.ParseTargetID(target); err != nil {
					return wrongUse("--target %q must be a whole number from 0", target)
				}
				return c.showPayout(cl.Payout(ctx, args[0], target))
			}
			return printList(c, cl.Payouts(ctx, args[0], f), listing[client.Payout]{
				header: []string{"TARGET", "USER", "AMOUNT", "STATE", "ATTEMPTS", "TRANSACTION", "ERROR", "UPDATED"},
				row: func(p client.Payout) []string {
					return []string{
						p.TargetID, p.UserID, money(p.Amount, p.Currency), p.State, number(p.AttemptCount), p.TransactionKey,
						strings.TrimSpace(p.ErrorCode + " " + p.ErrorMessage), moment(&p.UpdatedAt),
					}
				},
				limit: c.limit,
				empty: "there are no such payouts",
				cuts:  []string{"USER", "TRANSACTION", "ERROR"},
			})
		}),
	})
	payoutFilterFlags(cmd, &f)
	cmd.Flags().StringVar(&target, "target", "", "ID of one target to show with its attempts")
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
