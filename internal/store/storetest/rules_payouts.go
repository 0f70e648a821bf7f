package storetest

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
)

// now is the time at which the rules are applied.
var now = at(0)

// fourStatuses adds a promotion in each status after DRAFT, with IDs from first
// on.
func (a *arena) fourStatuses(first reward.PromotionID) {
	for i, status := range statuses[:4] {
		a.begins(promotion(first+reward.PromotionID(i), status))
	}
}

func rulesOfFinish(a *arena) {
	a.fourStatuses(1)
	const cases = 7 * 2 * 7 * 2 * 2 * 2 * 4 * 2 * 2 * 2
	var outcomes []rules.Outcome
	for i := range cases {
		if a.leavesOut(i) {
			continue
		}
		o := odometer(i)
		state, right, kind := reward.State(o.pick(7)), o.flag(), rules.OutcomeKind(o.pick(7)) //nolint:gosec // small
		flagged, sent, giveUp := o.flag(), o.flag(), o.flag()
		r := a.row(reward.PromotionID(1+o.pick(4)), reward.TargetID(i), state, flagged)
		r.Attempts = oneOf[int32](&o, 2, 3) // below the limit, and at it
		charged(&r, i)
		out := rules.Outcome{
			Ref: ref(r.PromotionID, r.TargetID, r.Dispatch), Kind: kind, Sent: sent, GiveUp: giveUp, TransactionKey: fmt.Sprint("tx", i),
		}
		if !right {
			out.Dispatch--
		}
		if o.flag() {
			out.Code, out.Message = oneOf(&o, "A", ""), "new"
		}
		if o.flag() {
			out.RetryAt = at(30)
		}
		for n := range i % 3 {
			out.Attempts = append(out.Attempts, reward.Attempt{Dispatch: out.Dispatch, At: at(-1), Class: reward.AnswerFailed, Code: fmt.Sprint(n)})
		}
		a.keep(r)
		outcomes = append(outcomes, out)
	}
	a.put()
	for batch := range slices.Chunk(outcomes, store.BatchMax) {
		results := must(a.PayoutFinish(a.ctx, store.PayoutFinishParams{Outcomes: batch, Lease: lease, Now: now}))(a)
		for j, o := range batch {
			id := store.PayoutID{PromotionID: o.PromotionID, TargetID: o.TargetID}
			was := a.rows[id]
			next, attempts, tally := rules.Finish(was, o, a.promotions[o.PromotionID], lease, now)
			a.becomes(next, tally, attempts...)
			want := store.FinishResult{State: next.State, Attempts: next.Attempts, DueAt: next.DueAt, Changed: tally.Changed}
			if o.Kind == rules.OutcomePaid && rules.SecondCharge(was, o.TransactionKey) {
				want.Recorded = was.TransactionKey
			}
			if results[j] != want {
				a.errorf("%+v finished by %+v: got %+v, want %+v", was, o, results[j], want)
			}
		}
	}
	a.holds("finished")
}

// charged gives a SUCCEEDED row no transaction key, that of confirmation i, or
// another one.
func charged(r *rules.Row, i int) {
	if r.State == reward.Succeeded {
		r.TransactionKey = []string{"", fmt.Sprint("tx", i), "other"}[i%3]
	}
}

func rulesOfSettle(a *arena) {
	a.fourStatuses(1)
	const cases = 7 * 2 * 3 * 4 * 3 * 2 * 2 * 2 * 2 * 3
	byTerms := make(map[time.Duration][]rules.Lookup)
	for i := range cases {
		if a.leavesOut(i) {
			continue
		}
		o := odometer(i)
		state, right, answer := reward.State(o.pick(7)), o.flag(), o.pick(3) //nolint:gosec // small
		r := a.row(reward.PromotionID(1+o.pick(4)), reward.TargetID(i), state, false)
		l := rules.Lookup{
			Ref: ref(r.PromotionID, r.TargetID, r.Dispatch), Found: answer == 1, NotFound: answer == 2, TransactionKey: fmt.Sprint("tx", i),
			// Exactly SettleFrom + settleAfter and UpdatedAt; just before that; not asked.
			BeganAt: oneOf(&o, at(-60), at(-60).Add(-time.Microsecond), time.Time{}),
			NextAt:  at(40),
		}
		if !right {
			l.Dispatch--
		}
		again := o.flag()
		r.Again = again && (state == reward.Failed || state == reward.Cancelled)
		againAfter := oneOf(&o, 0, time.Hour)
		if o.flag() {
			l.Attempt = &reward.Attempt{Dispatch: l.Dispatch, At: at(-1), Class: reward.AnswerUnknown, Code: "NEW", Message: "news"}
		}
		r.ErrorCode, r.ErrorMessage = "", ""
		if o.flag() {
			r.ErrorMessage = "earlier"
			if again {
				r.ErrorCode = "OLD"
			}
		}
		if r.LookedAt = oneOf(&o, time.Time{}, at(-90), at(-30)); r.SettleFrom.IsZero() {
			r.LookedAt = time.Time{}
		}
		charged(&r, i)
		a.keep(r)
		byTerms[againAfter] = append(byTerms[againAfter], l)
	}
	a.put()
	for againAfter, lookups := range byTerms {
		for batch := range slices.Chunk(lookups, store.BatchMax) {
			twice := a.settleLookups(store.PayoutSettleParams{Lookups: batch, SettleAfter: settleAfter, AgainAfter: againAfter, Now: now})
			var want []store.SecondCharge
			for _, l := range batch {
				was := a.rows[store.PayoutID{PromotionID: l.PromotionID, TargetID: l.TargetID}]
				terms := rules.Terms{SettleAfter: settleAfter, AgainAfter: againAfter}
				next, attempts, tally := rules.Settle(was, l, a.promotions[l.PromotionID], terms, now)
				a.becomes(next, tally, attempts...)
				if l.Found && rules.SecondCharge(was, l.TransactionKey) {
					want = append(want, store.SecondCharge{Ref: l.Ref, Recorded: was.TransactionKey, TransactionKey: l.TransactionKey})
				}
			}
			byTarget := func(a, b store.SecondCharge) int { return cmp.Compare(a.TargetID, b.TargetID) }
			slices.SortFunc(twice, byTarget)
			slices.SortFunc(want, byTarget)
			if !slices.Equal(twice, want) {
				a.errorf("second charges %+v, want %+v", twice, want)
			}
		}
	}
	a.holds("settled")
}

// of returns the expected rows of a promotion.
func (a *arena) of(id reward.PromotionID) []rules.Row {
	list := make([]rules.Row, len(a.ids[id]))
	for i, id := range a.ids[id] {
		list[i] = a.rows[id]
	}
	return list
}
