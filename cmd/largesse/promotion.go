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
	"github.com/largesse/largesse/internal/reward"
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
		c.promotionCheckCommand(),
		c.promotionUploadCommand(),
		c.promotionPayoutsCommand(),
		callCommand(c, &cobra.Command{
			Use:     "errors ID",
			Short:   "Count the payouts of a promotion by error code, most first",
			Example: inBothForms("promotion errors 12345"),
		}, nil, (*client.Client).PromotionErrors, c.printErrors),
		c.promotionTimelineCommand(),
		c.promotionExportCommand(),
		c.reportCommand("promotion", "a promotion", (*client.Client).WritePromotionReport),
		c.promotionRetryCommand(),
		c.promotionResolveCommand(),
		c.promotionDuplicateCommand(),
		c.promotionTestCommand(),
		c.promotionWatchCommand(),
		changeCommand(c, "promotion", "ask-approval", "Tell those who may approve that a promotion waits for them", nil, (*client.Client).AskApproval, func(p client.Promotion) string {
			return fmt.Sprintf("%s waits for an approval of %s", nameOf(p), money(p.AmountTotal, p.Currency))
		}),
		c.promotionApproveCommand(),
		c.promotionRejectCommand(),
		c.promotionUploadsCommand(),
		changeCommand(c, "promotion", "start", "Start a DRAFT", nil, (*client.Client).StartPromotion, promotionStatus),
		c.promotionPauseCommand(),
		changeCommand(c, "promotion", "resume", "Resume a paused promotion", nil, (*client.Client).ResumePromotion, promotionStatus),
		changeCommand(c, "promotion", "cancel", "Cancel a promotion; look up payouts that may be charged", about((*client.Client).Promotion, func(p client.Promotion) string {
			return fmt.Sprintf("cancel %s not yet paid of %s", countOf(p.TotalCount-p.Counts.Done(), "payout"), nameOf(p))
		}), (*client.Client).CancelPromotion, promotionStatus),
		changeCommand(c, "promotion", "close", "Close a promotion to further targets, so that it can complete", about((*client.Client).Promotion, func(p client.Promotion) string {
			return fmt.Sprintf("close %s to further targets", nameOf(p))
		}), (*client.Client).ClosePromotion, promotionStatus),
	))
}

// scheduled reports whether a promotion starts by itself.
func scheduled(p client.Promotion) bool { return p.Status == "DRAFT" && p.StartsAt != nil }

func (c *cli) promotionPauseCommand() *cobra.Command {
	var reason string
	cmd := changeCommand(c, "promotion", "pause", "Pause a promotion; no new calls start", nil,
		func(cl *client.Client, ctx context.Context, id string) (client.Promotion, error) {
			if reason != "" {
				return cl.PauseBecause(ctx, id, reason)
			}
			return cl.PausePromotion(ctx, id)
		}, promotionStatus)
	cmd.Flags().StringVar(&reason, "reason", "", "why, in at most 1000 characters; shown as the pause reason")
	return cmd
}

func (c *cli) promotionDuplicateCommand() *cobra.Command {
	var name string
	cmd := callCommand(c, &cobra.Command{
		Use:   "duplicate ID",
		Short: "Create a DRAFT with the settings of a promotion",
		Long: `Create a DRAFT with the settings of a promotion, without its targets, approvals, times
and notes.`,
		Example: `  largesse promotion duplicate 12345
  largesse promotion duplicate 12345 --name "Summer, second wave"`,
	}, nil, func(cl *client.Client, ctx context.Context, id string) (client.Promotion, error) {
		return cl.DuplicatePromotion(ctx, id, name)
	}, line(c, func(p client.Promotion) string {
		return fmt.Sprintf("%s is a DRAFT; %s", nameOf(p), nextStep(p))
	}))
	addFlag(cmd.Flags(), &name, "name", "name of the copy; default: that of the promotion, then (copy)", ofLength(reward.PromotionNameMax))
	return cmd
}

func (c *cli) promotionTestCommand() *cobra.Command {
	var t client.TestPayment
	cmd := callCommand(c, &cobra.Command{
		Use:   "test ID --user USER",
		Short: "Pay one person with the settings of a promotion",
		Long: `Pay one person with the settings of a promotion, to see that it works. The payment is
a promotion of its own, which is started at once, or waits for an approval as any other.`,
		Example: `  largesse promotion test 12345 --user u7
  largesse promotion test 12345 --user u7 --amount 1`,
	}, nil, func(cl *client.Client, ctx context.Context, id string) (client.Promotion, error) {
		if t.UserID == "" {
			return client.Promotion{}, wrongUse("--user is required")
		}
		return cl.PayTest(ctx, id, t)
	}, line(c, func(p client.Promotion) string {
		return fmt.Sprintf("%s is %s, worth %s; %s", nameOf(p), p.Status, money(p.AmountTotal, p.Currency), nextStep(p))
	}))
	flags := cmd.Flags()
	flags.StringVar(&t.UserID, "user", "", "user to pay (required)")
	flags.StringVar(&t.TargetID, "target", "", "target ID; default: 1")
	flags.Int64Var(&t.Amount, "amount", 0, "amount in minor units or points; default: that of the promotion")
	return cmd
}

func promotionStatus(p client.Promotion) string {
	return fmt.Sprintf("promotion %s is %s", p.ID, p.Status)
}

