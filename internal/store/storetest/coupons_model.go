package storetest

import (
	"cmp"
	"slices"
	"time"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
)

// shop is the expected state of one template in a walk. It states the rules of
// the store a second time, request by request.
type shop struct {
	t       reward.CouponTemplate
	coupons []*sold
	refused []refused
}

// sold is a coupon with the fields that no caller sees.
type sold struct {
	reward.Coupon
	slot    int // 0 means freed
	version int64
}

// refused is a rejection with its version.
type refused struct {
	reward.IssueOutcome
	version int64
}

// fact returns the holding of a user.
func (s *shop) fact(user string) store.CouponHolding {
	f := store.CouponHolding{UserID: user}
	for _, c := range s.coupons {
		if c.UserID != user || c.slot == 0 {
			continue
		}
		f.Held++
		if c.Status != reward.CouponCancelled {
			f.CouponID = max(f.CouponID, c.ID)
		}
	}
	return f
}

// facts returns the holdings of all users with a slot.
func (s *shop) facts() map[string]store.CouponHolding {
	facts := make(map[string]store.CouponHolding)
	for _, c := range s.coupons {
		if c.slot != 0 {
			facts[c.UserID] = s.fact(c.UserID)
		}
	}
	return facts
}

func (s *shop) freeSlot(user string) int {
	for slot := 1; ; slot++ {
		if !slices.ContainsFunc(s.coupons, func(c *sold) bool { return c.UserID == user && c.slot == slot }) {
			return slot
		}
	}
}

func (s *shop) known(generation, ticket int64) bool {
	return slices.ContainsFunc(s.coupons, func(c *sold) bool { return c.Generation == generation && c.Ticket == ticket }) ||
		slices.ContainsFunc(s.refused, func(r refused) bool { return r.Generation == generation && r.Ticket == ticket })
}

// answered reports whether the user of a request had a coupon of a later generation
// before the batch.
func (s *shop) answered(a rules.CouponRequest) bool {
	return slices.ContainsFunc(s.coupons, func(c *sold) bool {
		return c.UserID == a.UserID && c.Generation > a.Generation && c.version <= s.t.Version
	})
}

// left reports whether a request left the line.
func (s *shop) left(generation, ticket int64) bool {
	return slices.ContainsFunc(s.refused, func(r refused) bool {
		return r.Generation == generation && r.Ticket == ticket && r.Reason == reward.ReasonLeft
	})
}

func (s *shop) leave(p store.CouponLeaveParams) store.CouponLeaveResult {
	res := store.CouponLeaveResult{Outcome: rules.LeaveDone}
	switch passed := s.t.Mode != reward.ModeKafka && p.Ticket <= s.t.Settled; {
	case p.GateGeneration != s.t.Generation || s.t.Path == reward.PathDatabase || s.t.Mode == reward.ModeSync:
		res.Outcome = rules.LeaveRefused
	case s.left(p.Generation, p.Ticket):
		res.Outcome = rules.LeaveRepeated
	case passed || s.known(p.Generation, p.Ticket):
		res.Outcome = rules.LeaveServed
	case p.Generation == 0:
		res.Outcome = rules.LeaveRefused
	}
	res.From = s.t.Version
	if res.Outcome == rules.LeaveDone {
		s.t.Version++
		if s.t.Used < s.t.Granted {
			s.t.Used++
		}
		if s.t.Mode == reward.ModeKafka && p.Ticket > s.t.Settled {
			s.t.Settled = p.Ticket
		}
		s.refused = append(s.refused, refused{reward.IssueOutcome{
			TemplateID: s.t.ID, UserID: p.UserID, Generation: p.Generation, Ticket: p.Ticket, Reason: reward.ReasonLeft, At: p.Now,
		}, s.t.Version})
	}
	res.To, res.Template = s.t.Version, s.t
	return res
}

// lefts returns the requests that left after a ticket and generation.
func (s *shop) lefts(ticket, generation int64) []store.LineTicket {
	list := []store.LineTicket{}
	for _, r := range s.refused {
		if r.Reason == reward.ReasonLeft && (r.Ticket > ticket || r.Ticket == ticket && r.Generation > generation) {
			list = append(list, store.LineTicket{UserID: r.UserID, Ticket: r.Ticket, Generation: r.Generation})
		}
	}
	slices.SortFunc(list, func(a, b store.LineTicket) int {
		return cmp.Or(cmp.Compare(a.Ticket, b.Ticket), cmp.Compare(a.Generation, b.Generation))
	})
	return list
}

