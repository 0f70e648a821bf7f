package storetest

import (
	"fmt"
	"time"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
)

func rulesOfMove(a *arena) {
	moves := make(map[reward.PromotionID]store.PromotionMoveParams)
	for i := range 5 * 5 * 2 * 2 * 2 * 2 * 2 * 6 * 3 * 3 * 2 {
		if a.leavesOut(i) {
			continue
		}
		o := odometer(i)
		p := promotion(reward.PromotionID(1+i), oneOf(&o, statuses...))
		move := store.PromotionMoveParams{ID: p.ID, To: oneOf(&o, statuses...), By: "mia", Reason: "new reason", Now: now}
		move.From = statuses[:1]
		if o.flag() {
			move.From = statuses[1:]
		}
		if p.StreamDestroyed = o.flag(); o.flag() && p.Status == reward.PromotionCancelled {
			p.FinishedAt = at(-10)
		}
		move.ApprovalAbove = worthLimit(oneOf[reward.Amount](&o, 0, 100))
		if o.flag() {
			p.RejectedBy, p.RejectReason = "mia", "no"
		}
		c := reward.Counts{}
		c.Payouts[reward.Ready], c.Payouts[reward.Succeeded], c.Amounts[reward.Ready], c.Amounts[reward.Succeeded] = 1, 1, 70, 60
		switch o.pick(6) {
		case 0: // needs no approval
			c.Amounts[reward.Ready] = 40
		case 1: // nothing is approved
		case 2: // one is approved, which is decided already
			p.Approval = reward.Approval{Round: 1, Rounds: 1, Amount: 60, Count: 1}
		case 3: // one that is approved is left
			c.Payouts[reward.Retrying] = 1
			p.Approval = reward.Approval{Round: 1, Rounds: 1, Amount: 60, Count: 2}
		case 4: // one that is QUEUED, with an approval
			c.Payouts[reward.Queued] = 1
			p.Approval = reward.Approval{Round: 1, Rounds: 1, Amount: 60, Count: 1}
		case 5: // all are approved, but for one without an amount
			p.Approval = reward.Approval{Round: 1, Rounds: 1, Amount: 130, Count: 1, Unvalued: 2}
		}
		p.StartsAt = oneOf(&o, time.Time{}, now, now.Add(time.Microsecond))
		p.Approval.Granted = oneOf(&o, nil, new(reward.Amount(0)), new(reward.Amount(129)))
		move.ApprovalPerDay = worthLimit(oneOf[reward.Amount](&o, 0, 100))
		if i >= 5*5*2*2*2 && move.To != reward.Running {
			continue // no approval matters
		}
		if !p.StartsAt.IsZero() && p.Status != reward.Draft {
			continue // it has started
		}
		a.begins(p)
		a.counts[summary{p.ID, 0}] = c
		moves[p.ID] = move
	}
	a.put()
	for id, move := range moves {
		got, err := a.PromotionMove(a.ctx, move)
		next, refused := rules.Move(a.promotions[id], move.From, move.To, move.By, move.Reason, now)
		mayRun := rules.MayRun(a.promotions[id], a.counts[summary{id, 0}], move.ApprovalAbove, now)
		if refused != nil || move.To == reward.Running && !mayRun {
			a.wantCode(err, reward.CodeIllegalState)
			continue
		}
		a.must(err)
		if move.To == reward.Running {
			next = rules.NeedsGrants(next, move.ApprovalPerDay.Of(next.Currency) > 0)
		}
		same(a.bundle, fmt.Sprintf("moved by %+v", move), next, got)
		a.promotions[id] = next
	}
	a.holds("moved")
}