var promotionSorts = []string{"id", "-id", "createdAt", "-createdAt", "name", "-name", "startsAt"}

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
			status := p.Status
			if scheduled(p) {
				status += " (starts " + zoned(p.StartsAt) + ")"
			}
			return []string{
				p.ID, p.Name, p.Type, status, number(p.TotalCount), number(p.TotalCount - p.Counts.Done()),
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
	addFlag(flags, &f.Sort, "sort", "order: "+sorts+"; a minus means descending; startsAt: only scheduled ones; default: newest first",
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
	d := c.details()
	d.add("id", p.ID)
	d.add("name", p.Name)
	d.add("type", p.Type)
	d.add("status", p.Status)
	if scheduled(p) {
		d.add("starts", zoned(p.StartsAt))
	}
	d.add("paused by", p.PausedBy)
	d.add("pause reason", p.PauseReason)
	d.add("cancelled by", p.CancelledBy)
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
	line("ends", zoned(p.EndsAt))
	line("webhook", p.WebhookURL)
	printMetadata(line, p.Metadata)
	line("notes", p.Notes)
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

func (c *cli) printStream(s client.PromotionStream) error {
	d := c.details()
	fmt.Fprintln(c.stdout)
	if !s.Exists {
		d.add("stream", "none: nothing is dispatched")
		return d.flush()
	}
	d.add("stream", cmp.Or(s.Key, "in the process of the server"))
	d.add("group", s.Group)
	d.add("entries", number(s.Length))
	d.add("  not read", number(s.Lag))
	d.add("  pending", number(s.Pending))
	d.add("oldest entry", moment(s.OldestAt))
	d.add("oldest pending", moment(s.OldestPendingAt))
	if err := d.flush(); err != nil {
		return err
	}
	if len(s.Consumers) == 0 {
		_, err := fmt.Fprintln(c.stdout, "\nthe stream has no consumers")
		return err
	}
	fmt.Fprintln(c.stdout)
	return printList(c, each(s.Consumers, nil), listing[client.StreamConsumer]{
		header: []string{"CONSUMER", "INSTANCE", "ALIVE", "PENDING", "IDLE"},
		row: func(one client.StreamConsumer) []string {
			idle := time.Duration(one.IdleMillis) * time.Millisecond
			return []string{one.Name, one.Instance, yesNo(one.Alive), number(one.Pending), idle.String()}
		},
	})
}

// promotionApproveCommand approves what the caller is shown, and nothing else.
func (c *cli) promotionApproveCommand() *cobra.Command {
	return c.yesFlag(&cobra.Command{
		Use:     "approve ID",
		Short:   "Approve all targets that a promotion has now, as another person",
		Example: inBothForms("promotion approve 12345 --yes"),
		RunE: c.calling(func(ctx context.Context, cl *client.Client, args []string) error {
			seen, err := cl.Promotion(ctx, args[0])
			if err != nil {
				return err
			}
			if err := c.confirm(fmt.Sprintf("approve %s worth %s of %s", countOf(seen.TotalCount, "target"), money(seen.AmountTotal, seen.Currency), nameOf(seen))); err != nil {
				return err
			}
			p, err := cl.ApproveSeen(ctx, seen)
			return c.show(p, err, fmt.Sprintf("promotion %s is %s, approved by %s: %s", p.ID, p.Status, p.ApprovedBy, approved(p)))
		}),
	})
}

func (c *cli) promotionRejectCommand() *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use:     "reject ID --reason WHY",
		Short:   "Refuse or withdraw an approval; a RUNNING promotion becomes PAUSED",
		Example: `  largesse promotion reject 12345 --reason "the budget of this month is used up"`,
		RunE: c.calling(func(ctx context.Context, cl *client.Client, args []string) error {
			if reason == "" {
				return wrongUse("--reason is required")
			}
			p, err := cl.RejectPromotion(ctx, args[0], reason)
			return c.show(p, err, fmt.Sprintf("promotion %s is %s, rejected by %s", p.ID, p.Status, p.RejectedBy))
		}),
	}
	cmd.Flags().StringVar(&reason, "reason", "", "what must change, in 1 to 1000 characters")
	return cmd
}

func (c *cli) promotionUploadsCommand() *cobra.Command {
	return listCommand(c, &cobra.Command{
		Use:     "uploads ID",
		Short:   "List the uploads of a promotion, newest first",
		Example: inBothForms("promotion uploads 12345"),
	}, listing[client.Upload]{
		header: []string{"ID", "FILE", "BY", "AT", "STATE", "BYTES", "ACCEPTED", "DUPLICATES", "CONFLICTS", "REJECTED", "AMOUNT"},
		row: func(u client.Upload) []string {
			return []string{
				u.ID, u.FileName, u.CreatedBy, moment(&u.CreatedAt), u.State, number(u.Bytes), number(u.Accepted), number(u.Duplicates),
				number(u.Conflicts), number(u.Rejected), money(u.Amount, u.Currency),
			}
		},
		empty: "no file was uploaded to this promotion",
		cuts:  []string{"FILE", "BY"},
	}, func(ctx context.Context, cl *client.Client, args []string) iter.Seq2[client.Upload, error] {
		return cl.Uploads(ctx, args[0])
	})
}
