package main

import (
	"context"
	"iter"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/reward"
)

// argument is what a command takes besides flags.
type argument struct {
	name  string             // in errors
	check func(string) error // so that a malformed ID is wrong use and needs no server; nil: any text
}

// The names of the arguments that the shell completes.
const (
	aFile      = "a FILE"
	aPromotion = "a promotion ID"
	aTemplate  = "a template ID"
)

// The checks of IDs.
var (
	checkPromotionID  = idCheck(aPromotion, "promotion list")
	checkTemplateID   = idCheck(aTemplate, "template list")
	checkCouponID     = idCheck("a coupon ID", "coupon list --help")
	checkDeadLetterID = idCheck("a dead letter ID", "deadletter list")
	checkWebhookID    = idCheck("an ID", "webhook list")
)

// arguments describes the words of usage lines, some of them only in a group.
var arguments = map[string]argument{
	"apikey ID":     {name: "an API key ID"},
	"coupon ID":     {"a coupon ID", checkCouponID},
	"deadletter ID": {"a dead letter ID", checkDeadLetterID},
	"promotion ID":  {aPromotion, checkPromotionID},
	"template ID":   {aTemplate, checkTemplateID},
	"webhook ID":    {"a webhook endpoint ID", checkWebhookID},
	"DELIVERY":      {"a delivery ID", checkWebhookID},
	"FILE":          {name: aFile},
	"NAME":          {"a profile name", checkProfileName},
	"TARGET":        {"a TARGET", checkTargetID},
	"TEMPLATE":      {aTemplate, checkTemplateID},
	"USER":          {"a USER", func(user string) error { return checkUser("user history", user) }},
}

func idCheck(what, see string) func(string) error {
	return func(id string) error {
		if _, err := reward.ParsePromotionID(id); err != nil { // all IDs look alike
			return wrongUse("%q is not %s: it must be a whole number from 1; see largesse %s", id, what, see)
		}
		return nil
	}
}

func checkTargetID(id string) error {
	if _, err := reward.ParseTargetID(id); err != nil {
		return wrongUse("%q is not a target ID: it must be a whole number from 0", id)
	}
	return nil
}

// checkUser checks a user's ID. where is the flag or the command that has it.
func checkUser(where, user string) error {
	if err := reward.CheckUserID(user); err != nil {
		return wrongUse("%s: %v", where, err)
	}
	return nil
}

// takeArguments makes all commands of a tree take what their usage lines say, as in
// "upload ID FILE", unless they have a check of their own, and offer it to the shell.
func (c *cli) takeArguments(cmd *cobra.Command) {
	for _, sub := range cmd.Commands() {
		c.takeArguments(sub)
	}
	var takes []argument
	for _, word := range strings.Fields(cmd.Use)[1:] {
		one, ok := arguments[cmd.Parent().Name()+" "+word]
		if !ok {
			one, ok = arguments[word]
		}
		if !ok {
			break // a flag
		}
		takes = append(takes, one)
	}
	if cmd.Args == nil {
		cmd.Args = exactly(takes)
	}
	c.completeIDs(cmd, takes)
}

// exactly accepts a value of each argument.
func exactly(takes []argument) cobra.PositionalArgs {
	return func(cmd *cobra.Command, given []string) error {
		if len(given) != len(takes) && len(takes) == 0 {
			return wrongUse("%s takes no arguments, but got %q", shortPath(cmd), given[0])
		}
		var names []string
		for _, one := range takes {
			names = append(names, one.name)
		}
		if len(given) != len(takes) {
			return wrongUse("%s needs %s, but got %s; see %s --help", shortPath(cmd), strings.Join(names, " and "), countOf(int64(len(given)), "argument"), cmd.CommandPath())
		}
		for i, one := range takes {
			if one.check == nil {
				continue
			}
			if err := one.check(given[i]); err != nil {
				return err
			}
		}
		return nil
	}
}

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
