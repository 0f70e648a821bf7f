package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/reward"
)

func (c *cli) promotionCheckCommand() *cobra.Command {
	var (
		format, amount string
		p              client.CheckOptions
		options        fileOptions
		strict         bool
	)
	cmd := &cobra.Command{
		Use:   "check FILE",
		Short: "Check a file of targets before there is a promotion",
		Long: `Check a file of targets for a promotion that does not exist yet. Nothing is created.

Shows the columns that were found, the first lines as they were understood, the lines
that would not be accepted, the total amount, and which promotions have paid people of
the file before. Without --columns, those columns count that their names suggest.

The exit code is 1 if no line would be accepted, and with --strict if any line would not.`,
		Example: `  largesse promotion check members.xlsx --amount 1000
  largesse promotion check members.csv --currency EUR --amounts major --columns "targetId=Member no,amount=Sum"
  largesse promotion check codes.csv --type voucher`,
		RunE: c.calling(func(ctx context.Context, cl *client.Client, args []string) error {
			var err error
			if p.Type = strings.ToUpper(p.Type); p.Type != string(reward.Point) && p.Type != string(reward.Voucher) {
				return wrongUse("--type must be point or voucher")
			}
			if amount != "" {
				if p.Amount, err = amountOf("amount", amount, p.Currency, options.major); err != nil {
					return err
				}
			}
			file, err := c.openTargets(args[0], format)
			if err != nil {
				return err
			}
			defer file.Close()
			p.UploadOptions = options.of(file)
			bar := c.uploadBar(file.size)
			result, err := cl.CheckTargets(ctx, bar.reader(file), p)
			bar.finish(err == nil)
			if err := showBy(c, result, err, c.printCheck); err != nil {
				return err
			}
			if refused := refusedUpload(client.UploadResult{Accepted: result.Accepted, Conflicts: result.Conflicts, Rejected: result.Rejected}, strict); refused != "" {
				return errors.New(refused)
			}
			return nil
		}),
	}
	flags := cmd.Flags()
	flags.StringVar(&p.Type, "type", "point", "type of the promotion: point or voucher")
	flags.StringVar(&amount, "amount", "", "amount of lines without one, in minor units or points")
	flags.StringVar(&p.VoucherCode, "voucher", "", "voucher code of lines without one")
	addFlag(flags, &p.Currency, "currency", "currency as three capital letters, e.g. EUR", matching(reward.IsCurrency, "three capital letters, e.g. EUR"))
	flags.BoolVar(&strict, "strict", false, "fail if any line of the file would not be accepted")
	formatFlag(cmd, &format)
	options.flags(cmd, "--amount and the amounts in the file")
	complete(cmd, "type", "point", "voucher")
	return cmd
}

func (c *cli) printCheck(r client.TargetsCheck) error {
	how := strings.Join(r.Header, ", ")
	switch {
	case r.Sheet != "":
		how += "; sheet " + r.Sheet
		if len(r.Sheets) > 1 {
			how += " of " + strings.Join(r.Sheets, ", ")
		}
	case r.Delimiter != "":
		how += fmt.Sprintf("; %s, separated by %q", r.Encoding, r.Delimiter)
	}
	var read []string
	for _, column := range [][2]string{{"targetId", r.Columns.TargetID}, {"userId", r.Columns.UserID}, {"amount", r.Columns.Amount}, {"voucherCode", r.Columns.VoucherCode}} {
		if column[1] != "" {
			read = append(read, column[0]+"="+column[1])
		}
	}
	if err := c.printLines("header   "+how, "columns  "+cmp.Or(strings.Join(read, ","), "none; name them with --columns targetId=A,userId=B")); err != nil {
		return err
	}
	table := c.table("LINE", "TARGET", "USER", "AMOUNT", "VOUCHER", "RESULT")
	table.cuts = []string{"USER", "RESULT"}
	for _, l := range r.Lines {
		row := []string{strconv.FormatInt(l.Line, 10), l.TargetID, l.UserID, money(l.Amount, r.Currency), l.VoucherCode, "ok"}
		if !l.Accepted {
			row = []string{row[0], strings.Join(l.Cells, " | "), "", "", "", l.Code + ": " + l.Detail}
		}
		if err := table.add(row...); err != nil {
			return err
		}
	}
	if err := table.flush(); err != nil {
		return err
	}
	for _, paid := range r.AlreadyPaid {
		if err := c.printLines(fmt.Sprintf("%s of the file already paid by promotion %s (%s)", peopleOf(paid.Count), paid.PromotionID, paid.Name)); err != nil {
			return err
		}
	}
	return c.printLines(fmt.Sprintf("%s would be accepted (amount %s), %s, %s, %s rejected",
		number(r.Accepted), money(r.Amount, r.Currency), countOf(r.Duplicates, "duplicate"), countOf(r.Conflicts, "conflict"), number(r.Rejected)))
}

func peopleOf(n int64) string {
	if n == 1 {
		return "1 person"
	}
	return number(n) + " people"
}
