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

// callCommand completes a command that makes one call, with the ID that is its argument, and
// shows the result. If what the call does cannot be undone, question says so, and the
// command asks first.
func callCommand[T any](
	c *cli, cmd *cobra.Command, question func(context.Context, *client.Client, string) (string, error),
	call func(*client.Client, context.Context, string) (T, error), text func(T) error,
) *cobra.Command {
	if question != nil {
		c.yesFlag(cmd)
	}
	cmd.RunE = c.calling(func(ctx context.Context, cl *client.Client, args []string) error {
		if question != nil && !c.yes {
			what, err := question(ctx, cl, args[0])
			if err != nil {
				return err
			}
			if err := c.confirm(what); err != nil {
				return err
			}
		}
		result, err := call(cl, ctx, args[0])
		return showBy(c, result, err, text)
	})
	return cmd
}

// about is a question that names what the ID belongs to.
func about[T any](read func(*client.Client, context.Context, string) (T, error), text func(T) string) func(context.Context, *client.Client, string) (string, error) {
	return func(ctx context.Context, cl *client.Client, id string) (string, error) {
		found, err := read(cl, ctx, id)
		return text(found), err
	}
}

// aboutID is a question with the ID in its format.
func aboutID(format string) func(context.Context, *client.Client, string) (string, error) {
	return func(_ context.Context, _ *client.Client, id string) (string, error) {
		return fmt.Sprintf(format, printable(id)), nil
	}
}

func line[T any](c *cli, format func(T) string) func(T) error {
	return func(result T) error { return c.printLines(format(result)) }
}

// withID gives a call without a result the ID as its result, under a name.
func withID(name string, call func(*client.Client, context.Context, string) error) func(*client.Client, context.Context, string) (map[string]string, error) {
	return func(cl *client.Client, ctx context.Context, id string) (map[string]string, error) {
		return map[string]string{name: id}, call(cl, ctx, id)
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

func countTrue(all ...bool) int {
	n := 0
	for _, one := range all {
		if one {
			n++
		}
	}
	return n
}
