package main

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net"
	"net/http"
	"syscall"
	"time"

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

// question returns what a call for an ID would do that cannot be undone.
type question func(ctx context.Context, cl *client.Client, id string) (string, error)

// callCommand completes a command that makes one call, with the ID that is its argument, and
// shows the result. It first asks the question, unless that is nil.
func callCommand[T any](
	c *cli, cmd *cobra.Command, ask question, call func(*client.Client, context.Context, string) (T, error), text func(T) error,
) *cobra.Command {
	if ask != nil {
		c.yesFlag(cmd)
	}
	cmd.RunE = c.calling(func(ctx context.Context, cl *client.Client, args []string) error {
		if ask != nil && !c.yes {
			what, err := ask(ctx, cl, args[0])
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

// changeCommand creates the command of a change, whose group and name are given. format
// describes the result.
func changeCommand[T any](
	c *cli, group, name, short string, ask question, change func(*client.Client, context.Context, string) (T, error), format func(T) string,
) *cobra.Command {
	example := group + " " + name + " 12345"
	if ask != nil {
		example += " --yes"
	}
	return callCommand(c, &cobra.Command{Use: name + " ID", Short: short, Example: inBothForms(example)}, ask, change, line(c, format))
}

// about is a question that names what the ID belongs to.
func about[T any](read func(*client.Client, context.Context, string) (T, error), text func(T) string) question {
	return func(ctx context.Context, cl *client.Client, id string) (string, error) {
		found, err := read(cl, ctx, id)
		return text(found), err
	}
}

// aboutID is a question with the ID in its format.
func aboutID(format string) question {
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

const (
	serverPatience = 3 * time.Second       // how long commands wait for a server that was started just before them
	redialAfter    = 50 * time.Millisecond // between two attempts to connect
)

type dialFunc func(ctx context.Context, network, address string) (net.Conn, error)

// patientTransport returns a transport that retries refused connections for a
// while. It repeats only connecting, so no request is sent twice.
func patientTransport(patience time.Duration) *http.Transport {
	t := http.DefaultTransport.(*http.Transport).Clone() //nolint:forcetypeassert // this program does not replace it
	t.DialContext = patientDial(t.DialContext, patience)
	return t
}

func patientDial(dial dialFunc, patience time.Duration) dialFunc {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		began := time.Now()
		for {
			conn, err := dial(ctx, network, address)
			if err == nil || !errors.Is(err, syscall.ECONNREFUSED) || time.Since(began)+redialAfter > patience {
				return conn, err
			}
			select {
			case <-time.After(redialAfter):
			case <-ctx.Done():
				return nil, err
			}
		}
	}
}
