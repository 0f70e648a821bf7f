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

// The kinds of rows that a dispatch distinguishes.
const (
	freshOne      = iota // never dispatched, of amount 1
	freshTwo             // the same, of amount 2
	returnedTwo          // dispatched before, certainly not charged
	returnedFlags        // dispatched before, possibly charged
	readyKinds
)

// budgets and canaries are the limits of the dispatches. Each promotion has spent
// an amount of 1.
var (
	budgets  = []reward.Amount{0, 1, 4, 6}
	canaries = []reward.Canary{{}, {Targets: 2, Dispatched: 1}, {Targets: 2, Dispatched: 2}, {Targets: 1, Dispatched: 1, Judged: true}}
)

// sequences returns every sequence of at most length numbers below kinds.
func sequences(kinds, length int) [][]int {
	list := [][]int{nil}
	for from, n := 0, 0; n < length; n++ {
		to := len(list)
		for _, s := range list[from:to] {
			for k := range kinds {
				list = append(list, append(slices.Clone(s), k))
			}
		}
		from = to
	}
	return list
}

// ready returns a READY row of a kind.
func (a *arena) ready(id reward.PromotionID, target reward.TargetID, kind int) rules.Row {
	r := a.row(id, target, reward.Ready, kind == returnedFlags)
	r.Amount = 2
	if kind == freshOne {
		r.Amount = 1
	}
	if kind == freshOne || kind == freshTwo {
		r.Dispatch, r.Attempts, r.FailedDeliveries, r.FirstDispatchedAt = 0, 0, 0, reward.Payout{}.FirstDispatchedAt
	}
	return r
}

// spent adds a row that the budget of a promotion counts already.
func (a *arena) spent(id reward.PromotionID, state reward.State) {
	r := a.row(id, 1000, state, false)
	r.Amount = 1
	a.keep(r)
}

// allow returns the allowance of a promotion by the rules, before targets worth
// added are saved.
func (a *arena) allow(id reward.PromotionID, above reward.Limits, added reward.Amount, capacity int64) *rules.Allowance {
	flagged := reward.Amount(0)
	for _, r := range a.of(id) {
		if r.State == reward.Ready && r.MaybeCalled {
			flagged += r.Amount
		}
	}
	c := a.counts[summary{id, 0}]
	return rules.Allow(a.promotions[id], c, flagged, rules.ApprovalNeeded(a.promotions[id], c.AmountTotal()+added, above), capacity)
}

// dispatches updates a promotion after rows became QUEUED, first of them for
// the first time.
func (a *arena) dispatches(id reward.PromotionID, rows, first int64) {
	p := a.promotions[id]
	if rows > 0 {
		p.LastDispatchedAt, p.StreamDestroyed = now, false
	}
	if rules.CanaryOpen(p) {
		p.Canary.Dispatched += first
	}
	a.promotions[id] = p
}

// dispatched applies the rules to a dispatch of candidates, in order, and
// returns the rows that become QUEUED.
func (a *arena) dispatched(id reward.PromotionID, above reward.Limits, capacity int64, candidates []rules.Row) []reward.Payout {
	allowed := a.allow(id, above, 0, capacity)
	list := []reward.Payout{}
	first := int64(0)
	for _, r := range candidates {
		if !allowed.Take(r) {
			continue
		}
		next := r
		next.State, next.DueAt, next.UpdatedAt = reward.Queued, now, now
		if next.Dispatch++; next.FirstDispatchedAt.IsZero() {
			next.FirstDispatchedAt = now
		}
		if next.Dispatch == 1 {
			first++
		}
		a.becomes(next, rules.Tally{Was: r.State, Became: next.State, Changed: true})
		list = append(list, next.Payout)
	}
	a.dispatches(id, int64(len(list)), first)
	sortPayouts(list)
	return list
}

