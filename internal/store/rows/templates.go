package rows

import (
	"cmp"
	"context"
	"math"
	"slices"
	"strconv"
	"strings"
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
		&t.AwaitingQuantity, (*string)(&t.Authors), &t.Notes,
	}, more...)...)
	t.ValidFor, t.HoldFor = time.Duration(valid)*time.Second, time.Duration(hold)*time.Second
	return err
}

func scanTemplate(scan Scan, t *reward.CouponTemplate) error { return ScanTemplate(scan, t) }

const (
	// templateSQL reads template $1.
	templateSQL = `SELECT ` + TemplateColumns + ` FROM coupon_templates t WHERE t.id = $1`

	listTemplates = `SELECT ` + TemplateColumns + ` FROM coupon_templates t WHERE t.id < $1 ORDER BY t.id DESC LIMIT $2`
)

// TemplateGet returns a template.
func (t *Tables) TemplateGet(ctx context.Context, id reward.TemplateID) (reward.CouponTemplate, error) {
	return t.template(ctx, "read a coupon template", id)
}

// template returns a template, for the call that what names.
func (t *Tables) template(ctx context.Context, what string, id reward.TemplateID) (reward.CouponTemplate, error) {
	return t.templateWith(ctx, what, id, templateSQL, []any{int64(id)})
}

// templateWith returns a template that a statement reads, and reads the columns after it into
// more.
func (t *Tables) templateWith(ctx context.Context, what string, id reward.TemplateID, sql string, args []any, more ...any) (reward.CouponTemplate, error) {
	return one(ctx, t.db.Read, what, store.NoTemplate(id), func(scan Scan, c *reward.CouponTemplate) error { return ScanTemplate(scan, c, more...) }, sql, args...)
}

// TemplateList returns at most limit templates by descending ID. Only IDs below before count;
// 0 starts at the newest.
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

// lockTemplateSQL reads whether template $1 is archived. It comes first in
// every transaction that changes a template, so that later statements see its latest state.
const lockTemplateSQL = `SELECT t.archived_at IS NOT NULL FROM coupon_templates t WHERE t.id = $1 :lock_row`

// inTemplate runs the statements that build returns in a transaction that locks template id
// first, and reads the template last.
func (t *Tables) inTemplate(ctx context.Context, what string, id reward.TemplateID, build func() []Statement) (c reward.CouponTemplate, err error) {
	err = t.db.Write(ctx, what, func() []Statement {
		c = reward.CouponTemplate{}
		args := []any{int64(id)}
		return slices.Concat([]Statement{{SQL: lockTemplateSQL, Args: args}}, build(),
			[]Statement{{SQL: templateSQL, Args: args, Row: func(scan Scan) error { return ScanTemplate(scan, &c) }}})
	})
	if err == nil && c.ID == 0 {
		err = store.NoTemplate(id)
	}
	return c, err
}