// whole returns why a batch is refused.
func (s *shop) whole(p store.CouponSettleParams) rules.SettleRefusal {
	switch p.Kind {
	case rules.SettleInOrder:
		if p.Epoch != s.t.Epoch {
			return rules.RefusedEpoch
		}
		if p.Generation != s.t.Generation || s.t.Path != reward.PathGate {
			return rules.RefusedGeneration
		}
	case rules.SettleDirect:
		if p.Path != s.t.Path || p.Fence != 0 && p.Path == reward.PathGate && s.t.Mode != reward.ModeSync {
			return rules.RefusedPath
		}
		if p.Generation != s.t.Generation {
			return rules.RefusedGeneration
		}
		if p.Fence != 0 && p.Fence <= s.t.Fence {
			return rules.RefusedFence
		}
	}
	return rules.NotRefused
}

func (s *shop) settle(p store.CouponSettleParams) store.CouponSettleResult {
	res := store.CouponSettleResult{Refused: s.whole(p)}
	res.From, res.To, res.Template = s.t.Version, s.t.Version, s.t
	if res.Refused != rules.NotRefused {
		return res
	}
	order := make([]int, len(p.Requests))
	for i := range order {
		order[i] = i
	}
	if p.Kind != rules.SettleDirect {
		slices.SortStableFunc(order, func(a, b int) int {
			return cmp.Or(cmp.Compare(p.Requests[a].Ticket, p.Requests[b].Ticket), cmp.Compare(p.Requests[a].Generation, p.Requests[b].Generation))
		})
	}
	if p.Kind == rules.SettleDirect {
		s.t.Fence = max(s.t.Fence, p.Fence)
	}
	res.Results = make([]store.RequestResult, len(p.Requests))
	users := make(map[string]bool)
	changed, settled := false, s.t.Settled
	for n, i := range order {
		before := s.t.Settled
		var r store.RequestResult
		if first := order[max(n-1, 0)]; n > 0 && res.Results[first].Outcome == rules.RequestAlreadySettled && p.Kind != rules.SettleDirect &&
			p.Requests[first].Ticket == p.Requests[i].Ticket && p.Requests[first].Generation == p.Requests[i].Generation {
			// Of requests with the same ticket, only the first counts.
			r.Outcome = rules.RequestAlreadySettled
		} else {
			r = s.one(p, p.Requests[i], settled)
		}
		res.Results[i] = r
		changed = changed || s.t.Settled > before || r.Outcome == rules.RequestIssued || r.Outcome == rules.RequestRejected && p.Kind != rules.SettleDirect
		if r.Outcome == rules.RequestIssued {
			users[r.Coupon.UserID] = true
		}
	}
	if changed {
		s.t.Version++
		if p.Kind == rules.SettleDirect && p.Path == reward.PathDatabase {
			s.t.Base = s.t.Generation
		}
	}
	res.To, res.Template = s.t.Version, s.t
	for user := range users {
		res.Holdings = append(res.Holdings, s.fact(user))
	}
	slices.SortFunc(res.Holdings, func(a, b store.CouponHolding) int { return cmp.Compare(a.UserID, b.UserID) })
	return res
}

