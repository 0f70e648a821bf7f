package main

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/reward"
)

func (c *cli) webhookCommand() *cobra.Command {
	return c.talks(group(&cobra.Command{
		Use:     "webhook",
		Aliases: []string{"webhooks"},
		Short:   "Manage webhook endpoints, which receive events",
		Long: `Manage webhook endpoints, which receive events. Each one has its own events and its
own secret, with which deliveries are signed by the Standard Webhooks specification.
Endpoints of the kinds slack and email tell people.`,
		Example: `  largesse webhook create --url https://crm.example.com/largesse --events promotion.completed,balance.breach
  largesse webhook test 3
  largesse webhook deliveries 3`,
	},
		c.webhookCreateCommand(),
		c.webhookListCommand(),
		callCommand(c, &cobra.Command{
			Use: "show ID", Short: "Show a webhook endpoint and its state", Example: inBothForms("webhook show 3"),
		}, nil, (*client.Client).WebhookEndpoint, c.printEndpoint),
		c.webhookUpdateCommand(),
		callCommand(c, &cobra.Command{
			Use: "delete ID", Short: "Delete a webhook endpoint and its deliveries", Example: inBothForms("webhook delete 3 --yes"),
		}, about((*client.Client).WebhookEndpoint, func(e client.WebhookEndpoint) string {
			return fmt.Sprintf("delete webhook endpoint %s (%s) with its deliveries, %s of them pending", e.ID, printable(receiverOf(e)), number(int64(e.PendingCount)))
		}), withID("deleted", (*client.Client).DeleteWebhookEndpoint), line(c, func(r map[string]string) string {
			return fmt.Sprintf("webhook endpoint %s is deleted", r["deleted"])
		})),
		callCommand(c, &cobra.Command{
			Use:   "rotate-secret ID",
			Short: "Replace the secret of a webhook endpoint; the new one is shown once",
			Long: `Replace the secret of a webhook endpoint. For 24 hours, deliveries are signed with
both, so the receiver has this time to change. If you rotate again within it, the
secret before the last one is valid no longer.`,
			Example: inBothForms("webhook rotate-secret 3 --yes"),
		}, aboutID("replace the secret of webhook endpoint %s; the present one ends in 24 hours"), (*client.Client).RotateWebhookSecret, func(e client.WebhookEndpoint) error {
			return c.showEndpointSecret(e, nil, fmt.Sprintf("This is the new secret of webhook endpoint %s; the previous one is valid until %s.", e.ID, moment(e.PreviousSecretUntil)))
		}),
		callCommand(c, &cobra.Command{
			Use: "test ID", Short: "Send the event webhook.test to a webhook endpoint", Example: inBothForms("webhook test 3"),
		}, nil, (*client.Client).TestWebhookEndpoint, line(c, pendingLine)),
		c.webhookDeliveriesCommand(),
		c.webhookResendCommand(),
	))
}

// webhookFlags are the flags that webhook create and webhook update share.
type webhookFlags struct {
	url, language, description *string // nil: not given
	events, to                 []string
}

func (f *webhookFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	addOptional(flags, &f.url, "url", "http:// or https:// URL that receives the events; with --kind slack, that of an incoming webhook", asIs)
	flags.StringSliceVar(&f.to, "to", nil, "with --kind email: the addresses, with commas between")
	addOptional(flags, &f.language, "language", "language of messages to people: en or ko", asIs)
	flags.StringSliceVar(&f.events, "events", nil, "events to receive, with commas between: "+strings.Join(reward.WebhookEvents, ", "))
	addOptional(flags, &f.description, "description", "what the endpoint is for, at most 500 characters", asIs)
	complete(cmd, "events", reward.WebhookEvents...)
}

func (f *webhookFlags) check() error {
	for _, event := range f.events {
		if !slices.Contains(reward.WebhookEvents, event) {
			return wrongUse("--events %q must be one of %s", event, strings.Join(reward.WebhookEvents, ", "))
		}
	}
	return nil
}

