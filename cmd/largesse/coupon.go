package main

import (
	"context"
	"fmt"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/reward"
)

// couponWaitMax limits how long the server delays a response.
const couponWaitMax = 30 * time.Second

func (c *cli) couponCommand() *cobra.Command {
	cmd := c.talks(group(&cobra.Command{
		Use:     "coupon",
		Aliases: []string{"coupons"},
		Short:   "Request, show, list, confirm, use and cancel coupons, and leave the waiting line",
		Example: `  largesse coupon issue 42 --user u7 --wait 5s
  largesse coupon list --user u7
  largesse coupon use ID`,
	}))
	cmd.AddCommand(
		c.couponIssueCommand(),
		c.couponStatusCommand(),
		c.couponLeaveCommand(),
		c.couponListCommand(),
		c.couponCallCommand("show", "Show a coupon", (*client.Client).Coupon),
		c.couponCallCommand("confirm", "Confirm a HELD coupon, which makes it ISSUED", (*client.Client).ConfirmCoupon),
		c.couponCallCommand("use", "Use an ISSUED coupon that has not expired", (*client.Client).UseCoupon),
		c.couponCallCommand("cancel", "Cancel a HELD coupon, or an ISSUED one that has not expired; it becomes available again", (*client.Client).CancelCoupon),
	)
	return cmd
}

func checkUser(where, user string) error {
	if err := reward.CheckUserID(user); err != nil {
		return wrongUse("%s: %v", where, err)
	}
	return nil
}

// checkNewUser is checkUser for a user who may be new to the server.
func checkNewUser(where, user string) error {
	if err := reward.CheckNewUserID(user); err != nil {
		return wrongUse("%s: %v", where, err)
	}
	return nil
}

func (c *cli) couponIssueCommand() *cobra.Command {
	var (
		user string
		wait time.Duration
	)
	cmd := &cobra.Command{
		Use:   "issue TEMPLATE --user USER",
		Short: "Request a coupon",
		Long: `Request a coupon for a user. An admitted user gets a ticket and waits in line; with
--wait, the command waits for the outcome. If you repeat a request, you get the same
ticket and its rank, or the coupon that the user has. If the template allows several
coupons per user, a request after an outcome is a new request. The exit code is 1 if
the request is refused, for example with SOLD_OUT, NOT_OPEN, CLOSED or USER_LIMIT.`,
		Example: `  largesse coupon issue 42 --user u7
  largesse coupon issue 42 --user u7 --wait 5s --output json`,
		Args: templateArgs(),
		RunE: func(cmd *cobra.Command, args []string) error {
			if user == "" {
				return wrongUse("--user is missing: name the user who gets the coupon; see %s --help", cmd.CommandPath())
			}
			if err := checkNewUser("--user", user); err != nil {
				return err
			}
			if wait < 0 || wait > couponWaitMax {
				return wrongUse("--wait %s must be from 0s to %s", wait, couponWaitMax)
			}
			cl, err := c.connect()
			if err != nil {
				return err
			}
			r, err := cl.IssueCoupon(cmd.Context(), args[0], user, wait)
			if err != nil {
				return err
			}
			return c.printIssueRequest(args[0], user, r)
		},
	}
	cmd.Flags().StringVar(&user, "user", "", "user who gets the coupon (required)")
	cmd.Flags().DurationVar(&wait, "wait", 0, "maximum wait for the outcome; 0s to 30s")
	return cmd
}

