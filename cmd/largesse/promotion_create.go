package main

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/reward"
)

// created is what `promotion create` shows.
type created struct {
	client.Promotion
	Upload *client.UploadResult `json:"upload,omitempty"`
}

func (c *cli) promotionCreateCommand() *cobra.Command {
	var (
		p         client.NewPromotion
		retries   int
		consumers int
		path      string
		start     bool
		canary    client.NewCanary
		failures  float64
		startsAt  string
	)
	cmd := &cobra.Command{
		Use:   "create --name NAME --type point|voucher",
		Short: "Make a promotion, and fill and start it if asked to",
		Example: `  largesse promotion create --name Spring --type point --amount 1000
  largesse promotion create --name Spring --type point --amount 1000 --file targets.csv --start
  largesse promotion create --name Spring --type point --amount 1000 --max-amount 5000000 --canary-targets 100 --canary-max-failure-rate 0.02
  largesse promotion create --name Gifts --type voucher --voucher V-1000 --file targets.csv.gz`,
		Args: args(),
	}
	flags := cmd.Flags()
	flags.StringVar(&p.Name, "name", "", "what people call it (needed)")
	flags.StringVar(&p.Type, "type", "", "point or voucher (needed)")
	flags.Int64Var(&p.Amount, "amount", 0, "what a target gets that names none, in minor units or points")
	flags.StringVar(&p.VoucherCode, "voucher", "", "voucher code of a target that names none")
	flags.StringVar(&p.Currency, "currency", "", "three capital letters, e.g. EUR")
	flags.StringVar(&p.ID, "id", "", "number of the promotion in another system; else the server makes one")
	flags.IntVar(&retries, "max-retries", 0, "retries after the first call; else the server's setting")
	flags.IntVar(&consumers, "consumers-per-instance", 0, "consumers that each instance keeps for it, 1 to 256; else by its size")
	flags.StringVar(&path, "file", "", "targets to upload: .csv, .ndjson or .jsonl, each with or without .gz; - for CSV from stdin")
	flags.BoolVar(&start, "start", false, "start it when everything is uploaded")
	flags.IntVar(&p.RatePerSecond, "rate", 0, "most calls a second for it, of all instances together; else no bound of its own")
	flags.IntVar(&p.Weight, "weight", 0, "its share of the calls beside other promotions, 1 to 100; else 1")
	flags.Int64Var(&p.MaxAmount, "max-amount", 0, "budget in minor units or points: nothing is paid that could pass it; else none")
	flags.Int64Var(&canary.Targets, "canary-targets", 0, "pay so many first, and the others when those went well; else all at once")
	flags.Float64Var(&failures, "canary-max-failure-rate", 0, "share of failed ones, 0 to 1, above which the canary pauses it; else 0.5")
	flags.StringVar(&startsAt, "starts-at", "", "when it starts by itself, e.g. 2026-12-24T18:00:00Z; else by hand")
	flags.StringVar(&p.WebhookURL, "webhook-url", "", "http(s) address to tell when it is finished or was paused by Largesse")
	complete(cmd, "type", "point", "voucher")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		p.Type = strings.ToUpper(p.Type)
		switch {
		case p.Name == "":
			return wrongUse("--name is missing; see %s --help", cmd.CommandPath())
		case p.Type != "POINT" && p.Type != "VOUCHER":
			return wrongUse("--type must be point or voucher; see %s --help", cmd.CommandPath())
		}
		if p.ID != "" {
			if err := checkPromotionID(p.ID); err != nil {
				return err
			}
		}
		changed := cmd.Flags().Changed
		for name, given := range map[string]int64{"rate": int64(p.RatePerSecond), "weight": int64(p.Weight), "max-amount": p.MaxAmount, "canary-targets": canary.Targets} {
			if changed(name) && given < 1 {
				return wrongUse("--%s %d must be at least 1; leave it out for none", name, given)
			}
		}
		if changed("max-retries") {
			p.MaxRetries = &retries
		}
		if changed("consumers-per-instance") {
			p.ConsumersPerInstance = &consumers
		}
		if changed("canary-max-failure-rate") {
			canary.MaxFailureRate = &failures
			if !changed("canary-targets") {
				return wrongUse("--canary-max-failure-rate goes with --canary-targets")
			}
		}
		if changed("canary-targets") {
			p.Canary = &canary
		}
		if startsAt != "" {
			at, err := time.Parse(time.RFC3339, startsAt)
			switch {
			case err != nil:
				return wrongUse("--starts-at %q must look like 2026-12-24T18:00:00Z", startsAt)
			case start:
				return wrongUse("--start starts it now and --starts-at later; give one of them")
			}
			p.StartsAt = &at
		}
		if err := checkCreate(p, cmd.Flags().Changed("amount")); err != nil {
			return err
		}
		cl, err := c.connect()
		if err != nil {
			return err
		}
		// The file is opened first, so that a wrong name leaves no DRAFT behind.
		var file *targetFile
		if path != "" {
			if file, err = c.openTargets(path, ""); err != nil {
				return err
			}
			defer file.Close()
		}
		ctx := cmd.Context()
		var out created
		if out.Promotion, err = cl.CreatePromotion(ctx, p); err != nil {
			return err
		}
		id := out.ID
		if file != nil {
			result, err := c.upload(ctx, cl, id, file, false)
			if err != nil {
				return fmt.Errorf("promotion %s is made, but its upload failed: %w; go on by: largesse promotion upload %s %s", id, err, id, path)
			}
			out.Upload = &result
		}
		if start {
			if _, err := cl.StartPromotion(ctx, id); err != nil {
				return fmt.Errorf("promotion %s is made, but did not start: %w; go on by: largesse promotion start %s", id, err, id)
			}
		}
		if file != nil || start {
			if out.Promotion, err = cl.Promotion(ctx, id); err != nil {
				return fmt.Errorf("promotion %s is made, but cannot be shown: %w", id, err)
			}
		}
		if c.output == outputJSON {
			return c.printJSON(out)
		}
		if out.Upload != nil {
			if err := c.printUpload(*out.Upload, false); err != nil {
				return err
			}
		}
		_, err = fmt.Fprintf(c.stdout, "promotion %s is %s with %s; watch it by: largesse promotion watch %s\n",
			printable(id), printable(out.Status), countOf(out.TotalCount, "target"), printable(id))
		return err
	}
	return cmd
}