func rulesOfComplete(a *arena) {
	var uploads [][]any
	uploading := make(map[reward.PromotionID]bool)
	for i := range 6 * 4 * 4 * 4 * 4 {
		if a.leavesOut(i) {
			continue
		}
		o := odometer(i)
		id := reward.PromotionID(1 + i)
		status := o.pick(6)
		p := promotion(id, reward.PromotionCancelled) // with or without FinishedAt
		if status < 5 {
			p = promotion(id, statuses[status])
		} else {
			p.FinishedAt = at(-10)
		}
		a.begins(p)
		for n, state := range []reward.State{reward.Succeeded, reward.Failed} {
			a.keep(a.row(id, reward.TargetID(n), state, false))
		}
		switch o.pick(4) { // which rows are open
		case 1:
			a.keep(a.row(id, 10, reward.Ready, false))
		case 2:
			a.keep(a.row(id, 10, reward.Queued, false))
		case 3:
			a.keep(a.row(id, 10, reward.Retrying, true))
		}
		total := int64(2)
		lookups := o.pick(4)
		if lookups > 0 {
			r := a.row(id, 20, reward.Unknown, true)
			r.LookedAt = []time.Time{{}, at(-60).Add(-time.Microsecond), at(-60)}[lookups-1] // SettleFrom + settleAfter is at -60
			a.keep(r)
			total++
		}
		switch o.pick(4) { // the expected count
		case 1:
			p.ExpectedCount = &total
		case 2:
			above := total + 1
			p.ExpectedCount = &above
		case 3:
			above := total + 1
			p.ExpectedCount, p.Closed = &above, true
		}
		a.promotions[id] = p
		if upload := o.pick(4); upload > 0 {
			until, finished := []time.Time{now, now.Add(time.Microsecond), at(60)}[upload-1], sqlText("NULL")
			if upload == 3 {
				finished = a.moment(at(-1))
			}
			uploading[id] = upload == 2
			uploads = append(uploads, []any{id, id, a.moment(until), a.moment(at(-60)), finished})
		}
	}
	a.put()
	a.insert(`uploads (id, promotion_id, leased_until, created_at, finished_at)`, uploads)
	undone := make(map[reward.PromotionID]bool)
	for _, r := range a.rows {
		if !rules.LookupDone(r, settleAfter) {
			undone[r.PromotionID] = true
		}
	}
	for id, p := range a.promotions {
		moved := must(a.PromotionComplete(a.ctx, id, settleAfter, now))(a)
		blockers := rules.Blockers{Uploads: uploading[id], Lookups: undone[id]}
		next, want := rules.Complete(p, a.counts[summary{id, 0}], blockers, now)
		a.promotions[id] = next
		if moved != want {
			a.errorf("%+v with %+v and %+v: completed %v, want %v", p, a.counts[summary{id, 0}], blockers, moved, want)
		}
	}
	a.holds("completed")
}

func rulesOfJudge(a *arena) {
	for i := range 2 * 2 * 2 * 4 * 4 * 6 * 3 {
		if a.leavesOut(i) {
			continue
		}
		o := odometer(i)
		running, judged := o.flag(), o.flag()
		status := reward.Running
		if !running {
			status = statuses[1+i%4]
		}
		p := promotion(reward.PromotionID(1+i), status)
		p.Canary = reward.Canary{Targets: oneOf[int64](&o, 0, 2), Dispatched: int64(o.pick(4)), Judged: judged}
		var c reward.Counts
		if open := o.pick(4); open > 0 {
			c.Payouts[[]reward.State{reward.Queued, reward.Retrying, reward.Unknown}[open-1]] = 1
		}
		decided := [][2]int64{{0, 0}, {2, 0}, {1, 1}, {0, 2}, {1, 0}, {2, 1}}[o.pick(6)]
		c.Payouts[reward.Succeeded], c.Payouts[reward.Failed] = decided[0], decided[1]
		p.Canary.MaxFailureRate = oneOf(&o, 0, 0.5, 1)
		a.begins(p)
		a.counts[summary{p.ID, 0}] = c
	}
	a.put()
	for id, p := range a.promotions {
		status, judged, err := a.PromotionJudge(a.ctx, store.PromotionJudgeParams{ID: id, Reason: "too many failures", Now: now})
		a.must(err)
		next, want := rules.Judge(p, a.counts[summary{id, 0}], "too many failures")
		a.promotions[id] = next
		if status != next.Status || judged != want {
			a.errorf("%+v with %+v: judged %v and %s, want %v and %s", p, a.counts[summary{id, 0}], judged, status, want, next.Status)
		}
	}
	a.holds("judged")
}
