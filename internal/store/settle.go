package store

import (
	"cmp"
	"slices"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
)

// Check refuses, with CodeInvalid, asks that no database can hold; the caller
// then finds the culprit by trying them one by one. An ask that is refused
// already is always taken, so that it cannot hold up a line.
func (p *CouponSettleParams) Check() error {
	if len(p.Requests) > BatchMax {
		return reward.NewError(reward.KindInvalid, reward.CodeInvalid, "%d asks at once are more than %d", len(p.Requests), BatchMax)
	}
	for i := range p.Requests {
		a := &p.Requests[i]
		if p.Kind == rules.SettleListed && (a.Ticket < 1 || a.Generation < 0) {
			return reward.NewError(reward.KindInvalid, reward.CodeInvalid,
				"ticket %d of generation %d was never given", a.Ticket, a.Generation)
		}
		if a.Reason != "" {
			continue
		}
		if a.CouponID <= 0 || a.Code == "" {
			return reward.NewError(reward.KindInvalid, reward.CodeInvalid, "an ask has no id and code for its coupon")
		}
		if err := CheckText("user id", a.UserID); err != nil {
			return err
		}
		if err := CheckText("code", a.Code); err != nil {
			return err
		}
	}
	return nil
}

// Batch is the asks as the rules take them.
func (p *CouponSettleParams) Batch() *rules.IssueBatch {
	return &rules.IssueBatch{
		Kind: p.Kind, Epoch: p.Epoch, Generation: p.Generation, EndsGeneration: p.EndsGeneration, Path: p.Path, Fence: p.Fence,
		Requests: p.Requests, Now: p.Now,
	}
}

// Settled returns what a settlement did, with the outcome of each ask.
func Settled(s *rules.Settlement, b *rules.IssueBatch) CouponSettleResult {
	res := CouponSettleResult{
		Refused: s.Refused, CouponChange: CouponChange{From: s.From, To: s.Template.Version, Template: s.Template},
	}
	if s.Refused != rules.NotRefused {
		return res
	}
	res.Results = make([]RequestResult, len(b.Requests))
	for i := range b.Requests {
		res.Results[i].Outcome = s.Unsettled(b, &b.Requests[i])
	}
	facts := make(map[string]CouponHolding)
	for _, d := range s.Decisions {
		if d.Reason == "" {
			c := b.Coupon(&s.Template, d)
			res.Results[d.At] = RequestResult{Outcome: rules.RequestIssued, Coupon: c}
			f, ok := facts[c.UserID]
			if !ok {
				f = CouponHolding{UserID: c.UserID, Held: d.Held, CouponID: d.Latest}
			}
			f.Held++
			f.CouponID = max(f.CouponID, c.ID)
			facts[c.UserID] = f
			continue
		}
		res.Results[d.At] = RequestResult{Outcome: rules.RequestRejected, Reason: d.Reason}
		if d.Reason == reward.ReasonUserLimit && s.Template.PerUserLimit == 1 {
			res.Results[d.At].Coupon = s.Existing[b.Requests[d.At].UserID]
		}
	}
	for _, f := range facts {
		res.Holdings = append(res.Holdings, f)
	}
	slices.SortFunc(res.Holdings, func(a, b CouponHolding) int { return cmp.Compare(a.UserID, b.UserID) })
	return res
}

// NoCoupon is the error of an id that no coupon has.
func NoCoupon(id reward.CouponID) error {
	return reward.NewError(reward.KindNotFound, reward.CodeCouponNotFound, "there is no coupon %d", id)
}

// CodeTaken is the error of a batch that wanted an id or a code that a coupon
// has already.
func CodeTaken(cause error) error {
	e := reward.NewError(reward.KindConflict, reward.CodeConflict, "an id or a code of the batch is in use")
	e.Err = cause
	return e
}

// CheckList refuses a listing that says not, or twice, what to list.
func (p *CouponListParams) CheckList() error {
	if (p.TemplateID == 0) == (p.UserID == "") {
		return reward.NewError(reward.KindInvalid, reward.CodeInvalid, "coupons are listed by template or by user")
	}
	return nil
}

// SortOutcomes orders outcomes, the latest first.
func SortOutcomes(list []reward.IssueOutcome) {
	slices.SortFunc(list, func(a, b reward.IssueOutcome) int {
		return cmp.Or(b.At.Compare(a.At), cmp.Compare(b.TemplateID, a.TemplateID),
			cmp.Compare(b.Ticket, a.Ticket), cmp.Compare(b.Generation, a.Generation))
	})
}

// Issued is the outcome of a request that became a coupon.
func IssuedOutcome(c *reward.Coupon) reward.IssueOutcome {
	return reward.IssueOutcome{
		TemplateID: c.TemplateID, UserID: c.UserID, Generation: c.Generation, Ticket: c.Ticket, Coupon: *c, At: c.IssuedAt,
	}
}

// LatestOutcomes picks the latest outcome of each user, by ticket, then
// generation.
func LatestOutcomes(list []reward.IssueOutcome) map[string]reward.IssueOutcome {
	latest := make(map[string]reward.IssueOutcome)
	for _, o := range list {
		l, ok := latest[o.UserID]
		if !ok || cmp.Or(cmp.Compare(o.Ticket, l.Ticket), cmp.Compare(o.Generation, l.Generation)) > 0 {
			latest[o.UserID] = o
		}
	}
	return latest
}

// Bound says More where more than limit changed, and puts the rest into an
// order: facts by user, tickets by ticket, then generation. There are never more
// facts than tickets.
func (c *CouponChanges) Bound(limit int) {
	if len(c.Settled) > limit {
		c.More, c.Holdings, c.Settled = true, nil, nil
		return
	}
	slices.SortFunc(c.Holdings, func(a, b CouponHolding) int { return cmp.Compare(a.UserID, b.UserID) })
	slices.SortFunc(c.Settled, func(a, b SettledRequest) int {
		return cmp.Or(cmp.Compare(a.Ticket, b.Ticket), cmp.Compare(a.Generation, b.Generation))
	})
}
