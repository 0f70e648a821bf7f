package rules

import (
	"slices"
	"time"

	"github.com/largesse/largesse/internal/reward"
)

// Move changes the status of a promotion, expecting one of from;
// CodeIllegalState otherwise. DRAFT → RUNNING sets StartedAt. A promotion that
// is RUNNING may get a stream, even before its first dispatch, so its stream
// does not count as destroyed. Leaving PAUSED clears the reason.
func Move(p reward.Promotion, from []reward.PromotionStatus, to reward.PromotionStatus, reason string, now time.Time,
) (reward.Promotion, error) {
	if !slices.Contains(from, p.Status) {
		return p, NotAllowed(p)
	}
	if p.Status == reward.Draft && to == reward.Running {
		p.StartedAt = instant(now)
	}
	p.Status, p.PauseReason, p.FinishedAt = to, "", time.Time{}
	switch to {
	case reward.Running:
		p.StreamDestroyed = false
	case reward.Paused:
		p.PauseReason = reward.SanitizeText(reason)
	case reward.Completed:
		p.FinishedAt = instant(now)
	}
	return p, nil
}

// NotAllowed is the error of a promotion whose status does not allow a change.
func NotAllowed(p reward.Promotion) error {
	return reward.NewError(reward.KindConflict, reward.CodeIllegalState,
		"promotion %d is %s, which does not allow this", p.ID, p.Status)
}

// Reopen makes a COMPLETED promotion that has got work RUNNING again.
func Reopen(p reward.Promotion) reward.Promotion {
	if p.Status == reward.Completed {
		p.Status, p.FinishedAt, p.StreamDestroyed = reward.Running, time.Time{}, false
	}
	return p
}

// Blockers are what, beside the counts, keeps a promotion from its end.
type Blockers struct {
	// Uploads reports whether the lease of an upload is alive: a RUNNING
	// promotion may get more targets.
	Uploads bool
	// Lookups reports whether an UNKNOWN row has yet to be looked up with a
	// lookup that begins at SettleFrom + SettleAfter or later, see LookupDone. A
	// CANCELLED promotion waits for that: a "not found" would decide the row.
	Lookups bool
}

// Complete ends a promotion that has nothing left to do, and reports whether it
// did. A RUNNING promotion becomes COMPLETED when nothing is READY, QUEUED or
// RETRYING, no upload is open, and the expected count (if any) is reached or
// the promotion is closed. A CANCELLED one gets its FinishedAt once nothing is
// READY, QUEUED or RETRYING and no lookup is due.
func Complete(p reward.Promotion, c reward.Counts, b Blockers, now time.Time) (reward.Promotion, bool) {
	if c.Undecided() > 0 {
		return p, false
	}
	switch {
	case p.Status == reward.Running:
		if b.Uploads || p.ExpectedCount != nil && !p.Closed && c.Total() < *p.ExpectedCount {
			return p, false
		}
		p.Status = reward.Completed
	case p.Status == reward.PromotionCancelled && p.FinishedAt.IsZero():
		if b.Lookups {
			return p, false
		}
	default:
		return p, false
	}
	p.FinishedAt = instant(now)
	return p, true
}

// LookupDone reports whether an UNKNOWN row no longer blocks the end of its
// promotion: a lookup that would have decided it had no answer.
func LookupDone(r Row, settleAfter time.Duration) bool {
	return r.State != reward.Unknown || !r.LookedAt.IsZero() && !r.LookedAt.Before(r.SettleFrom.Add(settleAfter))
}

// Judge ends the canary of a RUNNING promotion once it is decided, and reports
// whether it did. A good canary lets the other targets follow; a bad one pauses
// the promotion with reason, and counts as judged too, so that a resume goes on
// with the others.
func Judge(p reward.Promotion, c reward.Counts, reason string) (reward.Promotion, bool) {
	if p.Status != reward.Running || !CanaryDecided(p, c) {
		return p, false
	}
	p.Canary.Judged = true
	if !CanaryGood(p, c) {
		p.Status, p.PauseReason = reward.Paused, reward.SanitizeText(reason)
	}
	return p, true
}

// CanaryDecided reports whether a canary can be judged: as many payouts as it
// asks for were dispatched, and none of them is open.
func CanaryDecided(p reward.Promotion, c reward.Counts) bool {
	open := c.Payouts[reward.Queued] + c.Payouts[reward.Retrying] + c.Payouts[reward.Unknown]
	decided := c.Payouts[reward.Succeeded] + c.Payouts[reward.Failed]
	return CanaryOpen(p) && p.Canary.Dispatched > 0 && open == 0 && decided >= p.Canary.Dispatched &&
		p.Canary.Dispatched >= p.Canary.Targets
}

// CanaryGood reports whether a canary that is decided lets the other targets
// follow: the share of FAILED payouts is at most MaxFailureRate.
func CanaryGood(p reward.Promotion, c reward.Counts) bool {
	failed := c.Payouts[reward.Failed]
	decided := c.Payouts[reward.Succeeded] + failed
	return float64(failed)/float64(decided) <= p.Canary.MaxFailureRate
}