func (c *cli) webhookCreateCommand() *cobra.Command {
	var (
		f        webhookFlags
		kind     string
		disabled bool
	)
	cmd := &cobra.Command{
		Use:   "create --url URL --events EVENT,...",
		Short: "Create a webhook endpoint; its secret is shown once",
		Long: `Create a webhook endpoint; its secret is shown once. With --kind slack or --kind email,
people are told, of approvals that are needed, pauses by Largesse, ends, books that do
not balance and drops that are sold out. These kinds have no secret. Without --url, a
Slack endpoint uses the setting notify.slack-url.`,
		Example: `  largesse webhook create --url https://crm.example.com/largesse --events promotion.completed,balance.breach
  largesse webhook create --url https://crm.example.com/largesse --events coupon.used --description "the till" --disabled
  largesse webhook create --kind slack --events promotion.approval_needed,promotion.completed --language ko
  largesse webhook create --kind email --to kim@example.com,lee@example.com --events balance.breach`,
	}
	f.add(cmd)
	filterFlag(cmd, &kind, "kind", "what the endpoint is", "webhook", "slack", "email")
	cmd.Flags().BoolVar(&disabled, "disabled", false, "record no events until webhook update --enable")
	cmd.RunE = c.calling(func(ctx context.Context, cl *client.Client, _ []string) error {
		switch {
		case orZero(f.url) == "" && (kind == "" || kind == client.KindWebhook):
			return wrongUse("--url is missing; see %s --help", cmd.CommandPath())
		case len(f.events) == 0:
			return wrongUse("--events is missing: name at least one of %s", strings.Join(reward.WebhookEvents, ", "))
		}
		if err := f.check(); err != nil {
			return err
		}
		n := client.NewWebhookEndpoint{
			Kind: kind, URL: orZero(f.url), To: f.to, Language: orZero(f.language), Events: f.events, Description: orZero(f.description),
		}
		if disabled {
			n.Enabled = new(bool)
		}
		e, err := cl.CreateWebhookEndpoint(ctx, n)
		if err == nil && e.Secret == "" {
			return c.show(e, nil, fmt.Sprintf("webhook endpoint %s is %s; see: largesse webhook test %s", e.ID, e.State, e.ID))
		}
		return c.showEndpointSecret(e, err, "This is the secret of webhook endpoint "+e.ID+".")
	})
	return cmd
}

// showEndpointSecret shows a new secret. what says what it is.
func (c *cli) showEndpointSecret(e client.WebhookEndpoint, err error, what string) error {
	return c.showSecret(e, err, e.Secret, what+" It is not shown again: give it to the receiver, which verifies deliveries with it.")
}

func (c *cli) webhookListCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Short:   "List all webhook endpoints, newest first",
		Example: inBothForms("webhook list"),
		RunE: c.calling(func(ctx context.Context, cl *client.Client, _ []string) error {
			return printList(c, each(cl.WebhookEndpoints(ctx)), listing[client.WebhookEndpoint]{
				header: []string{"ID", "STATE", "PENDING", "DELIVERED", "URL", "EVENTS", "DESCRIPTION"},
				row: func(e client.WebhookEndpoint) []string {
					return []string{e.ID, e.State, number(int64(e.PendingCount)), moment(e.DeliveredAt), receiverOf(e), strings.Join(e.Events, " "), e.Description}
				},
				empty: "there are no webhook endpoints; create one: largesse webhook create --help",
				cuts:  []string{"EVENTS", "DESCRIPTION", "URL"},
			})
		}),
	}
}

// receiverOf returns where the messages of an endpoint go.
func receiverOf(e client.WebhookEndpoint) string {
	switch {
	case len(e.To) > 0:
		return strings.Join(e.To, " ")
	case e.URL == "":
		return "notify.slack-url"
	}
	return e.URL
}

func (c *cli) printEndpoint(e client.WebhookEndpoint) error {
	d := c.details()
	d.add("id", e.ID)
	if e.Kind != client.KindWebhook {
		d.add("kind", e.Kind)
	}
	d.add("url", e.URL)
	d.add("to", strings.Join(e.To, " "))
	d.add("language", e.Language)
	d.add("description", e.Description)
	d.add("events", strings.Join(e.Events, " "))
	d.add("state", e.State)
	d.add("disabled", moment(e.DisabledAt))
	d.add("disabled because", e.DisabledReason)
	d.add("failing since", moment(e.FailingSince))
	if e.FailedAttempts > 0 {
		d.add("failed attempts", number(int64(e.FailedAttempts)))
	}
	d.add("last error", e.LastError)
	d.add("delivered", moment(e.DeliveredAt))
	d.add("pending", number(int64(e.PendingCount)))
	if e.DroppedCount > 0 {
		d.add("dropped", number(e.DroppedCount)+", latest at "+moment(e.DroppedAt))
	}
	d.add("previous secret", moment(e.PreviousSecretUntil))
	d.add("created", moment(&e.CreatedAt))
	d.add("created by", e.CreatedBy)
	return d.flush()
}

