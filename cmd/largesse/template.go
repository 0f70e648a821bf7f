package main

import (
	"context"
	"fmt"
	"iter"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/largesse/largesse/client"
)

func (c *cli) templateCommand() *cobra.Command {
	return c.talks(group(&cobra.Command{
		Use:     "template",
		Aliases: []string{"templates"},
		Short:   "Create, show, change, approve, watch and close coupon templates, and import their codes",
		Example: `  largesse template create --name Spring --quantity 10000 --opens 2026-12-24T18:00:00Z
  largesse template list
  largesse template watch ID`,
	},
		c.templateCreateCommand(),
		c.templateListCommand(),
		callCommand(c, &cobra.Command{
			Use:     "show ID",
			Short:   "Show a coupon template with its counters",
			Example: inBothForms("template show 42"),
		}, nil, (*client.Client).Template, c.printTemplate),
		c.templateSetCommand(),
		c.templateCodesCommand(),
		c.templateWatchCommand(),
		c.templateApproveCommand(),
		callCommand(c, &cobra.Command{
			Use:     "reject ID",
			Short:   "Drop the quantity of a coupon template that waits for an approval",
			Example: inBothForms("template reject 42"),
		}, nil, (*client.Client).RejectTemplate, line(c, decided("rejected"))),
		callCommand(c, &cobra.Command{
			Use:     "close ID",
			Short:   "Close a coupon template to further requests; waiting requests are still served",
			Example: inBothForms("template close 42 --yes"),
		}, about((*client.Client).Template, func(t client.Template) string {
			return fmt.Sprintf("close template %s (%s) to further requests", printable(t.Name), t.ID)
		}), (*client.Client).CloseTemplate, line(c, func(t client.Template) string {
			return fmt.Sprintf("template %s is closed; %s", t.ID, whoWaits(t))
		})),
		c.templateReleaseCommand(),
		c.templateEntrantsCommand(),
	))
}

func (c *cli) templateListCommand() *cobra.Command {
	var (
		search   string
		metadata []string
	)
	cmd := listCommand(c, &cobra.Command{
		Use:   "list",
		Short: "List coupon templates, highest ID first",
		Example: `  largesse template list
  largesse template list --search spring
  largesse template list --metadata shop=paris
  largesse template list --limit 0 --output json`,
	}, listing[client.Template]{
		header: []string{"ID", "NAME", "STATE", "MODE", "QUANTITY", "LIVE", "WAITING", "STOCK", "OPENS", "CLOSES"},
		row: func(t client.Template) []string {
			n := t.Counters
			return []string{
				t.ID, t.Name, templateState(t, time.Now()), t.Mode, number(t.TotalQuantity), number(n.Count), waiting(t), number(n.Stock),
				moment(t.OpensAt), moment(t.ClosesAt),
			}
		},
		empty: "there are no coupon templates; create one: largesse template create --help",
		cuts:  []string{"NAME"},
	}, func(ctx context.Context, cl *client.Client, _ []string) iter.Seq2[client.Template, error] {
		wanted, err := newMetadata(metadata)
		if err != nil {
			return each[client.Template](nil, err)
		}
		return withMetadata(cl.FindTemplates(ctx, search), wanted)
	})
	cmd.Flags().StringVar(&search, "search", "", "only templates whose name, ID or metadata contain this text")
	cmd.Flags().StringArrayVar(&metadata, "metadata", nil, "only templates with this KEY=VALUE; repeat the flag to require more")
	return cmd
}

// withMetadata selects the templates that have all entries of wanted.
func withMetadata(all iter.Seq2[client.Template, error], wanted map[string]string) iter.Seq2[client.Template, error] {
	return func(yield func(client.Template, error) bool) {
		for t, err := range all {
			lacks := false
			for key, value := range wanted {
				has, ok := t.Metadata[key]
				lacks = lacks || !ok || has != value
			}
			if err == nil && lacks {
				continue
			}
			if !yield(t, err) {
				return
			}
		}
	}
}

// templateState returns what a request would meet at a time.
func templateState(t client.Template, now time.Time) string {
	switch {
	case hasClosed(t, now):
		return "CLOSED"
	case t.OpensAt != nil && now.Before(*t.OpensAt):
		return "NOT OPEN"
	case t.Counters.Stock <= 0 && t.ImportedCodes != nil && t.ImportedCodes.Missing > 0:
		return "OUT OF CODES"
	case t.Counters.Stock <= 0:
		return "SOLD OUT"
	}
	return "OPEN"
}

