package rules

import (
	"cmp"
	"slices"
	"time"

	"github.com/largesse/largesse/internal/reward"
)

// SettleKind says where the tickets of an IssueBatch come from.
type SettleKind int8

// The kinds. In all of them requests are settled in the order of their tickets.
// A user who has PerUserLimit slots is rejected with ReasonUserLimit. If Live is
// LiveMax, a request is rejected with ReasonSoldOut. A settled ticket uses a granted
// place, as long as there are unused ones. Of a template with imported codes, the n-th
// coupon ever issued gets the n-th code, not that of its request.
const (
	// SettleInOrder settles tickets of the gate in mode STREAM. It settles the
	// tickets Settled+1, Settled+2 and so on. Those at or below Settled are
	// RequestAlreadySettled, those behind a missing one RequestGap. A rejection is
	// stored as a row. A request that left the line (see Leave) is
	// RequestAlreadySettled when its ticket is next: the ticket counts as settled, and
	// nothing else changes.
	//
	// The batch is refused with RefusedEpoch if Epoch is not the template's. It is
	// refused with RefusedGeneration if Generation is not the template's, or if its
	// Path is not GATE. Generation is that of the gate when the requests were read;
	// the requests themselves may be of earlier generations.
	SettleInOrder SettleKind = iota
	// SettleListed settles tickets from Kafka in mode KAFKA, with gaps. A request
	// is RequestAlreadySettled if its generation and ticket are stored. It is void,
	// which has the same outcome, if its generation is above the template's or below
	// Floor, or if its user has a coupon of a later generation: the user requested again
	// through the database, and that coupon is the answer. It is RequestNeverGiven if
	// its ticket is further above Settled than a gate can have given tickets. Settled
	// becomes the highest ticket. A rejection is stored as a row. If a request is
	// RequestNeverGiven, no offsets are stored.
	SettleListed
	// SettleDirect settles requests without tickets: in mode SYNC, and on the path
	// PathDatabase. An issued request gets the ticket Settled+1. A rejection is not
	// stored and takes no ticket. A request gets only a coupon that is not promised
	// to the gate, otherwise it is rejected with ReasonPromised. On the path PathDatabase an issued request sets
	// Base to the template's generation: the gate, if it still exists, does not know
	// of the ticket.
	//
	// By the clock of the database, all requests are RequestNotOpen before OpensAt
	// and RequestClosed from ClosesAt on. The caller checks the state of a draw.
	//
	// The batch is refused with RefusedPath if Path is not the template's, and with
	// RefusedGeneration if Generation is not. With a Fence, which is a token of the lock
	// of mode SYNC, it is refused with RefusedPath in another mode on the path PathGate:
	// the next tickets then belong to the users in line. A Fence above 0 must be above the
	// template's (RefusedFence). It is stored unless the batch is refused.
	SettleDirect
)

// CouponRequest is one user applying for a coupon.
type CouponRequest struct {
	UserID     string
	Generation int64
	Ticket     int64 // ignored by SettleDirect
	// CouponID and Code are those of the coupon to issue. They must not be in use.
	CouponID reward.CouponID
	Code     string
	// Reason rejects the request if it is not empty. The texts of such a request
	// are sanitized instead of checked, so that it cannot block the waiting line.
	Reason string
}

// Storable returns the request as drivers store it. It sanitizes the texts of a
// request that has a Reason.
func (r CouponRequest) Storable() CouponRequest {
	if r.Reason == "" {
		return r
	}
	r.UserID, r.Code = reward.SanitizeText(r.UserID), reward.SanitizeText(r.Code)
	r.Reason = cmp.Or(reward.SanitizeText(r.Reason), reward.ReasonError)
	return r
}

// SettleRefusal says why the database refused a whole batch. A refused batch
// changes nothing: none of its requests is rejected. The refusal of a single
// request by a gate is something else.
type SettleRefusal int8

// The refusals. The name of each is what the template has different.
const (
	NotRefused SettleRefusal = iota
	RefusedEpoch
	RefusedGeneration
	RefusedPath
	RefusedFence
	RefusedArchived
)

// RequestOutcome is how a request ended.
type RequestOutcome int8

// The outcomes.
const (
	RequestIssued RequestOutcome = iota
	RequestRejected
	RequestAlreadySettled // by an earlier call, which knows the outcome, or void
	RequestGap            // a lower ticket is missing; SettleInOrder only
	RequestNotOpen        // before OpensAt; SettleDirect only
	RequestClosed         // from ClosesAt on; SettleDirect only
	RequestNeverGiven     // no gate gave this ticket; SettleListed only
)

