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

func rulesOfWithdraw(a *arena) {
	const returned, swept, cancelled = 1, 11, 21 // the first promotion of each
	a.fourStatuses(returned)
	a.fourStatuses(swept)
	a.fourStatuses(cancelled)
	target := reward.TargetID(0)
	keep := func(first reward.PromotionID, status int, state reward.State, flagged bool, change func(*rules.Row)) {
		target++
		r := a.row(first+reward.PromotionID(status), target, state, flagged)
		change(&r)
		a.keep(r)
	}
	before := at(-5)
	returns := make(map[rules.Withdrawal][]reward.Ref)
	for i := range 7 * 2 * 2 * 4 * 2 * 2 * 2 {
		o := odometer(i)
		state, flagged, right, status := reward.State(o.pick(7)), o.flag(), o.flag(), o.pick(4) //nolint:gosec // small
		why := rules.Withdrawal{Kind: rules.WithdrawReturn, MaybeCalled: o.flag(), DeliveryFailed: o.flag()}
		keep(returned, status, state, flagged, func(r *rules.Row) {
			if o.flag() {
				r.FailedDeliveries = rules.FailedDeliveriesMax
			}
			named := ref(r.PromotionID, r.TargetID, r.Dispatch)
			if !right {
				named.Dispatch--
			}
			returns[why] = append(returns[why], named)
			if target%5 == 0 { // named twice
				returns[why] = append(returns[why], named)
			}
		})
	}
	for i := range 7 * 2 * 4 * 2 {
		o := odometer(i)
		keep(swept, o.pick(4), reward.State(o.pick(7)), o.flag(), func(r *rules.Row) { //nolint:gosec // small
			r.DueAt = oneOf(&o, before, before.Add(-time.Microsecond))
		})
	}
	for i := range 7 * 2 * 4 {
		o := odometer(i)
		keep(cancelled, o.pick(4), reward.State(o.pick(7)), o.flag(), func(*rules.Row) {}) //nolint:gosec // small
	}
	a.put()
	withdraw := func(r rules.Row, why rules.Withdrawal) int {
		next, tally := rules.Withdraw(r, why, a.promotions[r.PromotionID], lease, now)
		a.becomes(next, tally)
		if tally.Changed {
			return 1
		}
		return 0
	}
	for why, refs := range returns {
		n := must(a.PayoutReturn(a.ctx, store.PayoutReturnParams{
			Refs: refs, MaybeCalled: why.MaybeCalled, DeliveryFailed: why.DeliveryFailed, Lease: lease, Now: now,
		}))(a)
		want := 0
		for _, named := range refs {
			why.Dispatch = named.Dispatch
			want += withdraw(a.rows[store.PayoutID{PromotionID: named.PromotionID, TargetID: named.TargetID}], why)
		}
		same(a.bundle, fmt.Sprintf("returned by %+v", why), want, n)
	}
	for status := range reward.PromotionID(4) {
		n := must(a.PayoutSweep(a.ctx, store.PayoutSweepParams{PromotionID: swept + status, Before: before, Lease: lease, Now: now}))(a)
		want := 0
		for _, r := range a.of(swept + status) {
			want += withdraw(r, rules.Withdrawal{Kind: rules.WithdrawSweep, Before: before})
		}
		same(a.bundle, "swept", want, n)
		n = must(a.PayoutCancelStep(a.ctx, store.PayoutCancelStepParams{PromotionID: cancelled + status, Lease: lease, Now: now}))(a)
		want = 0
		for _, r := range a.of(cancelled + status) {
			want += withdraw(r, rules.Withdrawal{Kind: rules.WithdrawCancel})
		}
		same(a.bundle, "cancelled", want, n)
	}
	a.holds("withdrawn")
}

// of returns the expected rows of a promotion.
func (a *arena) of(id reward.PromotionID) []rules.Row {
	list := make([]rules.Row, len(a.ids[id]))
	for i, id := range a.ids[id] {
		list[i] = a.rows[id]
	}
	return list
}

func rulesOfRetry(a *arena) {
	const ways = 4 // any; by code; named; named and by code
	for i, status := range statuses {
		for way := range ways {
			id := reward.PromotionID(1 + i*ways + way)
			a.begins(promotion(id, status))
			for n := range 7 * 2 * 3 {
				o := odometer(n)
				r := a.row(id, reward.TargetID(n), reward.State(o.pick(7)), o.flag()) //nolint:gosec // small
				r.ErrorCode = oneOf(&o, "A", "B", "")
				a.keep(r)
			}
		}
	}
	const paid = reward.PromotionID(100) // COMPLETED, without a FAILED row
	a.begins(promotion(paid, reward.Completed))
	a.keep(a.row(paid, 1, reward.Succeeded, false))
	a.put()
	for id, p := range a.promotions {
		params := store.PayoutRetryParams{PromotionID: id, Now: now}
		if way := (id - 1) % ways; id != paid {
			if way == 1 || way == 3 {
				params.Code = "A"
			}
			if way >= 2 {
				for n := 0; n < 7*2*3; n += 2 {
					params.Targets = append(params.Targets, reward.TargetID(n), reward.TargetID(n))
				}
			}
		}
		moved, err := a.PayoutRetry(a.ctx, params)
		if want := rules.CheckRetry(id, p.Status); want != nil {
			a.wantCode(err, reward.CodeIllegalState)
			continue
		}
		a.must(err)
		want := 0
		for _, r := range a.of(id) {
			if params.Targets != nil && r.TargetID%2 != 0 {
				continue
			}
			next, tally := rules.Retry(r, params.Code, now)
			a.becomes(next, tally)
			if tally.Changed {
				want++
			}
		}
		if want > 0 {
			a.promotions[id] = rules.Reopen(p)
		}
		same(a.bundle, "retried", want, moved)
	}
	a.holds("retried")
}

func rulesOfResolve(a *arena) {
	resolutions := make(map[store.PayoutID]rules.Resolution)
	for i, status := range statuses {
		id := reward.PromotionID(1 + i)
		a.begins(promotion(id, status))
		for n := range 7 * 2 * 2 {
			o := odometer(n)
			r := a.row(id, reward.TargetID(n), reward.State(o.pick(7)), o.flag()) //nolint:gosec // small
			r.Again = false
			a.keep(r)
			resolutions[idOf(r.Payout)] = rules.Resolution{Paid: o.flag(), TransactionKey: "by hand", Note: "seen", By: "somebody"}
		}
	}
	a.put()
	for id, s := range resolutions {
		got, err := a.PayoutResolve(a.ctx, store.PayoutResolveParams{
			PayoutID: id, Paid: s.Paid, TransactionKey: s.TransactionKey, Note: s.Note, By: s.By, Now: now,
		})
		next, attempt, tally, refused := rules.Resolve(a.rows[id], s, now)
		if refused != nil {
			a.wantCode(err, reward.CodeIllegalState)
			continue
		}
		a.must(err)
		a.becomes(next, tally, attempt)
		same(a.bundle, "resolved", next.Payout, got)
	}
	a.holds("resolved")
}
