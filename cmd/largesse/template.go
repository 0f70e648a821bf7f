package main

import (
	"context"
	"fmt"
	"iter"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/reward"
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
		c.templateDuplicateCommand(),
		c.templateCodesCommand(),
		c.templateWatchCommand(),
		c.reportCommand("template", "a coupon template", (*client.Client).WriteTemplateReport),
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
		metadata map[string]string
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
		return withMetadata(cl.FindTemplates(ctx, search), metadata)
	})
	cmd.Flags().StringVar(&search, "search", "", "only templates whose name, ID or metadata contain this text")
	metadataFlag(cmd, &metadata, "only templates with this KEY=VALUE; repeat the flag to require more")
	return cmd
}

func (c *cli) templateDuplicateCommand() *cobra.Command {
	var name string
	var opens time.Time
	cmd := callCommand(c, &cobra.Command{
		Use:   "duplicate ID",
		Short: "Create a coupon template with the settings of another one",
		Long: `Create a coupon template with the settings of another one, without its coupons,
imported codes and notes. It opens in 30 days, unless --opens says when; the other times
keep their distance to that.`,
		Example: `  largesse template duplicate 42
  largesse template duplicate 42 --name "Summer, second wave" --opens 2026-12-24T18:00:00Z`,
	}, nil, func(cl *client.Client, ctx context.Context, id string) (client.Template, error) {
		return cl.DuplicateTemplate(ctx, id, client.TemplateCopy{Name: name, OpensAt: given(&opens)})
	}, line(c, func(t client.Template) string {
		return fmt.Sprintf("template %s (%s) has %s and opens at %s", printable(t.Name), t.ID, countOf(t.TotalQuantity, "coupon"), moment(t.OpensAt))
	}))
	addFlag(cmd.Flags(), &name, "name", "name of the copy; default: that of the template, then (copy)", ofLength(reward.TemplateNameMax))
	addFlag(cmd.Flags(), &opens, "opens", "time when the copy opens, e.g. 2026-12-24T18:00:00Z; default: in 30 days", timeOrNone)
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
	lines := c.details()
	lines.add("id", t.ID)
	lines.add("name", t.Name)
	lines.add("state", templateState(t, time.Now()))
	printMetadata(lines.add, t.Metadata)
	lines.add("notes", t.Notes)
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

// templateApproveCommand approves what the caller is shown, and nothing else.
func (c *cli) templateApproveCommand() *cobra.Command {
	return c.yesFlag(&cobra.Command{
		Use:     "approve ID",
		Short:   "Approve the quantity of a coupon template that waits, as another person",
		Example: inBothForms("template approve 42 --yes"),
		RunE: c.calling(func(ctx context.Context, cl *client.Client, args []string) error {
			seen, err := cl.Template(ctx, args[0])
			if err != nil {
				return err
			}
			if seen.AwaitingQuantity > 0 {
				codes := "generated codes"
				if seen.ImportedCodes != nil {
					codes = countOf(seen.ImportedCodes.Imported, "imported code")
				}
				if err := c.confirm(fmt.Sprintf("approve %s instead of %s of template %s (%s), with %s", countOf(seen.AwaitingQuantity, "coupon"),
					number(seen.TotalQuantity), printable(seen.Name), seen.ID, codes)); err != nil {
					return err
				}
			}
			t, err := cl.ApproveTemplate(ctx, seen)
			return showBy(c, t, err, line(c, decided("approved")))
		}),
	})
}

func decided(how string) func(client.Template) string {
	return func(t client.Template) string {
		return fmt.Sprintf("%s: template %s has %s", how, t.ID, countOf(t.TotalQuantity, "coupon"))
	}
}

// awaiting is a line that says that a quantity of a template waits for another person. It
// is empty if none does.
func awaiting(id string, inForce, waits int64) string {
	if waits == 0 {
		return ""
	}
	return fmt.Sprintf("its quantity is %s until another person approves %s: largesse template approve %s", number(inForce), number(waits), id)
}

func (c *cli) templateCodesCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "codes ID FILE",
		Short: "Import the codes of a coupon template from a file",
		Long: `Import the codes of a coupon template from a file with one code per line, which may
begin with a header such as code, or from the first sheet of an .xlsx file. Either all
codes of the file are imported or none. Coupons get the codes in the order of the file,
each once. The code of a cancelled coupon is not given again.

The first file must come before the first coupon, and must have a code for each
coupon to issue. Later files add codes. A file whose name ends with .gz is
compressed; - reads from stdin.`,
		Example: `  largesse template codes 42 codes.csv
  largesse template codes 42 codes.xlsx --output json
  zcat codes.csv.gz | largesse template codes 42 -`,
		RunE: c.calling(func(ctx context.Context, cl *client.Client, args []string) error {
			file, err := c.openInput(args[1])
			if err != nil {
				return fmt.Errorf("open the file of codes: %w", err)
			}
			defer file.Close()
			bar := c.uploadBar(file.size)
			gzip := strings.HasSuffix(strings.ToLower(args[1]), ".gz")
			result, err := cl.ImportCodes(ctx, args[0], bar.reader(file), client.ImportOptions{Gzip: gzip})
			bar.finish(err == nil)
			return c.show(result, err,
				fmt.Sprintf("%s imported, from %s to %s; template %s has %s", countOf(result.Accepted, "code"), result.FirstCode, result.LastCode,
					args[0], codesLeft(result.ImportedCodes)),
				awaiting(args[0], result.TotalQuantity, result.AwaitingQuantity))
		}),
	}
}

func codesLeft(n client.ImportedCodes) string {
	text := fmt.Sprintf("%s left of %s", countOf(n.Left, "code"), number(n.Imported))
	if n.Missing > 0 {
		text += fmt.Sprintf("; %s cannot be issued until you import more codes", countOf(n.Missing, "coupon"))
	}
	return text
}
