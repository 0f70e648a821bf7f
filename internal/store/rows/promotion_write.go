package rows

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

// promotionChange is what a rule makes of a promotion. It is written in one transaction, if
// the promotion is still as the rule read it.
type promotionChange struct {
	next   reward.Promotion
	author string // becomes one; empty: nobody
	// event is recorded for webhooks with the time at; empty: none.
	event string
	at    time.Time
	// underLock has the counts locked before anything else. counts is a statement about
	// them with Must, which follows; nil: none. then follows the write.
	underLock bool
	counts    *Statement
	then      []Statement
}

// changePromotion reads a promotion, lets a rule decide, and writes the result. It reads
// again what has changed meanwhile. It returns the promotion afterwards, and whether the
// rule changed it.
//
// No lock is held while the rule decides. If the process dies, the change is written with
// its events and authors, or none of it.
func (t *Tables) changePromotion(ctx context.Context, what string, id reward.PromotionID,
	rule func(v store.PromotionView) (promotionChange, error),
) (v store.PromotionView, changed bool, err error) {
	err = whileStale(what, func() error {
		changed = false
		if v, err = t.promotion(ctx, what, id); err != nil {
			return err
		}
		c, err := rule(v)
		if err != nil || c.next == v.Promotion {
			return err
		}
		changed = true
		v, err = t.writePromotion(ctx, what, &v.Promotion, c)
		return err
	})
	if err != nil {
		return store.PromotionView{}, false, err
	}
	return v, changed, nil
}

// whileStale calls try until it does not fail with ErrStale.
func whileStale(what string, try func() error) error {
	return reread(what, func() (done bool, err error) {
		err = try()
		if errors.Is(err, ErrStale) {
			return false, nil
		}
		return true, err
	})
}

// writePromotion inserts the promotion of a change, or writes it if the stored one is still
// as it was. It returns the promotion as it is stored then.
func (t *Tables) writePromotion(ctx context.Context, what string, was *reward.Promotion, c promotionChange) (v store.PromotionView, err error) {
	id := int64(c.next.ID)
	err = t.db.Write(ctx, what, func() []Statement {
		v = store.PromotionView{}
		var all []Statement
		if c.underLock {
			all = append(all, Statement{SQL: lockCounts, Args: []any{id}})
		}
		if c.counts != nil {
			all = append(all, *c.counts)
		}
		if was == nil {
			all = append(all, insertion(&c.next, true)...)
		} else {
			all = append(all, update(was, &c.next)...)
		}
		if c.author != "" {
			all = append(all, Statement{SQL: addAuthor, Args: []any{id, c.author}})
		}
		all = append(append(all, t.events(was, &c)...), c.then...)
		return append(all, Statement{SQL: promotionSQL, Args: []any{id}, Row: func(scan Scan) error { return scanDetails(scan, &v) }})
	})
	return v, err
}

// ruledColumns are the columns of promotions that rules change, in the order of ruled. A
// write compares each of them with what the rule read, so that it undoes no other change.
//
// What batches of payouts change is not among them, because a writer that compared it would
// wait for a pause of the payouts: last_dispatched_at, which no rule reads, and
// canary_dispatched, which only Judge reads, when it cannot change any more.
var ruledColumns = strings.Fields(`name status amount voucher_code currency max_retries consumers_per_instance rate_per_second weight
max_amount canary_targets canary_max_failure_rate canary_judged starts_at webhook_url created_by approved_by approval_round
approved_rounds approved_amount approved_count day_granted rejected_by reject_reason revision asked_revision registered expected_count closed
paused_by pause_reason started_at finished_at stream_gone version ends_at paused_at cancelled_by cancelled_at`)

// ruled returns the values of ruledColumns.
func ruled(p *reward.Promotion) []any {
	return []any{
		p.Name, string(p.Status), int64(p.Amount), p.VoucherCode, p.Currency, p.MaxRetries, p.ConsumersPerInstance, p.RatePerSecond, p.Weight,
		int64(p.MaxAmount), p.Canary.Targets, p.Canary.MaxFailureRate, p.Canary.Judged, orNull(p.StartsAt), p.WebhookURL, p.CreatedBy, p.ApprovedBy, p.Approval.Round,
		p.Approval.Rounds, int64(p.Approval.Amount), p.Approval.Count, (*int64)(p.Approval.Granted), p.RejectedBy, p.RejectReason, p.Revision, p.AskedRevision, p.Registered, p.ExpectedCount, p.Closed,
		p.PausedBy, p.PauseReason, orNull(p.StartedAt), orNull(p.FinishedAt), p.StreamDestroyed, p.Version,
		orNull(p.EndsAt), orNull(p.PausedAt), p.CancelledBy, orNull(p.CancelledAt),
	}
}

