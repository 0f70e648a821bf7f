package main

import (
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/dustin/go-humanize"
)

// The forms of the output.
const (
	outputTable = "table"
	outputJSON  = "json"
)

// printJSON writes a value as indented JSON.
func (c *cli) printJSON(v any) error {
	e := json.NewEncoder(c.stdout)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// listing is how a list is shown.
type listing[T any] struct {
	header []string // nil = none
	row    func(T) []string
	limit  int    // 0 = all
	empty  string // what to say instead of an empty table
}

// printList writes a list as it comes: a table, or an array of JSON.
func printList[T any](c *cli, items iter.Seq2[T, error], l listing[T]) error {
	w := tabwriter.NewWriter(c.stdout, 0, 8, 2, ' ', 0)
	count, more := 0, false
	for item, err := range items {
		if err != nil {
			return err
		}
		if l.limit > 0 && count == l.limit {
			more = true
			break
		}
		if err := printItem(c, w, l, count, item); err != nil {
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
	} else if err := w.Flush(); err != nil {
		return err
	}
	if count == 0 && c.output == outputTable {
		fmt.Fprintln(c.stderr, l.empty)
	}
	if more {
		fmt.Fprintf(c.stderr, "there are more than %d; --limit 0 shows all\n", l.limit)
	}
	return nil
}

// flushEvery is how many lines of a table are lined up together, so that a
// long list is neither held in memory nor waited for.
const flushEvery = 200

func printItem[T any](c *cli, w *tabwriter.Writer, l listing[T], index int, item T) error {
	if c.output == outputJSON {
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
	if index == 0 && l.header != nil {
		fmt.Fprintln(w, strings.Join(l.header, "\t"))
	}
	cells := l.row(item)
	for i := range cells {
		cells[i] = printable(cells[i])
	}
	if _, err := fmt.Fprintln(w, strings.Join(cells, "\t")); err != nil {
		return err
	}
	if index%flushEvery == flushEvery-1 {
		return w.Flush()
	}
	return nil
}

// printable keeps text from steering the terminal it is shown on.
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

// number writes 1234567 as 1,234,567.
func number(n int64) string { return humanize.Comma(n) }

// countOf writes a number of things: "1 row", "2,000 rows".
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

// moment writes a time for people; empty when there is none.
func moment(t *time.Time) string {
	if t == nil || t.IsZero() {
		return ""
	}
	return t.UTC().Format("2006-01-02 15:04:05Z")
}
