package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/reward"
)

// payoutStates lists the states of a payout, in the form that users type.
var payoutStates = []string{"ready", "queued", "retrying", "unknown", "succeeded", "failed", "cancelled"}

func (c *cli) promotionPayoutsCommand() *cobra.Command {
	var (
		limit               int
		state, code, target string
	)
	cmd := &cobra.Command{
		Use:   "payouts ID",
		Short: "List the payouts of a promotion, or show one with its attempts",
		Example: `  largesse promotion payouts 12345
  largesse promotion payouts 12345 --state failed --limit 0 --output json
  largesse promotion payouts 12345 --target 7`,
		Args: promotionArgs(),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkLimit(limit); err != nil {
				return err
			}
			if err := checkState(state); err != nil {
				return err
			}
			if target != "" {
				if _, err := reward.ParseTargetID(target); err != nil {
					return wrongUse("--target %q must be a whole number from 0", target)
				}
			}
			cl, err := c.connect()
			if err != nil {
				return err
			}
			if target != "" {
				p, err := cl.Payout(cmd.Context(), args[0], target)
				if err != nil {
					return err
				}
				return c.printPayout(p)
			}
			filter := client.PayoutFilter{State: strings.ToUpper(state), Code: code}
			return printList(c, cl.Payouts(cmd.Context(), args[0], filter), listing[client.Payout]{
				header: []string{"TARGET", "USER", "AMOUNT", "STATE", "ATTEMPTS", "TRANSACTION", "ERROR", "UPDATED"},
				row: func(p client.Payout) []string {
					return []string{
						p.TargetID, p.UserID, money(p.Amount, p.Currency), p.State, number(p.AttemptCount), p.TransactionKey,
						strings.TrimSpace(p.ErrorCode + " " + p.ErrorMessage), moment(&p.UpdatedAt),
					}
				},
				limit: limit,
				empty: "there are no such payouts",
				cuts:  []string{"USER", "TRANSACTION", "ERROR"},
			})
		},
	}
	limitFlag(cmd, &limit)
	payoutFilterFlags(cmd, &state, &code)
	cmd.Flags().StringVar(&target, "target", "", "ID of one target to show with its attempts")
	return cmd
}

func (c *cli) printPayout(p client.PayoutDetail) error {
	if c.output == outputJSON {
		return c.printJSON(p)
	}
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
	for _, line := range lines {
		if _, err := fmt.Fprintln(c.stdout, printable(line)); err != nil {
			return err
		}
	}
	return nil
}
