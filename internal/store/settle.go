package store

import (
	"cmp"
	"slices"
	"time"

	"github.com/largesse/largesse/internal/reward"
)

// Check refuses, with CodeInvalid, asks that no database can hold; the caller
// then finds the culprit by trying them one by one. An ask that is refused
// already is always taken, so that it cannot hold up a line.
func (p *CouponSettleParams) Check() error {
	if len(p.Asks) > BatchMax {
		return reward.NewError(reward.KindInvalid, reward.CodeInvalid, "%d asks at once are more than %d", len(p.Asks), BatchMax)
	}
	for i := range p.Asks {
		a := &p.Asks[i]
		if p.Kind == SettleListed && (a.Ticket < 1 || a.Generation < 0) {
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

// Storable is the ask as drivers keep it. What is refused already is made
// storable instead of being refused for its text.
func (a CouponAsk) Storable() CouponAsk {
	if a.Reason == "" {
		return a
	}
	a.UserID, a.Code, a.Reason = Text(a.UserID), Text(a.Code), cmp.Or(Text(a.Reason), reward.ReasonError)
	return a
}

// Order returns the positions of the asks in the order in which they are taken:
// by ticket, then by generation, and of those with the same only the first.
// Without tickets it is the order they came in.
func (p *CouponSettleParams) Order() []int {
	order := make([]int, len(p.Asks))
	for i := range order {
		order[i] = i
	}
	if p.Kind == SettleDirect {
		return order
	}
	compare := func(a, b int) int {
		return cmp.Or(cmp.Compare(p.Asks[a].Ticket, p.Asks[b].Ticket), cmp.Compare(p.Asks[a].Generation, p.Asks[b].Generation))
	}
	slices.SortStableFunc(order, compare)
	return slices.CompactFunc(order, func(a, b int) bool { return compare(a, b) == 0 })
}

// Settlement is what a driver has decided about a batch of asks, under the lock
// of their template.
type Settlement struct {
	Refused SettleRefusal
	// Shut is OutcomeNotOpen or OutcomeClosed where the window decided about all
	// of them, otherwise 0.
	Shut     AskOutcome
	From     int64                 // Version before
	Template reward.CouponTemplate // as it is afterwards
	Rulings  []Ruling
	// Own has the coupons to tell to users beyond a limit of 1.
	Own map[string]reward.Coupon
}

// Ruling is what was decided about one ask. Asks without one were settled
// before, or lie behind a gap.
type Ruling struct {
	At     int // its position among the asks
	Ticket int64
	Reason string // "" = issued
	// Held and Latest are the user's fact before the batch.
	Held   int
	Latest reward.CouponID
}

// Result tells each ask what became of it.
func (s *Settlement) Result(p *CouponSettleParams) CouponSettleResult {
	res := CouponSettleResult{
		Refused: s.Refused, CouponChange: CouponChange{From: s.From, To: s.Template.Version, Template: s.Template},
	}
	if s.Refused != NotRefused {
		return res
	}
	res.Results = make([]AskResult, len(p.Asks))
	for i, a := range p.Asks {
		switch {
		case s.Shut != 0:
			res.Results[i].Outcome = s.Shut
		case p.Kind == SettleInOrder && a.Ticket > s.Template.Settled:
			res.Results[i].Outcome = OutcomeGap
		default:
			res.Results[i].Outcome = OutcomeBefore
		}
	}
	facts := make(map[string]CouponFact)
	for _, r := range s.Rulings {
		if r.Reason == "" {
			c := s.coupon(p, r)
			res.Results[r.At] = AskResult{Outcome: OutcomeIssued, Coupon: c}
			f, ok := facts[c.UserID]
			if !ok {
				f = CouponFact{UserID: c.UserID, Held: r.Held, CouponID: r.Latest}
			}
			f.Held++
			f.CouponID = max(f.CouponID, c.ID)
			facts[c.UserID] = f
			continue
		}
		res.Results[r.At] = AskResult{Outcome: OutcomeRejected, Reason: r.Reason}
		if r.Reason == reward.ReasonUserLimit && s.Template.PerUserLimit == 1 {
			res.Results[r.At].Coupon = s.Own[p.Asks[r.At].UserID]
		}
	}
	for _, f := range facts {
		res.Facts = append(res.Facts, f)
	}
	slices.SortFunc(res.Facts, func(a, b CouponFact) int { return cmp.Compare(a.UserID, b.UserID) })
	return res
}

// coupon is the coupon that an ask became.
func (s *Settlement) coupon(p *CouponSettleParams, r Ruling) reward.Coupon {
	a := &p.Asks[r.At]
	c := reward.Coupon{
		ID: a.CouponID, Code: a.Code, TemplateID: p.TemplateID, UserID: a.UserID, Generation: a.Generation, Ticket: r.Ticket,
		IssuedAt: instant(p.Now),
	}
	if p.Kind == SettleDirect {
		c.Generation = s.Template.Generation
	}
	if s.Template.ValidFor > 0 {
		c.ExpiresAt = c.IssuedAt.Add(s.Template.ValidFor)
	}
	return c
}

// CheckCoupon refuses what only a coupon allows that is ISSUED and valid at now.
func CheckCoupon(c *reward.Coupon, now time.Time) error {
	refuse := func(code, what string, at time.Time) error {
		return reward.NewError(reward.KindConflict, code, "coupon %d %s at %s", c.ID, what, at.UTC().Format(time.RFC3339))
	}
	switch {
	case c.Status == reward.CouponUsed:
		return refuse(reward.CodeCouponUsed, "was used", c.UsedAt)
	case c.Status == reward.CouponCancelled:
		return refuse(reward.CodeCouponCancelled, "was cancelled", c.CancelledAt)
	case c.Status == reward.CouponExpired, !c.ExpiresAt.IsZero() && !now.Before(c.ExpiresAt):
		return refuse(reward.CodeCouponExpired, "expired", c.ExpiresAt)
	}
	return nil
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
func Issued(c *reward.Coupon) reward.IssueOutcome {
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
		c.More, c.Facts, c.Settled = true, nil, nil
		return
	}
	slices.SortFunc(c.Facts, func(a, b CouponFact) int { return cmp.Compare(a.UserID, b.UserID) })
	slices.SortFunc(c.Settled, func(a, b SettledAsk) int {
		return cmp.Or(cmp.Compare(a.Ticket, b.Ticket), cmp.Compare(a.Generation, b.Generation))
	})
}
