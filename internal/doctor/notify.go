package doctor

import (
	"context"

	"github.com/largesse/largesse/internal/config"
	"github.com/largesse/largesse/internal/webhook"
)

// lookAtNotify checks whether messages to people could be sent, and sends none.
func lookAtNotify(ctx context.Context, cfg config.Config) []Check {
	var checks []Check
	if cfg.Notify.SlackURL != "" {
		c := passed("notify.slack", "the host of notify.slack-url accepts connections")
		if err := webhook.CheckReachable(ctx, cfg.Notify.SlackURL, cfg.Webhook.AllowPrivate); err != nil {
			c = c.saying("notify.slack-url cannot be called: %s", reason(ctx, err)).
				but(CheckFail, "correct the URL, or let this machine reach its host; a host in your own network needs webhook.allow-private")
		}
		checks = append(checks, c)
	}
	mail, err := cfg.Notify.MailServer()
	if err == nil && mail == nil {
		return checks
	}
	c := passed("notify.mail", "the mail server of notify.smtp-url accepts this instance")
	if err == nil {
		err = mail.Check(ctx)
	}
	if err != nil {
		c = c.saying("the mail server of notify.smtp-url cannot be used: %s", reason(ctx, err)).
			but(CheckFail, "correct notify.smtp-url with its port, user and password, or let this machine reach the server")
	}
	return append(checks, c)
}
