package rows

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
)

// ScanTemplate reads TemplateColumns into t, and the columns after them into more.
func ScanTemplate(scan Scan, t *reward.CouponTemplate, more ...any) error {
	var valid, hold int64
	t.Draw.Seed, t.Draw.List = nil, nil // do not overwrite those of the previous row
	err := scan(append([]any{
		(*int64)(&t.ID), &t.Name, &t.TotalQuantity, &t.PerUserLimit, (*at)(&t.OpensAt), (*at)(&t.ClosesAt), &valid, (*string)(&t.Mode),
		&t.ReissueAfterCancel, (*string)(&t.WhenRedisAway), (*string)(&t.Draw.State), (*at)(&t.Draw.From), &t.Draw.Seed, &t.Draw.List, (*at)(&t.CreatedAt),
		&t.Generation, &t.Settled, &t.Version, &t.Live, &t.IssuedTotal, (*string)(&t.Path), &t.Epoch, &t.Owner, &t.Fence,
		&t.Base, &t.Floor, &t.Granted, &t.Used, &t.Grants, &hold,
		&t.Codes.Prefix, &t.Codes.Length, &t.Codes.Alphabet, &t.CodesImported, &t.CodesReturned, (*string)(&t.Metadata), (*at)(&t.ArchivedAt),
		&t.AwaitingQuantity, (*string)(&t.Authors),
	}, more...)...)
	t.ValidFor, t.HoldFor = time.Duration(valid)*time.Second, time.Duration(hold)*time.Second
	return err
}

func scanTemplate(scan Scan, t *reward.CouponTemplate) error { return ScanTemplate(scan, t) }

const (
	// TemplateSQL reads template $1.
	TemplateSQL = `SELECT ` + TemplateColumns + ` FROM coupon_templates t WHERE t.id = $1`

	listTemplates = `SELECT ` + TemplateColumns + ` FROM coupon_templates t WHERE t.id < $1 ORDER BY t.id DESC LIMIT $2`
)

// TemplateGet returns a template.
func (t *Tables) TemplateGet(ctx context.Context, id reward.TemplateID) (reward.CouponTemplate, error) {
	found, err := list(ctx, t.db.Read, "read a coupon template", scanTemplate, TemplateSQL, int64(id))
	return first(found, err, store.NoTemplate(id))
}

// TemplateList returns templates by descending ID.
func (t *Tables) TemplateList(ctx context.Context, before reward.TemplateID, limit int) ([]reward.CouponTemplate, error) {
	return list(ctx, t.db.Read, "list coupon templates", scanTemplate, listTemplates, below(int64(before)), max(limit, 0))
}

// These statements change template $1, and return its ID if they do.
const (
	touchTemplate = `UPDATE coupon_templates SET version = version + 1 WHERE id = $1 AND archived_at IS NULL RETURNING id`

	newGeneration = `UPDATE coupon_templates SET path = $3, generation = 1 + CASE WHEN generation < $2 THEN $2 ELSE generation END,
  base = CASE WHEN NOT $5 THEN base WHEN generation < $2 THEN $2 ELSE generation END
WHERE id = $1 AND archived_at IS NULL AND (CAST($4 AS bigint) = -1 OR generation = $4) RETURNING id`

	setFloor = `UPDATE coupon_templates SET floor = generation WHERE id = $1 AND archived_at IS NULL AND generation = $2 RETURNING id`

	closeDraw = `UPDATE coupon_templates SET draw_state = 'CLOSED'
WHERE id = $1 AND epoch = $2 AND draw_state = 'OPEN' AND archived_at IS NULL AND opens_at <= :clock RETURNING id`

	endDraw = `UPDATE coupon_templates SET draw_state = 'DONE', draw_list = $3, version = version + 1
WHERE id = $1 AND epoch = $2 AND draw_state = 'CLOSED' AND archived_at IS NULL RETURNING id`
)

// LockTemplate reads whether template $1 is archived. With Dialect.LockRow, it comes first in
// every transaction that changes a template, so that later statements see its latest state.
const LockTemplate = `SELECT t.archived_at IS NOT NULL FROM coupon_templates t WHERE t.id = $1`

// inTemplate runs the statements that build returns in a transaction that locks template id
// first, and reads the template last.
func (t *Tables) inTemplate(ctx context.Context, what string, id reward.TemplateID, build func() []Statement) (c reward.CouponTemplate, err error) {
	err = t.db.Write(ctx, what, func() []Statement {
		c = reward.CouponTemplate{}
		args := []any{int64(id)}
		return slices.Concat([]Statement{{SQL: t.lockTemplate, Args: args}}, build(),
			[]Statement{{SQL: TemplateSQL, Args: args, Row: func(scan Scan) error { return ScanTemplate(scan, &c) }}})
	})
	if err == nil && c.ID == 0 {
		err = store.NoTemplate(id)
	}
	return c, err
}

// WriteTemplate runs a statement that changes template $1, with args from $2 on, and returns
// the ID of the template if it does. Then it reads the template. It reports whether the
// statement changed it.
func (t *Tables) WriteTemplate(ctx context.Context, what string, id reward.TemplateID, sql string, args ...any) (c reward.CouponTemplate, wrote bool, err error) {
	c, err = t.inTemplate(ctx, what, id, func() []Statement {
		wrote = false
		return []Statement{{SQL: sql, Args: append([]any{int64(id)}, args...), Row: seen(&wrote)}}
	})
	if err = cmp.Or(err, archivedError(&c)); err != nil {
		return reward.CouponTemplate{}, false, err
	}
	return c, wrote, nil
}

// archivedError returns CodeArchived if a template is archived.
func archivedError(c *reward.CouponTemplate) error {
	return rules.CheckTemplateArchived(c.ID, !c.ArchivedAt.IsZero())
}

// TemplateTouch raises the version of a template.
func (t *Tables) TemplateTouch(ctx context.Context, id reward.TemplateID) (reward.CouponTemplate, error) {
	c, _, err := t.WriteTemplate(ctx, "touch a coupon template", id, touchTemplate)
	return c, err
}

// TemplateNewGeneration raises the generation of a template.
func (t *Tables) TemplateNewGeneration(ctx context.Context, p store.TemplateNewGenerationParams) (reward.CouponTemplate, bool, error) {
	return t.WriteTemplate(ctx, "raise the generation of a coupon template", p.ID, newGeneration, p.AtLeast, string(p.Path), p.From, p.NewNumbering)
}

// TemplateSetFloor sets the floor of a template to its generation.
func (t *Tables) TemplateSetFloor(ctx context.Context, id reward.TemplateID, generation int64) (bool, error) {
	_, set, err := t.WriteTemplate(ctx, "set the floor of a coupon template", id, setFloor, generation)
	return set, err
}

// DrawClose moves a draw from OPEN to CLOSED.
func (t *Tables) DrawClose(ctx context.Context, id reward.TemplateID, epoch int64) (reward.CouponTemplate, error) {
	c, _, err := t.WriteTemplate(ctx, "close a draw", id, t.closeDraw, epoch)
	return c, err
}

// DrawDone moves a draw from CLOSED to DONE.
func (t *Tables) DrawDone(ctx context.Context, id reward.TemplateID, epoch int64, order []byte) (bool, error) {
	_, done, err := t.WriteTemplate(ctx, "end a draw", id, endDraw, epoch, slices.Clone(order))
	return done, err
}
