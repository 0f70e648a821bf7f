package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/reward"
)

// metadataFlag adds --metadata.
func metadataFlag(cmd *cobra.Command, entries *[]string) {
	cmd.Flags().StringArrayVar(entries, "metadata", nil, "KEY=VALUE to store with it, at most 20 of up to 200 characters; repeat the flag for more")
}

// parseMetadata returns the entries of --metadata. A key without a value has nil.
func parseMetadata(entries []string) (map[string]*string, error) {
	parsed := make(map[string]*string, len(entries))
	for _, entry := range entries {
		key, value, ok := strings.Cut(entry, "=")
		if key == "" {
			return nil, wrongUse("--metadata %q must be KEY=VALUE", entry)
		}
		parsed[key] = nil
		if ok {
			parsed[key] = &value
		}
	}
	return parsed, nil
}

// changedMetadata returns the change of metadata by --metadata; nil: none.
func changedMetadata(entries []string) (*client.Clearable[map[string]*string], error) {
	parsed, err := parseMetadata(entries)
	if err != nil || len(parsed) == 0 {
		return nil, err
	}
	return client.Set(parsed), nil
}

// newMetadata returns the entries of --metadata, which all need a value.
func newMetadata(entries []string) (map[string]string, error) {
	parsed, err := parseMetadata(entries)
	if err != nil || len(parsed) == 0 {
		return nil, err
	}
	metadata := make(map[string]string, len(parsed))
	for key, value := range parsed {
		if value == nil {
			return nil, wrongUse("--metadata %s needs a value: --metadata %s=VALUE", key, key)
		}
		metadata[key] = *value
	}
	return metadata, nil
}

// printMetadata prints metadata, one entry per line.
func printMetadata(line func(name, value string), metadata map[string]string) {
	for _, key := range slices.Sorted(maps.Keys(metadata)) {
		line("metadata "+key, metadata[key])
	}
}

// setFlags are the flags of promotion set.
type setFlags struct {
	name, voucher, currency, startsAt string
	rate, weight, retries             string
	maxAmount, amount, canary         string
	failures                          float64
	metadata                          []string
}

func (c *cli) promotionSetCommand() *cobra.Command {
	var f setFlags
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
		Args: promotionArgs(),
	}
	flags := cmd.Flags()
	flags.StringVar(&f.name, "name", "", "name of the promotion")
	flags.StringVar(&f.rate, "rate", "", "maximum calls per second of all instances together, 1 to 1000000, or none")
	flags.StringVar(&f.weight, "weight", "", "share of the calls relative to other promotions, 1 to 100, or none")
	flags.StringVar(&f.maxAmount, "max-amount", "", "budget in minor units or points, at least 1, or none")
	flags.StringVar(&f.retries, "max-retries", "", "retries after the first call, 0 to 20")
	flags.StringVar(&f.amount, "amount", "", "default amount of targets that are uploaded later, or none")
	flags.StringVar(&f.voucher, "voucher", "", "default voucher code of targets that are uploaded later, or none")
	flags.StringVar(&f.currency, "currency", "", "currency as three capital letters, or none")
	flags.StringVar(&f.canary, "canary-targets", "", "number of targets to pay first, at least 1, or none")
	flags.Float64Var(&f.failures, "canary-max-failure-rate", 0, "share of failed canary payouts, 0 to 1, above which the promotion pauses; default: 0.5")
	flags.StringVar(&f.startsAt, "starts-at", "", "time when the promotion starts automatically, or none")
	metadataFlag(cmd, &f.metadata)
	cmd.RunE = c.calling(func(ctx context.Context, cl *client.Client, args []string) error {
		change, err := f.change(cmd.Flags().Changed)
		if err != nil {
			return err
		}
		if change == (client.PromotionChange{}) {
			return wrongUse("promotion set needs at least one flag; see %s --help", cmd.CommandPath())
		}
		p, err := cl.ChangePromotion(ctx, args[0], change)
		return c.show(p, err, fmt.Sprintf("promotion %s is changed; show it with: largesse promotion show %s", p.ID, p.ID))
	})
	return cmd
}

