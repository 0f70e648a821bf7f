package main

import (
	"context"
	"fmt"
	"iter"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/reward"
)

const couponWaitMax = 30 * time.Second // of the server, before it responds

func (c *cli) couponCommand() *cobra.Command {
	return c.talks(group(&cobra.Command{
		Use:     "coupon",
		Aliases: []string{"coupons"},
		Short:   "Request, show, list, confirm, use and cancel coupons, and leave the waiting line",
		Example: `  largesse coupon issue 42 --user u7 --wait 5s
  largesse coupon list --user u7
  largesse coupon use ID`,
	},
		c.couponIssueCommand(),
		c.couponStatusCommand(),
		c.couponLeaveCommand(),
		c.couponListCommand(),
		callCommand(c, &cobra.Command{
			Use: "show ID", Short: "Show a coupon", Example: inBothForms("coupon show 12345"),
		}, nil, (*client.Client).Coupon, c.printCoupon),
		changeCommand(c, "coupon", "confirm", "Confirm a HELD coupon, which makes it ISSUED", nil, (*client.Client).ConfirmCoupon, couponStatus),
		changeCommand(c, "coupon", "use", "Use an ISSUED coupon that has not expired", nil, (*client.Client).UseCoupon, couponStatus),
		c.couponCancelCommand(),
	))
}

// forUser completes a command for a user of a template. who says who the user is.
func (c *cli) forUser(
	cmd *cobra.Command, who string, check func(string) error, do func(ctx context.Context, cl *client.Client, template, user string) error,
) *cobra.Command {
	user := cmd.Flags().String("user", "", "user who "+who+" (required)")
	cmd.RunE = c.calling(func(ctx context.Context, cl *client.Client, args []string) error {
		if *user == "" {
			return wrongUse("--user is missing: name the user who %s; see %s --help", who, cmd.CommandPath())
		}
		if err := check(*user); err != nil {
			return wrongUse("--user: %v", err)
		}
		return do(ctx, cl, args[0], *user)
	})
	return cmd
}

func (c *cli) couponIssueCommand() *cobra.Command {
	var wait time.Duration
	cmd := c.forUser(&cobra.Command{
		Use:   "issue TEMPLATE --user USER",
		Short: "Request a coupon",
		Long: `Request a coupon for a user. An admitted user gets a ticket and waits in line; with
--wait, the command waits for the outcome. If you repeat a request, you get the same
ticket and its rank, or the coupon that the user has. If the template allows several
coupons per user, a request after an outcome is a new request. The exit code is 1 if
the request is refused, for example with SOLD_OUT, NOT_OPEN, CLOSED or USER_LIMIT.`,
		Example: `  largesse coupon issue 42 --user u7
  largesse coupon issue 42 --user u7 --wait 5s --output json`,
	}, "gets the coupon", reward.CheckNewUserID, func(ctx context.Context, cl *client.Client, template, user string) error {
		r, err := cl.IssueCoupon(ctx, template, user, wait)
		return c.show(r, err, requestLine(template, user, r))
	})
	addFlag(cmd.Flags(), &wait, "wait", "maximum wait for the outcome; 0s to 30s", bounded(time.ParseDuration, 0, couponWaitMax, ""))
	return cmd
}

func (c *cli) couponLeaveCommand() *cobra.Command {
	return c.forUser(c.yesFlag(&cobra.Command{
		Use:   "leave TEMPLATE --user USER",
		Short: "Take a user out of the waiting line",
		Long: `Take the request of a user out of the waiting line. Others get the place at once. The
user may request again, and then waits at the end. If you repeat the command, nothing
changes. The exit code is 1 if the request was served before (REQUEST_ENDED), or if the
user has none (REQUEST_UNKNOWN).`,
		Example: inBothForms("coupon leave 42 --user u7 --yes"),
	}), "leaves the line", reward.CheckUserID, func(ctx context.Context, cl *client.Client, template, user string) error {
		if err := c.confirm(fmt.Sprintf("take user %s out of the line of template %s", printable(user), template)); err != nil {
			return err
		}
		left := client.IssueRequest{ID: template + ":" + user, Status: "LEFT"}
		err := cl.LeaveLine(ctx, left.ID)
		return c.show(left, err, fmt.Sprintf("user %s has left the line of template %s", user, template))
	})
}

func (c *cli) couponStatusCommand() *cobra.Command {
	return c.forUser(&cobra.Command{
		Use:     "status TEMPLATE --user USER",
		Short:   "Show the latest request of a user: the rank in line or the outcome",
		Example: inBothForms("coupon status 42 --user u7"),
	}, "requested the coupon", reward.CheckUserID, func(ctx context.Context, cl *client.Client, template, user string) error {
		r, err := cl.IssueRequest(ctx, template+":"+user)
		return c.show(r, err, requestLine(template, user, r))
	})
}

func requestLine(template, user string, r client.IssueRequest) string {
	if r.Coupon != nil {
		return couponLine(*r.Coupon, r.Duplicate)
	}
	if r.Status == "REJECTED" || r.Status == "LEFT" {
		ended := "left the line"
		if r.Status == "REJECTED" {
			ended = "was rejected with " + r.Reason
		}
		return fmt.Sprintf("user %s %s; request again with: largesse coupon issue %s --user %s", user, ended, template, shellWord(user))
	}
	standing := "takes part in the draw"
	if r.QueueRank != nil {
		standing = fmt.Sprintf("waits with ticket %d, %s ahead", r.Ticket, people(*r.QueueRank))
	}
	if r.EstimatedWaitMillis != nil && *r.EstimatedWaitMillis > 0 {
		standing += fmt.Sprintf(", about %s left", max((time.Duration(*r.EstimatedWaitMillis)*time.Millisecond).Round(100*time.Millisecond), 100*time.Millisecond))
	}
	return fmt.Sprintf("user %s %s; to learn the outcome: largesse coupon status %s --user %s", user, standing, template, shellWord(user))
}