func (c *cli) webhookUpdateCommand() *cobra.Command {
	var (
		f               webhookFlags
		enable, disable bool
	)
	cmd := &cobra.Command{
		Use:     "update ID --FLAG VALUE...",
		Aliases: []string{"set"},
		Short:   "Change, disable or enable a webhook endpoint",
		Long: `Change a webhook endpoint. Only the settings with a flag change; --events replaces
all events. While an endpoint is disabled, no event is recorded for it, and pending
deliveries wait. --enable also forgets past failures. With another URL the endpoint
gets a new secret, which is shown once. All deliveries, also those that were pending,
then go to the new URL and are signed with the new secret alone.`,
		Example: `  largesse webhook update 3 --events promotion.completed,payout.failed
  largesse webhook update 3 --url https://new.example.com/largesse
  largesse webhook update 3 --disable`,
	}
	f.add(cmd)
	cmd.Flags().BoolVar(&enable, "enable", false, "send events again")
	cmd.Flags().BoolVar(&disable, "disable", false, "record no events")
	cmd.RunE = c.calling(func(ctx context.Context, cl *client.Client, args []string) error {
		change := client.WebhookEndpointChange{URL: f.url, To: f.to, Language: f.language, Description: f.description, Events: f.events}
		changed := cmd.Flags().Changed("events")
		switch {
		case enable && disable:
			return wrongUse("use only one of --enable and --disable")
		case enable || disable:
			change.Enabled = &enable
		case f.url == nil && f.description == nil && f.language == nil && f.to == nil && !changed:
			return wrongUse("webhook update needs at least one flag; see %s --help", cmd.CommandPath())
		}
		if err := f.check(); err != nil {
			return err
		}
		if changed && len(f.events) == 0 {
			return wrongUse("--events must name at least one event; --disable stops all")
		}
		e, err := cl.ChangeWebhookEndpoint(ctx, args[0], change)
		if e.Secret != "" {
			return c.showEndpointSecret(e, err, "The URL of webhook endpoint "+e.ID+" has changed, and this is its new secret; the previous one is not valid any more.")
		}
		return c.show(e, err, fmt.Sprintf("webhook endpoint %s is %s", e.ID, e.State))
	})
	return cmd
}

func (c *cli) webhookResendCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "resend ID DELIVERY",
		Short:   "Send a delivery again, with the same webhook-id",
		Example: inBothForms("webhook resend 3 71"),
		RunE: c.calling(func(ctx context.Context, cl *client.Client, args []string) error {
			d, err := cl.ResendWebhookDelivery(ctx, args[0], args[1])
			return c.show(d, err, pendingLine(d))
		}),
	}
}

func pendingLine(d client.WebhookDelivery) string {
	return fmt.Sprintf("delivery %s of %s is %s; see: largesse webhook deliveries %s", d.ID, d.Event, d.State, d.EndpointID)
}

func (c *cli) webhookDeliveriesCommand() *cobra.Command {
	var state string
	cmd := listCommand(c, &cobra.Command{
		Use:   "deliveries ID",
		Short: "List the deliveries to a webhook endpoint, latest first, with their last attempt",
		Example: `  largesse webhook deliveries 3
  largesse webhook deliveries 3 --state abandoned --limit 0 --output json`,
	}, listing[client.WebhookDelivery]{
		header: []string{"ID", "EVENT", "OF", "AT", "STATE", "ATTEMPTS", "NEXT ATTEMPT", "LAST RESULT"},
		row: func(d client.WebhookDelivery) []string {
			return []string{
				d.ID, d.Event, subjectOf(d), moment(&d.At), d.State, strconv.Itoa(len(d.Attempts)), moment(d.NextAttemptAt), lastResult(d),
			}
		},
		empty: "there are no deliveries",
		cuts:  []string{"LAST RESULT"},
	}, func(ctx context.Context, cl *client.Client, args []string) iter.Seq2[client.WebhookDelivery, error] {
		return cl.WebhookDeliveries(ctx, args[0], state)
	})
	filterFlag(cmd, &state, "state", "only deliveries in this state", "pending", "delivered", "abandoned")
	return cmd
}

func subjectOf(d client.WebhookDelivery) string {
	switch {
	case d.CouponID != "":
		return "coupon " + d.CouponID
	case d.TemplateID != "":
		return "template " + d.TemplateID
	case d.TargetID != "":
		return "promotion " + d.PromotionID + ", target " + d.TargetID
	case d.PromotionID != "":
		return "promotion " + d.PromotionID
	}
	return ""
}

func lastResult(d client.WebhookDelivery) string {
	if len(d.Attempts) == 0 {
		return ""
	}
	a := d.Attempts[len(d.Attempts)-1]
	text := fmt.Sprintf("%d after %d ms", a.Status, a.Millis)
	if a.Status == 0 {
		text = fmt.Sprintf("no response after %d ms", a.Millis)
	}
	if a.Error != "" {
		text += ": " + a.Error
	}
	return text
}
