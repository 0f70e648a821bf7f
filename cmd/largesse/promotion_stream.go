package main

import (
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/largesse/largesse/client"
)

// printStream writes the work stream of a promotion: a line per field, then a
// table of its consumers.
func (c *cli) printStream(s client.PromotionStream) error {
	w := tabwriter.NewWriter(c.stdout, 0, 8, 2, ' ', 0)
	line := func(name, value string) {
		if value != "" {
			fmt.Fprintf(w, "%s\t%s\n", name, printable(value))
		}
	}
	fmt.Fprintln(w)
	if !s.Exists {
		line("stream", "none: nothing has been dispatched, or all of it is settled")
		return w.Flush()
	}
	key := s.Key
	if key == "" {
		key = "in the server's process"
	}
	line("stream", key)
	line("group", s.Group)
	line("entries", number(s.Length))
	line("  not read", number(s.Lag))
	line("  pending", number(s.Pending))
	line("oldest entry", moment(s.OldestAt))
	line("oldest pending", moment(s.OldestPendingAt))
	if err := w.Flush(); err != nil {
		return err
	}
	if len(s.Consumers) == 0 {
		_, err := fmt.Fprintln(c.stdout, "\nit has no consumers")
		return err
	}
	fmt.Fprintln(w, "\nCONSUMER\tINSTANCE\tALIVE\tPENDING\tIDLE")
	for _, one := range s.Consumers {
		idle := time.Duration(one.IdleMillis) * time.Millisecond
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", printable(one.Name), printable(one.Instance), yesNo(one.Alive), number(one.Pending), idle)
	}
	return w.Flush()
}
