package main

import (
	"context"
	"fmt"
	"iter"

	"github.com/spf13/cobra"

	"github.com/largesse/largesse/client"
)

// calling returns the function of a command that calls a server.
func (c *cli) calling(do func(context.Context, *client.Client, []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		cl, err := c.connect()
		if err != nil {
			return err
		}
		return do(cmd.Context(), cl, args)
	}
}

// show prints the result of a call as JSON or, for people, as lines. err is the error
// of the call.
func (c *cli) show(result any, err error, lines ...string) error {
	return showBy(c, result, err, func(any) error { return c.printLines(lines...) })
}

// showBy is like show, with a function that prints the result for people.
func showBy[T any](c *cli, result T, err error, text func(T) error) error {
	switch {
	case err != nil:
		return err
	case c.output == outputJSON:
		return c.printJSON(result)
	}
	return text(result)
}

// showSecret is like show for a new secret: it prints the secret alone to stdout, and
// what it is to stderr.
func (c *cli) showSecret(result any, err error, secret, what string) error {
	return showBy(c, result, err, func(any) error {
		if err := c.printLines(secret); err != nil {
			return err
		}
		_, err := fmt.Fprintln(c.stderr, printable(what))
		return err
	})
}

// printLines prints lines for people. Empty ones are omitted.
func (c *cli) printLines(lines ...string) error {
	for _, line := range lines {
		if line == "" {
			continue
		}
		if _, err := fmt.Fprintln(c.stdout, printable(line)); err != nil {
			return err
		}
	}
	return nil
}

// each iterates over the result of a call that returns a whole list.
func each[T any](items []T, err error) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		var none T
		if err != nil {
			yield(none, err)
			return
		}
		for _, item := range items {
			if !yield(item, nil) {
				return
			}
		}
	}
}

// countTrue returns how many of some conditions are true.
func countTrue(all ...bool) int {
	n := 0
	for _, one := range all {
		if one {
			n++
		}
	}
	return n
}
