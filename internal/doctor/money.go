package doctor

import (
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/largesse/largesse/internal/config"
	"github.com/largesse/largesse/internal/money"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/parts"
)

func lookAtMoney(ctx context.Context, cfg config.Config) []Check {
	if cfg.Money.URL == "" {
		c := passed("money", "money.url is not set, and the roles of this instance do not need it")
		if slices.Contains(cfg.Roles, config.RolePayout) {
			c = c.saying("money.url is not set").but(CheckFail, "set money.url to the provider's Money API, or start a simulated one with: largesse moneysim")
		}
		return []Check{c}
	}
	with := parts.MoneyConfig(cfg, obs.Log{})
	with.Timeout = min(with.Timeout, checkTimeout)
	client, err := money.New(with)
	if err != nil {
		return []Check{passed("money", "%s", OneLine(err)).but(CheckFail, "correct that setting")}
	}
	defer client.Close()
	if cfg.Money.Request.Path != "" && cfg.Money.Lookup.Path == "" {
		return []Check{passed("money", "not checked: the settings name no lookup (money.lookup.path)").
			but(CheckWarn, "try a charge with: largesse provider check")}
	}
	asked := time.Now()
	// Promotion IDs start at 1, so this key was never charged.
	answer := client.Lookup(ctx, 0, 0)
	return []Check{judgeMoney(answer, time.Since(asked), cfg.Money.Timeout)}
}

func judgeMoney(l money.LookupResult, took, timeout time.Duration) Check {
	status := l.Answer.Status
	c := passed("money", "the Money API responds to a lookup with %d within %s", status, rounded(took))
	switch {
	case status == 0:
		c = c.saying("the Money API does not respond")
		if l.Answer.Err != nil {
			c = c.saying("the Money API does not respond: %s", OneLine(l.Answer.Err))
		}
		return c.but(CheckFail, "check that it runs and that money.url has the right scheme, host and port")
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		return c.but(CheckFail, "correct the credentials (money.token-file, money.auth-header, money.client-cert): it rejects them")
	case status == http.StatusNotFound && !l.NotFound:
		return c.but(CheckFail, "check that money.url ends with the right path: the 404 of a lookup must contain a JSON code, or payouts in UNKNOWN can never be settled")
	case l.Answer.WithoutKey():
		return c.but(CheckFail, "correct the provider, or check that money.url ends with the right path: a response of 200 must name the transaction, as {\"transactionKey\": \"…\"}, or no payout can be settled and promotions pause")
	case !l.Found && !l.NotFound:
		return c.but(CheckWarn, "ask the provider: the response to a lookup should be 200 or 404, or payouts in UNKNOWN cannot be settled")
	case took > timeout/2:
		return c.but(CheckWarn, "ask the provider why it is slow, or raise money.timeout, which is %s", config.ShortDuration(timeout))
	}
	return c
}
