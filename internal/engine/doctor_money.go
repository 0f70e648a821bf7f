package engine

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/largesse/largesse/internal/config"
	"github.com/largesse/largesse/internal/money"
	"github.com/largesse/largesse/internal/obs"
)

func lookAtMoney(ctx context.Context, cfg config.Config) []Check {
	if cfg.Money.URL == "" {
		c := passed("money", "money.url is not set, and the roles of this instance do not need it")
		if slices.Contains(cfg.Roles, config.RolePayout) {
			c.Found = "money.url is not set"
			c = c.but(CheckFail, "name the provider's Money API, or start a stand-in with: largesse moneysim")
		}
		return []Check{c}
	}
	with := moneyConfig(cfg, obs.Log{})
	with.Timeout = min(with.Timeout, checkTimeout)
	client, err := money.New(with)
	if err != nil {
		return []Check{passed("money", "%s", oneLine(err)).but(CheckFail, "correct that setting")}
	}
	defer client.Close()
	asked := time.Now()
	// Promotions count from 1, so nobody can have charged this key.
	answer := client.Lookup(ctx, 0, 0)
	return []Check{judgeMoney(answer, time.Since(asked), cfg.Money.Timeout)}
}

func judgeMoney(l money.LookupResult, took, timeout time.Duration) Check {
	status := l.Answer.Status
	c := passed("money", "the Money API answers a look-up with %d within %s", status, rounded(took))
	switch {
	case status == 0:
		c.Found = "the Money API does not answer"
		if l.Answer.Err != nil {
			c.Found = fmt.Sprintf("the Money API does not answer: %s", oneLine(l.Answer.Err))
		}
		return c.but(CheckFail, "see that it runs and that money.url names its host and port, and http or https")
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		return c.but(CheckFail, "correct the credentials (money.token-file, money.auth-header, money.client-cert): it does not let us in")
	case status == http.StatusNotFound && !l.NotFound:
		return c.but(CheckFail, "see that money.url ends with the right path: a look-up's 404 has to carry a JSON code, without it nothing unknown could ever be settled")
	case !l.Found && !l.NotFound:
		return c.but(CheckWarn, "ask the provider: a look-up should be answered by 200 or 404, without it nothing unknown can be settled")
	case took > timeout/2:
		return c.but(CheckWarn, "ask the provider, or raise money.timeout, which is %s", config.ShortDuration(timeout))
	}
	return c
}
