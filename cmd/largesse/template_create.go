package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/reward"
)

// templateFlags holds the flags that template create and template set share. A nil field
// was not given.
type templateFlags struct {
	name           *string
	quantity       *int64
	perUser        *int
	opens, closes  *time.Time // zero: none
	validFor, hold *time.Duration
	mode, away     string
	notes          *string
	reissue        *bool
}

// add adds the flags. at parses the times.
func (f *templateFlags) add(cmd *cobra.Command, at func(string) (time.Time, error)) {
	flags := cmd.Flags()
	addOptional(flags, &f.name, "name", "name of the template", ofLength(reward.TemplateNameMax))
	addOptional(flags, &f.quantity, "quantity", "maximum number of live coupons, 1 to 1000000000", bounded(wholeNumber[int64], 1, reward.TemplateQuantityMax, ""))
	addOptional(flags, &f.perUser, "per-user", "maximum number of coupons per user, 1 to 100; default of a new template: 1",
		bounded(wholeNumber[int], 1, reward.TemplatePerUserMax, ""))
	addOptional(flags, &f.opens, "opens", "time when the template opens, e.g. 2026-12-24T18:00:00Z", at)
	addOptional(flags, &f.closes, "closes", "time when the template closes, e.g. 2026-12-31T18:00:00Z", at)
	addOptional(flags, &f.validFor, "valid-for", "time from issue to expiry of a coupon, such as 30d or 12h; 0: coupons do not expire",
		wholeSeconds(reward.TemplateValidMax, "up to 100 years; 0: coupons do not expire"))
	addOptional(flags, &f.hold, "hold", "time in which a new coupon must be confirmed, such as 10m or 1d; 0: coupons are not held",
		wholeSeconds(reward.TemplateHoldMax, "up to 30 days; 0: coupons are not held"))
	addOptional(flags, &f.notes, "notes", "what people should know about the template, at most 4000 characters", asIs)
	choiceFlag(cmd, &f.mode, "mode", "mode of issue: stream (in the order of requests), kafka or sync; default of a new template: stream", "stream", "kafka", "sync")
	choiceFlag(cmd, &f.away, "when-redis-away", "behavior during a Redis outage: database (issue through the database) or wait; default of a new template: database", "database", "wait")
	addOptional(flags, &f.reissue, "reissue-after-cancel", "whether a user whose coupon was cancelled may get another; default of a new template: true", strconv.ParseBool)
	flags.Lookup("reissue-after-cancel").NoOptDefVal = "true"
}

// durationOf parses a duration, which may also be in days: 30d.
func durationOf(text string) (time.Duration, error) {
	days, inDays := strings.CutSuffix(text, "d")
	if !inDays {
		return time.ParseDuration(text)
	}
	n, err := strconv.ParseInt(days, 10, 17) // no overflow
	return time.Duration(n) * 24 * time.Hour, err
}

// wholeSeconds is a parser of a duration. limits ends the error.
func wholeSeconds(most time.Duration, limits string) func(string) (time.Duration, error) {
	return func(text string) (time.Duration, error) {
		d, err := durationOf(text)
		if err == nil && (d < 0 || d > most || d%time.Second != 0) {
			err = wrongUse("%s must be whole seconds, %s", d, limits)
		}
		return d, err
	}
}

