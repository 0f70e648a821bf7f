package rows

import (
	"context"
	"encoding/json"
	"maps"
	"strings"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
)

const (
	addAuthor   = `INSERT INTO promotion_authors (promotion_id, author) VALUES ($1, $2) ON CONFLICT DO NOTHING`
	listAuthors = `SELECT author FROM promotion_authors WHERE promotion_id = $1`
)

// PromotionAuthorAdd records who changes a promotion or adds targets to it, before
// they do so. It ends a rejection, and increases the revision. An unknown promotion
// is no error: it may be created later.
func (t *Tables) PromotionAuthorAdd(ctx context.Context, id reward.PromotionID, author string) error {
	if err := store.CheckText("author", author); err != nil {
		return err
	}
	return t.db.Write(ctx, "record an author", func() []Statement { return authored(id, author) })
}

// authored returns the statements that record an author before a change. They
// return nothing if there is no author.
func authored(id reward.PromotionID, author string) []Statement {
	if author == "" {
		return nil
	}
	return []Statement{
		{SQL: addAuthor, Args: []any{int64(id), author}},
		{SQL: `UPDATE promotions SET revision = revision + 1, rejected_by = '', reject_reason = '',
  day_granted = coalesce(day_granted, CASE WHEN status <> 'DRAFT' THEN 0 END) WHERE id = $1`, Args: []any{int64(id)}},
	}
}

// lockGrants has grants decided one after the other, so that each sees those before it.
const lockGrants = `INSERT INTO leases (name, owner, until) VALUES ('approval.above-per-day', '', $1)
ON CONFLICT (name) DO UPDATE SET until = excluded.until`

// Limits returns limits as a parameter of Limit: an object of JSON with those of the
// currencies by code, and that of all others as "*".
func Limits(l reward.Limits) string {
	all := map[string]reward.Amount{"*": l.Default}
	maps.Copy(all, l.Own)
	text, _ := json.Marshal(all) // a map of numbers never fails
	return string(text)
}

// Limit returns the limit of a currency, as SQL, from a parameter of Limits. It is
// Limits.Of of package reward. SQLite finds nothing by an empty text.
func (d Dialect) Limit(param, currency string) string {
	param += d.JSON
	return `CAST(coalesce(` + param + ` ->> ` + currencyOf(currency) + `, ` + param + ` ->> '*') AS bigint)`
}

// currencyOf returns the currency of a column, as SQL: an empty one is that of points.
func currencyOf(column string) string {
	return `coalesce(nullif(` + column + `, ''), '` + reward.NoCurrency + `')`
}

// grantDay grants promotion $1 its worth if that, and the grants since $4 to the other
// promotions of its authors, are at most the limit of its currency in $2. It grants
// everything if there is no limit. A promotion without an author needs no grant.
var grantDay = `WITH q AS MATERIALIZED (
  SELECT p.*, p.per_day <= 0 AS free, coalesce(p.day_granted < p.worth, true) AS asks,
    NOT EXISTS (SELECT 1 FROM promotion_authors a WHERE a.promotion_id = p.id) AS nobody,
    p.worth <= p.per_day - (SELECT coalesce(sum(o.day_granted), 0) FROM promotions o
      WHERE o.day_granted_at > $4 AND o.id <> p.id AND ` + currencyOf(`o.currency`) + ` = ` + currencyOf(`p.currency`) + ` AND EXISTS (
        SELECT 1 FROM promotion_authors a JOIN promotion_authors b ON b.promotion_id = o.id AND lower(b.author) = lower(a.author)
        WHERE a.promotion_id = p.id)) AS fits
  FROM (SELECT m.id, m.currency, m.day_granted, m.day_granted_at, :limit2 AS per_day, ` + Worth + ` AS worth
    FROM promotions m JOIN summaries s ON s.promotion_id = m.id AND s.summary_id = 0 WHERE m.id = $1) p
), g AS MATERIALIZED (
  SELECT id, currency, CASE WHEN nobody THEN NULL WHEN free THEN 9223372036854775807 WHEN asks AND fits THEN worth ELSE coalesce(day_granted, 0) END AS granted,
    CASE WHEN nobody OR free THEN NULL WHEN asks AND fits THEN $3 ELSE day_granted_at END AS at
  FROM q
)
UPDATE promotions AS m SET day_granted = g.granted, day_granted_at = g.at
FROM g WHERE m.id = g.id AND m.currency = g.currency AND m.day_granted IS DISTINCT FROM g.granted`

