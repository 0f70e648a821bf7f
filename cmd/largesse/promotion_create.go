package main

import (
	"context"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/reward"
)

type created struct {
	client.Promotion
	Upload *client.UploadResult `json:"upload,omitempty"`
}

func (c *cli) promotionCreateCommand() *cobra.Command {
	var (
		p                    client.NewPromotion
		canary               client.NewCanary
		startsAt, endsAt     time.Time
		path, amount, budget string
		start, strict        bool
		options              fileOptions
	)
	cmd := &cobra.Command{
		Use:   "create --name NAME --type point|voucher",
		Short: "Create a promotion; with flags, upload targets and start it",
		Example: `  largesse promotion create --name Spring --type point --amount 1000
  largesse promotion create --name Spring --type point --amount 1000 --file targets.csv --start
  largesse promotion create --name Spring --type point --amount 1000 --max-amount 5000000 --canary-targets 100 --canary-max-failure-rate 0.02
  largesse promotion create --name Spring --type point --amount 1000 --file targets.csv --strict --start
  largesse promotion create --name Spring --type point --currency EUR --amounts major --amount 10.50 --file targets.csv
  largesse promotion create --name Spring --type point --file members.xlsx --columns "targetId=Member no,amount=Points"
  largesse promotion create --name Gifts --type voucher --voucher V-1000 --file targets.csv.gz`,
	}
	const omitIt = "; omit it for none"
	flags := cmd.Flags()
	addFlag(flags, &p.Name, "name", "name of the promotion (required)", ofLength(reward.PromotionNameMax))
	flags.StringVar(&p.Type, "type", "", "type of the promotion: point or voucher (required)")
	flags.StringVar(&amount, "amount", "", "default amount of a target, in minor units or points")
	flags.StringVar(&p.VoucherCode, "voucher", "", "default voucher code of a target")
	addFlag(flags, &p.Currency, "currency", "currency as three capital letters, e.g. EUR", matching(reward.IsCurrency, "three capital letters, e.g. EUR"))
	flags.StringVar(&p.ID, "id", "", "ID from an upstream system; default: a new ID")
	addOptional(flags, &p.MaxRetries, "max-retries", "retries after the first call, 0 to 20; default: the server's setting",
		bounded(wholeNumber[int], 0, reward.PromotionMaxRetriesMax, ""))
	addOptional(flags, &p.ConsumersPerInstance, "consumers-per-instance", "consumers on each instance, 1 to 256; default: by the number of targets",
		bounded(wholeNumber[int], 1, reward.PromotionConsumersMax, "; omit it to use the default for the number of targets"))
	flags.StringVar(&path, "file", "", "file of targets to upload: .csv, .txt, .tsv, .xlsx, .ndjson or .jsonl, each with or without .gz; -: CSV from stdin")
	flags.BoolVar(&start, "start", false, "start the promotion after the upload")
	addFlag(flags, &p.RatePerSecond, "rate", "maximum calls per second of all instances together, 1 to 1000000; default: no limit of its own",
		bounded(wholeNumber[int], 1, 0, omitIt))
	addFlag(flags, &p.Weight, "weight", "share of the calls relative to other promotions, 1 to 100; default: 1", bounded(wholeNumber[int], 1, 0, omitIt))
	flags.StringVar(&budget, "max-amount", "", "budget in minor units or points, at least 1; default: no limit")
	addFlag(flags, &canary.Targets, "canary-targets", "number of targets to pay first, at least 1; the others follow if these succeed; default: no canary",
		bounded(wholeNumber[int64], 1, 0, omitIt))
	addOptional(flags, &canary.MaxFailureRate, "canary-max-failure-rate", "share of failed canary payouts, 0 to 1, above which the promotion pauses; default: 0.5", fraction)
	addFlag(flags, &startsAt, "starts-at", "time when the promotion starts automatically, e.g. 2026-12-24T18:00:00Z; default: start it manually",
		timeOrNone)
	addFlag(flags, &endsAt, "ends-at", "time from when on no charge is sent; default: never", timeOrNone)
	flags.StringVar(&p.Notes, "notes", "", "what people should know about the promotion, at most 4000 characters")
	flags.StringVar(&p.WebhookURL, "webhook-url", "", "http:// or https:// URL to notify when the promotion finishes or Largesse pauses it")
	flags.BoolVar(&strict, "strict", false, "fail and do not start if any line of the file is not accepted")
	options.flags(cmd, "--amount, --max-amount and the amounts in the file")
	metadataFlag(cmd, &p.Metadata, metadataUsage)
	complete(cmd, "type", "point", "voucher")
	cmd.RunE = c.calling(func(ctx context.Context, cl *client.Client, _ []string) error {
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
		if _, ok := reward.CurrencyDigits(p.Currency); options.major && !ok {
			return wrongUse("--amounts major needs a --currency of ISO 4217, such as EUR, not %q", p.Currency)
		}
		var err error
		for _, a := range []struct {
			flag, text string
			to         *int64
		}{{"amount", amount, &p.Amount}, {"max-amount", budget, &p.MaxAmount}} {
			if !changed(a.flag) {
				continue
			}
			if *a.to, err = amountOf(a.flag, a.text, p.Currency, options.major); err != nil {
				return err
			}
		}
		least := reward.AmountMin(reward.PromotionType(p.Type))
		switch {
		case changed("max-amount") && p.MaxAmount < 1:
			return wrongUse("--max-amount %d must be at least 1%s", p.MaxAmount, omitIt)
		case canary.MaxFailureRate != nil && canary.Targets == 0:
			return wrongUse("--canary-max-failure-rate needs --canary-targets")
		case start && !startsAt.IsZero():
			return wrongUse("--start starts the promotion now, --starts-at later; use only one of them")
		case changed("amount") && (reward.Amount(p.Amount) < least || reward.Amount(p.Amount) > reward.AmountMax):
			return wrongUse("--amount %d must be from %d to %d; omit it if every target has its own", p.Amount, least, reward.AmountMax)
		case p.VoucherCode != "" && p.Type != string(reward.Voucher):
			return wrongUse("--voucher needs --type voucher")
		case utf8.RuneCountInString(p.VoucherCode) > reward.PromotionVoucherCodeMax:
			return wrongUse("--voucher must have at most %d characters", reward.PromotionVoucherCodeMax)
		}
		if canary.Targets > 0 {
			p.Canary = &canary
		}
		p.StartsAt, p.EndsAt = given(&startsAt), given(&endsAt)
		// Open the file first, so that a wrong name leaves no DRAFT behind.
		var file *targetFile
		if path != "" {
			if file, err = c.openTargets(path, ""); err != nil {
				return err
			}
			defer file.Close()
		}
		var out created
		if out.Promotion, err = cl.CreatePromotion(ctx, p); err != nil {
			return err
		}
		id := out.ID
		if file != nil {
			result, err := c.upload(ctx, cl, id, file, options.of(file))
			if err != nil {
				return fmt.Errorf("promotion %s is created, but its upload failed: %w; continue with: largesse promotion upload %s %s", id, err, id, path)
			}
			out.Upload = &result
			if refused := refusedUpload(result, strict); refused != "" {
				if err := c.printCreated(out); err != nil {
					return err
				}
				return fmt.Errorf("promotion %s is created, but not started: %s; correct the file, and continue with: largesse promotion upload %s %s", id, refused, id, path)
			}
		}
		if start {
			if _, err := cl.StartPromotion(ctx, id); err != nil {
				return fmt.Errorf("promotion %s is created, but did not start: %w; continue with: largesse promotion start %s", id, err, id)
			}
		}
		if file != nil || start {
			if out.Promotion, err = cl.Promotion(ctx, id); err != nil {
				return fmt.Errorf("promotion %s is created, but cannot be shown: %w", id, err)
			}
		}
		if err := c.printCreated(out); err != nil || c.output == outputJSON {
			return err
		}
		return c.printLines(fmt.Sprintf("promotion %s is %s with %s; %s", id, out.Status, countOf(out.TotalCount, "target"), nextStep(out.Promotion)))
	})
	return cmd
}

