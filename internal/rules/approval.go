package rules

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/largesse/largesse/internal/reward"
)

// ApprovalNeeded reports whether a promotion with the worth of all of its targets needs
// an approval before a target that is not approved may be dispatched: it is worth more
// than what was approved, and more than above or what its authors had left for the day;
// or such a target has no amount, so that nobody knows the worth. Zero means no limit.
//
// So the rows that were ever dispatched are never worth more than above or the largest
// approval: they existed when the latest of them was dispatched.
func ApprovalNeeded(p reward.Promotion, worth reward.Amount, above reward.Limits) bool {
	return worth > WorthMax(p, above)
}

// WorthMax is the worth up to which a promotion needs no approval; below 0, it always does.
func WorthMax(p reward.Promotion, above reward.Limits) reward.Amount {
	switch {
	case above.Of(p.Currency) <= 0:
		return unbounded
	case p.Approval.Unvalued > p.Approval.Rounds:
		return -1
	}
	return max(unapprovedMax(p, above), p.Approval.Amount)
}

func unapprovedMax(p reward.Promotion, above reward.Limits) reward.Amount {
	if p.Approval.Granted != nil {
		return min(above.Of(p.Currency), *p.Approval.Granted)
	}
	return above.Of(p.Currency)
}

// GrantsDay is for how long a grant counts against the amount per day of the authors.
const GrantsDay = 24 * time.Hour

// AsksForGrant reports whether a promotion that is to run needs, and can run with, a
// grant from the amount per day of its authors.
func AsksForGrant(p reward.Promotion, worth reward.Amount, above, perDay reward.Limits) bool {
	if limit := above.Of(p.Currency); limit <= 0 || worth > limit || worth <= p.Approval.Amount || p.Approval.Unvalued > p.Approval.Rounds {
		return false
	}
	if p.Approval.Granted == nil {
		return perDay.Of(p.Currency) > 0
	}
	return worth > *p.Approval.Granted
}

// NeedsGrants returns p as it starts to run: nothing is granted yet if it is limited
// per day, otherwise everything. It keeps what was granted before.
func NeedsGrants(p reward.Promotion, limited bool) reward.Promotion {
	if p.Approval.Granted == nil {
		p.Approval.Granted = new(reward.Amount(math.MaxInt64))
		if limited {
			*p.Approval.Granted = 0
		}
	}
	return p
}

// ApprovedLeft reports whether approved rows certainly wait: rows are QUEUED, which an
// approval covers, or more wait for a dispatch than are not approved.
func ApprovedLeft(p reward.Promotion, c reward.Counts) bool {
	return p.Approval.Rounds > 0 && (c.Payouts[reward.Queued] > 0 || c.Payouts[reward.Ready]+c.Payouts[reward.Retrying] > c.Total()-p.Approval.Count)
}

// MayBeStarved reports whether the rows of a RUNNING promotion that wait for a dispatch
// may all lack an approval. If there is an approval, the rows themselves say the rest.
func MayBeStarved(p reward.Promotion, c reward.Counts, above reward.Limits) bool {
	waiting := c.Payouts[reward.Ready]+c.Payouts[reward.Retrying] > 0
	return p.Status == reward.Running && waiting && ApprovalNeeded(p, c.AmountTotal(), above) && !ApprovedLeft(p, c)
}

// EndsAtOnce reports whether a promotion that starts or resumes would have Ended, and be
// paused again or never pay.
func EndsAtOnce(p reward.Promotion, c reward.Counts, now time.Time) bool {
	return Ended(&p, now) && (p.Status == reward.Draft || c.Undecided() > 0)
}

// MayRun reports whether a promotion may start or resume. Rows that are QUEUED are
// charged without another look at their approval, so one whose approval was withdrawn
// must not.
func MayRun(p reward.Promotion, c reward.Counts, above reward.Limits, now time.Time) bool {
	return !EndsAtOnce(p, c, now) && (above.Of(p.Currency) <= 0 || p.RejectedBy == "" && !StartsEarly(p, c, above, now) && (!ApprovalNeeded(p, c.AmountTotal(), above) || ApprovedLeft(p, c)))
}

// StartsEarly reports whether a DRAFT runs only with an approval, which is of a start
// at its later StartsAt.
func StartsEarly(p reward.Promotion, c reward.Counts, above reward.Limits, now time.Time) bool {
	return above.Of(p.Currency) > 0 && p.Status == reward.Draft && p.StartsAt.After(instant(now)) && (p.Approval.Unvalued > 0 || c.AmountTotal() > unapprovedMax(p, above))
}