func (c *cli) templateCreateCommand() *cobra.Command {
	var (
		f        templateFlags
		codes    client.CodeStyle
		id       string
		drawFrom time.Time
		metadata map[string]string
	)
	cmd := &cobra.Command{
		Use:   "create --name NAME --quantity N",
		Short: "Create a coupon template",
		Example: `  largesse template create --name Spring --quantity 10000
  largesse template create --name Spring --quantity 10000 --opens 2026-12-24T18:00:00Z --closes 2026-12-31T18:00:00Z --valid-for 30d --metadata shop=paris
  largesse template create --name Fair --quantity 100 --opens 2026-12-24T18:00:00Z --draw-from 2026-12-24T12:00:00Z`,
	}
	f.add(cmd, timeOrNone)
	metadataFlag(cmd, &metadata, metadataUsage)
	cmd.Flags().StringVar(&id, "id", "", "ID from an upstream system; default: a new ID")
	cmd.Flags().StringVar(&codes.Prefix, "code-prefix", "", "start of every code, up to 20 letters, digits, - and _; a --code flag makes codes that people can type")
	cmd.Flags().IntVar(&codes.Length, "code-length", 0, "random characters of a code, 1 to 64; default: 12")
	cmd.Flags().StringVar(&codes.Alphabet, "code-alphabet", "", "letters and digits of a code; default: digits and capital letters that do not look alike")
	addFlag(cmd.Flags(), &drawFrom, "draw-from", "start of a draw: the order of the users who enter from this time until the template opens is drawn; default: no draw",
		timeOrNone)
	cmd.RunE = c.calling(func(ctx context.Context, cl *client.Client, _ []string) error {
		for _, needed := range []string{"name", "quantity"} {
			if !cmd.Flags().Changed(needed) {
				return wrongUse("--%s is missing; see %s --help", needed, cmd.CommandPath())
			}
		}
		if id != "" {
			if err := checkTemplateID(id); err != nil {
				return err
			}
		}
		t := client.NewTemplate{
			ID: id, Name: *f.name, TotalQuantity: *f.quantity, OpensAt: given(f.opens), ClosesAt: given(f.closes), Mode: f.mode, ReissueAfterCancel: f.reissue,
			WhenRedisAway: f.away, Metadata: metadata, Notes: orZero(f.notes), PerUserLimit: orZero(f.perUser),
			ValidForSeconds: int64(orZero(f.validFor) / time.Second), HoldSeconds: int64(orZero(f.hold) / time.Second),
		}
		if codes != (client.CodeStyle{}) {
			t.Codes = &codes
		}
		if t.OpensAt != nil && t.ClosesAt != nil && !t.ClosesAt.After(*t.OpensAt) {
			return wrongUse("--closes must be after --opens")
		}
		if !drawFrom.IsZero() {
			if t.OpensAt == nil || !drawFrom.Before(*t.OpensAt) {
				return wrongUse("--draw-from needs --opens, and must be before it")
			}
			t.Draw = &client.NewDraw{From: drawFrom}
		}
		made, err := cl.CreateTemplate(ctx, t)
		opens := "is open"
		if made.OpensAt != nil {
			opens = "opens at " + moment(made.OpensAt)
		}
		return c.show(made, err,
			fmt.Sprintf("template %s has %s and %s; watch it with: largesse template watch %s", made.ID, countOf(made.TotalQuantity, "coupon"), opens, made.ID),
			awaiting(made.ID, made.TotalQuantity, made.AwaitingQuantity))
	})
	return cmd
}

func (c *cli) templateSetCommand() *cobra.Command {
	var f templateFlags
	cmd := &cobra.Command{
		Use:   "set ID --FLAG VALUE...",
		Short: "Change a coupon template",
		Long: `Change a coupon template. Only the settings with a flag change. --opens none opens
the template at once, with --closes none it does not close, with --valid-for 0
coupons do not expire, and with --hold 0 they are not held. The quantity must be at
least the number of live coupons and waiting users. With approval.codes-above, a
higher quantity may wait for another person. The mode can change only before the first request.
--metadata KEY=VALUE sets an entry, --metadata KEY removes it.`,
		Example: `  largesse template set 42 --quantity 20000
  largesse template set 42 --opens 2026-12-24T18:00:00Z --closes none
  largesse template set 42 --metadata shop=paris --metadata season`,
	}
	var metadata *client.Clearable[map[string]*string]
	changedMetadataFlag(cmd, &metadata)
	f.add(cmd, func(text string) (time.Time, error) {
		if text == none {
			return time.Time{}, nil
		}
		return timeOf(text)
	})
	cmd.RunE = c.calling(func(ctx context.Context, cl *client.Client, args []string) error {
		change := client.TemplateChange{
			Name: f.name, TotalQuantity: f.quantity, PerUserLimit: f.perUser, ReissueAfterCancel: f.reissue,
			OpensAt: clearable(f.opens), ClosesAt: clearable(f.closes),
			ValidForSeconds: clearableSeconds(f.validFor), HoldSeconds: clearableSeconds(f.hold),
			Mode: given(&f.mode), WhenRedisAway: given(&f.away), Metadata: metadata, Notes: f.notes,
		}
		if change == (client.TemplateChange{}) {
			return wrongUse("template set needs at least one flag; see %s --help", cmd.CommandPath())
		}
		t, err := cl.ChangeTemplate(ctx, args[0], change)
		return c.show(t, err, fmt.Sprintf("template %s is changed; show it with: largesse template show %s", t.ID, t.ID),
			awaiting(t.ID, t.TotalQuantity, t.AwaitingQuantity))
	})
	return cmd
}

// clearable returns the change to a value, which zero clears; nil: none.
func clearable[T comparable](value *T) *client.Clearable[T] {
	switch {
	case value == nil:
		return nil
	case *value == *new(T):
		return client.Clear[T]()
	}
	return client.Set(*value)
}

func clearableSeconds(d *time.Duration) *client.Clearable[int64] {
	if d == nil {
		return nil
	}
	seconds := int64(*d / time.Second)
	return clearable(&seconds)
}
