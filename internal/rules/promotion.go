package rules

import (
	"slices"
	"time"

	"github.com/largesse/largesse/internal/reward"
)

// Move changes the status of a promotion; one that is not in from is CodeIllegalState.
// by is who pauses or cancels it, or "" for Largesse. It clears StreamDestroyed: a RUNNING
// promotion may get a stream before its first dispatch.
func Move(p reward.Promotion, from []reward.PromotionStatus, to reward.PromotionStatus, by, reason string, now time.Time,
) (reward.Promotion, error) {
	if !slices.Contains(from, p.Status) {
		return p, NotAllowed(p)
	}
	if p.Status == reward.Draft && to == reward.Running {
		p.StartedAt = instant(now)
	}
	p = unpaused(p)
	p.Status, p.FinishedAt = to, time.Time{}
	switch to {
	case reward.Running:
		p.StreamDestroyed = false
	case reward.Paused:
		p = paused(p, by, reason, now)
	case reward.PromotionCancelled:
		p.CancelledBy, p.CancelledAt = by, instant(now)
	case reward.Completed:
		p.FinishedAt = instant(now)
	}
	return p, nil
}

func paused(p reward.Promotion, by, reason string, now time.Time) reward.Promotion {
	p.Status, p.PausedBy, p.PauseReason, p.PausedAt = reward.Paused, by, reward.SanitizeText(reason), instant(now)
	return p
}

func unpaused(p reward.Promotion) reward.Promotion {
	p.PausedBy, p.PauseReason, p.PausedAt = "", "", time.Time{}
	return p
}

// Ended reports whether the EndsAt of a promotion has come.
func Ended(p *reward.Promotion, now time.Time) bool {
	return !p.EndsAt.IsZero() && !now.Before(p.EndsAt)
}

// Runs reports whether payouts of a promotion may be dispatched.
func Runs(p *reward.Promotion, now time.Time) bool {
	return p.Status == reward.Running && !Ended(p, now)
}

// End pauses a RUNNING promotion that has Ended and has payouts left, and reports whether
// it did. While payouts are QUEUED alone, it waits: those whose charge is in flight may be
// the last ones, and the consumers return the others to READY.
func End(p reward.Promotion, c reward.Counts, now time.Time) (reward.Promotion, bool) {
	if p.Status != reward.Running || !Ended(&p, now) || c.Payouts[reward.Ready]+c.Payouts[reward.Retrying] == 0 {
		return p, false
	}
	return paused(p, "", "ended at "+shownTime(p.EndsAt)+": to pay the others, set a later endsAt, or none, and resume it", now), true
}

// CheckEnd returns the error of a promotion that would end before it starts, or nil.
func CheckEnd(startsAt, endsAt time.Time) []reward.FieldError {
	if startsAt.IsZero() || endsAt.IsZero() || endsAt.After(startsAt) {
		return nil
	}
	return []reward.FieldError{{Field: "endsAt", Detail: "must be after startsAt, " + shownTime(startsAt)}}
}

func shownTime(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// NotAllowed returns the error for a status that does not allow a change.
func NotAllowed(p reward.Promotion) error {
	return reward.NewError(reward.KindConflict, reward.CodeIllegalState,
		"promotion %d is %s, which does not allow this", p.ID, p.Status)
}

// Reopen returns a promotion that had ended and has work again: a COMPLETED one is RUNNING,
// and a CANCELLED one needs another cancel step.
func Reopen(p reward.Promotion) reward.Promotion {
	p.FinishedAt = time.Time{}
	if p.Status == reward.Completed {
		p.Status, p.StreamDestroyed = reward.Running, false
	}
	return p
}

// Blockers are what keeps a promotion from its end, in addition to its counts.
type Blockers struct {
	// Uploads reports whether an upload has a valid lease. A RUNNING promotion may
	// then get more targets.
	Uploads bool
	// Lookups reports whether a row is UNKNOWN, and no lookup of it that began at
	// SettleFrom + settleAfter or later was inconclusive. A CANCELLED promotion waits for
	// these lookups, because "not found" would decide the row.
	Lookups bool
}

// Complete ends a promotion without READY, QUEUED and RETRYING rows, and reports
// whether it did. A RUNNING one becomes COMPLETED if no upload is open, and its
// expected count (if any) is reached or it is closed. A CANCELLED one gets its
// FinishedAt.
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

// Judge ends the canary of a RUNNING promotion if it is decided, and reports whether it
// did. A bad one pauses the promotion. It counts as judged too, so a resume pays the
// others.
func Judge(p reward.Promotion, c reward.Counts, reason string, now time.Time) (reward.Promotion, bool) {
	if p.Status != reward.Running || !CanaryDecided(p, c) {
		return p, false
	}
	p.Canary.Judged = true
	if !CanaryGood(p, c) {
		p = paused(p, "", reason, now)
	}
	return p, true
}

// CanaryDecided reports whether Targets payouts are dispatched, and SUCCEEDED or
// FAILED.
func CanaryDecided(p reward.Promotion, c reward.Counts) bool {
	open := c.Payouts[reward.Queued] + c.Payouts[reward.Retrying] + c.Payouts[reward.Unknown]
	decided := c.Payouts[reward.Succeeded] + c.Payouts[reward.Failed]
	return CanaryOpen(p) && p.Canary.Dispatched > 0 && open == 0 && decided >= p.Canary.Dispatched &&
		p.Canary.Dispatched >= p.Canary.Targets
}

// CanaryGood reports whether few enough payouts of a decided canary FAILED.
func CanaryGood(p reward.Promotion, c reward.Counts) bool {
	failed := c.Payouts[reward.Failed]
	decided := c.Payouts[reward.Succeeded] + failed
	return float64(failed)/float64(decided) <= p.Canary.MaxFailureRate
}