func rulesOfDispatch(a *arena) {
	type call struct {
		store.PayoutDispatchParams
		candidates []rules.Row
	}
	var calls []call
	above := reward.Limits{}
	add := func(p reward.Promotion, from reward.State, named bool, limit, maxLen int, candidates []rules.Row) {
		params := store.PayoutDispatchParams{PromotionID: p.ID, From: from, Limit: limit, MaxLen: maxLen, ApprovalAbove: above, Now: now}
		if named {
			params.Refs = []reward.Ref{ref(p.ID, 999, 1), ref(p.ID+1, 0, 0)} // an unknown target; another promotion
			for _, r := range candidates {
				params.Refs = append(params.Refs, ref(p.ID, r.TargetID, r.Dispatch))
			}
			slices.SortFunc(candidates, func(a, b rules.Row) int { return cmp.Compare(a.TargetID, b.TargetID) })
		}
		calls = append(calls, call{params, candidates})
	}
	spends := []reward.State{reward.Succeeded, reward.Queued, reward.Retrying, reward.Unknown}
	for i, kinds := range sequences(readyKinds, 3) {
		for j := range len(budgets) * len(canaries) * 2 * 2 {
			o := odometer(j)
			p := promotion(reward.PromotionID(1+i*1000+j), reward.Running)
			p.MaxAmount, p.Canary, p.StreamDestroyed = oneOf(&o, budgets...), oneOf(&o, canaries...), i%2 == 0
			named, tight := o.flag(), o.flag()
			if len(kinds) == 3 && (i+j%16)%4 != j/16 || a.leavesOut(64*i+j) {
				continue // try the longest ones in only one of four ways, in turn
			}
			a.begins(p)
			spent := spends[(i+j)%len(spends)]
			a.spent(p.ID, spent)
			limit, maxLen := 10, plenty
			switch {
			case tight && j%3 == 0:
				limit = 1
			case tight:
				maxLen = 1
				if spent == reward.Queued {
					maxLen = 2
				}
			}
			var candidates []rules.Row
			for n, kind := range kinds {
				// Their order by time is that of the kinds; by target it is reversed.
				r := a.ready(p.ID, reward.TargetID(10-n), kind)
				r.DueAt = at(-20 + n)
				a.keep(r)
				candidates = append(candidates, r)
			}
			add(p, reward.Ready, named, limit, maxLen, candidates)
		}
	}
	for j := range 5 * 2 * 3 * 2 * 3 { // RETRYING rows, and promotions in every status
		o := odometer(j)
		p := promotion(reward.PromotionID(1_000_000+j), oneOf(&o, statuses...))
		from := oneOf(&o, reward.Ready, reward.Retrying)
		p.MaxAmount = oneOf[reward.Amount](&o, 0, 4, 5) // no budget; exceeded already; reached
		named := o.flag()
		p.Canary = oneOf(&o, reward.Canary{}, canaries[1], canaries[2])
		a.begins(p)
		a.spent(p.ID, reward.Succeeded)
		r := a.row(p.ID, 2000, reward.Succeeded, false)
		r.Amount = 2
		a.keep(r)
		var candidates []rules.Row
		for n := range 2 {
			r := a.row(p.ID, reward.TargetID(n), from, from == reward.Ready || n == 0)
			if r.Amount, r.DueAt = 1, at(-n); from == reward.Ready {
				r.DueAt = at(30 - n) // READY rows are always due
			}
			a.keep(r)
			candidates = append(candidates, r)
		}
		early := a.row(p.ID, 5, reward.Retrying, true) // not due yet
		early.Amount, early.DueAt = 0, now.Add(time.Microsecond)
		a.keep(early)
		other := a.row(p.ID, 6, from, true) // named by another dispatch
		other.Amount, other.DueAt = 0, at(-50)
		a.keep(other)
		if !named {
			candidates = append(candidates, other)
		}
		slices.Reverse(candidates)
		add(p, from, named, 10, plenty, candidates)
		if c := &calls[len(calls)-1]; named {
			c.Refs = append(c.Refs, ref(p.ID, early.TargetID, early.Dispatch), ref(p.ID, other.TargetID, other.Dispatch-1))
		}
	}
	for j := range 3 * 3 * 2 * 2 * 3 * 2 * 2 * 2 * 3 { // promotions that may need an approval: they are worth 6
		if a.leavesOut(j) {
			continue
		}
		o := odometer(j)
		p := promotion(reward.PromotionID(2_000_000+j), reward.Running)
		above = worthLimit(oneOf[reward.Amount](&o, 0, 5, 6))
		p.Approval = oneOf(&o, reward.Approval{}, reward.Approval{Round: 1, Rounds: 1, Amount: 2, Count: 2}, reward.Approval{Round: 2, Rounds: 2, Amount: 6, Count: 4})
		if o.flag() {
			p.Approval.Unvalued = 2
		}
		from := oneOf(&o, reward.Ready, reward.Retrying)
		if oneOf(&o, 0, 1, 2) == 1 {
			p.MaxAmount = 4
		}
		if o.flag() {
			p.Canary = reward.Canary{Targets: 2, Dispatched: 1}
		}
		named, tight := o.flag(), o.flag()
		p.Approval.Granted = oneOf(&o, nil, new(reward.Amount(5)), new(reward.Amount(6)))
		limit := 10
		if tight {
			limit = 1
		}
		a.begins(p)
		a.spent(p.ID, reward.Succeeded)
		var candidates []rules.Row
		for n, r := range []rules.Row{
			a.ready(p.ID, 11, freshOne), a.ready(p.ID, 12, freshTwo), a.ready(p.ID, 3, returnedTwo), a.ready(p.ID, 1, freshOne),
		} {
			r.Amount = min(r.Amount, reward.Amount(1+n%2))
			if from == reward.Retrying {
				r = a.row(p.ID, r.TargetID, from, true)
				r.Amount = reward.Amount(1 + n%2)
			}
			// The rows of round 1 come first and last, by time and by target.
			r.ApprovalRound, r.DueAt = int32((n+1)%3%2), at(-20+n)
			if r.Dispatch == 0 && r.ApprovalRound == 1 {
				r.DueAt = at(-5 + n) // a row that is saved later is due later
			}
			a.keep(r)
			candidates = append(candidates, r)
		}
		slices.SortFunc(candidates, func(a, b rules.Row) int { return a.DueAt.Compare(b.DueAt) })
		add(p, from, named, limit, plenty, candidates)
	}
	a.put()
	for _, c := range calls {
		queued := a.counts[summary{c.PromotionID, 0}].Payouts[reward.Queued]
		got := must(a.PayoutDispatch(a.ctx, c.PayoutDispatchParams))(a)
		sortPayouts(got)
		want := a.dispatched(c.PromotionID, c.ApprovalAbove, min(int64(c.Limit), int64(c.MaxLen)-queued), c.candidates)
		if len(want)+len(got) > 0 && !equal(want, got) {
			a.errorf("%+v of %+v: got %+v, want %+v", c, a.promotions[c.PromotionID], got, want)
		}
	}
	a.holds("dispatched")
}

