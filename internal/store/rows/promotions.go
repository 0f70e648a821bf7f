package rows

import (
	"context"
	"strings"
	"time"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

// ScanPromotion reads PromotionColumns into p, and the columns after them into more.
func ScanPromotion(scan Scan, p *reward.Promotion, more ...any) error {
	return scan(append([]any{
		(*int64)(&p.ID), &p.Name, (*string)(&p.Type), (*string)(&p.Status), (*int64)(&p.Amount), &p.VoucherCode, &p.Currency, &p.MaxRetries,
		&p.ConsumersPerInstance, &p.RatePerSecond, &p.Weight, (*int64)(&p.MaxAmount), &p.Canary.Targets, &p.Canary.MaxFailureRate,
		&p.Canary.Dispatched, &p.Canary.Judged, (*at)(&p.StartsAt), &p.WebhookURL, &p.CreatedBy, &p.ApprovedBy, &p.Approval.Round, &p.Approval.Rounds,
		&p.Approval.Unvalued, (*int64)(&p.Approval.Amount), &p.Approval.Count, &p.Approval.Granted, &p.RejectedBy, &p.RejectReason, &p.Revision, &p.AskedRevision, &p.Registered, &p.ExpectedCount,
		&p.Closed, &p.PausedBy, &p.PauseReason, (*at)(&p.CreatedAt), (*at)(&p.StartedAt), (*at)(&p.FinishedAt), (*at)(&p.LastDispatchedAt), &p.StreamDestroyed, &p.Version, (*at)(&p.ArchivedAt),
		(*at)(&p.EndsAt), (*at)(&p.PausedAt), &p.CancelledBy, (*at)(&p.CancelledAt),
	}, more...)...)
}

// ScanView reads ViewColumns into v, and the columns after them into more.
func ScanView(scan Scan, v *store.PromotionView, more ...any) error {
	return ScanPromotion(scan, &v.Promotion, append(countsInto(&v.Counts), more...)...)
}

func scanView(scan Scan, v *store.PromotionView) error { return ScanView(scan, v) }

// scanDetails reads detailColumns.
func scanDetails(scan Scan, v *store.PromotionView) error {
	return ScanView(scan, v, (*string)(&v.Metadata), &v.Notes)
}

const joinCounts = `promotions m JOIN summaries s ON s.promotion_id = m.id AND s.summary_id = 0`

var (
	// ViewColumns are those of promotions m and their counts s. ScanView scans them.
	ViewColumns   = PromotionColumns + `, ` + countsSQL
	detailColumns = ViewColumns + `, m.metadata, m.notes`

	// ViewSQL reads promotions m with their counts s.
	ViewSQL = `SELECT ` + ViewColumns + ` FROM ` + joinCounts + ` `

	// promotionSQL reads promotion $1 with its counts and metadata. scanDetails scans its row.
	promotionSQL = `SELECT ` + detailColumns + ` FROM ` + joinCounts + ` WHERE m.id = $1`

	// ViewsOf reads the promotions among the IDs $1. It needs Dialect.Text.
	ViewsOf = ViewSQL + `WHERE m.id :among ORDER BY m.id`

	// ActiveSQL reads the promotions that still need work. It needs Dialect.Text.
	ActiveSQL = ViewSQL + `WHERE :active ORDER BY m.id`

	// duePromotions lists the DRAFTs to start. It names the index, because SQLite may
	// otherwise read all DRAFTs.
	duePromotions = `SELECT ` + ViewColumns + ` FROM ` + strings.Replace(joinCounts, ` JOIN`, ` :by_due JOIN`, 1) +
		` WHERE m.status = 'DRAFT' AND m.starts_at <= $1 AND (m.ends_at IS NULL OR m.ends_at > $1) ORDER BY m.starts_at, m.id LIMIT $2`

	// unaskedPromotions lists the DRAFTs that start after $1, with changes since an event said
	// that they wait for an approval, and without an upload whose lease ends after $1.
	unaskedPromotions = `SELECT ` + ViewColumns + ` FROM ` + strings.Replace(joinCounts, ` JOIN`, ` :by_due JOIN`, 1) +
		` WHERE m.status = 'DRAFT' AND m.starts_at > $1 AND m.asked_revision <> m.revision AND m.rejected_by = ''
  AND NOT EXISTS (SELECT 1 FROM uploads u WHERE u.promotion_id = m.id AND u.finished_at IS NULL AND u.leased_until > $1)
ORDER BY m.starts_at, m.id LIMIT $2`
)

// PromotionGet returns a promotion with its counts, or CodeNotFound.
func (t *Tables) PromotionGet(ctx context.Context, id reward.PromotionID) (store.PromotionView, error) {
	return t.promotion(ctx, "read a promotion", id)
}

// promotion returns a promotion with its counts and metadata, for the call that what names.
func (t *Tables) promotion(ctx context.Context, what string, id reward.PromotionID) (store.PromotionView, error) {
	return one(ctx, t.db.Read, what, store.NoPromotion(id), scanDetails, promotionSQL, int64(id))
}

// PromotionViews returns the promotions among ids that exist, ordered by ID.
// More than store.BatchMax ids are CodeInvalid.
func (t *Tables) PromotionViews(ctx context.Context, ids []reward.PromotionID) ([]store.PromotionView, error) {
	if err := store.CheckViews(ids); err != nil {
		return nil, err
	}
	return list(ctx, t.db.Read, "read promotions", scanView, ViewsOf, ids)
}

// PromotionList returns a page of promotions. A text that no promotion can have
// is CodeInvalid.
func (t *Tables) PromotionList(ctx context.Context, p store.PromotionListParams) ([]store.PromotionView, error) {
	if err := p.Check(); err != nil {
		return nil, err
	}
	sql, args := t.dialect.promotionPage(p)
	return list(ctx, t.db.Read, "list promotions", scanDetails, sql, args...)
}

// PromotionDue returns at most limit DRAFTs whose StartsAt has come at now, and whose
// EndsAt, if any, has not. They are ordered by StartsAt, then ID.
func (t *Tables) PromotionDue(ctx context.Context, now time.Time, limit int) ([]store.PromotionView, error) {
	return list(ctx, t.db.Read, "list due promotions", scanView, duePromotions, now, max(limit, 0))
}

// PromotionUnasked returns at most limit DRAFTs with a StartsAt after now of which no event
// has said yet, since they changed, that they wait for an approval. Those that start first
// come first. Rejected ones, and those that get targets from an upload, are left out.
func (t *Tables) PromotionUnasked(ctx context.Context, now time.Time, limit int) ([]store.PromotionView, error) {
	return list(ctx, t.db.Read, "list promotions to ask for", scanView, unaskedPromotions, now, max(limit, 0))
}

// PromotionActive returns the promotions that still need work, ordered by ID:
// RUNNING ones, CANCELLED ones without FinishedAt, and those whose stream is
// not marked as destroyed.
func (t *Tables) PromotionActive(ctx context.Context) ([]store.PromotionView, error) {
	return list(ctx, t.db.Read, "list active promotions", scanView, ActiveSQL)
}

// PromotionStreamDestroyed marks the stream of a COMPLETED or CANCELLED
// promotion as destroyed, and reports whether it did. It expects the
// LastDispatchedAt that the caller has read, so that a stream with newer
// entries is not marked. A missing promotion is no error.
func (t *Tables) PromotionStreamDestroyed(ctx context.Context, id reward.PromotionID, lastDispatchedAt time.Time) (bool, error) {
	return t.change(ctx, "mark a stream as destroyed", `UPDATE promotions SET stream_gone = true
WHERE id = $1 AND status IN ('COMPLETED', 'CANCELLED') AND last_dispatched_at IS NOT DISTINCT FROM CAST($2 AS timestamptz)
  AND NOT stream_gone RETURNING id`, int64(id), orNull(lastDispatchedAt))
}

// OffsetsGet returns the next offsets stored for a log, by partition. It is
// empty for an unknown log.
func (t *Tables) OffsetsGet(ctx context.Context, log string) (map[int32]int64, error) {
	var offsets map[int32]int64
	err := t.db.Read(ctx, "read offsets", func() Statement {
		offsets = make(map[int32]int64)
		return Statement{SQL: `SELECT part, next FROM kafka_offsets WHERE topic = $1`, Args: []any{log}, Row: func(scan Scan) error {
			var part int32
			var next int64
			err := scan(&part, &next)
			offsets[part] = next
			return err
		}}
	})
	if err != nil {
		return nil, err
	}
	return offsets, nil
}
