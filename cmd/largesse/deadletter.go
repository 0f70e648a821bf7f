package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/largesse/largesse/client"
)

func (c *cli) deadLetterCommand() *cobra.Command {
	cmd := c.talks(group(&cobra.Command{
		Use:     "deadletter",
		Aliases: []string{"deadletters"},
		Short:   "List, show, replay and discard messages that could not be read or processed",
		Example: `  largesse deadletter list --status open
  largesse deadletter show 7
  largesse deadletter replay 7`,
	}))
	cmd.AddCommand(
		c.deadLetterListCommand(),
		c.deadLetterShowCommand(),
		c.deadLetterSettleCommand(settling{
			verb: "replay", done: "replayed", short: "Replay dead letters: publish their records again, or requeue their payouts",
			one: (*client.Client).ReplayDeadLetter, many: (*client.Client).ReplayDeadLetters,
		}),
		c.deadLetterSettleCommand(settling{
			verb: "discard", done: "discarded", short: "Discard dead letters; their bytes are retained",
			one: (*client.Client).DiscardDeadLetter, many: (*client.Client).DiscardDeadLetters,
		}),
	)
	return cmd
}

// letterStatuses lists the statuses of a dead letter, in the form that users
// type.
var letterStatuses = []string{"open", "replayed", "discarded"}

func (c *cli) deadLetterListCommand() *cobra.Command {
	var (
		limit int
		f     client.DeadLetterFilter
	)
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List dead letters, newest first",
		Example: `  largesse deadletter list --status open
  largesse deadletter list --reason MALFORMED --limit 0 --output json`,
		Args: args(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkLimit(limit); err != nil {
				return err
			}
			if f.Status != "" && !slices.Contains(letterStatuses, strings.ToLower(f.Status)) {
				return wrongUse("--status %q must be one of %s", f.Status, strings.Join(letterStatuses, ", "))
			}
			f.Status = strings.ToUpper(f.Status)
			cl, err := c.connect()
			if err != nil {
				return err
			}
			return printList(c, cl.DeadLetters(cmd.Context(), f), listing[client.DeadLetter]{
				header: []string{"ID", "AT", "STATUS", "SOURCE", "PARTITION", "OFFSET", "REASON", "DETAIL"},
				row: func(d client.DeadLetter) []string {
					return []string{d.ID, moment(&d.At), d.Status, d.Source, strconv.Itoa(int(d.Partition)), d.Offset, d.Reason, d.Detail}
				},
				limit: limit,
				empty: "there are no dead letters",
				cuts:  []string{"SOURCE", "DETAIL"},
			})
		},
	}
	limitFlag(cmd, &limit)
	letterFilterFlags(cmd, &f.Source, &f.Reason)
	cmd.Flags().StringVar(&f.Status, "status", "", "only dead letters with this status: "+strings.Join(letterStatuses, ", "))
	complete(cmd, "status", letterStatuses...)
	return cmd
}

func letterFilterFlags(cmd *cobra.Command, source, reason *string) {
	cmd.Flags().StringVar(source, "source", "", "only dead letters of this topic or stream")
	cmd.Flags().StringVar(reason, "reason", "", "only dead letters with this reason, e.g. MALFORMED")
}

func (c *cli) deadLetterShowCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "show ID",
		Short: "Show a dead letter with its bytes",
		Example: `  largesse deadletter show 7
  largesse deadletter show 7 --output json`,
		Args: letterArgs(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := c.connect()
			if err != nil {
				return err
			}
			d, err := cl.DeadLetter(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if c.output == outputJSON {
				return c.printJSON(d)
			}
			return c.printDeadLetter(d)
		},
	}
}

func (c *cli) printDeadLetter(d client.DeadLetter) error {
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
	for _, line := range lines {
		if _, err := fmt.Fprintln(c.stdout, printable(line)); err != nil {
			return err
		}
	}
	return nil
}

// settling describes one of the two ways to settle dead letters.
type settling struct {
	verb, done, short string
	one               func(*client.Client, context.Context, string) (client.DeadLetter, error)
	many              func(*client.Client, context.Context, client.DeadLetterSelection) (client.DeadLettersSettled, error)
}

