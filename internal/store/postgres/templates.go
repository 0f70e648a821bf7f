package postgres

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/store/rows"
)

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

// TemplateActive returns the templates that never close or close after closedAfter, ordered
// by ID. The caller owns the list. It is called often, and the list rarely changes, so the
// database sends an unchanged list only once.
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
