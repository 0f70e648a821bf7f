package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/largesse/largesse"
	"github.com/largesse/largesse/client"
)

// usageError is a command that was called the wrong way.
type usageError struct{ text string }

func (e *usageError) Error() string { return e.text }

func wrongUse(format string, args ...any) error {
	return &usageError{fmt.Sprintf(format, args...)}
}

// flagError says what is wrong with a flag, and which one was meant.
func flagError(cmd *cobra.Command, err error) error {
	text := err.Error()
	var unknown *pflag.NotExistError
	if errors.As(err, &unknown) {
		var names []string
		cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
		if near := largesse.ClosestName(unknown.GetSpecifiedName(), names); near != "" {
			return wrongUse("%s; did you mean --%s?", text, near)
		}
	}
	return wrongUse("%s; see %s --help", text, cmd.CommandPath())
}

// describe turns an error into one line that says what to do, and an exit
// code.
func describe(ctx context.Context, err error) (text string, code int) {
	code = exitFailed
	text = err.Error()
	var (
		usage    *usageError
		settings *largesse.ConfigError
		problem  *client.Problem
		dial     *net.OpError
	)
	switch {
	case errors.As(err, &usage), errors.As(err, &settings):
		code = exitWrongUse
	case ctx.Err() != nil && errors.Is(err, context.Canceled):
		text = "interrupted: " + text
	case errors.As(err, &problem) && problem.Status == http.StatusUnauthorized:
		text += "; give an API key by LARGESSE_API_KEY or --api-key"
	case errors.As(err, &problem) && problem.RequestID != "" && problem.Status >= http.StatusInternalServerError:
		text += "; the server's log has more under request " + problem.RequestID
	case errors.As(err, &dial) && dial.Op == "dial":
		text += "; is the server up (largesse serve)? name another by --server or LARGESSE_SERVER"
	case errors.Is(err, context.DeadlineExceeded):
		text += "; try again"
	}
	return strings.Join(strings.Fields(printable(text)), " "), code
}