// lettersMax limits the IDs of one API call.
const lettersMax = 1000

func (c *cli) deadLetterSettleCommand(s settling) *cobra.Command {
	var (
		selection client.DeadLetterSelection
		yes       bool
	)
	discards := s.verb == "discard"
	asks, confirmed := "--all asks first; where no terminal can answer, add --yes.", ""
	if discards {
		asks, confirmed = "It asks first; where no terminal can answer, add --yes.", " --yes"
	}
	cmd := &cobra.Command{
		Use:   s.verb + " ID... | --source S | --reason R | --all",
		Short: s.short,
		Long: s.short + `.

Only OPEN ones change: those with the IDs, those of a topic or with a reason, or
all. ` + asks,
		Example: fmt.Sprintf("  largesse deadletter %[1]s 7%[2]s\n  largesse deadletter %[1]s --reason MALFORMED%[2]s\n  largesse deadletter %[1]s --all --yes", s.verb, confirmed),
		Args:    letterArgs(0, lettersMax),
		RunE: func(cmd *cobra.Command, ids []string) error {
			filter := selection.Source != "" || selection.Reason != ""
			switch {
			case len(ids) == 0 && !filter && !selection.All:
				return wrongUse("deadletter %s needs IDs, --source, --reason or --all; see %s --help", s.verb, cmd.CommandPath())
			case len(ids) > 0 && (filter || selection.All), filter && selection.All:
				return wrongUse("use only one of IDs, a filter (--source, --reason) and --all")
			}
			if selection.All {
				if err := c.confirm(yes, s.verb+" all open dead letters"); err != nil {
					return err
				}
			}
			if discards && !selection.All {
				if err := c.confirm(yes, discarded(ids)); err != nil {
					return err
				}
			}
			cl, err := c.connect()
			if err != nil {
				return err
			}
			if len(ids) == 1 {
				d, err := s.one(cl, cmd.Context(), ids[0])
				if err != nil {
					return err
				}
				if c.output == outputJSON {
					return c.printJSON(d)
				}
				_, err = fmt.Fprintf(c.stdout, "dead letter %s is %s\n", printable(d.ID), printable(d.Status))
				return err
			}
			selection.IDs = ids
			res, err := s.many(cl, cmd.Context(), selection)
			if err != nil {
				return err
			}
			if c.output == outputJSON {
				return c.printJSON(res)
			}
			_, err = fmt.Fprintf(c.stdout, "%s %s, %s skipped\n", countOf(res.Count, "dead letter"), s.done, number(res.Skipped))
			return err
		},
	}
	letterFilterFlags(cmd, &selection.Source, &selection.Reason)
	cmd.Flags().BoolVar(&selection.All, "all", false, "all OPEN dead letters")
	yesFlag(cmd, &yes)
	return cmd
}

// discarded says which dead letters would be discarded.
func discarded(ids []string) string {
	if len(ids) == 0 {
		return "discard all open dead letters of this source or reason"
	}
	return "discard " + countOf(int64(len(ids)), "dead letter")
}

// letterArgs accepts between least and most dead letter IDs.
func letterArgs(least, most int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, given []string) error {
		if len(given) < least || len(given) > most {
			want := fmt.Sprintf("at most %d dead letter IDs", most)
			if most == least {
				want = "a dead letter ID"
			}
			return wrongUse("%s needs %s, but got %s; see %s --help", shortPath(cmd), want, countOf(int64(len(given)), "argument"), cmd.CommandPath())
		}
		for _, id := range given {
			if n, err := strconv.ParseInt(id, 10, 64); err != nil || n < 1 || strconv.FormatInt(n, 10) != id {
				return wrongUse("%q is not a dead letter ID: it must be a whole number from 1; see largesse deadletter list", id)
			}
		}
		return nil
	}
}

// limitFlag adds the flag that limits how much of a list is shown.
func limitFlag(cmd *cobra.Command, limit *int) {
	cmd.Flags().IntVar(limit, "limit", 50, "maximum number of items to show; 0: all")
}

func checkLimit(limit int) error {
	if limit < 0 {
		return wrongUse("--limit %d must be at least 0; 0 shows all", limit)
	}
	return nil
}
