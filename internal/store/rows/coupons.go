package rows

import (
	"context"
	"slices"
	"time"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
)

// TemplateCreate inserts a template and returns it as stored. A known ID is CodeExists. A
// template that reward.CheckTemplate refuses is CodeInvalid, and so is an unknown Mode or
// WhenRedisAway.
//
// The progress fields of t (from Generation on) are ignored: all are 0, and Path is GATE. A
// draw is OPEN and has no List.
func (t *Tables) TemplateCreate(ctx context.Context, c reward.CouponTemplate) (reward.CouponTemplate, error) {
	made, err := rules.NewTemplate(c)
	if err != nil {
		return reward.CouponTemplate{}, err
	}
	inserted, err := t.change(ctx, "create a coupon template", `INSERT INTO coupon_templates (id, name, total_quantity, per_user_limit,
  opens_at, closes_at, valid_for, mode, reissue, when_redis_away, draw_state, draw_from, draw_seed, created_at, hold_seconds,
  code_prefix, code_length, code_alphabet, metadata, awaiting_quantity, authors, notes)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22) ON CONFLICT (id) DO NOTHING RETURNING id`,
		int64(made.ID), made.Name, made.TotalQuantity, made.PerUserLimit, orNull(made.OpensAt), orNull(made.ClosesAt),
		int64(made.ValidFor/time.Second), string(made.Mode), made.ReissueAfterCancel, string(made.WhenRedisAway),
		string(made.Draw.State), orNull(made.Draw.From), made.Draw.Seed, made.CreatedAt, int64(made.HoldFor/time.Second), made.Codes.Prefix, made.Codes.Length, made.Codes.Alphabet,
		string(made.Metadata), made.AwaitingQuantity, string(made.Authors), made.Notes)
	switch {
	case err != nil:
		return reward.CouponTemplate{}, err
	case !inserted:
		return reward.CouponTemplate{}, reward.NewError(reward.KindConflict, reward.CodeExists, "coupon template %d exists", c.ID)
	}
	return made, nil
}

const assignTemplate = `UPDATE coupon_templates SET epoch = epoch + 1, owner = $2 WHERE id = $1 AND archived_at IS NULL RETURNING epoch`

// TemplateAssign makes owner the issuer of templates. Each gets the next epoch, which is
// returned. Templates that do not exist or are archived are left out.
//
// It locks them in the order of their IDs.
func (t *Tables) TemplateAssign(ctx context.Context, ids []reward.TemplateID, owner string) (map[reward.TemplateID]int64, error) {
	if err := store.CheckText("owner", owner); err != nil {
		return nil, err
	}
	if len(ids) == 0 {
		return map[reward.TemplateID]int64{}, nil
	}
	sorted := slices.Compact(slices.Sorted(slices.Values(ids)))
	var epochs map[reward.TemplateID]int64
	err := t.db.Write(ctx, "assign coupon templates", func() []Statement {
		epochs = make(map[reward.TemplateID]int64, len(sorted))
		statements := make([]Statement, len(sorted))
		for i, id := range sorted {
			statements[i] = Statement{SQL: assignTemplate, Args: []any{int64(id), owner}, Row: func(scan Scan) error {
				var epoch int64
				err := scan(&epoch)
				epochs[id] = epoch
				return err
			}}
		}
		return statements
	})
	if err != nil {
		return nil, err
	}
	return epochs, nil
}

// recountCoupons counts rows and reads the stored counts in one statement, so
// that both come from one snapshot.
const recountCoupons = `SELECT CASE WHEN t.archived_at IS NULL THEN count(c.id) FILTER (WHERE c.status <> 2) ELSE t.live END,
  CASE WHEN t.archived_at IS NULL THEN count(c.id) ELSE t.issued_total END, count(c.slot), t.live, t.issued_total
FROM coupon_templates t LEFT JOIN coupons c ON c.template_id = t.id WHERE t.id = $1 GROUP BY t.id`

// CouponRecount counts the coupons of a template and reads its stored counts, from one
// snapshot. Those of an archived template, whose coupons may be removed, are the stored ones.
func (t *Tables) CouponRecount(ctx context.Context, id reward.TemplateID) (store.CouponCount, error) {
	return one(ctx, t.db.ReadLong, "recount a coupon template", nil, func(scan Scan, c *store.CouponCount) error {
		return scan(&c.Live, &c.IssuedTotal, &c.Slots, &c.KeptLive, &c.KeptIssuedTotal)
	}, recountCoupons, int64(id))
}

const expireCoupons = `WITH due AS MATERIALIZED (
  SELECT id AS coupon FROM coupons WHERE status = 0 AND expires_at IS NOT NULL AND expires_at <= $1
  ORDER BY expires_at LIMIT $2 :skip_locked
)
UPDATE coupons SET status = 3 WHERE id IN (SELECT coupon FROM due) RETURNING id`

// CouponExpire marks at most limit ISSUED coupons as EXPIRED and returns how many. Their
// ExpiresAt is not after now. They still count in Live and keep their slot. Coupons that
// another transaction has locked are skipped.
func (t *Tables) CouponExpire(ctx context.Context, now time.Time, limit int) (int, error) {
	return t.changeOld(ctx, "expire coupons", expireCoupons, now, limit)
}

// endedHolds visits the templates above $1 that have HELD coupons, one step of the
// index per template, and returns those with one whose hold has ended. The clock
// is a subquery, so that the database reads it once and can search the index.
const endedHolds = `WITH RECURSIVE held(id) AS (
  SELECT min(template_id) FROM coupons WHERE status = 4 AND template_id > $1
  UNION ALL
  SELECT (SELECT min(c.template_id) FROM coupons c WHERE c.status = 4 AND c.template_id > h.id) FROM held h WHERE h.id IS NOT NULL
)
SELECT h.id FROM held h WHERE h.id IS NOT NULL AND EXISTS (
  SELECT 1 FROM coupons c WHERE c.template_id = h.id AND c.status = 4 AND c.held_until <= (SELECT :clock)
) LIMIT $2`

// HoldsEnded returns at most limit templates with a HELD coupon whose HeldUntil is not after
// the clock of the database, ordered by ID from after on, which is excluded.
func (t *Tables) HoldsEnded(ctx context.Context, after reward.TemplateID, limit int) ([]reward.TemplateID, error) {
	return list(ctx, t.db.Read, "find ended holds", func(scan Scan, id *reward.TemplateID) error {
		return scan((*int64)(id))
	}, endedHolds, int64(after), max(limit, 0))
}