// IssueBatch is a batch of requests of one template. The fields from Epoch to
// Fence are what the kind expects of the template.
type IssueBatch struct {
	Kind       SettleKind
	Epoch      int64
	Generation int64
	Path       reward.IssuePath
	Fence      int64
	Requests   []CouponRequest
	Now        time.Time // IssuedAt of the coupons
}

// Order returns the positions of the requests in the order of settlement: by
// ticket, then generation. Of requests with the same ticket and generation only
// the first is included; SettleInOrder includes a ticket once. SettleDirect keeps
// the order of the batch.
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
	return slices.CompactFunc(order, func(i, j int) bool {
		return compare(i, j) == 0 || b.Kind == SettleInOrder && b.Requests[i].Ticket == b.Requests[j].Ticket
	})
}

// Refuse returns why template t refuses the whole batch, or NotRefused. An archived
// template refuses every batch.
func Refuse(t *reward.CouponTemplate, b *IssueBatch) SettleRefusal {
	if !t.ArchivedAt.IsZero() {
		return RefusedArchived
	}
	switch b.Kind {
	case SettleInOrder:
		if b.Epoch != t.Epoch {
			return RefusedEpoch
		}
		if b.Generation != t.Generation || t.Path != reward.PathGate {
			return RefusedGeneration
		}
	case SettleDirect:
		switch {
		case b.Path != t.Path || b.Fence != 0 && b.Path == reward.PathGate && t.Mode != reward.ModeSync:
			return RefusedPath
		case b.Generation != t.Generation:
			return RefusedGeneration
		case b.Fence != 0 && b.Fence <= t.Fence:
			return RefusedFence
		}
	}
	return NotRefused
}

// Shut returns RequestNotOpen or RequestClosed if the template is not open at
// clock, which decides every request of a SettleDirect batch. Otherwise it
// returns 0.
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

// Due returns the positions of the requests to decide now, in order. known has those of
// SettleListed whose generation and ticket are settled, or whose user had a coupon of a later
// generation before the batch.
func Due(t *reward.CouponTemplate, b *IssueBatch, known map[int]bool) []int {
	next := t.Settled + 1
	return slices.DeleteFunc(b.Order(), func(at int) bool {
		r := &b.Requests[at]
		switch b.Kind {
		case SettleInOrder:
			if r.Ticket != next {
				return true
			}
			next++
		case SettleListed:
			return r.Generation > t.Generation || r.Generation < t.Floor || neverGiven(t, t.Settled, r.Ticket) || known[at]
		}
		return false
	})
}

// neverGiven reports whether no gate of template t can have given a ticket, if settled
// is the highest settled one: each ticket above belongs to a user in line, and a line
// has at most TotalQuantity users. It may have more than there are promised places,
// because a load after Redis lost data may copy a line of old data.
func neverGiven(t *reward.CouponTemplate, settled, ticket int64) bool {
	return ticket-settled > t.TotalQuantity
}

// Holding is what a user has of a template.
type Holding struct {
	Slots  []int           // in use, in any order
	Latest reward.CouponID // the highest ID that is not cancelled; 0 means none
}

// lowest returns the lowest free slot.
func (h *Holding) lowest() int {
	slot := 1
	for slices.Contains(h.Slots, slot) {
		slot++
	}
	return slot
}

// Facts is what a batch is decided by, next to its template. Positions are those of requests
// in the batch.
type Facts struct {
	Clock time.Time    // of the database
	Known map[int]bool // see Due
	Left  map[int]bool // left the line: ReasonLeft is stored for them; SettleInOrder only
	// Holdings has the holding of each user before the batch, by the user ID that Storable
	// returns, and Existing the coupon with its Latest.
	Holdings map[string]Holding
	Existing map[string]reward.Coupon
}

// Settlement is what was decided about a batch.
type Settlement struct {
	Refused SettleRefusal
	// Shut is RequestNotOpen or RequestClosed if the template is not open, otherwise
	// 0.
	Shut          RequestOutcome
	Was, Template reward.CouponTemplate // before and after
	Decisions     []Decision
}

// Decision is the decision about one request. Requests without a decision were
// settled before, or are behind a gap.
type Decision struct {
	At     int // the position of the request in the batch
	Ticket int64
	Reason string // why it was rejected; empty means issued. ReasonLeft: it is stored already
	Slot   int    // of the coupon
	// Held and Latest are the user's holding before the batch.
	Held   int
	Latest reward.CouponID
	// Code and HeldUntil of the coupon are filled in when it is stored.
	Code      string
	HeldUntil time.Time
}

