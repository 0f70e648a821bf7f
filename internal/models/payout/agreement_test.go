package payout

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/models/code"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
)

// TestStepsFollowTheRules requires that the model changes rows as internal/rules does,
// for every state of a row, flagged or not, in a promotion of every status. Both
// databases do the same, as storetest checks.
func TestStepsFollowTheRules(t *testing.T) {
	t.Parallel()
	m := newModel(small(faults{faultRetry: 1, faultServerError: 1}))
	for i := range int(rowStates-rowReady) * 2 * 3 * 2 * 2 * 2 {
		pick := func(n int) int { k := i % n; i /= n; return k }
		c := ruleCase{
			state: rowReady + rowState(pick(int(rowStates-rowReady))), flagged: pick(2) == 1, //nolint:gosec // small
			status: status(pick(3)), right: pick(2) == 1, sent: pick(2) == 1, again: pick(2) == 1, //nolint:gosec // small
		}
		for name, check := range map[string]func(*model) (got, want []string){
			"paid":                  c.paid,
			"refused":               func(m *model) (got, want []string) { return c.finish(m, answerRefused, rules.OutcomeRefused) },
			"failed":                func(m *model) (got, want []string) { return c.finish(m, answerFailed, rules.OutcomeFailed) },
			"no answer":             func(m *model) (got, want []string) { return c.finish(m, answerNone, rules.OutcomeNoAnswer) },
			"no lookup":             func(m *model) (got, want []string) { return c.finish(m, answerNoLookup, rules.OutcomeNoAnswer) },
			"cancelled":             c.cancelled,
			"returned":              c.returned,
			"refused by the stream": c.refusedByStream,
			"swept":                 c.swept,
			"withdrawn":             c.withdrawn,
			"settled":               c.settled,
			"retried":               c.retried,
		} {
			got, want := check(m)
			slices.Sort(got)
			slices.Sort(want)
			if got, want = slices.Compact(got), slices.Compact(want); !slices.Equal(got, want) {
				t.Errorf("%+v %s: the model has %v, internal/rules %v", c, name, got, want)
			}
		}
	}
}

// ruleCase is a row, and an entry of it.
type ruleCase struct {
	state   rowState
	flagged bool
	status  status
	right   bool // the entry has the dispatch of the row
	sent    bool // its consumer sent an earlier charge
	again   bool // the row has used up its retries
}

var (
	now       = time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC)
	ruleState = map[rowState]reward.State{
		rowReady: reward.Ready, rowQueued: reward.Queued, rowRetrying: reward.Retrying, rowUnknown: reward.Unknown,
		rowSucceeded: reward.Succeeded, rowFailed: reward.Failed, rowCancelled: reward.Cancelled,
	}
	ruleStatus = []reward.PromotionStatus{reward.Running, reward.Paused, reward.PromotionCancelled}
)

const (
	lease       = 15 * time.Second
	settleAfter = time.Minute
)

// model returns the case as a state. Instance 0 has the entry.
func (c ruleCase) model() state {
	s := state{status: c.status, saved: 1}
	s.rows[0] = row{state: c.state, dispatch: 1, maybeCalled: c.flagged}
	if c.state == rowSucceeded {
		s.rows[0].maybeCalled = false
	}
	if c.again {
		s.rows[0].attempts = 1
	}
	s.counts[c.state] = 1
	h := &s.all[0]
	h.row, h.dispatch, h.firstDelivery, h.lease, h.sent = 0, 1, true, true, c.sent
	if !c.right {
		h.dispatch = 0
	}
	return s
}

// rule returns the case as internal/rules knows it.
func (c ruleCase) rule() (rules.Row, reward.Promotion, reward.Ref) {
	r := rules.Row{Payout: reward.Payout{State: ruleState[c.state], Dispatch: 1, MaybeCalled: c.flagged, DueAt: now, SettleFrom: now}}
	if c.again {
		r.Attempts = 1
	}
	ref := reward.Ref{Dispatch: 1}
	if !c.right {
		ref.Dispatch = 0
	}
	return r, reward.Promotion{Status: ruleStatus[c.status], MaxRetries: 1}, ref
}

// became describes a row of internal/rules. The model forgets the flag of a SUCCEEDED
// row, because nothing reads it.
func became(r rules.Row) string {
	return fmt.Sprint(r.State, " ", r.MaybeCalled && r.State != reward.Succeeded)
}

// modelled describes the rows after some steps of the model.
func (m *model) modelled(s state, do func(*state), from ...step) []string {
	m.out = nil
	do(&s)
	var all []string
	for _, t := range m.out {
		if x := t.Next.rows[0]; slices.Contains(from, t.Label.step) {
			all = append(all, fmt.Sprint(ruleState[x.state], " ", x.maybeCalled))
		}
	}
	return all
}

// written are the steps that write an outcome.
var written = []step{writesSucceeded, writesFailed, writesRefusedUnknown, writesRetrying, writesUnknown, writesTooLate}