var isGranted = `SELECT coalesce(m.day_granted >= ` + Worth + `, true)
FROM promotions m JOIN summaries s ON s.promotion_id = m.id AND s.summary_id = 0 WHERE m.id = $1`

// PromotionGrant grants a promotion its worth from the amount per day of its authors,
// and reports whether it has it then. That is so if the worth and the grants of the last
// rules.GrantsDay to other promotions in its currency, with one of the same authors, are
// at most PerDay. Names are compared without the case of their ASCII letters. A
// promotion without an author needs no grant.
func (t *Tables) PromotionGrant(ctx context.Context, p store.PromotionGrantParams) (granted bool, err error) {
	err = t.db.Write(ctx, "grant a promotion its worth", func() []Statement {
		granted = false
		return []Statement{
			{SQL: lockGrants, Args: []any{p.Now}},
			{SQL: grantDay, Args: []any{int64(p.ID), Limits(p.PerDay), p.Now, p.Now.Add(-rules.GrantsDay)}},
			{SQL: isGranted, Args: []any{int64(p.ID)}, Row: func(scan Scan) error { return scan(&granted) }},
		}
	})
	return granted && err == nil, err
}

// PromotionAuthors returns everybody who created or changed a promotion with this
// ID, or added targets to it, also before it was deleted and created again.
func (t *Tables) PromotionAuthors(ctx context.Context, id reward.PromotionID) ([]string, error) {
	return texts(ctx, t.db.Read, "list the authors of a promotion", listAuthors, int64(id))
}

// payoutCount is the number of the payouts that the summary row s counts.
var payoutCount = "(s." + strings.Join(CountColumns[:], " + s.") + ")"

var (
	// sameWorth finds the counts of promotion $1 if it has $2 payouts worth $3.
	sameWorth = `SELECT s.promotion_id FROM summaries s WHERE s.promotion_id = $1 AND s.summary_id = 0 AND ` + payoutCount + ` = $2 AND ` + Worth + ` = $3`

	// approveAll makes the approval of promotion $1 be of the payouts that exist. The lock of
	// the counts is held.
	approveAll = `UPDATE promotions SET
  approved_amount = (SELECT ` + Worth + ` FROM summaries s WHERE s.promotion_id = $1 AND s.summary_id = 0),
  approved_count = (SELECT ` + payoutCount + ` FROM summaries s WHERE s.promotion_id = $1 AND s.summary_id = 0),
  approved_until = (SELECT max(p.due_at) FROM payouts p WHERE p.promotion_id = $1 AND p.state = 0 AND p.state < 4)
WHERE id = $1`
)

// PromotionApprove approves all targets that a DRAFT, RUNNING or PAUSED promotion
// has, replaces an earlier approval and ends a rejection. It decides under the
// lock of the counts. Another status is CodeIllegalState, and a promotion that is
// not as the caller has seen it is CodePreconditionFailed. A name that the database
// cannot store is CodeInvalid.
//
// Targets that are saved after it was read, and before its counts are locked, are approved
// too, unless the caller has seen others: an approval that expected the targets of its
// read would never get its turn during an upload.
func (t *Tables) PromotionApprove(ctx context.Context, p store.PromotionApproveParams) (store.PromotionView, error) {
	if err := store.CheckText("approver", p.By); err != nil {
		return store.PromotionView{}, err
	}
	v, _, err := t.changePromotion(ctx, "approve a promotion", p.ID, func(v store.PromotionView) (promotionChange, error) {
		next, err := rules.Approve(v.Promotion, v.Counts, p.By, p.Revision)
		c := promotionChange{next: next, underLock: true, then: []Statement{{SQL: approveAll, Args: []any{int64(p.ID)}}}}
		if p.Seen != nil && err == nil {
			c.counts = &Statement{SQL: sameWorth, Args: []any{int64(p.ID), p.Seen.Count, int64(p.Seen.Amount)}, Must: true}
			if p.Seen.Count != next.Approval.Count || p.Seen.Amount != next.Approval.Amount {
				err = rules.NotAsSeen(p.ID)
			}
		}
		return c, err
	})
	return v, err
}

