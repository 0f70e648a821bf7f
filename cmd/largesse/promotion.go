package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/largesse/largesse/client"
)

func (c *cli) promotionCommand() *cobra.Command {
	return c.talks(group(&cobra.Command{
		Use:     "promotion",
		Aliases: []string{"promotions"},
		Short:   "Create, show, change and watch promotions and their payouts",
		Example: `  largesse promotion create --name Spring --type point --amount 1000 --file targets.csv --start
  largesse promotion list
  largesse promotion watch ID`,
	},
		c.promotionCreateCommand(),
		c.promotionListCommand(),
		c.promotionShowCommand(),
		c.promotionSetCommand(),
		callCommand(c, &cobra.Command{
			Use:     "delete ID",
			Short:   "Delete a DRAFT with its targets and the reports of its uploads",
			Example: inBothForms("promotion delete 12345 --yes"),
		}, about((*client.Client).Promotion, func(p client.Promotion) string {
			return fmt.Sprintf("delete %s with %s permanently", nameOf(p), countOf(p.TotalCount, "target"))
		}), withID("deleted", (*client.Client).DeletePromotion), line(c, func(r map[string]string) string {
			return fmt.Sprintf("promotion %s is deleted", r["deleted"])
		})),
		c.promotionUploadCommand(),
		c.promotionPayoutsCommand(),
		callCommand(c, &cobra.Command{
			Use:     "errors ID",
			Short:   "Count the payouts of a promotion by error code, most first",
			Example: inBothForms("promotion errors 12345"),
		}, nil, (*client.Client).PromotionErrors, c.printErrors),
		c.promotionTimelineCommand(),
		c.promotionExportCommand(),
		c.promotionRetryCommand(),
		c.promotionResolveCommand(),
		c.promotionWatchCommand(),
		c.promotionApproveCommand(),
		c.promotionRejectCommand(),
		c.promotionUploadsCommand(),
		c.promotionMoveCommand("start", "Start a DRAFT", (*client.Client).StartPromotion),
		c.promotionMoveCommand("pause", "Pause a promotion; no new calls start", (*client.Client).PausePromotion),
		c.promotionMoveCommand("resume", "Resume a paused promotion", (*client.Client).ResumePromotion),
		c.promotionMoveCommand("cancel", "Cancel a promotion; look up payouts that may be charged", (*client.Client).CancelPromotion),
		c.promotionMoveCommand("close", "Close a promotion to further targets, so that it can complete", (*client.Client).ClosePromotion),
	))
}

func (c *cli) promotionMoveCommand(verb, short string, move func(*client.Client, context.Context, string) (client.Promotion, error)) *cobra.Command {
	var question func(context.Context, *client.Client, string) (string, error)
	confirmed := ""
	if text := questions[verb]; text != nil {
		question, confirmed = about((*client.Client).Promotion, text), " --yes"
	}
	return callCommand(c, &cobra.Command{
		Use:     verb + " ID",
		Short:   short,
		Example: inBothForms("promotion " + verb + " 12345" + confirmed),
	}, question, move, line(c, func(p client.Promotion) string { return fmt.Sprintf("promotion %s is %s", p.ID, p.Status) }))
}

// questions say what a change of status that cannot be undone would do.
var questions = map[string]func(client.Promotion) string{
	"cancel": func(p client.Promotion) string {
		return fmt.Sprintf("cancel %s not yet paid of %s", countOf(p.TotalCount-p.Counts.Done(), "payout"), nameOf(p))
	},
	"close": func(p client.Promotion) string { return fmt.Sprintf("close %s to further targets", nameOf(p)) },
}

var promotionSorts = []string{"id", "-id", "createdAt", "-createdAt", "name", "-name"}