func (c ruleCase) paid(m *model) (got, want []string) {
	return c.finish(m, answerPaid, rules.OutcomePaid)
}

// finish compares the write of an outcome. The model does not know whether a payout
// without an answer is overdue: both is possible.
func (c ruleCase) finish(m *model, ans answer, kind rules.OutcomeKind) (got, want []string) {
	s := c.model()
	s.all[0].phase, s.all[0].answer = phaseAnswered, ans
	got = m.modelled(s, func(s *state) { m.write(s, 0) }, written...)
	r, p, ref := c.rule()
	for _, giveUp := range []bool{false, true} {
		next, _, _ := rules.Finish(r, rules.Outcome{Ref: ref, Kind: kind, Sent: c.sent, GiveUp: giveUp}, p, lease, now)
		want = append(want, became(next))
	}
	return got, want
}

func (c ruleCase) cancelled(m *model) (got, want []string) {
	s := c.model()
	s.all[0].phase = phaseChecked
	got = m.modelled(s, func(s *state) { m.cancelPending(s, 0) }, cancelsPending)
	r, p, ref := c.rule()
	next, _, _ := rules.Finish(r, rules.Outcome{Ref: ref, Kind: rules.OutcomeCancelled, Sent: c.sent}, p, lease, now)
	return got, []string{became(next)}
}

func (c ruleCase) returned(m *model) (got, want []string) {
	s := c.model()
	s.all[0].phase = phaseChecked
	got = m.modelled(s, func(s *state) { m.handBack(s, 0) }, returnsOwn)
	return got, c.withdraw(rules.Withdrawal{Kind: rules.WithdrawReturn, MaybeCalled: true})
}

func (c ruleCase) refusedByStream(m *model) (got, want []string) {
	s := c.model()
	s.all[0].job, s.all[0].jobDispatch = jobReturn, s.all[0].dispatch
	got = m.modelled(s, func(s *state) { m.job(s, 0) }, returnsRefused)
	return got, c.withdraw(rules.Withdrawal{Kind: rules.WithdrawReturn})
}

// swept compares a sweep. The time of a dispatch stands for its number.
func (c ruleCase) swept(m *model) (got, want []string) {
	s := c.model()
	s.all[0].job, s.all[0].jobDispatch = jobSweep, s.all[0].dispatch
	got = m.modelled(s, func(s *state) { m.job(s, 0) }, sweepWrites)
	before := now
	if c.right {
		before = now.Add(1)
	}
	return got, c.withdraw(rules.Withdrawal{Kind: rules.WithdrawSweep, Before: before})
}

func (c ruleCase) withdraw(why rules.Withdrawal) []string {
	r, p, ref := c.rule()
	why.Dispatch = ref.Dispatch
	next, _ := rules.Withdraw(r, why, p, lease, now)
	return []string{became(next)}
}

// withdrawn compares a cancel, which the model takes only for rows that it changes.
func (c ruleCase) withdrawn(m *model) (got, want []string) {
	s := c.model()
	got = m.modelled(s, func(s *state) { m.rowOperator(s, 0) }, cancelsReady, cancelsToUnknown)
	r, p, _ := c.rule()
	if next, tally := rules.Withdraw(r, rules.Withdrawal{Kind: rules.WithdrawCancel}, p, lease, now); tally.Changed {
		want = []string{became(next)}
	}
	return got, want
}

// settled compares a lookup that began late enough. again means that it found the
// charge.
func (c ruleCase) settled(m *model) (got, want []string) {
	s := c.model()
	s.all[0].job, s.all[0].jobDispatch, s.all[0].jobFound = jobSettle, s.all[0].dispatch, c.again
	got = m.modelled(s, func(s *state) { m.job(s, 0) }, settles)
	r, p, ref := c.rule()
	l := rules.Lookup{Ref: ref, Found: c.again, NotFound: !c.again, BeganAt: now.Add(settleAfter)}
	next, _, _ := rules.Settle(r, l, p, rules.Terms{SettleAfter: settleAfter}, now)
	return got, []string{became(next)}
}

func (c ruleCase) retried(m *model) (got, want []string) {
	s := c.model()
	s.left = m.faults
	got = m.modelled(s, func(s *state) { m.rowOperator(s, 0) }, operatorRetries)
	r, p, _ := c.rule()
	if next, tally := rules.Retry(r, "", now); tally.Changed && rules.CheckRetry(1, p.Status) == nil {
		want = []string{became(next)}
	}
	return got, want
}

// TestStepsNameCode requires that every function, method, type and script that steps
// names exists, and that every step of the code names some.
func TestStepsNameCode(t *testing.T) {
	t.Parallel()
	names := code.In("../..")
	for st, about := range steps {
		if about.text == "" {
			t.Errorf("step %d has no text", st)
		}
		if inCode := step(st) < firstOutside; inCode != (about.code != "") {
			t.Errorf("step %q names code %q", about.text, about.code)
		}
		for _, err := range names.Check(about.code) {
			t.Errorf("step %q: %v", about.text, err)
		}
	}
}
