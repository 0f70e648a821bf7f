package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/largesse/largesse/client"
)

// timeNone is the value that clears a time.
const timeNone = "none"

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
		Args: templateArgs(),
	}
	f.add(cmd)
	cmd.RunE = c.calling(func(ctx context.Context, cl *client.Client, args []string) error {
		change, err := f.change(cmd.Flags().Changed)
		if err != nil {
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

// change returns the change that the set flags describe.
func (f *templateFlags) change(changed func(string) bool) (client.TemplateChange, error) {
	var change client.TemplateChange
	if err := f.check(changed); err != nil {
		return change, err
	}
	change = client.TemplateChange{
		Name:               ifChanged(changed, "name", &f.name),
		TotalQuantity:      ifChanged(changed, "quantity", &f.quantity),
		PerUserLimit:       ifChanged(changed, "per-user", &f.perUser),
		ValidForSeconds:    clearableSeconds(changed("valid-for"), f.validFor),
		HoldSeconds:        clearableSeconds(changed("hold"), f.hold),
		ReissueAfterCancel: ifChanged(changed, "reissue-after-cancel", &f.reissue),
	}
	if f.mode != "" {
		change.Mode = &f.mode
	}
	if f.away != "" {
		change.WhenRedisAway = &f.away
	}
	var err error
	if change.Metadata, err = changedMetadata(f.metadata); err != nil {
		return change, err
	}
	for _, at := range []struct {
		flag, value string
		to          **client.Clearable[time.Time]
	}{{"opens", f.opens, &change.OpensAt}, {"closes", f.closes, &change.ClosesAt}} {
		switch {
		case !changed(at.flag):
		case at.value == timeNone:
			*at.to = client.Clear[time.Time]()
		default:
			parsed, err := timeFlag(at.flag, at.value)
			if err != nil {
				return change, err
			}
			*at.to = client.Set(parsed)
		}
	}
	return change, nil
}

// clearableSeconds returns the change of a duration, which 0 clears; nil: none.
func clearableSeconds(changed bool, d time.Duration) *client.Clearable[int64] {
	switch {
	case !changed:
		return nil
	case d == 0:
		return client.Clear[int64]()
	}
	return client.Set(int64(d / time.Second))
}
