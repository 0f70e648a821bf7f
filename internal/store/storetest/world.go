package storetest

import (
	"cmp"
	"maps"
	"math"
	"slices"

	"pgregory.net/rapid"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

// world is the expected state of the promotions and payouts of a walk. Its
// methods state the rules of the store a second time, row by row: they return
// what a step must return.
type world struct {
	views map[reward.PromotionID]store.PromotionView
	rows  []reward.Payout
	again map[store.PayoutID]bool // rows with a second lookup, which no method shows
}

func newWorld() *world { return &world{again: make(map[store.PayoutID]bool)} }

func (w *world) clone() *world {
	return &world{views: maps.Clone(w.views), rows: slices.Clone(w.rows), again: maps.Clone(w.again)}
}

// read stores the state of promotions first and first+1.
func (w *world) read(b *bundle, first reward.PromotionID) {
	b.Helper()
	w.views, w.rows = make(map[reward.PromotionID]store.PromotionView), nil
	for id := first; id <= first+1; id++ {
		v, err := b.PromotionGet(b.ctx, id)
		b.must(err)
		w.views[id] = v
		w.rows = append(w.rows, b.all(id)...)
	}
	for _, p := range w.rows {
		if p.State != reward.Failed && p.State != reward.Cancelled {
			delete(w.again, idOf(p))
		}
	}
}

func idOf(p reward.Payout) store.PayoutID {
	return store.PayoutID{PromotionID: p.PromotionID, TargetID: p.TargetID}
}

// find returns the row of an ID, to read or to change.
func (w *world) find(id store.PayoutID) *reward.Payout {
	for i := range w.rows {
		if idOf(w.rows[i]) == id {
			return &w.rows[i]
		}
	}
	return nil
}

// drawControls draws the settings of promotions first and first+1. They often
// have a budget or a canary that some walks reach.
func drawControls(t *rapid.T, first reward.PromotionID) []reward.Promotion {
	var list []reward.Promotion
	for id := first; id <= first+1; id++ {
		p := reward.Promotion{ID: id, Name: "summer", Type: reward.Point, Amount: 100, MaxRetries: 3, CreatedAt: epoch}
		if rapid.Bool().Draw(t, "with a budget") {
			p.MaxAmount = reward.Amount(rapid.IntRange(100, 700).Draw(t, "budget"))
		}
		if rapid.Bool().Draw(t, "with a canary") {
			p.Canary.Targets = int64(rapid.IntRange(1, 4).Draw(t, "canary"))
			p.Canary.MaxFailureRate = rapid.SampledFrom([]float64{0, 0.25, 0.5, 1}).Draw(t, "failure rate")
		}
		list = append(list, p)
	}
	return list
}

// drawList draws the filter of a listing. The caller adds the page.
func drawList(t *rapid.T) store.PayoutListParams {
	p := store.PayoutListParams{Code: rapid.SampledFrom([]string{"", "A"}).Draw(t, "listed code"), Limit: walkTargets + 1}
	if rapid.Bool().Draw(t, "listed by state") {
		state := reward.State(rapid.Int16Range(0, int16(reward.StateCount)-1).Draw(t, "listed state"))
		p.State = &state
	}
	if n := rapid.IntRange(-1, walkTargets).Draw(t, "listed after"); n >= 0 {
		target := reward.TargetID(n)
		p.After = &target
	}
	return p
}

// lists fails the test unless a listing returns the rows that match it.
func (b *bundle) lists(rows []reward.Payout, p store.PayoutListParams, ids ...reward.PromotionID) {
	b.Helper()
	for _, id := range ids {
		p.PromotionID = id
		want := []reward.Payout{}
		for _, r := range rows {
			if r.PromotionID == id && (p.State == nil || r.State == *p.State) && (p.Code == "" || r.ErrorCode == p.Code) &&
				(p.After == nil || r.TargetID > *p.After) {
				want = append(want, r)
			}
		}
		list, err := b.PayoutList(b.ctx, p)
		b.must(err)
		same(b, "listed", want, withoutNil(list))
	}
}

// bounds fails the test unless a step respected budget and canary.
func (b *bundle) bounds(before, after *world) {
	b.Helper()
	first := make(map[reward.PromotionID]int64) // dispatched for the first time
	gone := make(map[reward.PromotionID]bool)   // a row became QUEUED
	for _, p := range after.rows {
		was := before.find(idOf(p))
		if p.State == reward.Queued && (was == nil || was.Dispatch != p.Dispatch) {
			gone[p.PromotionID] = true
			if p.Dispatch == 1 {
				first[p.PromotionID]++
			}
		}
	}
	for id, v := range after.views {
		c := before.views[id].Canary
		if c.Targets == 0 || c.Judged {
			first[id] = 0
		}
		same(b, "dispatched of the canary", c.Dispatched+first[id], v.Canary.Dispatched)
		if v.Canary.Dispatched > v.Canary.Targets {
			b.Fatalf("%d of a canary of %d were dispatched", v.Canary.Dispatched, v.Canary.Targets)
		}
		if worth := exposed(v.Counts) + after.flagged(id); gone[id] && v.MaxAmount > 0 && worth > v.MaxAmount {
			b.Fatalf("%d of a budget of %d are exposed", worth, v.MaxAmount)
		}
	}
}

// flagged returns the total amount of READY rows that may have been charged.
func (w *world) flagged(id reward.PromotionID) (sum reward.Amount) {
	for _, p := range w.rows {
		if p.PromotionID == id && p.State == reward.Ready && p.MaybeCalled {
			sum += p.Amount
		}
	}
	return sum
}

// allowed returns the candidates that may become QUEUED. They are considered in
// order.
func (w *world) allowed(id reward.PromotionID, limit int, candidates []reward.Payout) map[reward.TargetID]bool {
	v := w.views[id]
	targets := make(map[reward.TargetID]bool)
	if v.Status != reward.Running {
		return targets
	}
	fresh := int64(math.MaxInt64)
	if v.Canary.Targets > 0 && !v.Canary.Judged {
		fresh = v.Canary.Targets - v.Canary.Dispatched
	}
	worth := exposed(v.Counts) + w.flagged(id)
	for _, c := range candidates {
		if len(targets) >= limit {
			break
		}
		if c.Dispatch == 0 {
			if fresh == 0 {
				continue
			}
			fresh--
		}
		if c.State == reward.Ready && !c.MaybeCalled {
			worth += c.Amount
		}
		if v.MaxAmount > 0 && worth > v.MaxAmount {
			break
		}
		targets[c.TargetID] = true
	}
	return targets
}

// saved is the result of a save, sorted.
type saved struct {
	Outcomes []store.SaveOutcome
	Queued   []reward.Payout
}

func (w *world) saved(p store.PayoutSaveParams) saved {
	res := saved{Outcomes: []store.SaveOutcome{}, Queued: []reward.Payout{}}
	fresh := make(map[reward.PromotionID][]reward.Payout)
	stands := make(map[store.PayoutID]reward.Payout)
	for _, r := range p.Rows {
		got := reward.Payout{
			PromotionID: r.PromotionID, TargetID: r.TargetID, SummaryID: r.SummaryID, UserID: r.UserID, Amount: r.Amount,
			VoucherCode: r.VoucherCode, DueAt: p.Now, UpdatedAt: p.Now,
		}
		id := idOf(got)
		known, ok := stands[id]
		if row := w.find(id); row != nil {
			known, ok = *row, true
		}
		switch {
		case !ok:
			stands[id] = got
			fresh[r.PromotionID] = append(fresh[r.PromotionID], got)
			res.Outcomes = append(res.Outcomes, store.Accepted)
		case known.Amount == r.Amount && known.UserID == r.UserID && known.VoucherCode == r.VoucherCode:
			res.Outcomes = append(res.Outcomes, store.Duplicate)
		default:
			res.Outcomes = append(res.Outcomes, store.Conflict)
		}
	}
	for id, candidates := range fresh {
		allowed := w.allowed(id, p.MaxLen-w.queued(id), candidates)
		for _, c := range candidates {
			if allowed[c.TargetID] {
				c.State, c.Dispatch, c.FirstDispatchedAt = reward.Queued, 1, p.Now
				res.Queued = append(res.Queued, c)
			}
		}
	}
	sortPayouts(res.Queued)
	return res
}

func (w *world) queued(id reward.PromotionID) int {
	return int(w.views[id].Counts.Payouts[reward.Queued])
}

func (w *world) dispatched(p store.PayoutDispatchParams) []reward.Payout {
	var candidates []reward.Payout
	for _, c := range w.rows {
		if c.PromotionID == p.PromotionID && c.State == p.From && (p.From == reward.Ready || !c.DueAt.After(p.Now)) &&
			(p.Refs == nil || slices.Contains(p.Refs, ref(c.PromotionID, c.TargetID, c.Dispatch))) {
			candidates = append(candidates, c)
		}
	}
	slices.SortFunc(candidates, func(a, b reward.Payout) int {
		byDue := 0
		if p.Refs == nil {
			byDue = a.DueAt.Compare(b.DueAt)
		}
		return cmp.Or(byDue, cmp.Compare(a.TargetID, b.TargetID))
	})
	allowed := w.allowed(p.PromotionID, min(p.Limit, p.MaxLen-w.queued(p.PromotionID)), candidates)
	list := []reward.Payout{}
	for _, c := range candidates {
		if !allowed[c.TargetID] {
			continue
		}
		c.State, c.DueAt, c.UpdatedAt = reward.Queued, p.Now, p.Now
		if c.Dispatch++; c.FirstDispatchedAt.IsZero() {
			c.FirstDispatchedAt = p.Now
		}
		list = append(list, c)
	}
	sortPayouts(list)
	return list
}

func (w *world) lookups(p store.PayoutClaimLookupsParams) []reward.Payout {
	list := []reward.Payout{}
	for _, c := range w.rows {
		if (c.State == reward.Unknown || w.again[idOf(c)]) && !c.DueAt.After(p.Now) {
			c.DueAt = p.Until
			list = append(list, c)
		}
	}
	return list
}

// settled updates the set of rows with a second lookup.
func (w *world) settled(p store.PayoutSettleParams) {
	for _, l := range p.Lookups {
		id := store.PayoutID{PromotionID: l.PromotionID, TargetID: l.TargetID}
		row := w.find(id)
		switch {
		case row == nil:
		case l.Found:
			row.State = reward.Succeeded
			delete(w.again, id)
		case row.Dispatch != l.Dispatch || !l.NotFound:
		case w.again[id]:
			if !l.BeganAt.Before(row.UpdatedAt) {
				delete(w.again, id)
			}
		case row.State == reward.Unknown && !l.BeganAt.Before(row.SettleFrom.Add(p.SettleAfter)):
			row.State, row.UpdatedAt = reward.Failed, p.Now // or CANCELLED
			if p.AgainAfter > 0 {
				w.again[id] = true
			}
		}
	}
}

func (w *world) retried(p store.PayoutRetryParams) any {
	if status := w.views[p.PromotionID].Status; status == reward.PromotionCancelled || status == reward.Draft {
		return reward.CodeIllegalState
	}
	moved := 0
	for _, c := range w.rows {
		if c.PromotionID == p.PromotionID && c.State == reward.Failed && (p.Code == "" || c.ErrorCode == p.Code) {
			moved++
			delete(w.again, idOf(c))
		}
	}
	return moved
}

func (w *world) resolved(p store.PayoutResolveParams) any {
	row := w.find(p.PayoutID)
	switch {
	case row == nil:
		return reward.CodePayoutNotFound
	case row.State != reward.Unknown:
		return reward.CodeIllegalState
	}
	got := *row
	got.State, got.DueAt, got.UpdatedAt = reward.Failed, p.Now, p.Now
	if p.Paid {
		got.State, got.TransactionKey, got.ErrorCode, got.ErrorMessage = reward.Succeeded, p.TransactionKey, "", ""
	}
	return got
}

func (w *world) judged(id reward.PromotionID) any {
	v := w.views[id]
	n := v.Counts.Payouts
	decided := n[reward.Succeeded] + n[reward.Failed]
	switch c := v.Canary; {
	case v.Status != reward.Running, c.Targets == 0, c.Judged, c.Dispatched == 0, c.Dispatched < c.Targets, decided < c.Dispatched,
		n[reward.Queued] > 0, n[reward.Retrying] > 0, n[reward.Unknown] > 0:
		return []any{v.Status, false}
	case float64(n[reward.Failed])/float64(decided) > c.MaxFailureRate:
		return []any{reward.Paused, true}
	}
	return []any{reward.Running, true}
}
