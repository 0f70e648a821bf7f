package rows

import (
	"cmp"
	"context"
	"time"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
)

// These statements begin an import. The first one locks the template, so that two
// callers cannot both begin one.
const (
	lockForImport = `UPDATE coupon_templates SET codes_imported = codes_imported WHERE id = $1 AND archived_at IS NULL RETURNING id`
	whyNoImport   = `SELECT archived_at IS NOT NULL FROM coupon_templates WHERE id = $1`
	endImports    = `UPDATE coupon_code_imports SET state = 2 WHERE template_id = $1 AND state = 0`
	beginImport   = `INSERT INTO coupon_code_imports (id, template_id, touched_at) SELECT $2, t.id, $3 FROM coupon_templates t WHERE t.id = $1 AND t.archived_at IS NULL`
)

// CodesBegin opens an import of codes.
func (t *Tables) CodesBegin(ctx context.Context, id reward.TemplateID, importID int64, now time.Time) error {
	var known, archived bool
	err := t.db.Write(ctx, "begin an import of codes", func() []Statement {
		known, archived = false, false
		return []Statement{
			{SQL: lockForImport, Args: []any{int64(id)}},
			{SQL: whyNoImport, Args: []any{int64(id)}, Row: func(scan Scan) error {
				known = true
				return scan(&archived)
			}},
			{SQL: endImports, Args: []any{int64(id)}},
			{SQL: beginImport, Args: []any{int64(id), importID, now}},
		}
	})
	if err == nil && !known {
		err = store.NoTemplate(id)
	}
	return cmp.Or(err, rules.CheckTemplateArchived(id, archived))
}

// CodesDiscard ends an import.
func (t *Tables) CodesDiscard(ctx context.Context, importID int64) error {
	return t.db.Write(ctx, "discard an import of codes", func() []Statement {
		return []Statement{{SQL: `UPDATE coupon_code_imports SET state = 2 WHERE id = $1 AND state = 0`, Args: []any{importID}}}
	})
}

// endedImport is the import whose codes a sweep removes.
const endedImport = `(SELECT i.id FROM coupon_code_imports i WHERE i.state = 2 AND i.touched_at < $1 ORDER BY i.touched_at, i.id LIMIT 1)`

// These statements sweep imports. The state of a published import never changes, so
// none of its codes is removed.
const (
	endIdleImports = `UPDATE coupon_code_imports SET state = 2 WHERE state = 0 AND touched_at < $1`
	removeCodes    = `DELETE FROM coupon_codes WHERE import_id = ` + endedImport + ` AND line < $2 + (
  SELECT min(k.line) FROM coupon_codes k WHERE k.import_id = ` + endedImport + `) RETURNING line`
	removeEmptyImport = `DELETE FROM coupon_code_imports WHERE state = 2 AND touched_at < $1
  AND NOT EXISTS (SELECT 1 FROM coupon_codes k WHERE k.import_id = coupon_code_imports.id) RETURNING id`
)

// CodesSweep removes codes of imports that were not published.
func (t *Tables) CodesSweep(ctx context.Context, before time.Time, limit int) (int, error) {
	var removed int
	count := func(Scan) error { //nolint:unparam // the signature of a row
		removed++
		return nil
	}
	err := t.db.Write(ctx, "remove codes that were not imported", func() []Statement {
		removed = 0
		return []Statement{
			{SQL: endIdleImports, Args: []any{before}},
			{SQL: removeCodes, Args: []any{before, max(limit, 0)}, Row: count},
			{SQL: removeEmptyImport, Args: []any{before}, Row: count},
		}
	})
	if err != nil {
		return 0, err
	}
	return removed, nil
}
