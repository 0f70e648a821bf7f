package governor

import (
	"errors"
	"math"
	"net/http"
	"time"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/service"
)

var errNoLife = errors.New("the provider does not respond: only one probe call is sent every few seconds")

const (
	failuresToOpen     = 20  // failures in a row that open the breaker; at least as many as calls are in flight
	freshShare         = 0.6 // share of failures among recent calls that opens the breaker, if they are at least failuresToOpen
	failuresToLimit    = 10  // failures in a row after which no more calls may be in flight than are missing to failuresToOpen
	probeIntervalMin   = time.Second
	probeIntervalMax   = 3500 * time.Millisecond
	probeRetryInterval = 100 * time.Millisecond // after a probe that said nothing about the provider
	probeJitter        = 0.2
)

// sign is what an outcome says about the provider.
type sign int

const (
	signNone  sign = iota // nothing: Largesse itself ended the call
	signAlive             // the provider responds and works
	signDead              // the provider does not respond, or fails
)

// sign returns what the outcome says about the provider. A provider that refuses
// a call or responds 429 is alive. One that responds 503 is not.
func (o Outcome) sign() sign {
	switch o.Class {
	case reward.AnswerPaid, reward.AnswerRefused, reward.AnswerMisconfigured:
		return signAlive
	case reward.AnswerFailed:
		return signDead
	case reward.AnswerThrottled:
		if o.Status == http.StatusServiceUnavailable {
			return signDead
		}
		return signAlive
	case reward.AnswerUnknown:
		if o.Status != 0 {
			return signAlive
		}
		return signDead
	case reward.AnswerNotSent:
		if !o.Local {
			return signDead
		}
	}
	return signNone
}

// throttles reports whether the provider asked for fewer calls.
func (o Outcome) throttles() bool {
	return o.Class == reward.AnswerThrottled || o.Status == http.StatusTooManyRequests || o.Status == http.StatusServiceUnavailable
}

// breaker is the circuit breaker: it stops the calls to a provider that does not
// respond. Failures are often faster than successful charges. So it does not open
// after failuresToOpen failures in a row if more calls than that are in flight: one
// of them may still succeed.
type breaker struct {
	failures int // failures in a row

	// fresh counts the failures of calls whose number is at least since. It is
	// there for a provider that has just crashed: responses to earlier calls
	// still arrive and reset failures, but not fresh.
	since uint64
	fresh int

	opened  bool
	probing bool          // a probe is in flight
	tries   int           // failed probes since the breaker opened, or since a probe with LookupAnswered
	probeAt time.Duration // earliest time of the next probe
}

func (b *breaker) closed() bool { return !b.opened }

// callLimit returns how many calls the breaker allows in flight.
func (b *breaker) callLimit() int {
	if b.failures < failuresToLimit {
		return math.MaxInt
	}
	return max(failuresToOpen-b.failures, 1)
}

// probeDue reports whether a probe may be sent now.
func (b *breaker) probeDue(now time.Duration) bool {
	return b.opened && !b.probing && now >= b.probeAt
}

// result takes a call that has ended into account. answered is the call's
// Outcome.LookupAnswered, calls the number of permits ever granted, and open the
// number of calls in flight.
func (b *breaker) result(now time.Duration, p *Permit, s sign, answered bool, calls uint64, open int) {
	switch {
	case b.opened && !p.probe: // it started before the breaker opened
	case p.probe && s == signAlive:
		*b = breaker{}
	case p.probe && s == signDead:
		b.probing = false
		b.tries++
		if answered {
			b.tries = 0
		}
		b.probeAt = now + probeInterval(b.tries)
	case p.probe:
		b.unprobed(now)
	case s == signAlive:
		b.failures = 0
		if p.call >= b.since {
			b.fresh = 0
		}
	case s == signDead:
		b.dead(now, p.call, calls, open)
	}
}

// dead takes a failed call into account, and opens the breaker if there are enough
// failures.
func (b *breaker) dead(now time.Duration, call, calls uint64, open int) {
	b.failures++
	if b.fresh == 0 {
		b.since = call
	}
	if call >= b.since {
		b.fresh++
	}
	begun := float64(calls - b.since + 1)
	if b.failures >= max(failuresToOpen, open) || b.fresh >= failuresToOpen && float64(b.fresh) >= freshShare*begun {
		*b = breaker{opened: true, probeAt: now + probeInterval(0)}
	}
}

// unprobed schedules the next probe after one that said nothing about the
// provider.
func (b *breaker) unprobed(now time.Duration) {
	b.probing = false
	b.probeAt = now + service.Jitter(probeRetryInterval, probeJitter)
}

// probeInterval returns how long the breaker waits after n failed probes before the
// next one: 1 s, 2 s, then always 3.5 s, with jitter.
func probeInterval(n int) time.Duration {
	return service.Jitter(min(probeIntervalMin<<min(n, 8), probeIntervalMax), probeJitter)
}