// Settle decides a batch of requests of template t.
func (b *IssueBatch) Settle(t reward.CouponTemplate, f Facts) Settlement {
	s := Settlement{Refused: Refuse(&t, b), Was: t, Template: t}
	if s.Refused != NotRefused {
		return s
	}
	var due []int
	if s.Shut = Shut(&t, b, f.Clock); s.Shut == 0 {
		due = Due(&t, b, f.Known)
	}
	s.Template, s.Decisions = Issue(t, b, due, f.Left, f.Holdings)
	return s
}

// Assume decides a batch as if no user had a coupon, nothing of it was settled and the
// template was open. t may have moved on since it was read. It reports whether every request
// gets a coupon or is rejected for its own Reason: the settlement is then right if
// what it assumes is true, and if there is room for the coupons. With a limit above 1, it
// assumes nothing: users who ask again have a coupon.
func (b *IssueBatch) Assume(t reward.CouponTemplate) (Settlement, bool) {
	if b.Kind == SettleInOrder && len(b.Requests) > 0 {
		first := slices.MinFunc(b.Requests, func(x, y CouponRequest) int { return cmp.Compare(x.Ticket, y.Ticket) })
		t.Settled = max(first.Ticket-1, 0) // no gate gives ticket 0
	}
	s := b.Settle(t, Facts{Clock: t.OpensAt})
	return s, t.PerUserLimit == 1 && len(s.Decisions) > 0 && len(s.Decisions) == len(b.Requests) && !slices.ContainsFunc(s.Decisions, func(d Decision) bool {
		return d.Reason != b.Requests[d.At].Storable().Reason
	})
}

// Issue decides the due requests of a batch that template t does not refuse. It
// returns the template afterwards and the decisions, in order. left and holdings are those of
// Facts.
func Issue(t reward.CouponTemplate, b *IssueBatch, due []int, left map[int]bool, holdings map[string]Holding) (reward.CouponTemplate, []Decision) {
	direct := b.Kind == SettleDirect
	if direct {
		t.Fence = max(t.Fence, b.Fence)
	}
	version := t.Version + 1
	now := make(map[string]*Holding, len(holdings)) // after the decisions so far
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
		case left[at]:
			d.Reason = reward.ReasonLeft
		case r.Reason != "":
			d.Reason = r.Reason
		case len(h.Slots) >= t.PerUserLimit:
			d.Reason = reward.ReasonUserLimit
		case direct && t.Promised() > 0 && t.Live+t.Promised() >= t.LiveMax():
			d.Reason = reward.ReasonPromised
		case t.Live >= t.LiveMax():
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
			switch {
			case left[at]: // the leave used the place
			case !direct:
				t.Used = min(t.Used+1, t.Granted)
			case b.Path == reward.PathDatabase:
				t.Base = t.Generation
			}
		}
		decisions = append(decisions, d)
	}
	return t, decisions
}

// Coupon returns the coupon of template t that decision d issues. The code of a HELD one
// is left out: nobody sees it before it is confirmed.
func (b *IssueBatch) Coupon(t *reward.CouponTemplate, d Decision) reward.Coupon {
	r := &b.Requests[d.At]
	c := reward.Coupon{
		ID: r.CouponID, Code: cmp.Or(d.Code, r.Code), TemplateID: t.ID, UserID: r.UserID, Generation: r.Generation, Ticket: d.Ticket,
		IssuedAt: instant(b.Now),
	}
	if b.Kind == SettleDirect {
		c.Generation = t.Generation
	}
	if t.ValidFor > 0 {
		c.ExpiresAt = c.IssuedAt.Add(t.ValidFor)
	}
	if HoldLasts(t) > 0 {
		c.Code, c.Status, c.HeldUntil = "", reward.CouponHeld, d.HeldUntil
	}
	return c
}

// HoldLasts returns for how long a new coupon of template t is HELD, by the clock of the
// database. Zero means that it is ISSUED at once.
func HoldLasts(t *reward.CouponTemplate) time.Duration { return t.HoldFor }

// Unsettled returns the outcome of a request that has no decision.
func (s *Settlement) Unsettled(b *IssueBatch, r *CouponRequest) RequestOutcome {
	switch {
	case s.Shut != 0:
		return s.Shut
	case b.Kind == SettleInOrder && r.Ticket > s.Template.Settled:
		return RequestGap
	case b.Kind == SettleListed && r.Generation >= s.Was.Floor && r.Generation <= s.Was.Generation && neverGiven(&s.Was, s.Was.Settled, r.Ticket):
		return RequestNeverGiven
	}
	return RequestAlreadySettled
}
