package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/reward"
)

func printMetadata(line func(name, value string), metadata map[string]string) {
	for _, key := range slices.Sorted(maps.Keys(metadata)) {
		line("metadata "+key, metadata[key])
	}
}

func (c *cli) promotionSetCommand() *cobra.Command {
	var (
		change client.PromotionChange
		canary client.NewCanary
	)
	cmd := &cobra.Command{
		Use:   "set ID --FLAG VALUE...",
		Short: "Change the settings of a promotion, also while it runs",
		Long: `Change the settings of a promotion. Only the settings with a flag change, on every
instance within a second. none clears a setting: no limit, no budget, weight 1.
--metadata KEY=VALUE sets an entry, --metadata KEY removes it.

--amount, --voucher, --currency, --canary-targets and --starts-at can change only
while the promotion is a DRAFT. --max-amount cannot be below what is paid or may
have been paid.`,
		Example: `  largesse promotion set 12345 --rate 200
  largesse promotion set 12345 --max-amount 9000000 --metadata ticket=4711
  largesse promotion set 12345 --rate none --weight 5`,
	}
	flags := cmd.Flags()
	addOptional(flags, &change.Name, "name", "name of the promotion", ofLength(reward.PromotionNameMax))
	addClearable(flags, &change.RatePerSecond, "rate", "maximum calls per second of all instances together, 1 to 1000000, or none", bounded(strconv.Atoi, 1, 0, ", or none"))
	addClearable(flags, &change.Weight, "weight", "share of the calls relative to other promotions, 1 to 100, or none", bounded(strconv.Atoi, 1, 0, ", or none"))
	addClearable(flags, &change.MaxAmount, "max-amount", "budget in minor units or points, at least 1, or none", minorAmount)
	addOptional(flags, &change.MaxRetries, "max-retries", "retries after the first call, 0 to 20", bounded(strconv.Atoi, 0, reward.PromotionMaxRetriesMax, ""))
	addClearable(flags, &change.Amount, "amount", "default amount of targets that are uploaded later, or none", minorAmount)
	addClearable(flags, &change.VoucherCode, "voucher", "default voucher code of targets that are uploaded later, or none", asIs)
	addClearable(flags, &change.Currency, "currency", "currency as three capital letters, or none", asIs)
	addClearable(flags, &change.Canary, "canary-targets", "number of targets to pay first, at least 1, or none", func(text string) (_ client.NewCanary, err error) {
		canary.Targets, err = minorAmount(text)
		return canary, err
	})
	addOptional(flags, &canary.MaxFailureRate, "canary-max-failure-rate", "share of failed canary payouts, 0 to 1, above which the promotion pauses; default: 0.5", fraction)
	addClearable(flags, &change.StartsAt, "starts-at", "time when the promotion starts automatically, or none", timeOf)
	addClearable(flags, &change.EndsAt, "ends-at", "time from when on no charge is sent, or none", timeOf)
	addOptional(flags, &change.Notes, "notes", "what people should know about the promotion, at most 4000 characters", asIs)
	changedMetadataFlag(cmd, &change.Metadata)
	cmd.RunE = c.calling(func(ctx context.Context, cl *client.Client, args []string) error {
		if canary.MaxFailureRate != nil {
			if change.Canary == nil {
				return wrongUse("--canary-max-failure-rate needs --canary-targets")
			}
			if canary.Targets != 0 { // not none
				change.Canary = client.Set(canary)
			}
		}
		if change == (client.PromotionChange{}) {
			return wrongUse("promotion set needs at least one flag; see %s --help", cmd.CommandPath())
		}
		p, err := cl.ChangePromotion(ctx, args[0], change)
		return c.show(p, err, fmt.Sprintf("promotion %s is changed; show it with: largesse promotion show %s", p.ID, p.ID))
	})
	return cmd
}

func minorAmount(text string) (int64, error) { return strconv.ParseInt(text, 10, 64) }

// nameOf names a promotion in a question.
func nameOf(p client.Promotion) string {
	if p.Name == "" {
		return "promotion " + p.ID
	}
	return fmt.Sprintf("%s (%s)", printable(p.Name), p.ID)
}
