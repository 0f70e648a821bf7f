package store

import (
	"cmp"
	"slices"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
)

// Check returns CodeInvalid for a batch that is too large or has a request that
// no database can store. The caller then finds the bad request by settling them
// one at a time. The texts of a request with a Reason are not checked, so that a
// bad request cannot block the waiting line.
func (p *CouponSettleParams) Check() error {
	if len(p.Requests) > BatchMax {
		return invalid("a batch has %d requests; at most %d are allowed", len(p.Requests), BatchMax)
	}
	for i := range p.Requests {
		a := &p.Requests[i]
		if p.Kind == rules.SettleListed && (a.Ticket < 1 || a.Generation < 0) {
			return invalid("ticket %d of generation %d cannot exist", a.Ticket, a.Generation)
		}
		if a.Reason == reward.ReasonLeft {
			return invalid("a request cannot be settled as %s; it leaves the line by itself", a.Reason)
		}
		if a.Reason != "" {
			continue
		}
		if a.CouponID <= 0 || a.Code == "" {
			return invalid("a request needs an id and a code for its coupon")
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

// Batch returns the batch for package rules.
func (p *CouponSettleParams) Batch() *rules.IssueBatch {
	return &rules.IssueBatch{
		Kind: p.Kind, Epoch: p.Epoch, Generation: p.Generation, Path: p.Path, Fence: p.Fence,
		Requests: p.Requests, Now: p.Now,
	}
}

// Settled returns the result of CouponSettle for a settlement of batch b. existing is that of
// rules.Facts.
func Settled(s *rules.Settlement, b *rules.IssueBatch, existing map[string]reward.Coupon) CouponSettleResult {
	res := CouponSettleResult{
		Refused: s.Refused, CouponChange: CouponChange{From: s.Was.Version, To: s.Template.Version, Template: s.Template},
	}
	if s.Refused != rules.NotRefused {
		return res
	}
	res.Results = make([]RequestResult, len(b.Requests))
	for i := range b.Requests {
		res.Results[i].Outcome = s.Unsettled(b, &b.Requests[i])
	}
	holdings, now := make(map[string]CouponHolding), make(map[string]reward.Coupon)
	for _, d := range s.Decisions {
		if d.Reason == "" {
			c := b.Coupon(&s.Template, d)
			now[c.UserID] = c
			res.Results[d.At] = RequestResult{Outcome: rules.RequestIssued, Coupon: c}
			h, ok := holdings[c.UserID]
			if !ok {
				h = CouponHolding{UserID: c.UserID, Held: d.Held, CouponID: d.Latest}
			}
			h.Held++
			h.CouponID = max(h.CouponID, c.ID)
			holdings[c.UserID] = h
			continue
		}
		if d.Reason == reward.ReasonLeft {
			res.Results[d.At] = RequestResult{Outcome: rules.RequestAlreadySettled}
			continue
		}
		res.Results[d.At] = RequestResult{Outcome: rules.RequestRejected, Reason: d.Reason}
		if user := b.Requests[d.At].UserID; d.Reason == reward.ReasonUserLimit && s.Template.PerUserLimit == 1 && b.Kind == rules.SettleDirect {
			res.Results[d.At].Coupon = existing[user]
			if c, ok := now[user]; ok {
				res.Results[d.At].Coupon = c
			}
		}
	}
	for _, h := range holdings {
		res.Holdings = append(res.Holdings, h)
	}
	slices.SortFunc(res.Holdings, func(a, b CouponHolding) int { return cmp.Compare(a.UserID, b.UserID) })
	return res
}

// NoCoupon returns the error for a coupon that does not exist.
func NoCoupon(id reward.CouponID) error {
	return reward.NewError(reward.KindNotFound, reward.CodeCouponNotFound, "there is no coupon %d", id)
}

// CodeTaken returns the error for a batch with a coupon ID or code that another
// coupon has. cause is the error of the database.
func CodeTaken(cause error) error {
	e := reward.NewError(reward.KindConflict, reward.CodeConflict, "a coupon id or code of the batch is already in use")
	e.Err = cause
	return e
}

// CheckList returns CodeInvalid unless p has a template or a user.
func (p *CouponListParams) CheckList() error {
	if p.TemplateID == 0 && p.UserID == "" {
		return invalid("coupons are listed by template or by user; set one of them")
	}
	return nil
}