// one settles one request at the next version. settled is the highest ticket that was
// settled before the batch.
func (s *shop) one(p store.CouponSettleParams, a rules.CouponRequest, settled int64) store.RequestResult {
	now, direct := time.Now(), p.Kind == rules.SettleDirect
	switch {
	case p.Kind == rules.SettleInOrder && a.Ticket <= s.t.Settled:
		return store.RequestResult{Outcome: rules.RequestAlreadySettled}
	case p.Kind == rules.SettleInOrder && a.Ticket != s.t.Settled+1:
		return store.RequestResult{Outcome: rules.RequestGap}
	case p.Kind == rules.SettleListed && (a.Generation > s.t.Generation || a.Generation < s.t.Floor):
		return store.RequestResult{Outcome: rules.RequestAlreadySettled}
	case p.Kind == rules.SettleListed && a.Ticket-settled > s.t.TotalQuantity:
		return store.RequestResult{Outcome: rules.RequestNeverGiven}
	case p.Kind == rules.SettleListed && (s.known(a.Generation, a.Ticket) || s.answered(a)):
		return store.RequestResult{Outcome: rules.RequestAlreadySettled}
	case direct && now.Before(s.t.OpensAt):
		return store.RequestResult{Outcome: rules.RequestNotOpen}
	case direct && !s.t.ClosesAt.IsZero() && !now.Before(s.t.ClosesAt):
		return store.RequestResult{Outcome: rules.RequestClosed}
	}
	if p.Kind == rules.SettleInOrder && s.left(a.Generation, a.Ticket) {
		s.t.Settled++
		return store.RequestResult{Outcome: rules.RequestAlreadySettled}
	}
	rejected := store.RequestResult{Outcome: rules.RequestRejected, Reason: a.Reason}
	switch f := s.fact(a.UserID); {
	case a.Reason != "":
	case f.Held >= s.t.PerUserLimit:
		rejected.Reason = reward.ReasonUserLimit
		if direct && s.t.PerUserLimit == 1 && f.CouponID != 0 {
			rejected.Coupon = s.find(f.CouponID).Coupon
		}
	case direct && s.t.Granted > s.t.Used && s.t.Live+s.t.Granted-s.t.Used >= s.t.TotalQuantity:
		rejected.Reason = reward.ReasonPromised
	case s.t.Live >= s.t.TotalQuantity:
		rejected.Reason = reward.ReasonSoldOut
	}
	ticket, generation := a.Ticket, a.Generation
	if direct {
		ticket, generation = s.t.Settled+1, s.t.Generation
	}
	if rejected.Reason != "" && direct {
		return rejected
	}
	s.t.Settled = max(s.t.Settled, ticket)
	if !direct && s.t.Used < s.t.Granted {
		s.t.Used++
	}
	if rejected.Reason != "" {
		s.refused = append(s.refused, refused{reward.IssueOutcome{
			TemplateID: s.t.ID, UserID: a.UserID, Generation: generation, Ticket: ticket, Reason: rejected.Reason, At: p.Now,
		}, s.t.Version + 1})
		return rejected
	}
	c := reward.Coupon{
		ID: a.CouponID, Code: a.Code, TemplateID: s.t.ID, UserID: a.UserID, Generation: generation, Ticket: ticket, IssuedAt: p.Now,
	}
	if s.t.ValidFor > 0 {
		c.ExpiresAt = p.Now.Add(s.t.ValidFor)
	}
	s.coupons = append(s.coupons, &sold{c, s.freeSlot(a.UserID), s.t.Version + 1})
	s.t.Live++
	s.t.IssuedTotal++
	return store.RequestResult{Outcome: rules.RequestIssued, Coupon: c}
}

func (s *shop) find(id reward.CouponID) *sold {
	i := slices.IndexFunc(s.coupons, func(c *sold) bool { return c.ID == id })
	if i < 0 {
		return nil
	}
	return s.coupons[i]
}

// stops is the code of what keeps a coupon from being used or cancelled.
func (s *shop) stops(id reward.CouponID, now time.Time) string {
	c := s.find(id)
	switch {
	case c == nil:
		return reward.CodeCouponNotFound
	case c.Status == reward.CouponUsed:
		return reward.CodeCouponUsed
	case c.Status == reward.CouponCancelled:
		return reward.CodeCouponCancelled
	case c.Status == reward.CouponExpired || !c.ExpiresAt.IsZero() && !c.ExpiresAt.After(now):
		return reward.CodeCouponExpired
	}
	return ""
}

func (s *shop) cancel(id reward.CouponID, now time.Time) any {
	if code := s.stops(id, now); code != "" {
		return code
	}
	c := s.find(id)
	c.Status, c.CancelledAt = reward.CouponCancelled, now
	if s.t.ReissueAfterCancel {
		c.slot = 0
	}
	s.t.Live--
	s.t.Version++
	c.version = s.t.Version
	return store.CouponChange{
		From: s.t.Version - 1, To: s.t.Version, Template: s.t, Holdings: []store.CouponHolding{s.fact(c.UserID)}, Coupon: c.Coupon,
	}
}