func (c *cli) promotionListCommand() *cobra.Command {
	var f client.PromotionFilter
	cmd := listCommand(c, &cobra.Command{
		Use:   "list",
		Short: "List promotions, newest first",
		Example: `  largesse promotion list
  largesse promotion list --status running --output json
  largesse promotion list --query summer --created-by kim --created-after 2026-06-01T00:00:00Z --sort name`,
	}, listing[client.Promotion]{
		header: []string{"ID", "NAME", "TYPE", "STATUS", "TARGETS", "OPEN", "SUCCEEDED", "FAILED", "AMOUNT PAID"},
		row: func(p client.Promotion) []string {
			return []string{
				p.ID, p.Name, p.Type, p.Status, number(p.TotalCount), number(p.TotalCount - p.Counts.Done()),
				number(p.Counts.Succeeded), number(p.Counts.Failed), money(p.AmountSucceeded, p.Currency),
			}
		},
		empty: "there are no promotions; create one: largesse promotion create --help",
		cuts:  []string{"NAME"},
	}, func(ctx context.Context, cl *client.Client, _ []string) iter.Seq2[client.Promotion, error] {
		return cl.FindPromotions(ctx, f)
	})
	filterFlag(cmd, &f.Status, "status", "only promotions with this status", "draft", "running", "paused", "completed", "cancelled")
	flags := cmd.Flags()
	flags.StringVar(&f.Search, "query", "", "only promotions with this text in their name, ID or metadata")
	flags.StringVar(&f.CreatedBy, "created-by", "", "only promotions of this creator")
	addFlag(flags, &f.CreatedAfter, "created-after", "only promotions created at this time or later, e.g. 2026-06-01T00:00:00Z", timeOrNone)
	addFlag(flags, &f.CreatedBefore, "created-before", "only promotions created before this time", timeOrNone)
	sorts := strings.Join(promotionSorts, ", ")
	addFlag(flags, &f.Sort, "sort", "order: "+sorts+"; a minus means descending; default: newest first",
		matching(func(text string) bool { return slices.Contains(promotionSorts, text) }, "one of "+sorts))
	complete(cmd, "sort", promotionSorts...)
	return cmd
}

type shown struct {
	client.Promotion
	Stream *client.PromotionStream `json:"stream,omitempty"`
	// StreamProblem explains why Stream is unknown. It is empty if Stream is
	// known or was not requested.
	StreamProblem string `json:"streamProblem,omitempty"`
}

func (c *cli) promotionShowCommand() *cobra.Command {
	var stream bool
	cmd := &cobra.Command{
		Use:   "show ID",
		Short: "Show a promotion",
		Example: `  largesse promotion show 12345
  largesse promotion show 12345 --stream
  largesse promotion show 12345 --output json`,
		RunE: c.calling(func(ctx context.Context, cl *client.Client, args []string) error {
			p, err := cl.Promotion(ctx, args[0])
			if err != nil {
				return err
			}
			out := shown{Promotion: p}
			if stream {
				s, err := cl.PromotionStream(ctx, args[0])
				var problem *client.Problem
				switch {
				case err == nil:
					out.Stream = &s
				case errors.As(err, &problem) && problem.Status == http.StatusServiceUnavailable:
					// Show the rows all the same: they are the source of truth.
					out.StreamProblem, _, _ = strings.Cut(cmp.Or(problem.Detail, problem.Title), "; ")
				default:
					return fmt.Errorf("read the stream of promotion %s: %w", args[0], err)
				}
			}
			return showBy(c, out, nil, c.printShown)
		}),
	}
	cmd.Flags().BoolVar(&stream, "stream", false, "also show the work stream with its consumers")
	return cmd
}

func (c *cli) printShown(out shown) error {
	err := c.printPromotion(out.Promotion)
	switch {
	case err != nil:
		return err
	case out.Stream != nil:
		return c.printStream(*out.Stream)
	case out.StreamProblem != "":
		_, err = fmt.Fprintf(c.stdout, "\nstream  unknown: %s\n", printable(out.StreamProblem))
	}
	return err
}

