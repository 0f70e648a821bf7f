package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/store/rows"
)

var (
	// flaggedSQL is the total amount of READY rows of promotion m that may have
	// been charged.
	flaggedSQL = named(`coalesce((SELECT sum(b.amount)::int8 FROM payouts b
  WHERE b.promotion_id = m.id AND b.state = :READY AND b.dispatch > 0 AND b.maybe_called), 0)`)

	// changePromotion stores the settings of promotion $1, if it still has version
	// $2 and status $3, and is the one that was created at $20. It records $19, unless
	// that is empty, as an author. $4 is its new budget if it must not be below what is spent,
	// or 0. $18 reports whether it voids the approval. The caller holds the lock of the
	// summary row.
	changePromotion = `WITH changed AS (UPDATE promotions m SET name = $5, rate_per_second = $6, weight = $7, max_amount = $8, max_retries = $9,
  metadata = $10, search = $11, amount = $12, voucher_code = $13, currency = $14, canary_targets = $15,
  canary_max_failure_rate = $16, starts_at = $17, version = m.version + 1, revision = m.revision + 1, ` + rows.Unrejected + `,
  approved_by = CASE WHEN $18::bool THEN '' ELSE m.approved_by END, approved_rounds = CASE WHEN $18::bool THEN 0 ELSE m.approved_rounds END,
  approved_amount = CASE WHEN $18::bool THEN 0 ELSE m.approved_amount END, approved_count = CASE WHEN $18::bool THEN 0 ELSE m.approved_count END,
  day_granted = CASE WHEN m.currency = $14 THEN m.day_granted END
FROM summaries s
WHERE m.id = $1 AND s.promotion_id = $1 AND s.summary_id = 0 AND m.version = $2 AND m.status = $3 AND m.created_at = $20
  AND (m.currency = '' OR m.currency = $14 OR ` + worth + ` = 0)
  AND ($4::int8 = 0 OR s.succeeded_amount + s.queued_amount + s.retrying_amount + s.unknown_amount + ` + flaggedSQL + ` <= $4::int8)
RETURNING m.id), ` + authoredSQL("changed", "$19") + ` SELECT id FROM changed`

	// changedPromotion reads a promotion with everything that
	// rules.PromotionChange depends on.
	changedPromotion = `SELECT ` + promotionColumns + `, ` + countsSQL + `, m.metadata, ` + flaggedSQL + `
FROM promotions m JOIN summaries s ON s.promotion_id = m.id AND s.summary_id = 0 WHERE m.id = $1`
)

// PromotionChange changes the settings of a promotion. It applies the rules to the
// promotion that it has read, and its statement expects the same version and
// status. If another caller changed them meanwhile, it starts again.
func (s *Store) PromotionChange(ctx context.Context, c rules.PromotionChange) (store.PromotionView, error) {
	if err := store.CheckText("author", c.By); err != nil {
		return store.PromotionView{}, err
	}
	stands, err := s.PromotionGet(ctx, c.ID)
	if err != nil {
		return store.PromotionView{}, err
	}
	for {
		was := stands
		to, err := c.Apply(was.Promotion, reward.Counts{}, 0) // the statement compares what the counts decide
		if err != nil {
			return store.PromotionView{}, err
		}
		if err := store.CheckPromotion(to); err != nil {
			return store.PromotionView{}, err
		}
		var bound reward.Amount
		if to.MaxAmount != was.MaxAmount {
			bound = to.MaxAmount
		}
		var exists, changed bool
		var flagged int64
		err = s.send(ctx, "change a promotion", func(b *pgx.Batch) {
			exists, changed = false, false
			b.Queue(lockTotals, []int64{int64(c.ID)})
			b.Queue(changePromotion, int64(c.ID), was.Version, string(was.Status), int64(bound), to.Name, to.RatePerSecond, to.Weight,
				int64(to.MaxAmount), to.MaxRetries, string(to.Metadata), reward.SearchText(&to), int64(to.Amount), to.VoucherCode,
				to.Currency, to.Canary.Targets, to.Canary.MaxFailureRate, maybe(to.StartsAt), c.Voids(was.Promotion, to),
				c.By, instant(was.CreatedAt)).Query(each(func(pgx.Rows) error {
				changed = true
				return nil
			}))
			b.Queue(changedPromotion, int64(c.ID)).Query(each(func(found pgx.Rows) error {
				exists = true
				return rows.ScanView(found.Scan, &stands, (*string)(&stands.Metadata), &flagged)
			}))
		})
		switch {
		case err != nil:
			return store.PromotionView{}, err
		case !exists:
			return store.PromotionView{}, store.NoPromotion(c.ID) // deleted meanwhile
		case changed:
			return stands, nil
		case stands.Version != was.Version || stands.Status != was.Status || !stands.CreatedAt.Equal(was.CreatedAt):
			continue
		}
		if _, err := c.Apply(stands.Promotion, stands.Counts, reward.Amount(flagged)); err != nil {
			return store.PromotionView{}, err
		}
		return store.PromotionView{}, fmt.Errorf("change a promotion: promotion %d did not change, although no rule forbids it", c.ID)
	}
}