func (s *shop) use(id reward.CouponID, now time.Time) any {
	if code := s.stops(id, now); code != "" {
		return code
	}
	c := s.find(id)
	c.Status, c.UsedAt = reward.CouponUsed, now
	return c.Coupon
}

func (s *shop) expire(now time.Time) int {
	n := 0
	for _, c := range s.coupons {
		if c.Status == reward.CouponIssued && !c.ExpiresAt.IsZero() && !c.ExpiresAt.After(now) {
			c.Status = reward.CouponExpired
			n++
		}
	}
	return n
}

func (s *shop) change(p rules.TemplateChange) any {
	to := s.t
	if p.TotalQuantity != nil {
		to.TotalQuantity = *p.TotalQuantity
	}
	if p.PerUserLimit != nil {
		to.PerUserLimit = *p.PerUserLimit
	}
	if p.ReissueAfterCancel != nil {
		to.ReissueAfterCancel = *p.ReissueAfterCancel
	}
	if p.ValidFor != nil {
		to.ValidFor = *p.ValidFor
	}
	if p.Mode != nil {
		to.Mode = *p.Mode
	}
	if k := p.Shrunk; k != nil && k.Generation == to.Generation && k.Grants == to.Grants && to.Path == reward.PathGate {
		to.Granted = max(to.Used, min(to.Granted, k.Granted))
		to.Grants++
	}
	if to.TotalQuantity < s.t.Live+to.Granted-to.Used || to.Mode != s.t.Mode && (s.t.Settled > 0 || s.t.Used > 0 || to.Granted > to.Used) {
		return reward.CodeConflict
	}
	s.t = to
	s.t.Version++
	return s.t
}

// list returns every coupon, by ticket, then generation.
func (s *shop) list() []reward.Coupon {
	list := make([]reward.Coupon, len(s.coupons))
	for i, c := range s.coupons {
		list[i] = c.Coupon
	}
	slices.SortFunc(list, func(a, b reward.Coupon) int {
		return cmp.Or(cmp.Compare(a.Ticket, b.Ticket), cmp.Compare(a.Generation, b.Generation))
	})
	return list
}

// changes returns what changed above a version.
func (s *shop) changes(above int64, limit int) store.CouponChanges {
	c := store.CouponChanges{Template: s.t}
	facts := make(map[string]store.CouponHolding)
	for _, x := range s.coupons {
		if x.version > above {
			c.Settled = append(c.Settled, store.SettledRequest{UserID: x.UserID, Generation: x.Generation, Ticket: x.Ticket})
			facts[x.UserID] = s.fact(x.UserID)
		}
	}
	for _, x := range s.refused {
		if x.version > above {
			c.Settled = append(c.Settled, store.SettledRequest{
				UserID: x.UserID, Generation: x.Generation, Ticket: x.Ticket, Left: x.Reason == reward.ReasonLeft,
			})
		}
	}
	if len(c.Settled) > limit {
		return store.CouponChanges{Template: s.t, More: true}
	}
	c.Holdings = sortedFacts(facts)
	slices.SortFunc(c.Settled, func(a, b store.SettledRequest) int {
		return cmp.Or(cmp.Compare(a.Ticket, b.Ticket), cmp.Compare(a.Generation, b.Generation))
	})
	return c
}

// outcomes returns the latest outcome of each user.
func (s *shop) outcomes() map[string]reward.IssueOutcome {
	latest := make(map[string]reward.IssueOutcome)
	add := func(o reward.IssueOutcome) {
		l, ok := latest[o.UserID]
		if !ok || o.Generation > l.Generation || o.Generation == l.Generation && o.Ticket > l.Ticket {
			latest[o.UserID] = o
		}
	}
	for _, c := range s.coupons {
		add(reward.IssueOutcome{
			TemplateID: c.TemplateID, UserID: c.UserID, Generation: c.Generation, Ticket: c.Ticket, Coupon: c.Coupon, At: c.IssuedAt,
		})
	}
	for _, r := range s.refused {
		add(r.IssueOutcome)
	}
	return latest
}
