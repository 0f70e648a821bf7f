package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"strings"
	"time"
	"unicode"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/reward"
)

// The output formats.
const (
	outputTable = "table"
	outputJSON  = "json"
)

// inBothForms returns the example of a command, and the same with JSON.
func inBothForms(args string) string {
	return fmt.Sprintf("  largesse %[1]s\n  largesse %[1]s --output json", args)
}

func (c *cli) printJSON(v any) error {
	e := json.NewEncoder(c.stdout)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// listing describes how a list is printed.
type listing[T any] struct {
	header []string // nil: none
	row    func(T) []string
	limit  int      // 0: all
	empty  string   // message instead of an empty table; "": none
	cuts   []string // headers of the columns that may be cut to fit a terminal
	wrap   bool     // whether the last column is wrapped to fit a terminal
}

// printList prints a list while it reads it: as a table, or as a JSON array.
func printList[T any](c *cli, items iter.Seq2[T, error], l listing[T]) error {
	t := c.table(l.header...)
	t.cuts, t.wrap = l.cuts, l.wrap
	count, more := 0, false
	for item, err := range items {
		if err != nil {
			return err
		}
		if l.limit > 0 && count == l.limit {
			more = true
			break
		}
		if c.output == outputJSON {
			err = c.printJSONItem(count, item)
		} else {
			err = t.add(l.row(item)...)
		}
		if err != nil {
			return err
		}
		count++
	}
	if c.output == outputJSON {
		closing := "\n]\n"
		if count == 0 {
			closing = "[]\n"
		}
		if _, err := io.WriteString(c.stdout, closing); err != nil {
			return err
		}
	} else if err := t.flush(); err != nil {
		return err
	}
	if count == 0 && c.output == outputTable && l.empty != "" {
		fmt.Fprintln(c.stderr, l.empty)
	}
	if more {
		fmt.Fprintf(c.stderr, "only the first %d are shown; --limit 0 shows all\n", l.limit)
	}
	return nil
}

// listCommand completes a command that prints a list of the server.
func listCommand[T any](c *cli, cmd *cobra.Command, l listing[T], list func(ctx context.Context, cl *client.Client, args []string) iter.Seq2[T, error]) *cobra.Command {
	c.limitFlag(cmd)
	cmd.RunE = c.calling(func(ctx context.Context, cl *client.Client, args []string) error {
		l.limit = c.limit
		return printList(c, list(ctx, cl, args), l)
	})
	return cmd
}

func (c *cli) printJSONItem(index int, item any) error {
	separator := ",\n  "
	if index == 0 {
		separator = "[\n  "
	}
	text, err := json.Marshal(item)
	if err != nil {
		return err
	}
	_, err = io.WriteString(c.stdout, separator+string(text))
	return err
}

// printable replaces characters that could control the terminal.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return ' '
		case !unicode.IsPrint(r):
			return unicode.ReplacementChar
		}
		return r
	}, text)
}

// number formats 1234567 as 1,234,567.
func number(n int64) string { return humanize.Comma(n) }

func money(amount int64, currency string) string { return reward.Amount(amount).In(currency) }

// countOf formats a count: "1 row", "2,000 rows".
func countOf(n int64, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return number(n) + " " + thing + "s"
}

func yesNo(yes bool) string {
	if yes {
		return "yes"
	}
	return "no"
}

// zoned formats a time that people have planned, in the zone of the terminal.
func zoned(t *time.Time) string {
	if t == nil {
		return ""
	}
	return t.Local().Format("Mon 2 Jan 2006 15:04 MST")
}

// moment formats a time for people. It is empty without a time.
func moment(t *time.Time) string {
	if t == nil || t.IsZero() {
		return ""
	}
	return t.UTC().Format("2006-01-02 15:04:05Z")
}