// change returns the change that the set flags describe.
func (f *setFlags) change(changed func(string) bool) (client.PromotionChange, error) {
	var change client.PromotionChange
	atLeastOne := func(s string) (int, error) {
		n, err := strconv.Atoi(s)
		if err == nil && n < 1 {
			err = wrongUse("%d must be at least 1, or none", n)
		}
		return n, err
	}
	int64Of := func(s string) (int64, error) { return strconv.ParseInt(s, 10, 64) }
	asIs := func(s string) (string, error) { return s, nil }
	canary := func(s string) (client.NewCanary, error) {
		targets, err := int64Of(s)
		return client.NewCanary{Targets: targets, MaxFailureRate: ifChanged(changed, "canary-max-failure-rate", &f.failures)}, err
	}
	at := func(s string) (time.Time, error) { return time.Parse(time.RFC3339, s) }
	if err := cmp.Or(
		clearableFlag(changed, "rate", f.rate, atLeastOne, &change.RatePerSecond),
		clearableFlag(changed, "weight", f.weight, atLeastOne, &change.Weight),
		clearableFlag(changed, "max-amount", f.maxAmount, int64Of, &change.MaxAmount),
		clearableFlag(changed, "amount", f.amount, int64Of, &change.Amount),
		clearableFlag(changed, "voucher", f.voucher, asIs, &change.VoucherCode),
		clearableFlag(changed, "currency", f.currency, asIs, &change.Currency),
		clearableFlag(changed, "canary-targets", f.canary, canary, &change.Canary),
		clearableFlag(changed, "starts-at", f.startsAt, at, &change.StartsAt),
	); err != nil {
		return change, err
	}
	if changed("max-retries") {
		n, err := strconv.Atoi(f.retries)
		if err != nil || n < 0 || n > reward.PromotionMaxRetriesMax {
			return change, wrongUse("--max-retries %q must be from 0 to %d", f.retries, reward.PromotionMaxRetriesMax)
		}
		change.MaxRetries = &n
	}
	if n := utf8.RuneCountInString(f.name); changed("name") && (n == 0 || n > reward.PromotionNameMax) {
		return change, wrongUse("--name must have 1 to %d characters, not %d", reward.PromotionNameMax, n)
	}
	change.Name = ifChanged(changed, "name", &f.name)
	var err error
	if change.Metadata, err = changedMetadata(f.metadata); err != nil {
		return change, err
	}
	if changed("canary-max-failure-rate") && !changed("canary-targets") {
		return change, wrongUse("--canary-max-failure-rate needs --canary-targets")
	}
	return change, nil
}

// clearableFlag sets to, if the flag was given, to its value or to none.
func clearableFlag[T any](changed func(string) bool, flag, value string, parse func(string) (T, error), to **client.Clearable[T]) error {
	switch {
	case !changed(flag):
		return nil
	case value == timeNone:
		*to = client.Clear[T]()
		return nil
	}
	parsed, err := parse(value)
	if usage, ok := errors.AsType[*usageError](err); ok {
		return wrongUse("--%s %s", flag, usage.text)
	}
	if err != nil || value == "" {
		kind := cmp.Or(valueKinds[fmt.Sprintf("%T", parsed)], "a valid value")
		return wrongUse("--%s %q must be %s, or none; see largesse promotion set --help", flag, value, kind)
	}
	*to = client.Set(parsed)
	return nil
}

func (c *cli) promotionDeleteCommand() *cobra.Command {
	return c.yesFlag(&cobra.Command{
		Use:     "delete ID",
		Short:   "Delete a DRAFT with its targets and the reports of its uploads",
		Example: "  largesse promotion delete 12345 --yes\n  largesse promotion delete 12345 --yes --output json",
		Args:    promotionArgs(),
		RunE: c.calling(func(ctx context.Context, cl *client.Client, args []string) error {
			if err := c.ask(func() (string, error) {
				p, err := cl.Promotion(ctx, args[0])
				return fmt.Sprintf("delete %s with %s permanently", nameOf(p), countOf(p.TotalCount, "target")), err
			}); err != nil {
				return err
			}
			err := cl.DeletePromotion(ctx, args[0])
			return c.show(map[string]string{"deleted": args[0]}, err, fmt.Sprintf("promotion %s is deleted", args[0]))
		}),
	})
}

// nameOf names a promotion in a question.
func nameOf(p client.Promotion) string {
	if p.Name == "" {
		return "promotion " + p.ID
	}
	return fmt.Sprintf("%s (%s)", printable(p.Name), p.ID)
}
