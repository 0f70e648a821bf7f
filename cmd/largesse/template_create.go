package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/reward"
)

// templateFlags holds the flags that template create and template set share.
type templateFlags struct {
	name          string
	quantity      int64
	perUser       int
	opens, closes string
	validFor      time.Duration
	hold          time.Duration
	mode, away    string
	reissue       bool
	metadata      []string
}

func (f *templateFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.name, "name", "", "name of the template")
	flags.Int64Var(&f.quantity, "quantity", 0, "maximum number of live coupons, 1 to 1000000000")
	flags.IntVar(&f.perUser, "per-user", 0, "maximum number of coupons per user, 1 to 100; default of a new template: 1")
	flags.StringVar(&f.opens, "opens", "", "time when the template opens, e.g. 2026-12-24T18:00:00Z")
	flags.StringVar(&f.closes, "closes", "", "time when the template closes, e.g. 2026-12-31T18:00:00Z")
	flags.DurationVar(&f.validFor, "valid-for", 0, "time from issue to expiry of a coupon, in whole seconds, e.g. 720h; 0: coupons do not expire")
	flags.DurationVar(&f.hold, "hold", 0, "time in which a new coupon must be confirmed, in whole seconds, e.g. 10m; 0: coupons are not held")
	choiceFlag(cmd, &f.mode, "mode", "mode of issue: stream (in the order of requests), kafka or sync; default of a new template: stream", "stream", "kafka", "sync")
	choiceFlag(cmd, &f.away, "when-redis-away", "behavior during a Redis outage: database (issue through the database) or wait; default of a new template: database", "database", "wait")
	flags.BoolVar(&f.reissue, "reissue-after-cancel", false, "whether a user whose coupon was cancelled may get another; default of a new template: true")
	metadataFlag(cmd, &f.metadata)
}

// check makes the server's checks of the flags that are set, with their names.
func (f *templateFlags) check(changed func(string) bool) error {
	switch n := len([]rune(f.name)); {
	case changed("name") && (strings.TrimSpace(f.name) == "" || n > reward.TemplateNameMax):
		return wrongUse("--name must have 1 to %d characters, not %d", reward.TemplateNameMax, n)
	case changed("quantity") && (f.quantity < 1 || f.quantity > reward.TemplateQuantityMax):
		return wrongUse("--quantity %d must be from 1 to %d", f.quantity, reward.TemplateQuantityMax)
	case changed("per-user") && (f.perUser < 1 || f.perUser > reward.TemplatePerUserMax):
		return wrongUse("--per-user %d must be from 1 to %d", f.perUser, reward.TemplatePerUserMax)
	case f.validFor < 0 || f.validFor > reward.TemplateValidMax || f.validFor%time.Second != 0:
		return wrongUse("--valid-for %s must be whole seconds, up to 100 years; 0: coupons do not expire", f.validFor)
	case f.hold < 0 || f.hold > reward.TemplateHoldMax || f.hold%time.Second != 0:
		return wrongUse("--hold %s must be whole seconds, up to 30 days; 0: coupons are not held", f.hold)
	}
	return nil
}

func (c *cli) templateCreateCommand() *cobra.Command {
	var (
		f        templateFlags
		codes    client.CodeStyle
		id       string
		drawFrom time.Time
	)
	cmd := &cobra.Command{
		Use:   "create --name NAME --quantity N",
		Short: "Create a coupon template",
		Example: `  largesse template create --name Spring --quantity 10000
  largesse template create --name Spring --quantity 10000 --opens 2026-12-24T18:00:00Z --closes 2026-12-31T18:00:00Z --valid-for 720h --metadata shop=paris
  largesse template create --name Fair --quantity 100 --opens 2026-12-24T18:00:00Z --draw-from 2026-12-24T12:00:00Z`,
		Args: args(),
	}
	f.add(cmd)
	cmd.Flags().StringVar(&id, "id", "", "ID from an upstream system; default: a new ID")
	cmd.Flags().StringVar(&codes.Prefix, "code-prefix", "", "start of every code, up to 20 letters, digits, - and _; a --code flag makes codes that people can type")
	cmd.Flags().IntVar(&codes.Length, "code-length", 0, "random characters of a code, 1 to 64; default: 12")
	cmd.Flags().StringVar(&codes.Alphabet, "code-alphabet", "", "letters and digits of a code; default: digits and capital letters that do not look alike")
	cmd.Flags().Var((*timeValue)(&drawFrom), "draw-from", "start of a draw: the order of the users who enter from this time until the template opens is drawn; default: no draw")
	cmd.RunE = c.calling(func(ctx context.Context, cl *client.Client, _ []string) error {
		changed := cmd.Flags().Changed
		for _, needed := range []string{"name", "quantity"} {
			if !changed(needed) {
				return wrongUse("--%s is missing; see %s --help", needed, cmd.CommandPath())
			}
		}
		if id != "" {
			if err := checkTemplateID(id); err != nil {
				return err
			}
		}
		if err := f.check(changed); err != nil {
			return err
		}
		t := client.NewTemplate{
			ID: id, Name: f.name, TotalQuantity: f.quantity, PerUserLimit: f.perUser, ValidForSeconds: int64(f.validFor / time.Second),
			HoldSeconds: int64(f.hold / time.Second),
			Mode:        f.mode, WhenRedisAway: f.away,
		}
		if codes != (client.CodeStyle{}) {
			t.Codes = &codes
		}
		var err error
		if t.Metadata, err = newMetadata(f.metadata); err != nil {
			return err
		}
		t.ReissueAfterCancel = ifChanged(changed, "reissue-after-cancel", &f.reissue)
		for _, at := range []struct {
			flag, value string
			to          **time.Time
		}{{"opens", f.opens, &t.OpensAt}, {"closes", f.closes, &t.ClosesAt}} {
			if at.value == "" {
				continue
			}
			parsed, err := timeFlag(at.flag, at.value)
			if err != nil {
				return err
			}
			*at.to = &parsed
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