func hasClosed(t client.Template, now time.Time) bool {
	return t.ClosesAt != nil && !now.Before(*t.ClosesAt)
}

// waiting formats the number of waiting users. It is "?" if the gate did not
// answer.
func waiting(t client.Template) string {
	if len(t.Degraded) > 0 {
		return "?"
	}
	return number(t.Counters.Waiting)
}

func (c *cli) templateReleaseCommand() *cobra.Command {
	type places struct {
		Released int64 `json:"released"`
		template string
	}
	release := func(cl *client.Client, ctx context.Context, id string) (places, error) {
		released, err := cl.ReleasePlaces(ctx, id)
		return places{released, id}, err
	}
	return callCommand(c, &cobra.Command{
		Use:   "release-places ID",
		Short: "Release the places set aside for a waiting line in a Redis that was removed permanently",
		Long: `Release the places that are set aside for the waiting line of a template, so that
everybody can get them and the quantity can be lower. Use it only after redis.url was
removed from all instances permanently. Users who wait in that line lose their places: if
Redis comes back, some of them get no coupon although they were told to wait. Without
places set aside, nothing changes.`,
		Example: inBothForms("template release-places 42 --yes"),
	}, aboutID("give the places of users in line at template %s to others; if Redis comes back, they may get no coupon"), release,
		line(c, func(p places) string {
			return fmt.Sprintf("%s of template %s released", countOf(p.Released, "place"), p.template)
		}))
}

func (c *cli) templateEntrantsCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "entrants ID",
		Short: "List the entrants of a draw",
		Long: `List the entrants of a draw, after the template has opened: all of them, one user ID
per line, ordered by their bytes. list hash is the hash of this list, so that anyone
can verify the draw. To verify it, use --output json, which prints each ID exactly.`,
		Example: inBothForms("template entrants 42"),
		RunE: c.calling(func(ctx context.Context, cl *client.Client, args []string) error {
			return printList(c, cl.TemplateEntrants(ctx, args[0]), listing[string]{
				row:   func(user string) []string { return []string{user} },
				empty: "the draw has no entrants",
			})
		}),
	}
}

func whoWaits(t client.Template) string {
	switch n := t.Counters.Waiting; {
	case len(t.Degraded) > 0:
		return "waiting users are still served"
	case n == 0:
		return "no users are waiting"
	default:
		return people(n) + " in line will still be served"
	}
}

func (c *cli) printTemplate(t client.Template) error {
	lines := details{out: c.stdout}
	lines.add("id", t.ID)
	lines.add("name", t.Name)
	lines.add("state", templateState(t, time.Now()))
	printMetadata(lines.add, t.Metadata)
	lines.add("mode", t.Mode)
	lines.add("opens", moment(t.OpensAt))
	lines.add("closes", moment(t.ClosesAt))
	lines.add("quantity", number(t.TotalQuantity))
	if t.AwaitingQuantity > 0 {
		lines.add("  awaiting approval", number(t.AwaitingQuantity))
	}
	lines.add("  live", number(t.Counters.Count))
	lines.add("  waiting", waiting(t))
	lines.add("  stock", number(t.Counters.Stock))
	lines.add("ever issued", number(t.Counters.IssuedTotal))
	lines.add("per user", strconv.Itoa(t.PerUserLimit))
	if t.ValidForSeconds > 0 {
		lines.add("coupons valid for", (time.Duration(t.ValidForSeconds) * time.Second).String())
	}
	if t.HoldSeconds > 0 {
		lines.add("coupons held for", (time.Duration(t.HoldSeconds) * time.Second).String())
	}
	if t.Codes != nil {
		lines.add("codes", fmt.Sprintf("%s + %d of %s", strconv.Quote(t.Codes.Prefix), t.Codes.Length, t.Codes.Alphabet))
	}
	if t.ImportedCodes != nil {
		lines.add("codes", codesLeft(*t.ImportedCodes))
	}
	lines.add("reissue after cancel", yesNo(t.ReissueAfterCancel))
	lines.add("during a Redis outage", t.WhenRedisAway)
	lines.add("path", t.Path)
	if len(t.Degraded) > 0 {
		lines.add("unknown", "waiting users: the gate does not answer")
	}
	if d := t.Draw; d != nil {
		lines.add("draw", d.State+", for users who enter from "+moment(&d.From))
		lines.add("  commitment", d.Commitment)
		lines.add("  seed", d.Seed)
		lines.add("  list hash", d.ListHash)
	}
	lines.add("created", moment(&t.CreatedAt))
	lines.add("archived", moment(t.ArchivedAt))
	return lines.flush()
}
