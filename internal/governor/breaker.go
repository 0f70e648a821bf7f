package governor

import (
	"errors"
	"math"
	"net/http"
	"time"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/service"
)

var errNoLife = errors.New("the provider shows no sign of life: nothing is called but a probe every few seconds")

const (
	rowToOpen   = 20  // results in a row without a sign of life, and as many as calls are open
	freshShare  = 0.6 // of the latest calls, when these alone have no sign of life
	rowOfDoubt  = 10  // from then on no more calls are open than it takes to be sure
	probeFirst  = time.Second
	probeMost   = 3500 * time.Millisecond
	probeAgain  = 100 * time.Millisecond // after one that told nothing
	probeJitter = 0.2
)

// sign is what an outcome says about the provider.
type sign int

const (
	signNone  sign = iota // nothing: it was our own doing
	signAlive             // it answered and knows what it does
	signDead
)

// sign tells an answer from the lack of one. A provider that says no, or too
// many, is alive.
func (o Outcome) sign() sign {
	switch o.Class {
	case reward.AnswerPaid, reward.AnswerRefused, reward.AnswerMisset:
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
	case reward.AnswerUnsent:
		if !o.Ours {
			return signDead
		}
	}
	return signNone
}

func (o Outcome) throttles() bool {
	return o.Class == reward.AnswerThrottled || o.Status == http.StatusTooManyRequests || o.Status == http.StatusServiceUnavailable
}

// breaker stops the calls of a provider that shows no sign of life. Calls that
// are still open may yet show one: failures are often quicker than payments, so
// the first results of many calls are no proof.
type breaker struct {
	row int // results in a row without a sign of life

	// The same among calls that began at the call since or later. A provider
	// that has just died still answers what it was asked before, which keeps row
	// short while new calls fail faster than that.
	since uint64
	fresh int

	opened  bool
	probing bool          // a probe is under way
	tries   int           // probes that found no life
	probeAt time.Duration // the next probe, not before
}

func (b *breaker) closed() bool { return !b.opened }

// doubt is how many calls may be open for what the breaker knows.
func (b *breaker) doubt() int {
	if b.row < rowOfDoubt {
		return math.MaxInt
	}
	return max(rowToOpen-b.row, 1)
}

func (b *breaker) probeDue(now time.Duration) bool {
	return b.opened && !b.probing && now >= b.probeAt
}

// result learns from a call that has ended; calls is how many have begun, open
// how many have not ended.
func (b *breaker) result(now time.Duration, p *Permit, s sign, knows bool, calls uint64, open int) {
	switch {
	case b.opened && !p.probe: // it began before
	case p.probe && s == signAlive:
		*b = breaker{}
	case p.probe && s == signDead:
		b.probing = false
		b.tries++
		if knows {
			b.tries = 0
		}
		b.probeAt = now + probePause(b.tries)
	case p.probe:
		b.unprobed(now)
	case s == signAlive:
		b.row = 0
		if p.call >= b.since {
			b.fresh = 0
		}
	case s == signDead:
		b.dead(now, p.call, calls, open)
	}
}

func (b *breaker) dead(now time.Duration, call, calls uint64, open int) {
	b.row++
	if b.fresh == 0 {
		b.since = call
	}
	if call >= b.since {
		b.fresh++
	}
	begun := float64(calls - b.since + 1)
	if b.row >= max(rowToOpen, open) || b.fresh >= rowToOpen && float64(b.fresh) >= freshShare*begun {
		*b = breaker{opened: true, probeAt: now + probePause(0)}
	}
}

// unprobed puts a probe off that told nothing.
func (b *breaker) unprobed(now time.Duration) {
	b.probing = false
	b.probeAt = now + service.Jitter(probeAgain, probeJitter)
}

// probePause is the time before probe n, from 0: 1 s, 2, then 3.5.
func probePause(n int) time.Duration {
	return service.Jitter(min(probeFirst<<min(n, 8), probeMost), probeJitter)
}