// nextStep says how to continue with a promotion that was just created.
func nextStep(p client.Promotion) string {
	switch {
	case p.Status == "DRAFT" && p.TotalCount == 0:
		return fmt.Sprintf("add targets with: largesse promotion upload %s FILE", p.ID)
	case p.Status == "DRAFT" && p.StartsAt == nil && !p.AwaitingApproval:
		return fmt.Sprintf("start it with: largesse promotion start %s", p.ID)
	}
	return fmt.Sprintf("watch it with: largesse promotion watch %s", p.ID)
}

// refusedUpload returns why an upload failed, so that its promotion must not start, or "".
func refusedUpload(r client.UploadResult, strict bool) string {
	switch wrong := r.Rejected + r.Conflicts; {
	case r.Accepted+r.Duplicates == 0 && wrong == 0:
		return "the file has no targets"
	case r.Accepted+r.Duplicates == 0:
		return "no line of the file was accepted"
	case strict && wrong > 0:
		return countOf(wrong, "line") + " of the file not accepted"
	}
	return ""
}

// printCreated prints what promotion create made: all of it as JSON, or the counts of
// the upload.
func (c *cli) printCreated(out created) error {
	switch {
	case c.output == outputJSON:
		return c.printJSON(out)
	case out.Upload != nil:
		return c.printUpload(*out.Upload, false)
	}
	return nil
}

// amountOf parses the value of a flag with an amount.
func amountOf(flag, text, currency string, major bool) (int64, error) {
	if major {
		n, err := reward.ParseMajor(text, currency)
		if err != nil {
			return 0, wrongUse("--%s %q %v", flag, text, err)
		}
		return int64(n), nil
	}
	n, err := minorAmount(text)
	if err != nil {
		return 0, wrongUse("--%s %q must be a whole number of minor units; for an amount such as 10.50 EUR, add --amounts major", flag, text)
	}
	return n, nil
}
