package rules

import (
	"cmp"
	"slices"
	"time"

	"github.com/largesse/largesse/internal/reward"
)

// SettleKind is what the tickets of an IssueBatch are.
type SettleKind int8

// The kinds. In each of them a user beyond PerUserLimit is refused
// ReasonUserLimit, and nobody gets a coupon when Live is TotalQuantity
// (ReasonSoldOut); requests are taken in the order of their tickets.
const (
	// SettleInOrder is of STREAM: refused whole unless Epoch and Generation, also
	// that of each request, are the template's (RefusedEpoch, RefusedGeneration)
	// and its Path is GATE (counts as a generation). Settles Settled+1, +2, … and
	// stops at a gap (RequestGap); a ticket at or below Settled was settled before
	// (RequestAlreadySettled). A rejection is a row.
	SettleInOrder SettleKind = iota
	// SettleListed is of KAFKA: refused whole unless EndsGeneration is the
	// template's (RefusedEnds). Each request is settled unless (generation, ticket)
	// is already, or the generation is above the template's (both
	// RequestAlreadySettled). Settled becomes the highest ticket. A rejection is a
	// row.
	SettleListed
	// SettleDirect is of SYNC and of PathDatabase: requests have no tickets, they
	// get Settled+1, … as far as they are issued; a rejection is no row, and takes
	// no ticket. Refused whole unless the Path is Path (RefusedPath), Generation is
	// the template's (RefusedGeneration), and Fence, when not 0, is above the
	// template's (RefusedFence; it is stored, whatever becomes of the requests). By
	// the database's clock all requests are RequestNotOpen before OpensAt and
	// RequestClosed from ClosesAt on; the state of a draw is for the caller to
	// check.
	SettleDirect
)

// CouponRequest is one user applying for a coupon.
type CouponRequest struct {
	UserID     string
	Generation int64
	Ticket     int64
	// CouponID and Code are for the coupon, if it becomes one. A code or id that
	// is in use fails the whole call: CodeConflict. A user or code that no database
	// can store does so too: CodeInvalid.
	CouponID reward.CouponID
	Code     string
	// Reason, when not "", rejects the request for it, whatever its texts are (they
	// are made storable), so that it cannot block the waiting line.
	Reason string
}

// Storable is the request as drivers store it. What is rejected already is made
// storable instead of being refused for its text.
func (r CouponRequest) Storable() CouponRequest {
	if r.Reason == "" {
		return r
	}
	r.UserID, r.Code = reward.SanitizeText(r.UserID), reward.SanitizeText(r.Code)
	r.Reason = cmp.Or(reward.SanitizeText(r.Reason), reward.ReasonError)
	return r
}

// SettleRefusal says why a whole batch was refused.
type SettleRefusal int8

// The refusals.
const (
	NotRefused SettleRefusal = iota
	RefusedEpoch
	RefusedGeneration
	RefusedEnds
	RefusedPath
	RefusedFence
)

// RequestOutcome is how a request ended.
type RequestOutcome int8

// The outcomes.
const (
	RequestIssued RequestOutcome = iota
	RequestRejected
	RequestAlreadySettled // by an earlier call
	RequestGap            // above a ticket that is missing; SettleInOrder only
	RequestNotOpen
	RequestClosed
)

// IssueBatch is coupon requests of one template that are decided together. The
// fields behind Kind are what the kind expects of the template.
type IssueBatch struct {
	Kind           SettleKind
	Epoch          int64
	Generation     int64
	EndsGeneration int64
	Path           reward.IssuePath
	Fence          int64
	Requests       []CouponRequest
	Now            time.Time // IssuedAt
}

// Order returns the positions of the requests in the order in which they are
// taken: by ticket, then by generation, and of those with the same only the
// first. Without tickets it is the order they came in.
func (b *IssueBatch) Order() []int {
	order := make([]int, len(b.Requests))
	for i := range order {
		order[i] = i
	}
	if b.Kind == SettleDirect {
		return order
	}
	compare := func(i, j int) int {
		r, s := &b.Requests[i], &b.Requests[j]
		return cmp.Or(cmp.Compare(r.Ticket, s.Ticket), cmp.Compare(r.Generation, s.Generation))
	}
	slices.SortStableFunc(order, compare)
	return slices.CompactFunc(order, func(i, j int) bool { return compare(i, j) == 0 })
}

// Refuse says why template t refuses the whole batch, if it does.
func Refuse(t *reward.CouponTemplate, b *IssueBatch) SettleRefusal {
	switch b.Kind {
	case SettleInOrder:
		if b.Epoch != t.Epoch {
			return RefusedEpoch
		}
		other := slices.ContainsFunc(b.Requests, func(r CouponRequest) bool { return r.Generation != t.Generation })
		if b.Generation != t.Generation || t.Path != reward.PathGate || other {
			return RefusedGeneration
		}
	case SettleListed:
		if b.EndsGeneration != t.EndsGeneration {
			return RefusedEnds
		}
	default:
		switch {
		case b.Path != t.Path:
			return RefusedPath
		case b.Generation != t.Generation:
			return RefusedGeneration
		case b.Fence != 0 && b.Fence <= t.Fence:
			return RefusedFence
		}
	}
	return NotRefused
}

