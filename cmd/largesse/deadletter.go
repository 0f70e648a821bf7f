package main

import (
	"context"
	"fmt"
	"iter"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/largesse/largesse/client"
)

func (c *cli) deadLetterCommand() *cobra.Command {
	return c.talks(group(&cobra.Command{
		Use:     "deadletter",
		Aliases: []string{"deadletters"},
		Short:   "List, show, replay and discard messages that could not be read or processed",
		Example: `  largesse deadletter list --status open
  largesse deadletter show 7
  largesse deadletter replay 7`,
	},
		c.deadLetterListCommand(),
		callCommand(c, &cobra.Command{
			Use: "show ID", Short: "Show a dead letter with its bytes", Example: inBothForms("deadletter show 7"),
		}, nil, (*client.Client).DeadLetter, func(d client.DeadLetter) error { return c.printLines(deadLetterLines(d)...) }),
		c.deadLetterSettleCommand(settling{
			verb: "replay", done: "replayed", short: "Replay dead letters: publish their records again, or requeue their payouts",
			one: (*client.Client).ReplayDeadLetter, many: (*client.Client).ReplayDeadLetters,
		}),
		c.deadLetterSettleCommand(settling{
			verb: "discard", done: "discarded", short: "Discard dead letters; their bytes are retained",
			one: (*client.Client).DiscardDeadLetter, many: (*client.Client).DiscardDeadLetters,
		}),
	))
}

func (c *cli) deadLetterListCommand() *cobra.Command {
	var f client.DeadLetterFilter
	cmd := listCommand(c, &cobra.Command{
		Use:   "list",
		Short: "List dead letters, newest first",
		Example: `  largesse deadletter list --status open
  largesse deadletter list --reason MALFORMED --limit 0 --output json`,
	}, listing[client.DeadLetter]{
		header: []string{"ID", "AT", "STATUS", "SOURCE", "PARTITION", "OFFSET", "REASON", "DETAIL"},
		row: func(d client.DeadLetter) []string {
			return []string{d.ID, moment(&d.At), d.Status, d.Source, strconv.Itoa(int(d.Partition)), d.Offset, d.Reason, d.Detail}
		},
		empty: "there are no dead letters",
		cuts:  []string{"SOURCE", "DETAIL"},
	}, func(ctx context.Context, cl *client.Client, _ []string) iter.Seq2[client.DeadLetter, error] {
		return cl.DeadLetters(ctx, f)
	})
	letterFilterFlags(cmd, &f.Source, &f.Reason)
	filterFlag(cmd, &f.Status, "status", "only dead letters with this status", "open", "replayed", "discarded")
	return cmd
}

func letterFilterFlags(cmd *cobra.Command, source, reason *string) {
	cmd.Flags().StringVar(source, "source", "", "only dead letters of this topic or stream")
	cmd.Flags().StringVar(reason, "reason", "", "only dead letters with this reason, e.g. MALFORMED")
}

func deadLetterLines(d client.DeadLetter) []string {
	status := d.Status
	if d.SettledAt != nil {
		status += " by " + d.SettledBy + " at " + moment(d.SettledAt)
	}
	lines := []string{
		"dead letter " + d.ID + ", " + moment(&d.At) + ": " + status,
		fmt.Sprintf("from %s, partition %d, offset %s", d.Source, d.Partition, d.Offset),
		strings.TrimSpace(d.Reason + " " + d.Detail),
	}
	for _, part := range []struct {
		name, text string
		bytes      []byte
	}{{"key", d.Key, d.KeyBytes}, {"value", d.Value, d.ValueBytes}} {
		switch {
		case len(part.bytes) > 0:
			lines = append(lines, fmt.Sprintf("%s (not UTF-8): %q", part.name, part.bytes))
		case part.text != "":
			lines = append(lines, part.name+": "+part.text)
		}
	}
	if d.ValueTruncated {
		lines = append(lines, fmt.Sprintf("these are the first %d of %d bytes of the value", max(len(d.Value), len(d.ValueBytes)), d.ValueLength))
	}
	return lines
}

// settling describes one of the two ways to settle dead letters.
type settling struct {
	verb, done, short string
	one               func(*client.Client, context.Context, string) (client.DeadLetter, error)
	many              func(*client.Client, context.Context, client.DeadLetterSelection) (client.DeadLettersSettled, error)
}

const lettersMax = 1000 // IDs of one API call

func (c *cli) deadLetterSettleCommand(s settling) *cobra.Command {
	var selection client.DeadLetterSelection
	discards := s.verb == "discard"
	asks, confirmed := "--all asks first; where no terminal can answer, add --yes.", ""
	if discards {
		asks, confirmed = "It asks first; where no terminal can answer, add --yes.", " --yes"
	}
	cmd := c.yesFlag(&cobra.Command{
		Use:   s.verb + " ID... | --source S | --reason R | --all",
		Short: s.short,
		Long: s.short + `.

Only OPEN ones change: those with the IDs, those of a topic or with a reason, or
all. ` + asks,
		Example: fmt.Sprintf("  largesse deadletter %[1]s 7%[2]s\n  largesse deadletter %[1]s --reason MALFORMED%[2]s\n  largesse deadletter %[1]s --all --yes", s.verb, confirmed),
	})
	letterFilterFlags(cmd, &selection.Source, &selection.Reason)
	cmd.Flags().BoolVar(&selection.All, "all", false, "all OPEN dead letters")
	cmd.Args = func(cmd *cobra.Command, ids []string) error {
		if len(ids) > lettersMax {
			return wrongUse("%s needs at most %d dead letter IDs, but got %s; see %s --help", shortPath(cmd), lettersMax, countOf(int64(len(ids)), "argument"), cmd.CommandPath())
		}
		for _, id := range ids {
			if err := checkDeadLetterID(id); err != nil {
				return err
			}
		}
		filter := selection.Source != "" || selection.Reason != ""
		switch {
		case len(ids) == 0 && !filter && !selection.All:
			return wrongUse("deadletter %s needs IDs, --source, --reason or --all; see %s --help", s.verb, cmd.CommandPath())
		case len(ids) > 0 && (filter || selection.All), filter && selection.All:
			return wrongUse("use only one of IDs, a filter (--source, --reason) and --all")
		}
		return nil
	}
	cmd.RunE = c.calling(func(ctx context.Context, cl *client.Client, ids []string) error {
		what := ""
		switch {
		case selection.All:
			what = s.verb + " all open dead letters"
		case discards && len(ids) == 0:
			what = "discard all open dead letters of this source or reason"
		case discards:
			what = "discard " + countOf(int64(len(ids)), "dead letter")
		}
		if what != "" {
			if err := c.confirm(what); err != nil {
				return err
			}
		}
		if len(ids) == 1 {
			d, err := s.one(cl, ctx, ids[0])
			return c.show(d, err, fmt.Sprintf("dead letter %s is %s", d.ID, d.Status))
		}
		selection.IDs = ids
		res, err := s.many(cl, ctx, selection)
		return c.show(res, err, fmt.Sprintf("%s %s, %s skipped", countOf(res.Count, "dead letter"), s.done, number(res.Skipped)))
	})
	return cmd
}