func (c *cli) couponLeaveCommand() *cobra.Command {
	var (
		user string
		yes  bool
	)
	cmd := &cobra.Command{
		Use:   "leave TEMPLATE --user USER",
		Short: "Take a user out of the waiting line",
		Long: `Take the request of a user out of the waiting line. Others get the place at once. The
user may request again, and then waits at the end. If you repeat the command, nothing
changes. The exit code is 1 if the request was served before (REQUEST_ENDED), or if the
user has none (REQUEST_UNKNOWN).`,
		Example: `  largesse coupon leave 42 --user u7 --yes
  largesse coupon leave 42 --user u7 --yes --output json`,
		Args: templateArgs(),
		RunE: func(cmd *cobra.Command, args []string) error {
			if user == "" {
				return wrongUse("--user is missing: name the user who leaves the line; see %s --help", cmd.CommandPath())
			}
			if err := checkUser("--user", user); err != nil {
				return err
			}
			cl, err := c.connect()
			if err != nil {
				return err
			}
			if err := c.confirm(yes, fmt.Sprintf("take user %s out of the line of template %s", printable(user), args[0])); err != nil {
				return err
			}
			id := args[0] + ":" + user
			if err := cl.LeaveLine(cmd.Context(), id); err != nil {
				return err
			}
			if c.output == outputJSON {
				return c.printJSON(client.IssueRequest{ID: id, Status: "LEFT"})
			}
			_, err = fmt.Fprintf(c.stdout, "user %s has left the line of template %s\n", printable(user), printable(args[0]))
			return err
		},
	}
	cmd.Flags().StringVar(&user, "user", "", "user who leaves the line (required)")
	yesFlag(cmd, &yes)
	return cmd
}

func (c *cli) couponStatusCommand() *cobra.Command {
	var user string
	cmd := &cobra.Command{
		Use:   "status TEMPLATE --user USER",
		Short: "Show the latest request of a user: the rank in line or the outcome",
		Example: `  largesse coupon status 42 --user u7
  largesse coupon status 42 --user u7 --output json`,
		Args: templateArgs(),
		RunE: func(cmd *cobra.Command, args []string) error {
			if user == "" {
				return wrongUse("--user is missing: name the user who requested; see %s --help", cmd.CommandPath())
			}
			if err := checkUser("--user", user); err != nil {
				return err
			}
			cl, err := c.connect()
			if err != nil {
				return err
			}
			r, err := cl.IssueRequest(cmd.Context(), args[0]+":"+user)
			if err != nil {
				return err
			}
			return c.printIssueRequest(args[0], user, r)
		},
	}
	cmd.Flags().StringVar(&user, "user", "", "user who requested the coupon (required)")
	return cmd
}

