package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/config"
	"github.com/largesse/largesse/internal/doctor"
	"github.com/largesse/largesse/internal/lab"
	"github.com/largesse/largesse/internal/reward"
)

type usageError struct{ text string }

func (e *usageError) Error() string { return e.text }

func wrongUse(format string, args ...any) error {
	return &usageError{fmt.Sprintf(format, args...)}
}

// valueKinds describes the values of a flag, by pflag's name of the type.
var valueKinds = map[string]string{
	"bool":     "true or false",
	"duration": "a duration with a unit such as 500ms or 5s",
	"float64":  "a number",
	"int":      "a whole number",
	"int64":    "a whole number",
	"uint64":   "a whole number from 0",
}

// cures gives a remedy for responses of the server that have none, by their
// code.
var cures = map[string]string{
	reward.CodeNotFound:           "see largesse promotion list",
	reward.CodePayoutNotFound:     "see largesse promotion payouts --help",
	reward.CodeTemplateNotFound:   "see largesse template list",
	reward.CodeCouponNotFound:     "see largesse coupon list --help",
	reward.CodeDeadLetterNotFound: "see largesse deadletter list",
	reward.CodeEndpointNotFound:   "see largesse webhook list",
	reward.CodeDeliveryNotFound:   "see largesse webhook deliveries --help",
	reward.CodeAPIKeyNotFound:     "see largesse apikey list",
	reward.CodeExists:             "use another --id, or omit it",
	"ROUTE_NOT_FOUND":             "check that the server and this binary have the same version (largesse version)",
}

// flagError explains what is wrong with a flag, and suggests a similar one. At a group,
// the flag follows the name of an unknown subcommand, which is the first mistake.
func flagError(cmd *cobra.Command, err error) error {
	if before := cmd.Flags().Args(); cmd.HasSubCommands() && len(before) > 0 {
		return unknownCommand(cmd, before[0])
	}
	text := err.Error()
	var invalid *pflag.InvalidValueError
	if errors.As(err, &invalid) {
		if usage, ok := errors.AsType[*usageError](err); ok {
			return wrongUse("--%s %s", invalid.GetFlag().Name, usage.text)
		}
		if kind := valueKinds[invalid.GetFlag().Value.Type()]; kind != "" {
			return wrongUse("--%s %q must be %s; see %s --help", invalid.GetFlag().Name, invalid.GetValue(), kind, cmd.CommandPath())
		}
	}
	var unknown *pflag.NotExistError
	if errors.As(err, &unknown) {
		var names []string
		cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
		if near := config.ClosestName(unknown.GetSpecifiedName(), names); near != "" {
			return wrongUse("%s; did you mean --%s?", text, near)
		}
	}
	return wrongUse("%s; see %s --help", text, cmd.CommandPath())
}

// fieldFlags are the flags whose names differ from those of their fields in the API.
var fieldFlags = map[string]string{
	"codes.alphabet": "code-alphabet",
	"codes.length":   "code-length",
	"codes.prefix":   "code-prefix",
	"perUserLimit":   "per-user",
	"ratePerSecond":  "rate",
	"totalQuantity":  "quantity",
	"voucherCode":    "voucher",
}

// withFlags names the flags of a command instead of the fields that the server refused.
func withFlags(cmd *cobra.Command, text string, refused []client.FieldError) string {
	for _, e := range refused {
		name := fieldFlags[e.Field]
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if strings.ReplaceAll(f.Name, "-", "") == strings.ToLower(strings.ReplaceAll(e.Field, ".", "")) {
				name = f.Name
			}
		})
		if name != "" && cmd.Flags().Lookup(name) != nil {
			text = strings.Replace(text, e.Field, "--"+name, 1)
		}
	}
	return text
}

// describe turns an error of a command into one line with a remedy, and an exit code.
// server is the server that the command calls; empty: none.
func describe(ctx context.Context, cmd *cobra.Command, err error, server string) (text string, code int) {
	code = exitFailed
	text = doctor.OneLine(err)
	var (
		usage    *usageError
		misuse   lab.Misuse
		settings *config.Error
		problem  *client.Problem
		dial     *net.OpError
	)
	if errors.As(err, &problem) {
		text = withFlags(cmd, text, problem.Errors)
	}
	switch {
	case errors.As(err, &usage), errors.As(err, &misuse), errors.As(err, &settings):
		code = exitWrongUse
	case ctx.Err() != nil && errors.Is(err, context.Canceled):
		text = strings.TrimSuffix("interrupted: "+text, ": "+context.Canceled.Error())
	case errors.As(err, &problem) && problem.Code == "" && problem.Status < http.StatusInternalServerError:
		// Gateways report the outage of a Largesse server with 5xx.
		text += fmt.Sprintf("; is %s a Largesse server? Select another with --server, --profile or LARGESSE_SERVER", server)
	case errors.As(err, &problem) && problem.Status == http.StatusUnauthorized:
		text += "; set LARGESSE_API_KEY or --api-key-file, or use a profile"
	case errors.As(err, &problem) && problem.RequestID != "" && problem.Status >= http.StatusInternalServerError:
		text += "; see the server's log for request " + problem.RequestID
	case errors.As(err, &problem) && cures[problem.Code] != "":
		text += "; " + cures[problem.Code]
	case server != "" && errors.As(err, &dial) && dial.Op == "dial":
		text += "; start it (largesse serve), or select another with --server, --profile or LARGESSE_SERVER"
	case server != "" && isNoWebServer(err):
		text += fmt.Sprintf("; either %s has stopped, or it is another program, such as Redis or PostgreSQL, or https:// is needed or too much. "+
			"Select another with --server, --profile or LARGESSE_SERVER", server)
	case errors.Is(err, context.DeadlineExceeded):
		text += "; try again"
	}
	return strings.Join(strings.Fields(printable(text)), " "), code
}

// isNoWebServer reports whether a server accepted the connection, and then did not speak
// HTTP, or not over TLS as it should.
func isNoWebServer(err error) bool {
	var noTLS tls.RecordHeaderError
	// net/http has no value for these errors. The first one is of a server that spoke before it was asked.
	for _, text := range []string{"readLoopPeekFailLocked", "malformed HTTP ", "TLS handshake timeout"} {
		if strings.Contains(err.Error(), text) {
			return true
		}
	}
	return errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) || errors.Is(err, http.ErrSchemeMismatch) ||
		errors.As(err, &noTLS)
}