func couponLine(one client.Coupon, duplicate bool) string {
	line := fmt.Sprintf("user %s has coupon %s", one.UserID, one.ID)
	if one.Code != "" {
		line += " with code " + one.Code
	}
	if duplicate {
		line += ", from an earlier request"
		if one.Status != "ISSUED" && one.Status != "HELD" {
			line += "; it is " + one.Status
		}
	}
	if one.Status == "HELD" {
		line += fmt.Sprintf("; it is held until %s, confirm it with: largesse coupon confirm %s", moment(one.HeldUntil), one.ID)
	}
	return line
}

// shellWord quotes a text unless a shell reads it as one plain word.
func shellWord(text string) string {
	for _, r := range text {
		if !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("-_.:/@+,", r) {
			return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
		}
	}
	return text
}

func people(n int64) string {
	if n == 1 {
		return "1 person"
	}
	return number(n) + " people"
}

func couponStatus(one client.Coupon) string {
	return fmt.Sprintf("coupon %s is %s", one.ID, one.Status)
}

func (c *cli) printCoupon(one client.Coupon) error {
	d := c.details()
	d.add("id", one.ID)
	d.add("code", one.Code)
	d.add("template", one.TemplateID)
	d.add("user", one.UserID)
	d.add("ticket", number(one.Ticket))
	d.add("status", one.Status)
	d.add("held until", moment(one.HeldUntil))
	d.add("issued", moment(&one.IssuedAt))
	d.add("used", moment(one.UsedAt))
	d.add("cancelled", moment(one.CancelledAt))
	d.add("cancelled by", one.CancelledBy)
	d.add("reason", one.Reason)
	d.add("expires", moment(one.ExpiresAt))
	return d.flush()
}

func (c *cli) couponListCommand() *cobra.Command {
	var template, order string
	var f client.CouponFilter
	var asCSV bool
	cmd := listCommand(c, &cobra.Command{
		Use:   "list --template ID | --user USER | --code CODE",
		Short: "List the coupons of a template by ticket, of a user, newest first, or with a code",
		Long: `List the coupons of a template in the order of their tickets, of a user, newest
first, or with a code. With --template, all flags can be combined. After a draw,
the coupons of its template are its winners. --csv writes all of them to stdout.`,
		Example: `  largesse coupon list --template 42
  largesse coupon list --template 42 --status used --sort=-ticket
  largesse coupon list --template 42 --csv > winners.csv
  largesse coupon list --user u7 --limit 0 --output json`,
	}, listing[client.Coupon]{
		header: []string{"ID", "TEMPLATE", "USER", "TICKET", "STATUS", "CODE", "ISSUED", "HELD UNTIL", "EXPIRES"},
		row: func(one client.Coupon) []string {
			return []string{
				one.ID, one.TemplateID, one.UserID, number(one.Ticket), one.Status, one.Code, moment(&one.IssuedAt), moment(one.HeldUntil),
				moment(one.ExpiresAt),
			}
		},
		empty: "there are no coupons",
		cuts:  []string{"USER"},
	}, func(ctx context.Context, cl *client.Client, _ []string) iter.Seq2[client.Coupon, error] {
		switch {
		case template != "":
			return cl.FindTemplateCoupons(ctx, template, f)
		case f.Code != "":
			return each(cl.CouponsByCode(ctx, f.Code))
		}
		return cl.UserCoupons(ctx, f.UserID)
	})
	list := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		var err error
		f.Newest = order == "-TICKET"
		switch {
		case template == "" && countTrue(f.UserID != "", f.Code != "") != 1:
			err = wrongUse("coupon list needs one of --template ID, --user USER and --code CODE; see largesse coupon list --help")
		case template == "" && (f.Status != "" || order != "" || asCSV):
			err = wrongUse("--status, --sort and --csv need --template ID; see largesse coupon list --help")
		case template != "":
			err = checkTemplateID(template)
		}
		if err == nil && f.UserID != "" {
			err = checkUser("--user", f.UserID)
		}
		switch {
		case err != nil:
			return err
		case !asCSV:
			return list(cmd, args)
		}
		return c.calling(func(ctx context.Context, cl *client.Client, _ []string) error {
			return cl.ExportTemplateCoupons(ctx, template, f, c.stdout)
		})(cmd, args)
	}
	cmd.Flags().StringVar(&template, "template", "", "only coupons of this template")
	cmd.Flags().StringVar(&f.UserID, "user", "", "only coupons of this user")
	cmd.Flags().StringVar(&f.Code, "code", "", "only coupons with this code")
	filterFlag(cmd, &f.Status, "status", "only coupons of the template in this status", "held", "issued", "used", "cancelled", "expired")
	choiceFlag(cmd, &order, "sort", "order of the template's coupons: ticket, or -ticket for the newest first; default: ticket", "ticket", "-ticket")
	cmd.Flags().BoolVar(&asCSV, "csv", false, "write all coupons of the template to stdout as CSV")
	return cmd
}