func rulesOfSave(a *arena) {
	type key struct {
		tight bool
		turn  int
	}
	rows := make(map[key][]store.NewPayout)
	begin := func(id reward.PromotionID, status reward.PromotionStatus, budget reward.Amount, canary reward.Canary, flagged, tight bool, kinds []int) {
		p := promotion(id, status)
		p.MaxAmount, p.Canary = budget, canary
		if !flagged {
			p.Approval = []reward.Approval{{}, {Round: 1, Rounds: 1, Amount: 4}, {Unvalued: 1}, {Round: 2, Rounds: 2, Amount: 9, Unvalued: 1}}[id%4]
		}
		a.begins(p)
		a.spent(id, reward.Queued)
		if flagged {
			r := a.ready(id, 2000, returnedFlags)
			a.keep(r)
		}
		for n, kind := range kinds {
			k := key{tight, int(id) / 300} // no batch above BatchMax, and none that splits a promotion
			amount := reward.Amount(kind + 1)
			if n == 1 && id%5 == 0 {
				amount = 0
			}
			rows[k] = append(rows[k], store.NewPayout{
				PromotionID: id, TargetID: reward.TargetID(n), SummaryID: reward.SummaryID(n), UserID: fmt.Sprint(n), Amount: amount,
			})
		}
	}
	id := reward.PromotionID(0)
	for _, kinds := range sequences(2, 3) {
		for j := range len(budgets) * len(canaries) * 2 * 2 {
			o := odometer(j)
			if id++; a.leavesOut(int(id)) {
				continue
			}
			begin(id, reward.Running, oneOf(&o, budgets...), oneOf(&o, canaries...), o.flag(), o.flag(), kinds)
		}
		for _, status := range statuses[1:] {
			id++
			begin(id, status, 0, reward.Canary{}, false, false, kinds)
		}
	}
	a.put()
	for k, batch := range rows {
		maxLen := plenty
		if k.tight {
			maxLen = 2 // one is QUEUED
		}
		above := worthLimit(0)
		if k.turn%2 == 0 {
			above = worthLimit(5)
		}
		got := must(a.PayoutSave(a.ctx, store.PayoutSaveParams{Rows: batch, MaxLen: maxLen, ApprovalAbove: above, Now: now}))(a)
		added := make(map[reward.PromotionID]reward.Amount)
		for _, n := range batch {
			p := a.promotions[n.PromotionID]
			if added[p.ID] += n.Amount; n.Amount == 0 {
				p.Approval.Unvalued = max(p.Approval.Unvalued, p.Approval.Round+1)
			}
			a.promotions[p.ID] = p
		}
		allowances := make(map[reward.PromotionID]*rules.Allowance)
		queued := make(map[reward.PromotionID]int64)
		for _, n := range batch {
			if allowances[n.PromotionID] == nil {
				allowances[n.PromotionID] = a.allow(n.PromotionID, above, added[n.PromotionID], int64(maxLen)-1)
			}
		}
		want := []reward.Payout{}
		for i, n := range batch {
			r := rules.Row{Payout: reward.Payout{
				PromotionID: n.PromotionID, TargetID: n.TargetID, SummaryID: n.SummaryID, UserID: n.UserID, Amount: n.Amount, DueAt: now, UpdatedAt: now,
			}, ApprovalRound: a.promotions[n.PromotionID].Approval.Round}
			switch p := a.promotions[n.PromotionID]; {
			case p.Status == reward.PromotionCancelled:
				r.State = reward.Cancelled
			case allowances[n.PromotionID].Take(r):
				r.State, r.Dispatch, r.FirstDispatchedAt = reward.Queued, 1, now
				queued[n.PromotionID]++
				want = append(want, r.Payout)
			default:
				if p.Status == reward.Completed {
					a.promotions[p.ID] = rules.Reopen(p)
				}
			}
			a.keep(r)
			same(a.bundle, "outcome", store.Accepted, got.Outcomes[i])
		}
		for id, n := range queued {
			a.dispatches(id, n, n)
		}
		sortPayouts(want)
		sortPayouts(got.Queued)
		if len(want)+len(got.Queued) > 0 && !equal(want, got.Queued) {
			a.errorf("got %+v QUEUED, want %+v", got.Queued, want)
		}
	}
	a.holds("saved")
}