func (c *cli) printPromotion(p client.Promotion) error {
	d := details{out: c.stdout}
	d.add("id", p.ID)
	d.add("name", p.Name)
	d.add("type", p.Type)
	d.add("status", p.Status)
	d.add("pause reason", p.PauseReason)
	if p.Amount != 0 {
		d.add("amount per target", money(p.Amount, p.Currency))
	}
	d.add("voucher code", p.VoucherCode)
	if p.Closed {
		d.add("closed", "no more targets expected")
	}
	d.add("retries", strconv.Itoa(p.MaxRetries))
	if p.ConsumersPerInstance > 0 {
		d.add("consumers per instance", strconv.Itoa(p.ConsumersPerInstance))
	}
	printControls(d.add, p)
	d.add("targets", number(p.TotalCount))
	if p.ExpectedCount != nil {
		d.add("targets announced", number(*p.ExpectedCount))
	}
	for _, part := range states(p.Counts) {
		d.add("  "+part.name, number(part.count))
	}
	d.add("amount", money(p.AmountTotal, p.Currency))
	d.add("amount paid", money(p.AmountSucceeded, p.Currency))
	if p.ETASeconds != nil {
		d.add("remaining time", (time.Duration(*p.ETASeconds) * time.Second).String())
	}
	d.add("created", moment(&p.CreatedAt))
	d.add("started", moment(p.StartedAt))
	d.add("finished", moment(p.FinishedAt))
	d.add("archived", moment(p.ArchivedAt))
	for _, s := range p.Summaries {
		d.add("summary "+printable(s.PromotionSummaryID), fmt.Sprintf("%s targets, %s succeeded, %s failed, %s paid",
			number(s.TotalCount), number(s.Counts.Succeeded), number(s.Counts.Failed), money(s.AmountSucceeded, p.Currency)))
	}
	return d.flush()
}

// printControls prints the controls that are set: rate, weight, budget, canary,
// schedule, webhook and approval.
func printControls(line func(name, value string), p client.Promotion) {
	if p.RatePerSecond > 0 {
		line("rate per second", number(int64(p.RatePerSecond)))
	}
	if p.Weight > 1 {
		line("weight", strconv.Itoa(p.Weight))
	}
	if p.MaxAmount > 0 {
		line("max amount", money(p.MaxAmount, p.Currency))
	}
	if c := p.Canary; c != nil {
		state := countOf(c.Dispatched, "payout") + " dispatched"
		if c.Judged {
			state = "judged"
		}
		line("canary", fmt.Sprintf("%s, at most %s%% failed; %s", countOf(c.Targets, "target"), strconv.FormatFloat(100*c.MaxFailureRate, 'f', -1, 64), state))
	}
	line("starts", moment(p.StartsAt))
	line("webhook", p.WebhookURL)
	printMetadata(line, p.Metadata)
	line("created by", p.CreatedBy)
	line("approved by", p.ApprovedBy)
	line("approved", approved(p))
	if p.AwaitingApproval {
		line("waits for", "an approval by another person")
	}
	if p.RejectedBy != "" {
		line("rejected by", p.RejectedBy+": "+p.RejectReason)
	}
}

func approved(p client.Promotion) string {
	if p.ApprovedCount == nil || p.ApprovedAmount == nil {
		return ""
	}
	return countOf(*p.ApprovedCount, "target") + " worth " + money(*p.ApprovedAmount, p.Currency)
}

type stateCount struct {
	name  string
	count int64
}

// states returns the counts in the order of a payout's life.
func states(c client.Counts) []stateCount {
	return []stateCount{
		{"ready", c.Ready},
		{"queued", c.Queued},
		{"retrying", c.Retrying},
		{"unknown", c.Unknown},
		{"succeeded", c.Succeeded},
		{"failed", c.Failed},
		{"cancelled", c.Cancelled},
	}
}
