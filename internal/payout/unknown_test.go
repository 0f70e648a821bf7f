package payout

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/money"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

// silent is the missing response to a call that did not charge.
var silent = money.Answer{Class: reward.AnswerUnknown, Code: "TIMEOUT"}

// answers are the possible responses to one call.
var answers = []money.Answer{
	{Class: reward.AnswerPaid},
	{Class: reward.AnswerRefused, Code: "NO"},
	{Class: reward.AnswerFailed, Code: "E"},
	lost,
	silent,
	{Class: reward.AnswerThrottled, Status: 429, RetryAfter: time.Second},
	{Class: reward.AnswerThrottled, Status: 503},
	{Class: reward.AnswerNotSent, Code: money.CodeNotConnected, Err: errFault},
}

// predict returns the final state of a payout whose calls get the responses of
// script and then "paid", while lookups fail.
func predict(script []money.Answer, maxRetries int) reward.State {
	maybe, sent, attempts := false, false, 0
	for _, a := range script {
		switch a.Class {
		case reward.AnswerPaid:
			return reward.Succeeded
		case reward.AnswerRefused:
			if maybe || sent {
				return reward.Unknown
			}
			return reward.Failed
		case reward.AnswerFailed:
			if attempts++; attempts > maxRetries {
				return reward.Unknown
			}
			maybe, sent = true, false
		case reward.AnswerUnknown:
			maybe, sent = true, false
		case reward.AnswerThrottled:
			sent = sent || a.Status == 503
		default: // nothing was sent
		}
	}
	return reward.Succeeded
}

// TestUnknownIsExactlyWhatCouldNotBeKnown checks that a payout becomes UNKNOWN
// only if its responses are inconclusive, while lookups fail. Once lookups
// work, a charged payout becomes SUCCEEDED and any other FAILED.
func TestUnknownIsExactlyWhatCouldNotBeKnown(t *testing.T) {
	t.Parallel()
	const (
		worlds     = 2 // databases
		targets    = 150
		maxRetries = 2
	)
	oneScript := rapid.SliceOfN(rapid.SampledFrom(answers), 0, 5)
	for world := range worlds {
		fixture.OnFakeTime(t, fmt.Sprint(world), func(t *testing.T) {
			scripts := make(map[reward.TargetID][]money.Answer, targets)
			for id := range reward.TargetID(targets) {
				scripts[id+1] = oneScript.Example(world*targets + int(id))
			}
			p := newProvider(func(target reward.TargetID, n int) money.Answer {
				if script := scripts[target]; n < len(script) {
					return script[n]
				}
				return answers[0]
			})
			p.away = true
			s := newStage(t, p)
			s.create(targets, maxRetries)
			s.start()
			s.until("done but for look-ups", func(v store.PromotionView) bool { return v.Status == reward.Completed })
			for id, script := range scripts {
				if got, want := s.row(id).State, predict(script, maxRetries); got != want {
					t.Errorf("target %d is %s, want %s; its responses were %+v", id, got, want, script)
				}
			}
			p.mu.Lock()
			p.away = false
			p.mu.Unlock()
			s.until("nothing unknown", paidOut)
			s.balance(targets)
		})
	}
}