// PromotionReject withdraws an approval and records who rejected the promotion,
// and why. A RUNNING promotion becomes PAUSED. Only a DRAFT, RUNNING or PAUSED one
// can be rejected; another status is CodeIllegalState.
func (t *Tables) PromotionReject(ctx context.Context, p store.PromotionRejectParams) (reward.Promotion, error) {
	if err := store.CheckText("person who rejects", p.By); err != nil {
		return reward.Promotion{}, err
	}
	v, _, err := t.changePromotion(ctx, "reject a promotion", p.ID, func(v store.PromotionView) (promotionChange, error) {
		next, err := rules.Reject(v.Promotion, p.By, p.Reason, p.PauseReason, p.Now)
		return promotionChange{next: next}, err
	})
	return v.Promotion, err
}

// approvedLeft finds a READY or RETRYING row of promotion $1 that is approved.
const approvedLeft = `SELECT 1 FROM promotions m WHERE m.id = $1 AND (EXISTS (
  SELECT 1 FROM payouts p :by_open WHERE p.promotion_id = $1 AND p.state = 0 AND p.state < 4
    AND p.dispatch = 0 AND p.due_at <= m.approved_until AND p.approval_round < m.approved_rounds)
OR EXISTS (SELECT 1 FROM :returned AND p.approval_round < m.approved_rounds)
OR EXISTS (SELECT 1 FROM payouts p :by_open WHERE p.promotion_id = $1 AND p.state = 2 AND p.state < 4
    AND p.approval_round < m.approved_rounds))`

// PromotionAwaitApproval pauses a RUNNING promotion that needs an approval
// (rules.ApprovalNeeded) and has no approved target left to dispatch, and reports
// whether it did.
//
// It compares no counts: an approval changes the row of the promotion, and without one
// nothing that is approved can be added but by a retry, which comes a moment later then.
func (t *Tables) PromotionAwaitApproval(ctx context.Context, p store.PromotionAwaitApprovalParams) (bool, error) {
	const what = "pause a promotion for its approval"
	_, paused, err := t.changePromotion(ctx, what, p.ID, func(v store.PromotionView) (promotionChange, error) {
		c := promotionChange{next: v.Promotion, event: p.Event, at: p.Now}
		if !rules.MayBeStarved(v.Promotion, v.Counts, p.ApprovalAbove) {
			return c, nil
		}
		if v.Approval.Rounds > 0 {
			if left, err := t.found(ctx, what, approvedLeft, int64(p.ID)); err != nil || left {
				return c, err
			}
		}
		var err error
		c.next, err = rules.Move(v.Promotion, []reward.PromotionStatus{reward.Running}, reward.Paused, "", p.Reason, p.Now)
		c.next.AskedRevision = c.next.Revision
		return c, err
	})
	if reward.HasCode(err, reward.CodeNotFound) {
		err = nil
	}
	return paused, err
}

// PromotionAskApproval records the event that a DRAFT or PAUSED promotion waits for an
// approval (rules.AwaitsApproval), and reports whether it did. It comes once for each
// revision: further calls, also of instances that ask at the same time, record nothing.
func (t *Tables) PromotionAskApproval(ctx context.Context, id reward.PromotionID, above reward.Limits) (bool, error) {
	_, asked, err := t.changePromotion(ctx, "ask for an approval", id, func(v store.PromotionView) (promotionChange, error) {
		return promotionChange{next: rules.AskForApproval(v.Promotion, v.Counts, above), event: store.EventApproval}, nil
	})
	return asked, err
}
