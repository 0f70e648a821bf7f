package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/largesse/largesse/client"
)

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
		}
		if f.mode != "" {
			change.Mode = &f.mode
		}
		if f.away != "" {
			change.WhenRedisAway = &f.away
		}
		var err error
		if change.Metadata, err = changedMetadata(f.metadata); err != nil {
			return err
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
