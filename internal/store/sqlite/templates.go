package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
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

// openTemplate returns a template to change, or CodeArchived.
func (t *tx) openTemplate(id reward.TemplateID) (reward.CouponTemplate, error) {
	c, err := templateOf(t.ctx, t, id)
	if err != nil {
		return c, err
	}
	return c, rules.CheckTemplateArchived(id, !c.ArchivedAt.IsZero())
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

// changeTemplate runs fn on a template, and stores the result if fn reports a
// change. It returns the template afterwards, and whether it changed.
func (s *Store) changeTemplate(ctx context.Context, what string, id reward.TemplateID,
	fn func(*tx, *reward.CouponTemplate) (bool, error),
) (t reward.CouponTemplate, changed bool, err error) {
	err = s.write(ctx, what, func(tx *tx) error {
		if t, err = tx.openTemplate(id); err != nil {
			return err
		}
		if changed, err = fn(tx, &t); err != nil || !changed {
			return err
		}
		return tx.putTemplate(&t)
	})
	if err != nil {
		return reward.CouponTemplate{}, false, err
	}
	return t, changed, nil
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

// TemplateChange changes the settings of a template.
func (s *Store) TemplateChange(ctx context.Context, p rules.TemplateChange) (reward.CouponTemplate, error) {
	t, _, err := s.changeTemplate(ctx, "change a coupon template", p.ID, func(tx *tx, t *reward.CouponTemplate) (bool, error) {
		to, err := p.Apply(*t)
		if err != nil {
			return false, err
		}
		_, asked, err := one(tx.ctx, tx, scanInt, `SELECT 1 FROM coupon_entrants WHERE template_id = ? LIMIT 1`, int64(p.ID))
		if err != nil {
			return false, err
		}
		if err := rules.CheckChange(t, &to, asked); err != nil {
			return false, err
		}
		*t = to
		t.Version++
		return true, nil
	})
	return t, err
}

// TemplateGrant grants places to the gate of a template.
func (s *Store) TemplateGrant(ctx context.Context, p store.TemplateGrantParams) (reward.CouponTemplate, bool, error) {
	return s.changeTemplate(ctx, "grant places to a gate", p.ID, func(_ *tx, t *reward.CouponTemplate) (bool, error) {
		return rules.Grant(t, p.Generation, p.Grants, p.Granted, p.Lacking, p.More), nil
	})
}

// TemplateShrink takes back places that the gate has not given.
func (s *Store) TemplateShrink(ctx context.Context, id reward.TemplateID, shrunk rules.Shrunk) (reward.CouponTemplate, bool, error) {
	return s.changeTemplate(ctx, "take back places of a gate", id, func(_ *tx, t *reward.CouponTemplate) (bool, error) {
		return rules.Shrink(t, shrunk), nil
	})
}

// TemplateReleasePlaces takes back all places that are set aside.
func (s *Store) TemplateReleasePlaces(ctx context.Context, id reward.TemplateID) (reward.CouponTemplate, bool, error) {
	return s.changeTemplate(ctx, "take back all places of a template", id, func(_ *tx, t *reward.CouponTemplate) (bool, error) {
		return rules.ReleasePlaces(t), nil
	})
}
