package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/largesse/largesse/client"
)

func (c *cli) promotionCommand() *cobra.Command {
	cmd := c.talks(group(&cobra.Command{
		Use:     "promotion",
		Aliases: []string{"promotions"},
		Short:   "Make promotions, fill them with targets, steer and watch them",
		Example: `  largesse promotion create --name Spring --type point --amount 1000 --file targets.csv --start
  largesse promotion list
  largesse promotion watch ID`,
	}))
	cmd.AddCommand(
		c.promotionCreateCommand(),
		c.promotionListCommand(),
		c.promotionShowCommand(),
		c.promotionUploadCommand(),
		c.promotionPayoutsCommand(),
		c.promotionExportCommand(),
		c.promotionRetryCommand(),
		c.promotionResolveCommand(),
		c.promotionWatchCommand(),
		c.promotionMoveCommand("approve", "Let a promotion above approval.above pay, as a second person", (*client.Client).ApprovePromotion),
		c.promotionMoveCommand("start", "Let a DRAFT pay", (*client.Client).StartPromotion),
		c.promotionMoveCommand("pause", "Open no new calls until it is resumed; calls under way end", (*client.Client).PausePromotion),
		c.promotionMoveCommand("resume", "Let a PAUSED promotion go on", (*client.Client).ResumePromotion),
		c.promotionMoveCommand("cancel", "Pay nobody any more; what may have been paid is looked up first", (*client.Client).CancelPromotion),
		c.promotionMoveCommand("close", "Say that no more targets are awaited, so that it can complete", (*client.Client).ClosePromotion),
	)
	return cmd
}

// promotionMoveCommand makes the command of one change of status.
func (c *cli) promotionMoveCommand(verb, short string, move func(*client.Client, context.Context, string) (client.Promotion, error)) *cobra.Command {
	return &cobra.Command{
		Use:     verb + " ID",
		Short:   short,
		Example: fmt.Sprintf("  largesse promotion %s 12345\n  largesse promotion %s 12345 --output json", verb, verb),
		Args:    promotionArgs(),
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := c.connect()
			if err != nil {
				return err
			}
			p, err := move(cl, cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if c.output == outputJSON {
				return c.printJSON(p)
			}
			line := fmt.Sprintf("promotion %s is %s", p.ID, p.Status)
			if verb == "approve" {
				line += ", approved by " + p.ApprovedBy
			}
			_, err = fmt.Fprintln(c.stdout, printable(line))
			return err
		},
	}
}

// promotionStatuses are the statuses of a promotion, as they are typed.
var promotionStatuses = []string{"draft", "running", "paused", "completed", "cancelled"}

func (c *cli) promotionListCommand() *cobra.Command {
	var (
		limit  int
		status string
	)
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List promotions, the newest first",
		Example: `  largesse promotion list
  largesse promotion list --status running --output json`,
		Args: args(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkLimit(limit); err != nil {
				return err
			}
			if status != "" && !slices.Contains(promotionStatuses, strings.ToLower(status)) {
				return wrongUse("--status %q is none of %s", status, strings.Join(promotionStatuses, ", "))
			}
			cl, err := c.connect()
			if err != nil {
				return err
			}
			return printList(c, cl.Promotions(cmd.Context(), strings.ToUpper(status)), listing[client.Promotion]{
				header: []string{"ID", "NAME", "TYPE", "STATUS", "TARGETS", "OPEN", "SUCCEEDED", "FAILED", "AMOUNT PAID"},
				row: func(p client.Promotion) []string {
					return []string{
						p.ID, p.Name, p.Type, p.Status, number(p.TotalCount), number(p.TotalCount - p.Counts.Done()),
						number(p.Counts.Succeeded), number(p.Counts.Failed), number(p.AmountSucceeded) + suffix(p.Currency),
					}
				},
				limit: limit,
				empty: "there are no promotions; make one: largesse promotion create --help",
				cuts:  []string{"NAME"},
			})
		},
	}
	limitFlag(cmd, &limit)
	cmd.Flags().StringVar(&status, "status", "", "only these: "+strings.Join(promotionStatuses, ", "))
	complete(cmd, "status", promotionStatuses...)
	return cmd
}

// shown is what `promotion show` shows.
type shown struct {
	client.Promotion
	Stream *client.PromotionStream `json:"stream,omitempty"`
	// StreamProblem is why Stream is not known; empty when it is, or was not
	// asked for.
	StreamProblem string `json:"streamProblem,omitempty"`
}

