// Package coupon issues a limited stock first come, first served: it asks the
// gate for admission, keeps the waiting line moving, issues in the order of
// tickets, cancels and issues again, and holds the gate to what the rows say.
//
// The gate promises, the rows are the truth. What holds, whatever dies when: no
// more coupons live than a template has, nobody has more than his limit, and
// in STREAM order of issue is order of tickets, without a hole. See the
// protocol in docs/coupons.md.
package coupon

import (
	"time"

	"github.com/largesse/largesse/internal/gate"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

// IssueCommand asks for a coupon. [IssueCouponCommand]
type IssueCommand struct {
	TemplateID reward.TemplateID
	UserID     string
}

// Status is where a request stands. [Result.Async, Result.Sync]
type Status struct {
	RequestID string
	Kind      StatusKind
	// Ticket, Rank (people in front) and Wait are of Waiting; Ticket is 0 before
	// a draw, and then there is no rank. Wait 0 = not measured yet.
	Ticket int64
	Rank   int64
	Wait   time.Duration
	Coupon reward.Coupon // of Issued
	Reason string        // of Rejected
	// Duplicate says that the request had been made before.
	Duplicate bool
}

// StatusKind is what has become of a request.
type StatusKind string

// The kinds.
const (
	StatusWaiting  StatusKind = "WAITING"
	StatusIssued   StatusKind = "ISSUED"
	StatusRejected StatusKind = "REJECTED"
)

func statusOf(o reward.IssueOutcome) Status {
	s := Status{RequestID: reward.RequestID(o.TemplateID, o.UserID), Kind: StatusIssued, Ticket: o.Ticket, Coupon: o.Coupon}
	if !o.Issued() {
		s.Kind, s.Reason = StatusRejected, o.Reason
	}
	return s
}

// unavailable says that something has to come back first.
func unavailable(err error, format string, args ...any) *reward.Error {
	e := reward.NewError(reward.KindUnavailable, reward.CodeUnavailable, format, args...)
	e.Err = err
	return e
}

// stateOf is a template as the gate has to know it.
func stateOf(t *reward.CouponTemplate) gate.State {
	return gate.State{
		Generation: t.Generation, Version: t.Version, Settled: t.Settled,
		Total: t.TotalQuantity, Live: t.Live, IssuedTotal: t.IssuedTotal, PerUserLimit: t.PerUserLimit,
		OpensAt: t.OpensAt, ClosesAt: t.ClosesAt, Mode: t.Mode,
	}
}

// settledUnder are the tickets of a generation that were settled.
func settledTickets(generation int64, list []store.SettledAsk) []gate.SettledTicket {
	var out []gate.SettledTicket
	for _, s := range list {
		if s.Generation == generation {
			out = append(out, gate.SettledTicket{UserID: s.UserID, Ticket: s.Ticket})
		}
	}
	return out
}

func holdingsOf(facts []store.CouponFact) []gate.Holding {
	out := make([]gate.Holding, len(facts))
	for i, f := range facts {
		out[i] = gate.Holding(f)
	}
	return out
}