// WhyApproval says why a promotion needs an approval, as the end of a sentence.
func WhyApproval(p reward.Promotion, c reward.Counts, above reward.Limits) string {
	limit, setting := above.Of(p.Currency), "approval.above"
	if _, own := above.OwnOf(p.Currency); own {
		setting = "approval.currencies"
	}
	worth := fmt.Sprintf("is worth %s, above %s (%s)", c.AmountTotal().In(p.Currency), limit.In(p.Currency), setting)
	switch {
	case p.Approval.Unvalued <= p.Approval.Rounds && c.AmountTotal() <= limit:
		worth = fmt.Sprintf("is worth %s, more than its authors have left for 24 hours (approval.above-per-day)", c.AmountTotal().In(p.Currency))
	case p.Approval.Unvalued > p.Approval.Rounds:
		worth = fmt.Sprintf("has vouchers without an amount, so that its worth is unknown (%s is %s)", setting, limit.In(p.Currency))
	}
	if p.Approval.Rounds > 0 {
		worth += fmt.Sprintf(", of which %d targets worth %s are approved", p.Approval.Count, p.Approval.Amount.In(p.Currency))
	}
	return worth
}

// Worth returns the sum of two amounts not below zero, or the largest amount.
func Worth(a, b reward.Amount) reward.Amount {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

// AmountOverflow returns the error of targets whose amounts would make the total of a
// promotion exceed 63 bits. No promotion means one of several.
func AmountOverflow[ID ~int64](promotions ...ID) error {
	of := "a promotion"
	if len(promotions) == 1 {
		of = fmt.Sprintf("promotion %d", promotions[0])
	}
	return reward.NewError(reward.KindInvalid, reward.CodeAmountOverflow,
		"the total amount of %s would exceed %d minor units: split the targets across promotions", of, int64(math.MaxInt64))
}

// AwaitsApproval reports whether a promotion waits until somebody approves it: it is
// DRAFT or PAUSED, it needs an approval of its targets, and nobody has rejected it.
func AwaitsApproval(p reward.Promotion, c reward.Counts, above reward.Limits) bool {
	return (p.Status == reward.Draft || p.Status == reward.Paused) && p.RejectedBy == "" && ApprovalNeeded(p, c.AmountTotal(), above)
}

// AskForApproval returns p after webhook endpoints heard that it waits for an approval. It
// is p itself if it does not, or if they have heard so since its latest change.
func AskForApproval(p reward.Promotion, c reward.Counts, above reward.Limits) reward.Promotion {
	if AwaitsApproval(p, c, above) {
		p.AskedRevision = p.Revision
	}
	return p
}

// Unapproved returns p after a change that no approval covers.
func Unapproved(p reward.Promotion) reward.Promotion {
	p.ApprovedBy = ""
	p.Approval.Rounds, p.Approval.Amount, p.Approval.Count = 0, 0, 0
	return p
}

// CheckApprover decides who may approve a promotion, or a quantity of coupons: nobody who is
// one of its authors. Otherwise it returns CodeSamePerson. persons are the names of the caller, see auth.Persons. did says what the authors did.
func CheckApprover(persons, authors []string, did string) error {
	for i, name := range persons {
		for _, author := range authors {
			if !strings.EqualFold(name, author) {
				continue
			}
			why := reward.Quote(author) + " " + did
			if i > 0 {
				why = fmt.Sprintf("the API key of %s was made by %s, and %s", reward.Quote(persons[0]), reward.Quote(author), why)
			}
			return reward.NewError(reward.KindConflict, reward.CodeSamePerson, "%s: ask another person to approve it", why)
		}
	}
	return nil
}

// Approve returns p after by, who has seen revision, has approved all of its targets.
// It fails with CodeIllegalState or CodePreconditionFailed.
func Approve(p reward.Promotion, c reward.Counts, by string, revision int64) (reward.Promotion, error) {
	switch {
	case !approvable(p.Status):
		return p, NotAllowed(p)
	case p.Revision != revision:
		return p, NotAsSeen(p.ID)
	}
	p.ApprovedBy, p.RejectedBy, p.RejectReason = by, "", ""
	p.Approval.Round++
	p.Approval.Rounds, p.Approval.Amount, p.Approval.Count = p.Approval.Round, c.AmountTotal(), c.Total()
	p.Revision++
	return p, nil
}

// Reject returns promotion p after by has rejected it. That withdraws an approval. A
// RUNNING promotion becomes PAUSED, and a DRAFT stays one.
func Reject(p reward.Promotion, by, reason, pauseReason string, now time.Time) (reward.Promotion, error) {
	if !approvable(p.Status) {
		return p, NotAllowed(p)
	}
	p = Unapproved(p)
	p.RejectedBy, p.RejectReason = by, reward.SanitizeText(reason)
	if p.Status != reward.Draft {
		p = paused(p, by, pauseReason, now)
	}
	p.Revision++
	return p, nil
}

func approvable(s reward.PromotionStatus) bool {
	return s == reward.Draft || s == reward.Running || s == reward.Paused
}

// NotAsSeen returns the error for an approval of a promotion that has changed.
func NotAsSeen(id reward.PromotionID) error {
	return reward.NewError(reward.KindPrecondition, reward.CodePreconditionFailed,
		"promotion %d has changed since you read it: read it again, and approve it if it is still right", id)
}
