// Package doctor checks the settings and every part that they name, as an instance would
// use it, and changes nothing. CheckProvider plays the calls of the Money API, and so
// makes charges.
package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/largesse/largesse/internal/config"
	"github.com/largesse/largesse/internal/service"
)

// CheckStatus is the result of a check.
type CheckStatus string

// The results. CheckWarn means that a part works now but may fail later, or that it
// could not be checked.
const (
	CheckOK   CheckStatus = "ok"
	CheckWarn CheckStatus = "warn"
	CheckFail CheckStatus = "fail"
)

// Check is the result of one check.
type Check struct {
	Name   string      `json:"name"` // part and property, e.g. redis.eviction
	Status CheckStatus `json:"status"`
	Found  string      `json:"found"`            // one line
	Advice string      `json:"advice,omitempty"` // what to do; "" if ok
}

// passed, saying and but make a Check: it is ok, and says what was found; it says something
// else; it is not ok, and says what to do.
func passed(name, found string, args ...any) Check {
	return Check{Name: name, Status: CheckOK, Found: fmt.Sprintf(found, args...)}
}

func (c Check) saying(found string, args ...any) Check {
	c.Found = fmt.Sprintf(found, args...)
	return c
}

func (c Check) but(status CheckStatus, advice string, args ...any) Check {
	c.Status, c.Advice = status, fmt.Sprintf(advice, args...)
	return c
}

// Params configures Run.
type Params struct {
	Settings config.LoadParams
	// Version is the version of this program. Run compares it with those of
	// running instances.
	Version string
}

// checkTimeout limits the checks of one part. The parts are checked concurrently.
const checkTimeout = 5 * time.Second

// examination checks one part. It is skipped if one of its settings is invalid.
type examination struct {
	name     string
	settings []string
	look     func(ctx context.Context, cfg config.Config) []Check
}

// Run checks the settings and every part that they name, as an Engine would use
// it, and changes nothing. It returns the checks in the order of the parts. An
// error means that nothing could be checked: the settings file cannot be read, or
// ctx has ended.
func Run(ctx context.Context, p Params) ([]Check, error) {
	cfg, warnings, problems, err := config.Examine(p.Settings)
	if err != nil {
		return nil, err
	}
	parts := []examination{
		{"data", []string{"data.dir"}, lookAtData},
		{"database", []string{"data.dir", "database.url", "database.password-file", "database.max-connections"}, func(ctx context.Context, cfg config.Config) []Check {
			return lookAtDatabase(ctx, cfg, p.Version)
		}},
		{"files", nil, func(ctx context.Context, cfg config.Config) []Check { return lookAtFiles(ctx, cfg, p.Settings.File) }},
		{"http", []string{"http.listen", "http.probe-listen", "roles"}, lookAtHTTP},
		{"redis", []string{"redis.url", "redis.password-file", "redis.ca-file", "redis.key-prefix"}, lookAtRedis},
		{"kafka", []string{
			"data.dir", "kafka.brokers", "kafka.topic-prefix", "kafka.embedded-listen", "kafka.tls", "kafka.ca-file", "kafka.client-cert", "kafka.client-key",
			"kafka.sasl-mechanism", "kafka.sasl-user", "kafka.sasl-password-file",
		}, lookAtKafka},
		{"money", []string{"money.url", "money.timeout", "money.max-concurrency", "money.auth-header", "money.client-cert"}, lookAtMoney},
		{"notify", []string{"notify.slack-url", "notify.smtp-url", "notify.smtp-password-file", "notify.from"}, lookAtNotify},
	}
	found := make([][]Check, len(parts))
	var all sync.WaitGroup
	for i, part := range parts {
		if wrong := slices.IndexFunc(problems, func(p config.Problem) bool { return slices.Contains(part.settings, p.Name) }); wrong >= 0 {
			found[i] = []Check{passed(part.name, "not checked, because %s is invalid", problems[wrong].Name).but(CheckWarn, "correct that setting first")}
			continue
		}
		all.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, checkTimeout)
			defer cancel()
			found[i] = part.look(ctx, cfg)
		})
	}
	all.Wait()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return slices.Concat(judgeSettings(cfg, warnings, problems), slices.Concat(found...)), nil
}