func (c *cli) promotionShowCommand() *cobra.Command {
	var stream bool
	cmd := &cobra.Command{
		Use:   "show ID",
		Short: "Show a promotion with its counts",
		Example: `  largesse promotion show 12345
  largesse promotion show 12345 --stream
  largesse promotion show 12345 --output json`,
		Args: promotionArgs(),
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := c.connect()
			if err != nil {
				return err
			}
			var out shown
			if out.Promotion, err = cl.Promotion(cmd.Context(), args[0]); err != nil {
				return err
			}
			if stream {
				s, err := cl.PromotionStream(cmd.Context(), args[0])
				var problem *client.Problem
				switch {
				case err == nil:
					out.Stream = &s
				case errors.As(err, &problem) && problem.Status == http.StatusServiceUnavailable:
					// The rows are the truth, and they are known.
					out.StreamProblem, _, _ = strings.Cut(cmp.Or(problem.Detail, problem.Title), "; ")
				default:
					return fmt.Errorf("looking at the stream of promotion %s: %w", args[0], err)
				}
			}
			if c.output == outputJSON {
				return c.printJSON(out)
			}
			if err := c.printPromotion(out.Promotion); err != nil {
				return err
			}
			switch {
			case out.Stream != nil:
				return c.printStream(*out.Stream)
			case out.StreamProblem != "":
				_, err = fmt.Fprintf(c.stdout, "\nstream  not known: %s\n", printable(out.StreamProblem))
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&stream, "stream", false, "show the work stream and its consumers too")
	return cmd
}

// printPromotion writes all of a promotion, a line per field.
func (c *cli) printPromotion(p client.Promotion) error {
	d := details{out: c.stdout}
	d.add("id", p.ID)
	d.add("name", p.Name)
	d.add("type", p.Type)
	d.add("status", p.Status)
	d.add("pause reason", p.PauseReason)
	if p.Amount != 0 {
		d.add("amount per target", number(p.Amount)+suffix(p.Currency))
	}
	d.add("voucher code", p.VoucherCode)
	if p.Closed {
		d.add("closed", "no more targets are awaited")
	}
	d.add("retries", strconv.Itoa(p.MaxRetries))
	if p.ConsumersPerInstance > 0 {
		d.add("consumers per instance", strconv.Itoa(p.ConsumersPerInstance))
	}
	printLevers(d.add, p)
	d.add("targets", number(p.TotalCount))
	if p.ExpectedCount != nil {
		d.add("targets announced", number(*p.ExpectedCount))
	}
	for _, part := range states(p.Counts) {
		d.add("  "+part.name, number(part.count))
	}
	d.add("amount", number(p.AmountTotal)+suffix(p.Currency))
	d.add("amount paid", number(p.AmountSucceeded)+suffix(p.Currency))
	if p.ETASeconds != nil {
		d.add("time left", (time.Duration(*p.ETASeconds) * time.Second).String())
	}
	d.add("created", moment(&p.CreatedAt))
	d.add("started", moment(p.StartedAt))
	d.add("finished", moment(p.FinishedAt))
	for _, s := range p.Summaries {
		d.add("summary "+printable(s.PromotionSummaryID), fmt.Sprintf("%s targets, %s succeeded, %s failed, %s paid",
			number(s.TotalCount), number(s.Counts.Succeeded), number(s.Counts.Failed), number(s.AmountSucceeded)))
	}
	return d.flush()
}

// printLevers writes what steers a promotion while it runs, as far as it is
// set.
func printLevers(line func(name, value string), p client.Promotion) {
	if p.RatePerSecond > 0 {
		line("rate per second", number(int64(p.RatePerSecond)))
	}
	if p.Weight > 1 {
		line("weight", strconv.Itoa(p.Weight))
	}
	if p.MaxAmount > 0 {
		line("max amount", number(p.MaxAmount)+suffix(p.Currency))
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
	line("created by", p.CreatedBy)
	line("approved by", p.ApprovedBy)
}

// stateCount is how many payouts stand in a state.
type stateCount struct {
	name  string
	count int64
}

// states lists the counts in the order a payout goes through them.
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

func suffix(currency string) string {
	if currency == "" {
		return ""
	}
	return " " + currency
}
