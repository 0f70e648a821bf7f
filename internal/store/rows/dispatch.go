package rows

import (
	"cmp"
	"context"
	"errors"
	"math"
	"slices"
	"time"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
)

// Queueing says which due payouts become QUEUED. With Refs, these are the named ones by
// target, otherwise those in the state From, oldest first.
type Queueing struct {
	store.PayoutDispatchParams
	// Guards fail with ErrStale if what was decided does not hold any more. They come after
	// the lock of the counts.
	Guards []Statement
	Canary bool // the canary counts first dispatches
}

// asRead finds a row if each promotion of $1 is as a rule has read it, in all that batches of
// payouts depend on. What such batches change themselves is compared only if it is given.
var asRead = `SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM :promotions1 g LEFT JOIN promotions m ON m.id = g.id
WHERE (m.status, m.currency, m.max_amount, m.canary_targets, m.canary_judged, coalesce(g.canary_dispatched, m.canary_dispatched))
    IS DISTINCT FROM (g.status, g.currency, g.max_amount, g.canary_targets, g.canary_judged, m.canary_dispatched)
  OR (m.approval_round, m.approved_rounds, m.approved_amount, m.unvalued_rounds, m.day_granted, m.archived_at IS NULL, m.finished_at IS NULL)
    IS DISTINCT FROM (g.approval_round, g.approved_rounds, g.approved_amount, g.unvalued_rounds, g.day_granted, g.kept, g.open))`

// readColumns are the fields of readPromotion.
var readColumns = []string{
	"id bigint", "status text", "currency text", "max_amount bigint", "canary_targets bigint", "canary_judged boolean", "canary_dispatched bigint",
	"approval_round integer", "approved_rounds integer", "approved_amount bigint", "unvalued_rounds integer", "day_granted bigint", "kept boolean", "open boolean",
}

// readPromotion is what batches of payouts depend on.
type readPromotion struct {
	ID               reward.PromotionID     `json:"id"`
	Status           reward.PromotionStatus `json:"status"`
	Currency         string                 `json:"currency"`
	MaxAmount        reward.Amount          `json:"max_amount"`
	CanaryTargets    int64                  `json:"canary_targets"`
	CanaryJudged     bool                   `json:"canary_judged"`
	CanaryDispatched *int64                 `json:"canary_dispatched"`
	ApprovalRound    int32                  `json:"approval_round"`
	ApprovedRounds   int32                  `json:"approved_rounds"`
	ApprovedAmount   reward.Amount          `json:"approved_amount"`
	UnvaluedRounds   int32                  `json:"unvalued_rounds"`
	DayGranted       *reward.Amount         `json:"day_granted"`
	Kept             bool                   `json:"kept"` // not archived
	Open             bool                   `json:"open"` // not finished
}

func readOf(p *reward.Promotion) readPromotion {
	return readPromotion{
		ID: p.ID, Status: p.Status, Currency: p.Currency, MaxAmount: p.MaxAmount, CanaryTargets: p.Canary.Targets, CanaryJudged: p.Canary.Judged,
		ApprovalRound: p.Approval.Round, ApprovedRounds: p.Approval.Rounds, ApprovedAmount: p.Approval.Amount, UnvaluedRounds: p.Approval.Unvalued,
		DayGranted: p.Approval.Granted, Kept: p.ArchivedAt.IsZero(), Open: p.FinishedAt.IsZero(),
	}
}

func (t *Tables) guard(promotions ...readPromotion) Statement {
	return Statement{SQL: t.db.text(asRead), Args: []any{jsonOf(promotions)}, Must: true}
}

// Committed is what the promotion with the counts s has paid, may have paid, or has READY.
const Committed = `(` + spent + ` + s.ready_amount)`

// spent is rules.Spent without READY rows.
const spent = `s.succeeded_amount + s.queued_amount + s.retrying_amount + s.unknown_amount`

// withinBounds finds the counts of promotion $1 within rules.Bounds $2 and $3.
var withinBounds = `SELECT s.promotion_id FROM summaries s WHERE s.promotion_id = $1 AND s.summary_id = 0
  AND ` + Worth + ` <= $2 AND ` + Committed + ` <= $3`

func (t *Tables) within(id reward.PromotionID, b rules.Bounds) Statement {
	return Statement{SQL: t.db.text(withinBounds), Args: []any{int64(id), int64(b.Worth), int64(b.Committed)}, Must: true}
}

