package payout

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/largesse/largesse/internal/money"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

// silent is no answer to a call that did not charge.
var silent = money.Answer{Class: reward.AnswerUnknown, Code: "TIMEOUT"}

// answers are what a provider may do to one call.
var answers = []money.Answer{
	{Class: reward.AnswerPaid},
	{Class: reward.AnswerRefused, Code: "NO"},
	{Class: reward.AnswerFailed, Code: "E"},
	lost,
	silent,
	{Class: reward.AnswerThrottled, Status: 429, RetryAfter: time.Second},
	{Class: reward.AnswerThrottled, Status: 503},
	{Class: reward.AnswerUnsent, Code: money.CodeNotConnected, Err: errFault},
}

// predict says how a payout ends whose calls are answered by script, and then
// with a yes for ever, while nothing can be looked up.
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
		default: // nothing left this process
		}
	}
	return reward.Succeeded
}

// TestUnknownIsExactlyWhatCouldNotBeKnown: while look-ups get no answer,
// UNKNOWN is what a yes or a no alone could not decide, and nothing else; once
// they do, what was charged is SUCCEEDED and the rest FAILED.
func TestUnknownIsExactlyWhatCouldNotBeKnown(t *testing.T) {
	t.Parallel()
	const (
		worlds     = 8 // each is a database, which is what takes time
		targets    = 150
		maxRetries = 2
	)
	oneScript := rapid.SliceOfN(rapid.SampledFrom(answers), 0, 5)
	for world := range worlds {
		t.Run(fmt.Sprint(world), func(t *testing.T) {
			onFakeTime(t, func(t *testing.T) {
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
				s := newStage(t, p, nil)
				defer s.close()
				s.create(targets, maxRetries)
				s.start()
				s.until("done but for look-ups", func(v store.PromotionView) bool { return v.Status == reward.Completed })
				for id, script := range scripts {
					if got, want := s.row(id).State, predict(script, maxRetries); got != want {
						t.Errorf("target %d is %s, want %s; its calls were answered %+v", id, got, want, script)
					}
				}
				p.mu.Lock()
				p.away = false
				p.mu.Unlock()
				s.until("nothing unknown", paidOut)
				s.balance(targets)
			})
		})
	}
}
