package main

import (
	"context"
	"iter"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/largesse/largesse/client"
)

const (
	completionTimeout = time.Second // limit of the wait after Tab
	completionMax     = 50          // IDs offered at once
)

// movable maps a command to the status of the promotions it accepts.
var movable = map[string]string{"start": "DRAFT", "pause": "RUNNING", "resume": "PAUSED"}

func complete(cmd *cobra.Command, flag string, words ...string) {
	completeBy(cmd, flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
}

func completeBy(cmd *cobra.Command, flag string, offer cobra.CompletionFunc) {
	if err := cmd.RegisterFlagCompletionFunc(flag, offer); err != nil {
		panic(err) // a bug: the command has no such flag
	}
}

// completeIDs offers the server's IDs of promotions and templates wherever a command
// takes one, and files for a FILE. If the server does not answer, it offers nothing and
// prints nothing.
func (c *cli) completeIDs(cmd *cobra.Command, takes []argument) {
	for flag, offer := range map[string]cobra.CompletionFunc{"promotion": c.offerPromotions(""), "template": c.offerTemplates()} {
		if cmd.LocalNonPersistentFlags().Lookup(flag) != nil {
			completeBy(cmd, flag, offer)
		}
	}
	if cmd.ValidArgsFunction != nil || cmd.HasSubCommands() || cmd.ValidArgs != nil {
		return
	}
	cmd.ValidArgsFunction = func(cmd *cobra.Command, given []string, begun string) ([]string, cobra.ShellCompDirective) {
		if len(given) < len(takes) {
			switch takes[len(given)].name {
			case aPromotion:
				return c.offerPromotions(movable[cmd.Name()])(cmd, given, begun)
			case aTemplate:
				return c.offerTemplates()(cmd, given, begun)
			case aFile:
				return nil, cobra.ShellCompDirectiveDefault
			}
		}
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
}

func (c *cli) offerPromotions(status string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, _ []string, begun string) ([]string, cobra.ShellCompDirective) {
		return offered(cmd, c, begun, func(ctx context.Context, cl *client.Client) iter.Seq2[client.Promotion, error] {
			return cl.Promotions(ctx, status)
		}, func(p client.Promotion) (id, about string) { return p.ID, p.Name + ", " + p.Status })
	}
}

func (c *cli) offerTemplates() cobra.CompletionFunc {
	return func(cmd *cobra.Command, _ []string, begun string) ([]string, cobra.ShellCompDirective) {
		return offered(cmd, c, begun, func(ctx context.Context, cl *client.Client) iter.Seq2[client.Template, error] {
			return cl.Templates(ctx)
		}, func(t client.Template) (id, about string) { return t.ID, t.Name + ", " + templateState(t, time.Now()) })
	}
}

// offered lists the IDs that start with begun, each with a description.
func offered[T any](cmd *cobra.Command, c *cli, begun string, list func(context.Context, *client.Client) iter.Seq2[T, error], tell func(T) (id, about string)) ([]string, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(cmd.Context(), completionTimeout)
	defer cancel()
	c.patience = 0
	cl, err := c.connect()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var out []string
	for one, err := range list(ctx, cl) {
		if err != nil || len(out) == completionMax {
			break
		}
		if id, about := tell(one); strings.HasPrefix(id, begun) {
			out = append(out, cobra.CompletionWithDesc(printable(id), printable(about)))
		}
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}