const leaseSetting = "redis.stream.lease-seconds"

func judgeSettings(cfg config.Config, warnings []string, problems []config.Problem) []Check {
	var checks []Check
	lease := passed("settings.lease", "the lease of an entry, %s, is longer than the longest call (money.timeout %s)",
		config.ShortDuration(cfg.Redis.Stream.Lease()), config.ShortDuration(cfg.Money.Timeout))
	for _, p := range problems {
		said := p
		said.Detail = "is invalid"
		if p.Name == leaseSetting {
			lease = passed("settings.lease", "%s", said).but(CheckFail, "it %s", p.Detail)
			continue
		}
		checks = append(checks, passed("settings", "%s", said).but(CheckFail, "%s %s", p.Name, p.Detail))
	}
	for _, w := range warnings {
		found, advice, _ := strings.Cut(w, "; ")
		checks = append(checks, passed("settings", "%s", found).but(CheckWarn, "%s", advice))
	}
	if len(checks) == 0 && len(problems) == 0 {
		checks = append(checks, passed("settings", "all %d settings are valid", len(config.Settings)))
	}
	return append(checks, lease)
}

const skewAllowed = time.Second

// judgeClock compares a server's clock with the one of this machine. Dispatching stops
// if Redis is three quarters of the dispatch horizon (money.timeout plus lease) ahead
// of the database, and lost payouts are found late if it is behind. So it fails above
// half of that horizon.
func judgeClock(name, subject string, clock service.Clock, cfg config.Config) Check {
	limit := (cfg.Money.Timeout + cfg.Redis.Stream.Lease()) / 2
	direction := "ahead of"
	if clock.Ahead < 0 {
		direction = "behind"
	}
	c := passed(name, "%s %s %s this machine's (± %s)", subject, rounded(clock.Ahead.Abs()), direction, rounded(clock.RoundTrip/2))
	// A difference within half the round trip or a millisecond has no reliable
	// direction: the next check may show the opposite.
	if within := clock.Ahead.Abs() + clock.RoundTrip/2; clock.Skew() == 0 || within <= time.Millisecond {
		c = c.saying("%s the same as this machine's, within %s", subject, max(rounded(within), time.Millisecond))
	}
	switch skew := clock.Skew(); {
	case skew > limit:
		return c.but(CheckFail, "synchronize both clocks by NTP: if Redis is more than %s (three quarters of money.timeout + lease) ahead of the database, no payouts are dispatched, and if it is behind, lost payouts are found late", config.ShortDuration(limit*3/2))
	case skew > skewAllowed:
		return c.but(CheckWarn, "synchronize both clocks by NTP: they should differ by at most %s, and dispatching stops if Redis is more than %s ahead of the database", config.ShortDuration(skewAllowed), config.ShortDuration(limit*3/2))
	}
	return c
}

// rounded rounds a duration to about three digits.
func rounded(d time.Duration) time.Duration {
	switch {
	case d >= time.Second:
		return d.Round(10 * time.Millisecond)
	case d >= 10*time.Millisecond:
		return d.Round(time.Millisecond)
	}
	return d.Round(10 * time.Microsecond)
}

// listShown is the number of instances, reasons or templates that a check names.
const listShown = 5

// listed joins the first texts, and says behind rest how many more there are.
func listed(texts []string, between, rest string) string {
	list := strings.Join(texts[:min(len(texts), listShown)], between)
	if more := len(texts) - listShown; more > 0 {
		list += fmt.Sprintf("%s %d more", rest, more)
	}
	return list
}

// reason returns one line that says why a part could not be checked.
func reason(ctx context.Context, err error) string {
	if ctx.Err() != nil || errors.Is(err, context.DeadlineExceeded) {
		return fmt.Sprintf("no response within %s: %s", checkTimeout, OneLine(err))
	}
	return OneLine(err)
}

// OneLine joins the distinct lines of an error. Some libraries report every attempt
// to connect on its own line.
func OneLine(err error) string {
	var lines []string
	for line := range strings.Lines(err.Error()) {
		if line = strings.TrimSpace(line); line != "" && !slices.Contains(lines, line) {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, " ")
}
