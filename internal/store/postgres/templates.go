package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/store/rows"
)

// lockTemplate is rows.LockTemplate, which locks.
const lockTemplate = rows.LockTemplate + lockRow

// queueTemplate queues a read of a template into t. If t.ID is 0 afterwards,
// the template does not exist.
func queueTemplate(b *pgx.Batch, id reward.TemplateID, t *reward.CouponTemplate) {
	*t = reward.CouponTemplate{}
	b.Queue(rows.TemplateSQL, int64(id)).Query(templateInto(t))
}

// templateInto returns a result reader that scans a template into t.
func templateInto(t *reward.CouponTemplate) func(pgx.Rows) error {
	return each(func(found pgx.Rows) error { return rows.ScanTemplate(found.Scan, t) })
}

// templateError returns the error of a transaction on template id that then
// read the template: err, or CodeTemplateNotFound if read is another ID.
func templateError(read, id reward.TemplateID, err error) error {
	if err == nil && read == 0 {
		return store.NoTemplate(id)
	}
	return err
}

// activeTemplates reads the templates that close after $2 or never close, with a
// version of the list. If $1 is that version, it returns only the version. The
// version is computed from xmin and ctid, which change with every update of a row.
// It therefore needs no column and no write.
const activeTemplates = `WITH active AS MATERIALIZED (
  SELECT t.id, hashtextextended(concat_ws(' ', t.id, t.xmin, t.ctid), 0) AS version FROM coupon_templates t WHERE t.closes_at > $2
  UNION ALL
  SELECT t.id, hashtextextended(concat_ws(' ', t.id, t.xmin, t.ctid), 0) FROM coupon_templates t WHERE t.closes_at IS NULL
), stand AS MATERIALIZED (
  SELECT coalesce(bit_xor(version), 0) AS version FROM active
)
SELECT ` + rows.TemplateColumns + `, stand.version
FROM stand LEFT JOIN (active JOIN coupon_templates t ON t.id = active.id) ON stand.version <> $1
ORDER BY t.id`

// templateList is a result of TemplateActive with its version.
type templateList struct {
	version int64
	list    []reward.CouponTemplate
}

// TemplateActive returns the templates that are not closed yet. It is called often,
// and the list rarely changes, so the database sends an unchanged list only once.
func (s *Store) TemplateActive(ctx context.Context, closedAfter time.Time) ([]reward.CouponTemplate, error) {
	known := s.templates.Load()
	if known == nil {
		known = &templateList{}
	}
	var read templateList
	var t reward.CouponTemplate
	err := s.send(ctx, "list active coupon templates", func(b *pgx.Batch) {
		read.list = nil
		b.Queue(activeTemplates, known.version, instant(closedAfter)).Query(each(func(found pgx.Rows) error {
			if found.RawValues()[0] == nil { // unchanged: the row has only the version
				into := make([]any, len(found.FieldDescriptions()))
				into[len(into)-1] = &read.version
				return found.Scan(into...)
			}
			err := rows.ScanTemplate(found.Scan, &t, &read.version)
			read.list = append(read.list, t)
			return err
		}))
	})
	if err != nil {
		return nil, err
	}
	if read.version == known.version {
		read = *known
	} else {
		s.templates.Store(&read)
	}
	list := slices.Clone(read.list)
	for i := range list {
		list[i] = store.CloneTemplate(list[i])
	}
	return list, nil
}

// changeTemplate stores the settings $2 to $14 of template $1, if its settings
// are still $15 to $27 and it has $28 imported codes. $29 reports whether the change
// is forbidden once the template was used. $30 to $32 are a rules.Shrunk, with
// generation -1 for none. The caller holds the lock of the template.
const changeTemplate = `UPDATE coupon_templates t SET (name, total_quantity, per_user_limit, opens_at, closes_at, valid_for, mode,
  reissue, when_redis_away, hold_seconds, metadata, awaiting_quantity, authors, granted, grants, version) = ROW ($2, $3, $4, $5, $6,
  $7, $8, $9, $10, $11, $12, $13, $14, k.granted, k.grants, t.version + 1)
FROM (SELECT p.id, CASE WHEN s.fits THEN greatest(least(p.granted, $32::int8), p.used) ELSE p.granted END AS granted,
    p.grants + CASE WHEN s.fits THEN 1 ELSE 0 END AS grants
  FROM coupon_templates p, LATERAL (SELECT p.generation = $30::int8 AND p.grants = $31::int8 AND p.path = 'GATE' AS fits) s
  WHERE p.id = $1) k
WHERE t.id = $1 AND k.id = t.id AND t.live + k.granted - t.used <= $3 AND (t.mode = $8 OR k.granted = t.used)
  AND (t.codes_imported = 0 OR $3 <= t.total_quantity OR $3 - t.live <= t.codes_imported - t.issued_total)
  AND (t.name, t.total_quantity, t.per_user_limit, t.opens_at, t.closes_at, t.valid_for, t.mode, t.reissue, t.when_redis_away,
    t.hold_seconds, t.metadata, t.awaiting_quantity, t.authors, t.codes_imported - t.codes_returned) IS NOT DISTINCT FROM ($15::text, $16::int8, $17::int4,
    $18::timestamptz, $19::timestamptz, $20::int8, $21::text, $22::bool, $23::text, $24::int8, $25::text, $26::int8, $27::text, $28::int8)
  AND NOT ($29::bool AND (t.settled > 0 OR t.used > 0 OR t.draw_state IN ('CLOSED', 'DONE')
    OR EXISTS (SELECT 1 FROM coupon_entrants e WHERE e.template_id = t.id)))
RETURNING t.id`

