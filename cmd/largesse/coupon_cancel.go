package main

import (
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/largesse/largesse/client"
)

// cancelBatch is the number of coupons that the server cancels in one transaction.
const cancelBatch = 1000

func (c *cli) couponCancelCommand() *cobra.Command {
	var template, file string
	cmd := c.yesFlag(&cobra.Command{
		Use:   "cancel ID... | --template TEMPLATE ID... | --template TEMPLATE --file FILE",
		Short: "Cancel HELD coupons, or ISSUED ones that have not expired; they become available again",
		Long: `Cancel HELD coupons, or ISSUED ones that have not expired; they become available
again. For several coupons, name their template. A file has an ID per line, or is
the CSV of largesse coupon list; - reads from stdin. Each 1000 coupons are cancelled
together. Those that are used, expired or cancelled already stay as they are. If you
repeat the command, it finds the others cancelled. The exit code is 1 if the template
does not have one of the coupons.`,
		Example: `  largesse coupon cancel 12345 --yes
  largesse coupon cancel --template 42 12345 12346 --yes --output json
  largesse coupon list --template 42 --status held --csv > held.csv
  largesse coupon cancel --template 42 --file held.csv --yes`,
		Args: func(cmd *cobra.Command, given []string) error {
			switch {
			case file != "" && len(given) > 0:
				return wrongUse("the coupons are given twice: name their IDs or --file, not both")
			case file == "" && len(given) == 0:
				return wrongUse("coupon cancel needs a coupon ID, or --template and --file; see %s --help", cmd.CommandPath())
			case template == "" && (file != "" || len(given) > 1):
				return wrongUse("--template is missing: name the template of the coupons; see %s --help", cmd.CommandPath())
			case template != "":
				if err := checkTemplateID(template); err != nil {
					return err
				}
			}
			for _, id := range given {
				if err := checkCouponID(id); err != nil {
					return err
				}
			}
			return nil
		},
	})
	cmd.Flags().StringVar(&template, "template", "", "template of the coupons")
	cmd.Flags().StringVar(&file, "file", "", "file with their IDs")
	cmd.RunE = c.calling(func(ctx context.Context, cl *client.Client, ids []string) error {
		if template == "" {
			if err := c.confirm(fmt.Sprintf("cancel coupon %s permanently", ids[0])); err != nil {
				return err
			}
			one, err := cl.CancelCoupon(ctx, ids[0])
			return c.show(one, err, couponStatus(one))
		}
		if file != "" {
			var err error
			if ids, err = c.couponIDs(file); err != nil {
				return fmt.Errorf("read the file of coupons: %w", err)
			}
		}
		if err := c.confirm(fmt.Sprintf("cancel %s of template %s permanently", countOf(int64(len(ids)), "coupon"), template)); err != nil {
			return err
		}
		return c.cancelCoupons(ctx, cl, template, ids)
	})
	return cmd
}

// cancelCoupons cancels coupons of a template in batches, and prints how many of them were cancelled.
func (c *cli) cancelCoupons(ctx context.Context, cl *client.Client, template string, ids []string) error {
	all := client.CancelledCoupons{NotFound: []string{}}
	for batch := range slices.Chunk(ids, cancelBatch) {
		one, err := cl.CancelCoupons(ctx, template, batch)
		if err != nil {
			return fmt.Errorf("after %s: %w", countOf(int64(all.Cancelled), "cancelled coupon"), err)
		}
		all.Cancelled += one.Cancelled
		all.AlreadyCancelled += one.AlreadyCancelled
		all.Used += one.Used
		all.Expired += one.Expired
		all.NotFound = append(all.NotFound, one.NotFound...)
	}
	line := countOf(int64(all.Cancelled), "coupon") + " cancelled"
	for _, kept := range []struct {
		n   int
		why string
	}{{all.AlreadyCancelled, "cancelled before"}, {all.Used, "used"}, {all.Expired, "expired"}} {
		if kept.n > 0 {
			line += fmt.Sprintf(", %s %s", number(int64(kept.n)), kept.why)
		}
	}
	err := c.show(all, nil, line)
	if len(all.NotFound) > 0 {
		err = errors.Join(err, fmt.Errorf("template %s does not have %s of the coupons, for example %s; see largesse coupon list --template %s",
			template, number(int64(len(all.NotFound))), all.NotFound[0], template))
	}
	return err
}

// couponIDs reads the IDs of coupons from a file: one per line, or the column id of a CSV.
func (c *cli) couponIDs(path string) ([]string, error) {
	file, err := c.openInput(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	records := csv.NewReader(file)
	records.FieldsPerRecord, records.TrimLeadingSpace = -1, true
	column := 0
	var ids []string
	for first := true; ; first = false {
		fields, err := records.Read()
		switch {
		case errors.Is(err, io.EOF) && len(ids) == 0:
			return nil, errors.New("it has no IDs")
		case errors.Is(err, io.EOF):
			return ids, nil
		case err != nil:
			return nil, err
		}
		fields[0] = strings.TrimPrefix(fields[0], "\ufeff")
		if first && checkCouponID(strings.TrimSpace(fields[0])) != nil {
			if column = slices.Index(fields, "id"); column < 0 {
				return nil, fmt.Errorf("its first line has neither an ID nor a column id: %q", strings.Join(fields, ","))
			}
			continue
		}
		line, _ := records.FieldPos(0)
		if column >= len(fields) {
			return nil, fmt.Errorf("line %d has no ID", line)
		}
		id := strings.TrimSpace(fields[column])
		if err := checkCouponID(id); err != nil {
			return nil, fmt.Errorf("line %d: %w", line, err)
		}
		ids = append(ids, id)
	}
}