// writeTemplate runs a statement that changes template $1, with args from $2 on, and returns
// the ID of the template if it does. Then it reads the template. It reports whether the
// statement changed it.
func (t *Tables) writeTemplate(ctx context.Context, what string, id reward.TemplateID, sql string, args ...any) (c reward.CouponTemplate, wrote bool, err error) {
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

// movePlaces grants $2 places to the gate of template $1, or takes back as many as -$2, if the
// gate is still the one that the rule has read. Coupons that use promised places change
// neither sum, so that a grant gets its turn in a rush. Places that are used by now stay granted.
const movePlaces = `UPDATE coupon_templates SET granted = CASE WHEN granted + $2 < used THEN used ELSE granted + $2 END, grants = grants + 1, version = version + 1
WHERE id = $1 AND archived_at IS NULL AND generation = $3 AND path = $4 AND mode = $5 AND grants = $6
  AND (CAST($2 AS bigint) <= 0 OR live + granted - used + $2 <= total_quantity
    AND (codes_imported = 0 OR issued_total + granted - used + $2 <= codes_imported)) RETURNING id`

// movePlaces lets a rule decide about the granted places of a template, and reports whether it
// changed them.
func (t *Tables) movePlaces(ctx context.Context, what string, id reward.TemplateID, rule func(*reward.CouponTemplate) bool) (c reward.CouponTemplate, moved bool, err error) {
	err = whileStale(what, func() error {
		moved = false
		if c, err = t.template(ctx, what, id); err != nil {
			return err
		}
		next := c
		if err := archivedError(&c); err != nil || !rule(&next) {
			return err
		}
		moved = true
		args := []any{int64(id), next.Granted - c.Granted, c.Generation, string(c.Path), string(c.Mode), c.Grants}
		c, err = t.inTemplate(ctx, what, id, func() []Statement { return []Statement{{SQL: movePlaces, Args: args, Must: true}} })
		return err
	})
	if err != nil {
		return reward.CouponTemplate{}, false, err
	}
	return c, moved, nil
}

// TemplateGrant grants places to the gate, see rules.Grant. It returns the template and
// reports whether it changed it.
func (t *Tables) TemplateGrant(ctx context.Context, p store.TemplateGrantParams) (reward.CouponTemplate, bool, error) {
	return t.movePlaces(ctx, "grant places to a gate", p.ID, func(c *reward.CouponTemplate) bool {
		return rules.Grant(c, p.Generation, p.Grants, p.Granted, p.Lacking, p.More)
	})
}

// TemplateShrink takes back places that the gate has not given, see rules.Shrink. It returns
// the template and reports whether it changed it.
func (t *Tables) TemplateShrink(ctx context.Context, id reward.TemplateID, shrunk rules.Shrunk) (reward.CouponTemplate, bool, error) {
	return t.movePlaces(ctx, "take back places of a gate", id, func(c *reward.CouponTemplate) bool { return rules.Shrink(c, shrunk) })
}

// TemplateReleasePlaces takes back all places that are set aside, see rules.ReleasePlaces. It
// returns the template and reports whether it changed it.
func (t *Tables) TemplateReleasePlaces(ctx context.Context, id reward.TemplateID) (reward.CouponTemplate, bool, error) {
	return t.movePlaces(ctx, "take back all places of a template", id, rules.ReleasePlaces)
}

// settingColumns are the columns of templates that rules.TemplateChange changes, in the order
// of settings.
var settingColumns = strings.Fields(`name total_quantity per_user_limit opens_at closes_at valid_for mode reissue when_redis_away
hold_seconds metadata awaiting_quantity authors notes`)

// settings returns the values of settingColumns.
func settings(c *reward.CouponTemplate) []any {
	return []any{
		c.Name, c.TotalQuantity, c.PerUserLimit, orNull(c.OpensAt), orNull(c.ClosesAt), int64(c.ValidFor / time.Second), string(c.Mode),
		c.ReissueAfterCancel, string(c.WhenRedisAway), int64(c.HoldFor / time.Second), string(c.Metadata), c.AwaitingQuantity, string(c.Authors), c.Notes,
	}
}

const hasEntrant = `SELECT 1 FROM coupon_entrants WHERE template_id = $1 LIMIT 1`

// writeSettings writes the settings $10 and so on of template $1, if the settings are still
// those that follow, the gate is that of $2, $3 and $4, and $5 codes were imported. It adds $6
// granted places and counts $7 grants. At most $8 coupons may be live and promised, and with
// imported codes, codes must suffice for $9 live ones. fixed is the condition that nobody has
// used the template.
func writeSettings(fixed string) string {
	var sets, same []string
	for i, column := range settingColumns {
		sets = append(sets, column+" = $"+strconv.Itoa(10+i))
		same = append(same, column+" IS NOT DISTINCT FROM $"+strconv.Itoa(10+len(settingColumns)+i))
	}
	return `UPDATE coupon_templates SET version = version + 1, granted = granted + $6, grants = grants + $7, ` + strings.Join(sets, ", ") + `
WHERE id = $1 AND archived_at IS NULL AND generation = $2 AND path = $3 AND grants = $4 AND codes_imported - codes_returned = $5
  AND granted + $6 >= used AND live + granted + $6 - used <= $8 AND (codes_imported = 0 OR live + codes_imported - issued_total >= $9)
  AND ` + strings.Join(same, " AND ") + fixed + ` RETURNING id`
}

var (
	changeSettings = writeSettings("")
	changeUnused   = writeSettings(` AND settled = 0 AND used = 0 AND draw_state IN ('', 'OPEN')
  AND NOT EXISTS (SELECT 1 FROM coupon_entrants e WHERE e.template_id = $1)`)
)

// TemplateChange changes the settings of a template and returns it.
//
// A TotalQuantity that rules.LacksCodes forbids is CodeCodesExhausted. One below Live and the
// promised places is CodeConflict. So is another Mode while places are promised. So is another
// Mode, or another opening time of a draw, once the template was used: a request was settled
// or left the line, a user entered the draw, or the draw is no longer OPEN. A result that
// reward.CheckTemplate refuses is CodeInvalid.
//
// What the coupons change all the time is compared as sums and limits, so that a change gets
// its turn in a rush.
func (t *Tables) TemplateChange(ctx context.Context, p rules.TemplateChange) (c reward.CouponTemplate, err error) {
	const what = "change a coupon template"
	err = whileStale(what, func() error {
		was, err := t.template(ctx, what, p.ID)
		if err = cmp.Or(err, archivedError(&was)); err != nil {
			return err
		}
		to, err := p.Apply(was)
		if err != nil {
			return err
		}
		sql, entered := changeSettings, false
		if rules.FixedByUse(&was, &to) {
			sql = changeUnused
			if entered, err = t.found(ctx, what, hasEntrant, int64(p.ID)); err != nil {
				return err
			}
		}
		if err := rules.CheckChange(&was, &to, entered); err != nil {
			return err
		}
		withCodes := int64(math.MinInt64)
		if to.TotalQuantity > was.TotalQuantity {
			withCodes = to.TotalQuantity
		}
		args := slices.Concat([]any{
			int64(p.ID), was.Generation, string(was.Path), was.Grants, was.CodesImported - was.CodesReturned,
			to.Granted - was.Granted, to.Grants - was.Grants, to.TotalQuantity, withCodes,
		}, settings(&to), settings(&was))
		c, err = t.inTemplate(ctx, what, p.ID, func() []Statement { return []Statement{{SQL: sql, Args: args, Must: true}} })
		return err
	})
	if err != nil {
		return reward.CouponTemplate{}, err
	}
	return c, nil
}

// TemplateTouch raises Version and changes nothing else.
func (t *Tables) TemplateTouch(ctx context.Context, id reward.TemplateID) (reward.CouponTemplate, error) {
	c, _, err := t.writeTemplate(ctx, "touch a coupon template", id, touchTemplate)
	return c, err
}

// TemplateNewGeneration raises Generation to the greater of Generation and AtLeast, plus 1,
// and sets Path. NewNumbering also sets Base to one less than the new generation. It returns
// the template and reports whether it changed it. It changes nothing if the generation is not
// From.
func (t *Tables) TemplateNewGeneration(ctx context.Context, p store.TemplateNewGenerationParams) (reward.CouponTemplate, bool, error) {
	return t.writeTemplate(ctx, "raise the generation of a coupon template", p.ID, newGeneration, p.AtLeast, string(p.Path), p.From, p.NewNumbering)
}

// TemplateSetFloor sets Floor to a generation, and reports whether it did. It changes nothing
// if the template has another generation by now.
func (t *Tables) TemplateSetFloor(ctx context.Context, id reward.TemplateID, generation int64) (bool, error) {
	_, set, err := t.writeTemplate(ctx, "set the floor of a coupon template", id, setFloor, generation)
	return set, err
}

// DrawClose moves a draw from OPEN to CLOSED and returns the template as it is afterwards. It
// changes nothing if the template has another epoch, or if its OpensAt is in the future by the
// clock of the database.
func (t *Tables) DrawClose(ctx context.Context, id reward.TemplateID, epoch int64) (reward.CouponTemplate, error) {
	c, _, err := t.writeTemplate(ctx, "close a draw", id, closeDraw, epoch)
	return c, err
}

// DrawDone moves a draw from CLOSED to DONE, stores the hash of its list, and reports whether
// it did. It changes nothing if the template has another epoch.
func (t *Tables) DrawDone(ctx context.Context, id reward.TemplateID, epoch int64, order []byte) (bool, error) {
	_, done, err := t.writeTemplate(ctx, "end a draw", id, endDraw, epoch, slices.Clone(order))
	return done, err
}
