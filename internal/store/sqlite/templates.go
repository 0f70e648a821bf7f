package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/store/rows"
)

func scanTemplate(found *sql.Rows) (t reward.CouponTemplate, err error) {
	err = rows.ScanTemplate(found.Scan, &t)
	return t, err
}

// templateOf returns a template, or CodeTemplateNotFound.
func templateOf(ctx context.Context, q querier, id reward.TemplateID) (reward.CouponTemplate, error) {
	t, found, err := one(ctx, q, scanTemplate, rows.TemplateSQL, int64(id))
	if err == nil && !found {
		err = store.NoTemplate(id)
	}
	return t, err
}

// putTemplate stores every field of a template that can change.
func (t *tx) putTemplate(c *reward.CouponTemplate) error {
	return t.exec(`UPDATE coupon_templates SET name = ?, total_quantity = ?, per_user_limit = ?, opens_at = ?, closes_at = ?,
  valid_for = ?, mode = ?, reissue = ?, when_redis_away = ?, draw_state = ?, draw_list = ?, generation = ?, settled = ?, version = ?,
  live = ?, issued_total = ?, path = ?, epoch = ?, owner = ?, fence = ?, base = ?, floor = ?,
  granted = ?, used = ?, grants = ?, hold_seconds = ?, codes_imported = ?, codes_returned = ?, metadata = ?, awaiting_quantity = ?, authors = ? WHERE id = ?`,
		c.Name, c.TotalQuantity, c.PerUserLimit, maybe(c.OpensAt), maybe(c.ClosesAt), int64(c.ValidFor/time.Second), string(c.Mode),
		c.ReissueAfterCancel, string(c.WhenRedisAway), string(c.Draw.State), c.Draw.List, c.Generation, c.Settled, c.Version,
		c.Live, c.IssuedTotal, string(c.Path), c.Epoch, c.Owner, c.Fence, c.Base, c.Floor, c.Granted, c.Used, c.Grants,
		int64(c.HoldFor/time.Second), c.CodesImported, c.CodesReturned, string(c.Metadata), c.AwaitingQuantity, string(c.Authors), int64(c.ID))
}

// activeTemplates reads the templates that close after ?1 or never close.
const activeTemplates = `SELECT ` + rows.TemplateColumns + ` FROM coupon_templates t WHERE t.id IN (SELECT id FROM coupon_templates WHERE closes_at > ?1
UNION ALL SELECT id FROM coupon_templates WHERE closes_at IS NULL) ORDER BY t.id`

// TemplateActive returns the templates that are not closed yet.
func (s *Store) TemplateActive(ctx context.Context, closedAfter time.Time) ([]reward.CouponTemplate, error) {
	list, err := collect(ctx, s.reader.as("list active coupon templates"), scanTemplate, activeTemplates, micros(closedAfter))
	if err != nil {
		return nil, fmt.Errorf("list active coupon templates: %w", err)
	}
	return list, nil
}