// PayoutDispatch moves due payouts of one RUNNING promotion to QUEUED before its EndsAt,
// each with the next dispatch number. It returns them as they are afterwards. It
// also updates the promotion's LastDispatchedAt and StreamDestroyed.
//
// It moves at most Limit rows, and at most MaxLen minus the rows that are
// QUEUED. rules.Allowance adds three bounds, approval, budget and canary, which
// hold at the commit of every transaction that queues rows. Rows that another
// transaction has locked are skipped.
//
// Rows are taken by DueAt, then target ID, or only by target ID if Refs is
// set. In PostgreSQL, after 10,000 dispatches of a promotion, a row that is saved
// later with an earlier DueAt may be taken up to 10 s late. No row after the first
// one that exceeds the budget is taken. If a late confirmation has already
// exceeded it, no row is dispatched, not even a RETRYING one. If other instances keep
// taking the rows of a promotion that is near one of these bounds, no row may be returned
// although some are due.
func (t *Tables) PayoutDispatch(ctx context.Context, p store.PayoutDispatchParams) (queued []reward.Payout, err error) {
	if p.From != reward.Ready && p.From != reward.Retrying {
		return nil, reward.NewError(reward.KindInvalid, reward.CodeInvalid, "payouts in state %s cannot be dispatched; use READY or RETRYING", p.From)
	}
	if p.Refs != nil {
		if p.Refs = ownRefs(p); len(p.Refs) == 0 {
			return nil, nil
		}
	}
	const what = "dispatch payouts"
	tries := 0
	err = whileStale(what, func() error {
		queued = nil
		found, err := list(ctx, t.db.Read, what, scanView, ViewsOf, []reward.PromotionID{p.PromotionID})
		if err != nil || len(found) == 0 || !rules.Runs(&found[0].Promotion, p.Now) {
			return err
		}
		v, read := &found[0], readOf(&found[0].Promotion)
		q := Queueing{PayoutDispatchParams: p}
		b := rules.BoundsOf(v.Promotion, p.ApprovalAbove, p.Now)
		within := t.within(v.ID, b)
		if !b.Hold(v.Counts) {
			read.CanaryDispatched, q.Canary = &v.Canary.Dispatched, rules.CanaryOpen(v.Promotion)
			if q.Refs, within, err = t.allowed(ctx, what, v, p); err != nil || len(q.Refs) == 0 {
				return err
			}
		}
		q.Guards = []Statement{t.guard(read), within}
		queued, err = t.payouts.Queue(ctx, what, q)
		if p.Refs == nil && q.Refs != nil {
			// If this fails often, others dispatch the promotion, and nothing waits.
			if tries++; tries == triesMax && errors.Is(err, ErrStale) {
				return nil
			} else if err == nil && len(queued) == 0 && tries < triesMax {
				return ErrStale
			}
		}
		return err
	})
	return queued, err
}

// triesMax limits how often a dispatch picks payouts that others take before it.
const triesMax = 5

// ownRefs returns the refs of one promotion, each once.
func ownRefs(p store.PayoutDispatchParams) []reward.Ref {
	own := slices.DeleteFunc(slices.Clone(p.Refs), func(r reward.Ref) bool { return r.PromotionID != p.PromotionID })
	slices.SortFunc(own, func(a, b reward.Ref) int {
		return cmp.Or(cmp.Compare(a.TargetID, b.TargetID), cmp.Compare(a.Dispatch, b.Dispatch))
	})
	return slices.Compact(own)
}

const (
	pickColumns = `p.target_id, p.amount, p.state, p.dispatch, p.maybe_called, p.approval_round, p.due_at`
	pickOldest  = ` ORDER BY p.due_at, p.target_id LIMIT `

	// pickReturned reads READY payouts of promotion $1 that were dispatched before.
	pickReturned = `SELECT ` + pickColumns + ` FROM :returned AND p.approval_round < $2` + pickOldest + `$3`

	// pickRetries reads RETRYING payouts of promotion $1 that are due at $4.
	pickRetries = `SELECT ` + pickColumns + ` FROM payouts p :by_open WHERE p.promotion_id = $1 AND p.state = 2 AND p.state < 4 AND p.due_at <= $4
  AND p.approval_round < $2` + pickOldest + `$3`
)

// pickFirst reads READY payouts of promotion $1 for their first dispatch, of rounds below $2,
// at most $3, the oldest first. Approved ones became due before the approval, so that
// pickApproved does not read those that are not.
var (
	pickFirst    = firstUntil(``)
	pickApproved = firstUntil(` AND p.due_at <= (SELECT m.approved_until FROM promotions m WHERE m.id = $1)`)
)

func firstUntil(where string) string {
	return `SELECT ` + pickColumns + ` FROM payouts p :by_open
WHERE p.promotion_id = $1 AND p.state = 0 AND p.state < 4 AND p.dispatch = 0 AND p.approval_round < $2` + where + pickOldest + `$3`
}

