// Package coupon issues a limited quantity of coupons, first come, first served.
// It admits requests at the gate, issues coupons in ticket order, cancels coupons,
// and repairs the gate when it differs from the rows.
//
// The gate admits requests before their coupons exist; the rows are the source of
// truth. Three statements hold after any crash. A template never has more live
// coupons than its quantity. A user never has more coupons than the limit per user.
// In STREAM mode, requests are settled in the order of tickets, without a gap.
// docs/coupons.md describes the protocol.
package coupon

import (
	"context"
	"time"

	"github.com/largesse/largesse/internal/gate"
	"github.com/largesse/largesse/internal/gatekeeper"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/service"
)

// IssueCommand requests a coupon of a template for a user.
type IssueCommand struct {
	TemplateID reward.TemplateID
	UserID     string
}

// Status is the status of a request.
type Status struct {
	RequestID string
	Kind      StatusKind
	// Ticket, Rank (requests ahead) and Wait belong to StatusWaiting. Ticket is 0
	// before a draw; Rank then means nothing. Wait is an estimate, and above 0.
	Ticket int64
	Rank   int64
	Wait   time.Duration
	// Generation is that of the gate that the request waits at, or that it was settled in.
	// Tickets of different generations may have different numberings.
	Generation int64
	Coupon     reward.Coupon // set for StatusIssued
	Reason     string        // set for StatusRejected
	// Duplicate reports whether the request had been made before.
	Duplicate bool
}

// settles reports whether an outcome can be that of a request with the status since. If
// not, it belongs to an earlier request of the user.
func (s Status) settles(since Status) bool {
	return s.Ticket >= since.Ticket || s.Generation > since.Generation
}

// StatusKind says what has become of a request. The empty kind means that no request
// is known.
type StatusKind string

// The kinds of status.
const (
	StatusWaiting  StatusKind = "WAITING"
	StatusIssued   StatusKind = "ISSUED"
	StatusRejected StatusKind = "REJECTED"
	StatusLeft     StatusKind = "LEFT" // the user left the waiting line
)

// StatusOf returns the status of a request with an outcome.
func StatusOf(o reward.IssueOutcome) Status {
	s := Status{RequestID: reward.RequestID(o.TemplateID, o.UserID), Kind: StatusIssued, Ticket: o.Ticket, Generation: o.Generation, Coupon: o.Coupon}
	switch {
	case o.Left():
		s.Kind = StatusLeft
	case !o.Issued():
		s.Kind, s.Reason = StatusRejected, o.Reason
	}
	return s
}

// unavailable returns a CodeUnavailable error caused by err, which may be nil.
func unavailable(err error, format string, args ...any) *reward.Error {
	e := reward.NewError(reward.KindUnavailable, reward.CodeUnavailable, format, args...)
	e.Err = err
	return e
}

// newAsk returns a request to settle, with the ID and code of a new coupon of a
// template. A request without a ticket (see rules.SettleDirect) has generation 0 and
// ticket 0.
func newAsk(ids *service.IDs, t *reward.CouponTemplate, user string, generation, ticket int64) rules.CouponRequest {
	return rules.CouponRequest{
		UserID: user, Generation: generation, Ticket: ticket,
		CouponID: reward.CouponID(ids.Next()), Code: t.Codes.NewCode(),
	}
}

func checkArchived(t *reward.CouponTemplate) error {
	return rules.CheckTemplateArchived(t.ID, !t.ArchivedAt.IsZero())
}

// isGone reports whether a template has closed and its gate is removed. Nobody waits
// then, nobody is admitted any more, and the rows know every outcome: the gate need not
// be loaded again.
func isGone(ctx context.Context, g gate.Gate, t *reward.CouponTemplate) bool {
	if !gatekeeper.IsClosed(t) {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, gatekeeper.GateTimeout)
	defer cancel()
	h, err := gatekeeper.HeaderOf(ctx, g, t.ID)
	return err == nil && !h.Exists
}
