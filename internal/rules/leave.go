package rules

import "github.com/largesse/largesse/internal/reward"

// Leave is a request that leaves the waiting line, as the gate knows it.
type Leave struct {
	UserID string
	Ticket int64
	// Generation is that of the request; 0 = the gate has no request with the ticket.
	Generation int64
	// GateGeneration is that of the gate that was asked. An earlier gate may have given
	// the same ticket and lost it.
	GateGeneration int64
}

// LeaveOutcome is how a Leave ended.
type LeaveOutcome int8

// The outcomes.
const (
	// LeaveRefused: the template has another generation or path than the gate, or the
	// gate has lost the request. Nothing is known. In ModeSync nobody leaves: there is
	// no line, but for requests from before a change of the mode.
	LeaveRefused  LeaveOutcome = iota
	LeaveDone                  // the request has left the line
	LeaveRepeated              // it had left before
	LeaveServed                // it was settled before
)

// Apply decides whether a request leaves the line of template t, and changes t. settled
// reports whether the ticket and the generation of the request are stored, left whether
// they are stored with ReasonLeft.
//
// Its coupon can be promised to others at once: the leave counts the place as used. In ModeStream the ticket is
// settled in its turn, without a place; in ModeKafka no turn comes, so Settled is raised.
func (l *Leave) Apply(t *reward.CouponTemplate, settled, left bool) LeaveOutcome {
	kafka := t.Mode == reward.ModeKafka
	switch {
	case t.Generation != l.GateGeneration || t.Path != reward.PathGate || t.Mode == reward.ModeSync:
		return LeaveRefused
	case left:
		return LeaveRepeated
	case settled || !kafka && l.Ticket <= t.Settled:
		return LeaveServed
	case l.Generation == 0:
		return LeaveRefused
	}
	t.Version++
	t.Used = min(t.Used+1, t.Granted)
	if kafka {
		t.Settled = max(t.Settled, l.Ticket)
	}
	return LeaveDone
}