func (c *cli) printIssueRequest(template, user string, r client.IssueRequest) error {
	if c.output == outputJSON {
		return c.printJSON(r)
	}
	if r.Coupon != nil {
		had := ""
		if r.Duplicate {
			had = ", from an earlier request"
			if r.Coupon.Status != "ISSUED" && r.Coupon.Status != "HELD" {
				had += "; it is " + printable(r.Coupon.Status)
			}
		}
		if r.Coupon.Status == "HELD" {
			had += fmt.Sprintf("; it is held until %s, confirm it with: largesse coupon confirm %s", moment(r.Coupon.HeldUntil), printable(r.Coupon.ID))
		}
		code := ""
		if r.Coupon.Code != "" {
			code = " with code " + printable(r.Coupon.Code)
		}
		_, err := fmt.Fprintf(c.stdout, "user %s has coupon %s%s%s\n", printable(r.Coupon.UserID), printable(r.Coupon.ID), code, had)
		return err
	}
	if r.Status == "REJECTED" || r.Status == "LEFT" {
		ended := "left the line"
		if r.Status == "REJECTED" {
			ended = "was rejected with " + r.Reason
		}
		_, err := fmt.Fprintf(c.stdout, "user %s %s; request again with: largesse coupon issue %s --user %s\n",
			printable(user), printable(ended), printable(template), shellWord(printable(user)))
		return err
	}
	standing := "takes part in the draw"
	if r.QueueRank != nil {
		standing = fmt.Sprintf("waits with ticket %d, %s ahead", r.Ticket, people(*r.QueueRank))
	}
	if r.EstimatedWaitMillis > 0 {
		standing += fmt.Sprintf(", about %s left", max((time.Duration(r.EstimatedWaitMillis)*time.Millisecond).Round(100*time.Millisecond), 100*time.Millisecond))
	}
	_, err := fmt.Fprintf(c.stdout, "user %s %s; to learn the outcome: largesse coupon status %s --user %s\n",
		printable(user), standing, printable(template), shellWord(printable(user)))
	return err
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

// couponCallCommand creates the command of a call that returns a coupon.
func (c *cli) couponCallCommand(verb, short string, call func(*client.Client, context.Context, string) (client.Coupon, error)) *cobra.Command {
	count := args("a coupon ID")
	cancels, confirmed, yes := verb == "cancel", "", false
	if cancels {
		confirmed = " --yes"
	}
	cmd := &cobra.Command{
		Use:     verb + " ID",
		Short:   short,
		Example: fmt.Sprintf("  largesse coupon %[1]s 12345%[2]s\n  largesse coupon %[1]s 12345%[2]s --output json", verb, confirmed),
		Args: func(cmd *cobra.Command, given []string) error {
			if err := count(cmd, given); err != nil {
				return err
			}
			if _, err := reward.ParseCouponID(given[0]); err != nil {
				return wrongUse("%q is not a coupon ID: it must be a whole number from 1; see largesse coupon list --help", given[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := c.connect()
			if err != nil {
				return err
			}
			if cancels {
				if err := c.confirm(yes, "cancel coupon "+args[0]+" permanently"); err != nil {
					return err
				}
			}
			one, err := call(cl, cmd.Context(), args[0])
			if err != nil {
				return err
			}
			switch {
			case c.output == outputJSON:
				return c.printJSON(one)
			case verb == "show":
				return c.printCoupon(one)
			}
			_, err = fmt.Fprintf(c.stdout, "coupon %s is %s\n", printable(one.ID), printable(one.Status))
			return err
		},
	}
	if cancels {
		yesFlag(cmd, &yes)
	}
	return cmd
}

// printCoupon prints all fields of a coupon, one per line.
func (c *cli) printCoupon(one client.Coupon) error {
	d := details{out: c.stdout}
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
	d.add("reason", one.Reason)
	d.add("expires", moment(one.ExpiresAt))
	return d.flush()
}

func (c *cli) couponListCommand() *cobra.Command {
	var (
		limit                int
		template, user, code string
	)
	cmd := &cobra.Command{
		Use:   "list --template ID | --user USER | --code CODE",
		Short: "List the coupons of a template in the order of their tickets, of a user, newest first, or with a code",
		Example: `  largesse coupon list --template 42
  largesse coupon list --user u7 --limit 0 --output json`,
		Args: args(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			given := 0
			for _, filter := range []string{template, user, code} {
				if filter != "" {
					given++
				}
			}
			if given != 1 {
				return wrongUse("coupon list needs one of --template ID, --user USER and --code CODE; see %s --help", cmd.CommandPath())
			}
			if err := checkLimit(limit); err != nil {
				return err
			}
			if template != "" {
				if err := checkTemplateID(template); err != nil {
					return err
				}
			}
			if user != "" {
				if err := checkUser("--user", user); err != nil {
					return err
				}
			}
			cl, err := c.connect()
			if err != nil {
				return err
			}
			coupons := cl.TemplateCoupons(cmd.Context(), template)
			switch {
			case user != "":
				coupons = cl.UserCoupons(cmd.Context(), user)
			case code != "":
				found, err := cl.CouponsByCode(cmd.Context(), code)
				if err != nil {
					return err
				}
				coupons = func(yield func(client.Coupon, error) bool) {
					for _, one := range found {
						if !yield(one, nil) {
							return
						}
					}
				}
			}
			return printList(c, coupons, listing[client.Coupon]{
				header: []string{"ID", "TEMPLATE", "USER", "TICKET", "STATUS", "CODE", "ISSUED", "HELD UNTIL", "EXPIRES"},
				row: func(one client.Coupon) []string {
					return []string{
						one.ID, one.TemplateID, one.UserID, number(one.Ticket), one.Status, one.Code, moment(&one.IssuedAt), moment(one.HeldUntil),
						moment(one.ExpiresAt),
					}
				},
				limit: limit,
				empty: "there are no coupons",
				cuts:  []string{"USER"},
			})
		},
	}
	limitFlag(cmd, &limit)
	cmd.Flags().StringVar(&template, "template", "", "only coupons of this template")
	cmd.Flags().StringVar(&user, "user", "", "only coupons of this user")
	cmd.Flags().StringVar(&code, "code", "", "only coupons with this code")
	return cmd
}