// forever is later than any payout is due.
var forever = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)

// DueUntil returns until when the payouts of a dispatch are due: READY ones always, even if
// another clock saved them later than Now.
func DueUntil(p store.PayoutDispatchParams) time.Time {
	if p.From == reward.Ready {
		return forever
	}
	return p.Now
}

// allowed returns the payouts that rules.Allowance lets through, and a guard of the counts:
// with these payouts, the promotion stays within its limits.
func (t *Tables) allowed(ctx context.Context, what string, v *store.PromotionView, p store.PayoutDispatchParams) ([]reward.Ref, Statement, error) {
	bounds := rules.Bounds{Worth: rules.WorthMax(v.Promotion, p.ApprovalAbove), Committed: math.MaxInt64}
	rounds := int32(math.MaxInt32)
	approvedOnly := rules.ApprovalNeeded(v.Promotion, v.Counts.AmountTotal(), p.ApprovalAbove)
	if approvedOnly {
		bounds.Worth, rounds = math.MaxInt64, v.Approval.Rounds
	}
	m := v.Promotion
	var flagged reward.Amount
	if m.MaxAmount > 0 && rules.Spent(v.Counts, v.Counts.Amounts[reward.Ready]) <= m.MaxAmount {
		bounds.Committed, m.MaxAmount = m.MaxAmount, 0 // it is enough for all
	} else if m.MaxAmount > 0 {
		var err error
		if flagged, err = one(ctx, t.db.Read, what, nil, scanOne[reward.Amount], flaggedSQL, int64(v.ID)); err != nil {
			return nil, Statement{}, err
		}
	}
	allowed := rules.Allow(m, v.Counts, flagged, approvedOnly, min(int64(p.Limit), int64(p.MaxLen)-v.Counts.Payouts[reward.Queued]), p.Now)
	if allowed.Capacity() == 0 || rounds == 0 {
		return nil, Statement{}, nil
	}
	candidates, err := t.due(ctx, what, p, allowed, rounds, approvedOnly)
	if err != nil {
		return nil, Statement{}, err
	}
	var refs []reward.Ref
	left := m.MaxAmount
	for _, r := range candidates {
		if allowed.Take(r) {
			refs = append(refs, reward.Ref{PromotionID: v.ID, TargetID: r.TargetID, Dispatch: r.Dispatch})
			left -= rules.Exposure(r)
		}
	}
	if m.MaxAmount == 0 {
		return refs, t.within(v.ID, bounds), nil
	}
	within := Statement{SQL: t.db.text(countsWithin), Args: []any{int64(v.ID), int64(left), int64(bounds.Worth)}, Must: true}
	return refs, within, nil
}

// due returns the payouts that a dispatch may take, in its order.
func (t *Tables) due(ctx context.Context, what string, p store.PayoutDispatchParams, allowed *rules.Allowance, rounds int32, approvedOnly bool) ([]rules.Row, error) {
	id := int64(p.PromotionID)
	var found []rules.Row
	if p.Refs != nil {
		ids := idsOf(p.Refs, func(r *reward.Ref) reward.Ref { return *r })
		all, _, err := t.payouts.RowsOf(ctx, what, ids)
		for i, r := range p.Refs {
			if row, ok := all[ids[i]]; ok && row.State == p.From && row.Dispatch == r.Dispatch && !row.DueAt.After(DueUntil(p)) {
				found = append(found, row)
			}
		}
		return found, err
	}
	read := into(&found, func(scan Scan, r *rules.Row) error {
		return scan((*int64)(&r.TargetID), (*int64)(&r.Amount), (*int16)(&r.State), &r.Dispatch, &r.MaybeCalled, &r.ApprovalRound, (*at)(&r.DueAt))
	})
	err := t.db.Snapshot(ctx, what, func() []Statement {
		found = nil
		if p.From == reward.Retrying {
			return []Statement{{SQL: pickRetries, Args: []any{id, rounds, allowed.Capacity(), p.Now}, Row: read}}
		}
		first := pickFirst
		if approvedOnly {
			first = pickApproved
		}
		return []Statement{
			{SQL: first, Args: []any{id, rounds, allowed.FirstCapacity()}, Row: read},
			{SQL: pickReturned, Args: []any{id, rounds, allowed.Capacity()}, Row: read},
		}
	})
	slices.SortFunc(found, func(a, b rules.Row) int {
		return cmp.Or(a.DueAt.Compare(b.DueAt), cmp.Compare(a.TargetID, b.TargetID))
	})
	return found, err
}