// settings returns the settings of a template as arguments of changeTemplate.
func settings(t *reward.CouponTemplate) []any {
	return []any{
		t.Name, t.TotalQuantity, t.PerUserLimit, maybe(t.OpensAt), maybe(t.ClosesAt), int64(t.ValidFor / time.Second), string(t.Mode),
		t.ReissueAfterCancel, string(t.WhenRedisAway), int64(t.HoldFor / time.Second), string(t.Metadata), t.AwaitingQuantity, string(t.Authors),
	}
}

// TemplateChange changes the settings of a template. It applies the rules to
// the template that it has read, and its statement expects the same settings.
// If another caller changed them meanwhile, it starts again.
func (s *Store) TemplateChange(ctx context.Context, p rules.TemplateChange) (reward.CouponTemplate, error) {
	stands, err := s.TemplateGet(ctx, p.ID)
	if err != nil {
		return reward.CouponTemplate{}, err
	}
	shrunk := rules.Shrunk{Generation: -1}
	if p.Shrunk != nil {
		shrunk = *p.Shrunk
	}
	for {
		was := stands
		if err := archivedError(&was); err != nil {
			return reward.CouponTemplate{}, err
		}
		to, err := p.Apply(was)
		if err != nil {
			return reward.CouponTemplate{}, err
		}
		var changed, asked bool
		err = s.send(ctx, "change a coupon template", func(b *pgx.Batch) {
			changed, asked = false, false
			b.Queue(lockTemplate, int64(p.ID))
			args := append(append([]any{int64(p.ID)}, settings(&to)...), settings(&was)...)
			args = append(args, was.CodesImported-was.CodesReturned, rules.FixedByUse(&was, &to), shrunk.Generation, shrunk.Grants, shrunk.Granted)
			b.Queue(changeTemplate, args...).Query(each(func(pgx.Rows) error {
				changed = true
				return nil
			}))
			queueTemplate(b, p.ID, &stands)
			b.Queue(`SELECT EXISTS (SELECT 1 FROM coupon_entrants e WHERE e.template_id = $1)`, int64(p.ID)).
				Query(each(func(rows pgx.Rows) error { return rows.Scan(&asked) }))
		})
		switch {
		case err != nil:
			return reward.CouponTemplate{}, err
		case changed:
			return stands, nil
		case !rules.SameSettings(&was, &stands):
			continue
		}
		if to, err = p.Apply(stands); err != nil {
			return reward.CouponTemplate{}, err
		}
		if err := rules.CheckChange(&stands, &to, asked); err != nil {
			return reward.CouponTemplate{}, err
		}
		return reward.CouponTemplate{}, fmt.Errorf("change a coupon template: template %d did not change, although no rule forbids it", p.ID)
	}
}

// archivedError returns CodeArchived if a template is archived.
func archivedError(t *reward.CouponTemplate) error {
	return rules.CheckTemplateArchived(t.ID, !t.ArchivedAt.IsZero())
}

// refusedAsArchived returns CodeArchived for an error of the trigger that refuses changes
// of archived templates. The detail of the error is the ID.
func refusedAsArchived(err error) error {
	var pe *pgconn.PgError
	if !errors.As(err, &pe) || pe.ConstraintName != "coupon_templates_archived" {
		return err
	}
	id, parseErr := reward.ParseTemplateID(pe.Detail)
	if parseErr != nil {
		return err
	}
	return rules.CheckTemplateArchived(id, true)
}

// TemplateGrant grants places to the gate of a template, by rules.Grant.
func (s *Store) TemplateGrant(ctx context.Context, p store.TemplateGrantParams) (reward.CouponTemplate, bool, error) {
	return s.WriteTemplate(ctx, "grant places to a gate", p.ID, `UPDATE coupon_templates t
SET granted = t.granted + k.places, grants = t.grants + 1, version = t.version + 1
FROM (SELECT n.id, n.lacking + least($6::int8, (n.rest - n.lacking) / 2) AS places
  FROM (SELECT l.id, l.rest, least($5::int8, l.rest) AS lacking
    FROM (SELECT t.id, greatest(`+liveMaxSQL+` - t.live - (t.granted - t.used), 0) AS rest FROM coupon_templates t WHERE t.id = $1) l) n) k
WHERE t.id = $1 AND k.id = t.id AND t.generation = $2 AND t.path = 'GATE' AND t.mode <> 'SYNC' AND t.grants = $3 AND (k.places > 0 OR t.granted > $4)
RETURNING t.id`, p.Generation, p.Grants, p.Granted, p.Lacking, p.More)
}

// TemplateShrink takes back places that the gate has not given, by rules.Shrink.
func (s *Store) TemplateShrink(ctx context.Context, id reward.TemplateID, shrunk rules.Shrunk) (reward.CouponTemplate, bool, error) {
	return s.WriteTemplate(ctx, "take back places of a gate", id, `UPDATE coupon_templates t
SET granted = greatest(least(t.granted, $4), t.used), grants = t.grants + 1, version = t.version + 1
WHERE t.id = $1 AND t.generation = $2 AND t.path = 'GATE' AND t.grants = $3 RETURNING t.id`, shrunk.Generation, shrunk.Grants, shrunk.Granted)
}

// TemplateReleasePlaces takes back all places that are set aside, by rules.ReleasePlaces.
func (s *Store) TemplateReleasePlaces(ctx context.Context, id reward.TemplateID) (reward.CouponTemplate, bool, error) {
	return s.WriteTemplate(ctx, "take back all places of a template", id, `UPDATE coupon_templates t
SET granted = t.used, grants = t.grants + 1, version = t.version + 1
WHERE t.id = $1 AND t.path = 'DATABASE' AND t.granted > t.used RETURNING t.id`)
}