// checkCreate checks what the server would refuse, by the names of the flags.
// amount says that --amount was given.
func checkCreate(p client.NewPromotion, amount bool) error {
	least := reward.AmountMin(reward.PromotionType(p.Type))
	switch {
	case utf8.RuneCountInString(p.Name) > reward.PromotionNameMax:
		return wrongUse("--name must have 1 to %d characters, not %d", reward.PromotionNameMax, utf8.RuneCountInString(p.Name))
	case amount && (reward.Amount(p.Amount) < least || reward.Amount(p.Amount) > reward.AmountMax):
		return wrongUse("--amount %d must be from %d to %d; leave it out when every target names its own", p.Amount, least, reward.AmountMax)
	case p.VoucherCode != "" && p.Type != string(reward.Voucher):
		return wrongUse("--voucher is for --type voucher only")
	case utf8.RuneCountInString(p.VoucherCode) > reward.PromotionVoucherCodeMax:
		return wrongUse("--voucher must have at most %d characters", reward.PromotionVoucherCodeMax)
	case p.Currency != "" && !isCurrency(p.Currency):
		return wrongUse("--currency %q must be three capital letters, e.g. EUR", p.Currency)
	case p.MaxRetries != nil && (*p.MaxRetries < 0 || *p.MaxRetries > reward.PromotionMaxRetriesMax):
		return wrongUse("--max-retries %d must be from 0 to %d", *p.MaxRetries, reward.PromotionMaxRetriesMax)
	case p.ConsumersPerInstance != nil && (*p.ConsumersPerInstance < 1 || *p.ConsumersPerInstance > reward.PromotionConsumersMax):
		return wrongUse("--consumers-per-instance %d must be from 1 to %d; leave it out to go by the promotion's size", *p.ConsumersPerInstance, reward.PromotionConsumersMax)
	}
	return nil
}

func isCurrency(text string) bool {
	return len(text) == 3 && strings.Trim(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") == ""
}