// Shut returns RequestNotOpen or RequestClosed where the template's window
// decides about every request of a direct batch, otherwise 0.
func Shut(t *reward.CouponTemplate, b *IssueBatch, clock time.Time) RequestOutcome {
	switch {
	case b.Kind != SettleDirect:
		return 0
	case clock.Before(t.OpensAt):
		return RequestNotOpen
	case !t.ClosesAt.IsZero() && !clock.Before(t.ClosesAt):
		return RequestClosed
	}
	return 0
}

// Due returns the positions, in order, of the requests that are to be decided
// now. known reports whether the generation and ticket of a request have been
// settled; it is called for SettleListed only, and only for requests that are
// due otherwise.
func Due(t *reward.CouponTemplate, b *IssueBatch, known func(*CouponRequest) (bool, error)) ([]int, error) {
	order := b.Order()
	due := order[:0]
	next := t.Settled + 1
	for _, at := range order {
		r := &b.Requests[at]
		switch b.Kind {
		case SettleInOrder:
			if r.Ticket != next {
				continue
			}
			next++
		case SettleListed:
			if r.Generation > t.Generation {
				continue
			}
			if settled, err := known(r); err != nil {
				return nil, err
			} else if settled {
				continue
			}
		}
		due = append(due, at)
	}
	return due, nil
}

// Holding is what a user has at a template.
type Holding struct {
	Slots  []int           // in use, in any order
	Latest reward.CouponID // of the coupons that are not cancelled; 0 = none
}

// lowest is the lowest slot that is free.
func (h *Holding) lowest() int {
	slot := 1
	for slices.Contains(h.Slots, slot) {
		slot++
	}
	return slot
}

// Settlement is what was decided about a batch, under the lock of its template.
type Settlement struct {
	Refused SettleRefusal
	// Shut is RequestNotOpen or RequestClosed where the window decided about every
	// request, otherwise 0.
	Shut      RequestOutcome
	From      int64                 // Version before
	Template  reward.CouponTemplate // as it is afterwards
	Decisions []Decision
	// Existing has the coupons to report to users beyond a limit of 1.
	Existing map[string]reward.Coupon
}

// Decision is what was decided about one request. Requests without one were
// settled before, or lie behind a gap.
type Decision struct {
	At     int // its position among the requests
	Ticket int64
	Reason string // "" = issued
	Slot   int    // of the coupon; 0 where the driver does not report it
	// Held and Latest are the user's holding before the batch.
	Held   int
	Latest reward.CouponID
}

// Issue decides about the due requests of a batch that template t does not
// refuse. holdings are those of their users, by what Storable makes of the user
// id. It returns the template afterwards and the decisions.
func Issue(t reward.CouponTemplate, b *IssueBatch, due []int, holdings map[string]Holding) (reward.CouponTemplate, []Decision) {
	direct := b.Kind == SettleDirect
	if direct {
		t.Fence = max(t.Fence, b.Fence)
	}
	version := t.Version + 1
	now := make(map[string]*Holding, len(holdings)) // as they are so far
	decisions := make([]Decision, 0, len(due))
	for _, at := range due {
		r := b.Requests[at].Storable()
		before := holdings[r.UserID]
		h := now[r.UserID]
		if h == nil {
			h = &Holding{Slots: slices.Clone(before.Slots)}
			now[r.UserID] = h
		}
		d := Decision{At: at, Ticket: r.Ticket, Held: len(before.Slots), Latest: before.Latest}
		switch {
		case r.Reason != "":
			d.Reason = r.Reason
		case len(h.Slots) >= t.PerUserLimit:
			d.Reason = reward.ReasonUserLimit
		case t.Live >= t.TotalQuantity:
			d.Reason = reward.ReasonSoldOut
		default:
			d.Slot = h.lowest()
			h.Slots = append(h.Slots, d.Slot)
			t.Live++
			t.IssuedTotal++
		}
		switch {
		case direct && d.Reason != "":
			d.Ticket = 0 // a rejection is no row
		default:
			if direct {
				d.Ticket = t.Settled + 1
			}
			t.Version, t.Settled = version, max(t.Settled, d.Ticket)
		}
		decisions = append(decisions, d)
	}
	return t, decisions
}

// Coupon returns the coupon that a request of the batch became; t is the
// template afterwards.
func (b *IssueBatch) Coupon(t *reward.CouponTemplate, d Decision) reward.Coupon {
	r := &b.Requests[d.At]
	c := reward.Coupon{
		ID: r.CouponID, Code: r.Code, TemplateID: t.ID, UserID: r.UserID, Generation: r.Generation, Ticket: d.Ticket,
		IssuedAt: instant(b.Now),
	}
	if b.Kind == SettleDirect {
		c.Generation = t.Generation
	}
	if t.ValidFor > 0 {
		c.ExpiresAt = c.IssuedAt.Add(t.ValidFor)
	}
	return c
}

// Unsettled is the outcome of a request without a decision.
func (s *Settlement) Unsettled(b *IssueBatch, r *CouponRequest) RequestOutcome {
	switch {
	case s.Shut != 0:
		return s.Shut
	case b.Kind == SettleInOrder && r.Ticket > s.Template.Settled:
		return RequestGap
	}
	return RequestAlreadySettled
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
