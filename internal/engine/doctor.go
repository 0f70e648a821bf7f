package engine

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

// CheckStatus is the verdict of a check.
type CheckStatus string

// The verdicts. CheckWarn is for what works now and may not stay so, and for
// what could not be looked at.
const (
	CheckOK   CheckStatus = "ok"
	CheckWarn CheckStatus = "warn"
	CheckFail CheckStatus = "fail"
)

// Check is one thing that Doctor has looked at.
type Check struct {
	Name   string      `json:"name"` // the part and what of it, e.g. redis.eviction
	Status CheckStatus `json:"status"`
	Found  string      `json:"found"`            // one line
	Advice string      `json:"advice,omitempty"` // what to do; empty when ok
}

func passed(name, found string, args ...any) Check {
	return Check{Name: name, Status: CheckOK, Found: fmt.Sprintf(found, args...)}
}

// but makes a verdict worse and says what to do about it.
func (c Check) but(status CheckStatus, advice string, args ...any) Check {
	c.Status, c.Advice = status, fmt.Sprintf(advice, args...)
	return c
}

// DoctorParams says what Doctor looks at.
type DoctorParams struct {
	Settings config.LoadParams
	// Version is this program's, to compare with that of running instances.
	Version string
}

// checkTimeout bounds what is done for one part; the parts are looked at side
// by side.
const checkTimeout = 5 * time.Second

// examination looks at one part. It is left out when a setting that it rests
// on is wrong.
type examination struct {
	name     string
	settings []string
	look     func(ctx context.Context, cfg config.Config) []Check
}

// Doctor looks at the settings and at every part that they name, as an Engine
// would use it, and changes nothing. Checks come in the order of the parts.
// An error means that nothing could be looked at: the settings file cannot be
// read, or ctx is over.
func Doctor(ctx context.Context, p DoctorParams) ([]Check, error) {
	cfg, warnings, problems, err := config.Examine(p.Settings)
	if err != nil {
		return nil, err
	}
	parts := []examination{
		{"data", []string{"data.dir"}, lookAtData},
		{"database", []string{"data.dir", "database.url", "database.max-connections"}, func(ctx context.Context, cfg config.Config) []Check {
			return lookAtDatabase(ctx, cfg, p.Version)
		}},
		{"files", nil, func(ctx context.Context, cfg config.Config) []Check { return lookAtFiles(ctx, cfg, p.Settings.File) }},
		{"http", []string{"http.listen", "roles"}, lookAtHTTP},
		{"redis", []string{"redis.url", "redis.key-prefix"}, lookAtRedis},
		{"kafka", []string{
			"data.dir", "kafka.brokers", "kafka.topic-prefix", "kafka.embedded-listen", "kafka.tls", "kafka.ca-file", "kafka.client-cert", "kafka.client-key",
			"kafka.sasl-mechanism", "kafka.sasl-user", "kafka.sasl-password-file",
		}, lookAtKafka},
		{"money", []string{"money.url", "money.timeout", "money.max-concurrency", "money.auth-header", "money.client-cert"}, lookAtMoney},
	}
	found := make([][]Check, len(parts))
	var all sync.WaitGroup
	for i, part := range parts {
		if wrong := slices.IndexFunc(problems, func(p config.Problem) bool { return slices.Contains(part.settings, p.Name) }); wrong >= 0 {
			found[i] = []Check{passed(part.name, "not looked at, because %s is wrong", problems[wrong].Name).but(CheckWarn, "put that setting right first")}
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

// leaseSetting has a line of its own.
const leaseSetting = "redis.stream.lease-seconds"

func judgeSettings(cfg config.Config, warnings []string, problems []config.Problem) []Check {
	var checks []Check
	lease := passed("settings.lease", "an entry's lease of %s is longer than a call may take (money.timeout %s)",
		config.ShortDuration(cfg.Redis.Stream.Lease()), config.ShortDuration(cfg.Money.Timeout))
	for _, p := range problems {
		said := p
		said.Detail = "is wrong"
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
		checks = append(checks, passed("settings", "all %d are valid", len(config.Settings)))
	}
	return append(checks, lease)
}

// skewAllowed is how far a clock may be off before it is worth a word.
const skewAllowed = time.Second

// judgeClock compares a server's clock with ours. The queue takes no entry
// later than half of X after its dispatch, X = money.timeout + lease, so with
// clocks further apart nothing is dispatched or leases are judged wrongly.
func judgeClock(name, subject string, clock service.Clock, cfg config.Config) Check {
	limit := (cfg.Money.Timeout + cfg.Redis.Stream.Lease()) / 2
	direction := "ahead of"
	if clock.Ahead < 0 {
		direction = "behind"
	}
	c := passed(name, "%s %s %s this machine's (± %s)", subject, rounded(clock.Ahead.Abs()), direction, rounded(clock.RoundTrip/2))
	// What half the round trip explains, or is below a millisecond, has no
	// direction: it would be another one at the next look.
	if within := clock.Ahead.Abs() + clock.RoundTrip/2; clock.Skew() == 0 || within <= time.Millisecond {
		c.Found = fmt.Sprintf("%s the same as this machine's, within %s", subject, max(rounded(within), time.Millisecond))
	}
	switch skew := clock.Skew(); {
	case skew > limit:
		return c.but(CheckFail, "set both clocks by NTP: more than %s (half of money.timeout + lease) apart, entries are refused as late or swept too early", config.ShortDuration(limit))
	case skew > skewAllowed:
		return c.but(CheckWarn, "set both clocks by NTP: they should be within %s, and dispatching stops at %s", config.ShortDuration(skewAllowed), config.ShortDuration(limit))
	}
	return c
}

// rounded is a duration for people: three digits are enough.
func rounded(d time.Duration) time.Duration {
	switch {
	case d >= time.Second:
		return d.Round(10 * time.Millisecond)
	case d >= 10*time.Millisecond:
		return d.Round(time.Millisecond)
	}
	return d.Round(10 * time.Microsecond)
}

// reason tells in one line why a part could not be looked at. Libraries tell
// of every try to connect, a line each.
func reason(ctx context.Context, err error) string {
	if ctx.Err() != nil || errors.Is(err, context.DeadlineExceeded) {
		return fmt.Sprintf("no answer within %s: %s", checkTimeout, oneLine(err))
	}
	return oneLine(err)
}

func oneLine(err error) string {
	var lines []string
	for line := range strings.Lines(err.Error()) {
		if line = strings.TrimSpace(line); line != "" && !slices.Contains(lines, line) {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, " ")
}