var (
	// updatePromotion writes what a rule made of promotion $1, if that is as it was. Rules
	// do not change when it was created, which tells it from a later one with its ID, nor
	// which rounds have targets without an amount.
	updatePromotion = func() string {
		var sets, same []string
		for i, column := range ruledColumns {
			sets = append(sets, column+" = $"+strconv.Itoa(2+i))
		}
		for i, column := range slices.Concat(ruledColumns, []string{"created_at", "unvalued_rounds"}) {
			same = append(same, column+" IS NOT DISTINCT FROM $"+strconv.Itoa(2+len(ruledColumns)+i))
		}
		return "UPDATE promotions SET " + strings.Join(sets, ", ") + "\nWHERE id = $1 AND " + strings.Join(same, " AND ") + " RETURNING id"
	}()

	insertPromotion = func() string {
		columns := slices.Concat([]string{"id", "type", "created_at"}, ruledColumns)
		params := make([]string, len(columns))
		for i := range params {
			params[i] = "$" + strconv.Itoa(1+i)
		}
		return "INSERT INTO promotions (" + strings.Join(columns, ", ") + ")\nVALUES (" + strings.Join(params, ", ") + ") ON CONFLICT DO NOTHING RETURNING id"
	}()
)

const (
	// describePromotion writes what is only shown and searched. The version changes with it.
	describePromotion = `UPDATE promotions SET metadata = $2, search = $3, notes = $4 WHERE id = $1`

	insertCounts = `INSERT INTO summaries (promotion_id, summary_id) VALUES ($1, 0) ON CONFLICT DO NOTHING`
	lockCounts   = `SELECT promotion_id FROM summaries WHERE promotion_id = $1 AND summary_id = 0 :lock_row`
)

// update returns the statements that write next if the stored promotion is as it was.
func update(was, next *reward.Promotion) []Statement {
	args := slices.Concat([]any{int64(next.ID)}, ruled(next), ruled(was), []any{was.CreatedAt, was.Approval.Unvalued})
	return append([]Statement{{SQL: updatePromotion, Args: args, Must: true}}, described(was, next)...)
}

// insertion returns the statements that insert a promotion with its counts, unless it
// exists. With must, the transaction then fails.
func insertion(p *reward.Promotion, must bool) []Statement {
	args := slices.Concat([]any{int64(p.ID), string(p.Type), p.CreatedAt}, ruled(p))
	return append([]Statement{{SQL: insertPromotion, Args: args, Must: must}, {SQL: insertCounts, Args: []any{int64(p.ID)}}}, described(&reward.Promotion{}, p)...)
}

// described returns the statement that writes a new description, if there is one.
func described(was, next *reward.Promotion) []Statement {
	if was.Metadata == next.Metadata && was.Name == next.Name && was.Notes == next.Notes {
		return nil
	}
	return []Statement{{SQL: describePromotion, Args: []any{int64(next.ID), string(next.Metadata), reward.SearchText(next), next.Notes}}}
}

const (
	promotionEvent = `INSERT INTO webhooks (promotion_id, event, url, at, due_at) VALUES ($1, $2, $3, $4, $4)`

	// endpointEvent records event $2 of promotion $1 for each endpoint that asks for it; if $3
	// is false, only for those that are people.
	endpointEvent = `INSERT INTO webhook_deliveries (endpoint_id, event, at, due_at, promotion_id)
SELECT e.id, CAST($2 AS integer), now.at, now.at, CAST($1 AS bigint) FROM (SELECT :clock AS at) now, webhook_endpoints e
WHERE e.enabled AND e.events >> CAST($2 AS integer) & 1 = 1 AND ($3 OR e.kind <> 'WEBHOOK') ORDER BY e.id`
)

// events returns the statements that record the event of a change, for the webhook of the
// promotion and for endpoints. Endpoints hear of a breach and of a needed approval here, and
// only they of the latter; triggers record for them that the status changed. People hear here
// that Largesse paused a promotion for another reason.
func (t *Tables) events(was *reward.Promotion, c *promotionChange) []Statement {
	var all []Statement
	id := int64(c.next.ID)
	switch c.event {
	case store.EventBreach:
		all = append(all, Statement{SQL: endpointEvent, Args: []any{id, store.WebhookBreach, true}})
	case store.EventApproval:
		return []Statement{{SQL: endpointEvent, Args: []any{id, store.WebhookApprovalNeeded, true}}}
	default:
		if was != nil && was.Status != reward.Paused && c.next.Status == reward.Paused && c.next.PausedBy == "" {
			all = append(all, Statement{SQL: endpointEvent, Args: []any{id, store.WebhookPaused, false}})
		}
	}
	if c.event != "" && c.next.WebhookURL != "" {
		all = append(all, Statement{SQL: promotionEvent, Args: []any{id, c.event, c.next.WebhookURL, c.at}})
	}
	return all
}
