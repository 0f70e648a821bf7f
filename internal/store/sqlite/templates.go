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

const templateSQL = `SELECT ` + rows.TemplateColumns + ` FROM coupon_templates t `

func scanTemplate(rows *sql.Rows) (t reward.CouponTemplate, err error) {
	var opens, closes, from, archived sql.NullInt64
	var valid, hold, created int64
	if err := rows.Scan(&t.ID, &t.Name, &t.TotalQuantity, &t.PerUserLimit, &opens, &closes, &valid, &t.Mode, &t.ReissueAfterCancel,
		&t.WhenRedisAway, &t.Draw.State, &from, &t.Draw.Seed, &t.Draw.List, &created, &t.Generation, &t.Settled, &t.Version, &t.Live,
		&t.IssuedTotal, &t.Path, &t.Epoch, &t.Owner, &t.Fence, &t.Base, &t.Floor,
		&t.Granted, &t.Used, &t.Grants, &hold, &t.Codes.Prefix, &t.Codes.Length, &t.Codes.Alphabet, &t.CodesImported, &t.CodesReturned, &t.Metadata, &archived, &t.AwaitingQuantity, &t.Authors); err != nil {
		return t, err
	}
	t.OpensAt, t.ClosesAt, t.Draw.From, t.CreatedAt = maybeTime(opens), maybeTime(closes), maybeTime(from), timeOf(created)
	t.ValidFor, t.HoldFor, t.ArchivedAt = time.Duration(valid)*time.Second, time.Duration(hold)*time.Second, maybeTime(archived)
	return t, nil
}

// templateOf returns a template, or CodeTemplateNotFound.
func templateOf(ctx context.Context, q querier, id reward.TemplateID) (reward.CouponTemplate, error) {
	t, found, err := one(ctx, q, scanTemplate, templateSQL+`WHERE t.id = ?`, int64(id))
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

// TemplateGet returns a template.
func (s *Store) TemplateGet(ctx context.Context, id reward.TemplateID) (reward.CouponTemplate, error) {
	t, err := templateOf(ctx, s.reader.as("read a coupon template"), id)
	if err != nil {
		return reward.CouponTemplate{}, fmt.Errorf("read a coupon template: %w", err)
	}
	return t, nil
}

// TemplateList returns templates by descending ID.
func (s *Store) TemplateList(ctx context.Context, before reward.TemplateID, limit int) ([]reward.CouponTemplate, error) {
	if before == 0 {
		before = 1<<63 - 1
	}
	list, err := collect(ctx, s.reader.as("list coupon templates"), scanTemplate, templateSQL+`WHERE t.id < ? ORDER BY t.id DESC LIMIT ?`, int64(before), max(limit, 0))
	if err != nil {
		return nil, fmt.Errorf("list coupon templates: %w", err)
	}
	return list, nil
}

// activeTemplates reads the templates that close after ?1 or never close.
const activeTemplates = templateSQL + `WHERE t.id IN (SELECT id FROM coupon_templates WHERE closes_at > ?1
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

// TemplateTouch raises the version of a template.
func (s *Store) TemplateTouch(ctx context.Context, id reward.TemplateID) (reward.CouponTemplate, error) {
	t, _, err := s.changeTemplate(ctx, "touch a coupon template", id, func(_ *tx, t *reward.CouponTemplate) (bool, error) {
		t.Version++
		return true, nil
	})
	return t, err
}

// TemplateNewGeneration raises the generation of a template.
func (s *Store) TemplateNewGeneration(ctx context.Context, p store.TemplateNewGenerationParams) (reward.CouponTemplate, bool, error) {
	return s.changeTemplate(ctx, "raise the generation of a coupon template", p.ID, func(_ *tx, t *reward.CouponTemplate) (bool, error) {
		if p.From != -1 && p.From != t.Generation {
			return false, nil
		}
		t.Generation, t.Path = max(t.Generation, p.AtLeast)+1, p.Path
		if p.NewNumbering {
			t.Base = t.Generation - 1
		}
		return true, nil
	})
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

// TemplateSetFloor sets the floor of a template to its generation.
func (s *Store) TemplateSetFloor(ctx context.Context, id reward.TemplateID, generation int64) (bool, error) {
	_, set, err := s.changeTemplate(ctx, "set the floor of a coupon template", id, func(_ *tx, t *reward.CouponTemplate) (bool, error) {
		if t.Generation != generation {
			return false, nil
		}
		t.Floor = generation
		return true, nil
	})
	return set, err
}
