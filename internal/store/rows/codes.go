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

// These statements begin an import, under the lock of the template: two callers cannot both
// begin one. An archived template has no open import.
const (
	endImports  = `UPDATE coupon_code_imports SET state = 2 WHERE template_id = $1 AND state = 0`
	beginImport = `INSERT INTO coupon_code_imports (id, template_id, touched_at) SELECT $2, t.id, $3 FROM coupon_templates t WHERE t.id = $1 AND t.archived_at IS NULL`
)

// CodesBegin opens an import of codes to a template. It ends an import of the template that is
// still open, because its sender may have crashed. importID is a new number.
func (t *Tables) CodesBegin(ctx context.Context, id reward.TemplateID, importID int64, now time.Time) error {
	c, err := t.inTemplate(ctx, "begin an import of codes", id, func() []Statement {
		return []Statement{{SQL: endImports, Args: []any{int64(id)}}, {SQL: beginImport, Args: []any{int64(id), importID, now}}}
	})
	return cmp.Or(err, archivedError(&c))
}

// CodesDiscard ends an import, if it is open.
func (t *Tables) CodesDiscard(ctx context.Context, importID int64) error {
	return t.exec(ctx, "discard an import of codes", `UPDATE coupon_code_imports SET state = 2 WHERE id = $1 AND state = 0`, importID)
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

// CodesSweep ends open imports that nobody has touched since before, and removes at most limit
// codes of an import that ended without being published and was last touched before. It
// returns the number of rows that it removed.
func (t *Tables) CodesSweep(ctx context.Context, before time.Time, limit int) (int, error) {
	var removed int
	err := t.db.Write(ctx, "remove codes that were not imported", func() []Statement {
		removed = 0
		return []Statement{
			{SQL: endIdleImports, Args: []any{before}},
			{SQL: removeCodes, Args: []any{before, max(limit, 0)}, Row: counted(&removed)},
			{SQL: removeEmptyImport, Args: []any{before}, Row: counted(&removed)},
		}
	})
	if err != nil {
		return 0, err
	}
	return removed, nil
}

// openImport is import i with ID $2 of template $1, while it is open and has $3 codes.
const openImport = ` i.id = $2 AND i.template_id = $1 AND i.state = 0 AND i.codes = $3`

// These statements stage codes $4, in one transaction after takenCode. Nothing that is
// imported changes the codes of a template while this import is open, because two are never.
const (
	// takenCode returns a row if the import is open, with the position of the first code that
	// it or the template has. The LIMIT keeps the planner from joining all codes of an import
	// with the list.
	takenCode = `SELECT f.key, f.template FROM coupon_code_imports i LEFT JOIN (
  SELECT l.key, p.template FROM :list4 l CROSS JOIN (
    SELECT CAST($2 AS bigint) AS id, false AS template
    UNION ALL SELECT p.id, true FROM coupon_code_imports p WHERE p.template_id = $1 AND p.first_number IS NOT NULL
  ) p WHERE (SELECT 1 FROM coupon_codes k WHERE k.import_id = p.id AND k.code = l.value LIMIT 1) IS NOT NULL ORDER BY l.key, p.template LIMIT 1
) f ON true WHERE` + openImport

	lockImport  = `SELECT i.id FROM coupon_code_imports i WHERE` + openImport + ` :lock_row`
	stageCodes  = `INSERT INTO coupon_codes (import_id, line, code) SELECT i.id, i.codes + l.key + 1, l.value FROM coupon_code_imports i CROSS JOIN :list4 l WHERE` + openImport
	countStaged = `UPDATE coupon_code_imports AS i SET codes = i.codes + $4, touched_at = $5 WHERE` + openImport + ` RETURNING id`
)

// CodesStage adds codes to an open import, which has so many codes already. It adds all of
// them or, if one is taken, none, and returns the position of the first that is taken, or -1.
// The codes differ from each other, and are at most CodesMax. It returns rules.ImportEnded if
// the import is not open or has another number of codes. Codes of an open import are never
// given.
func (t *Tables) CodesStage(ctx context.Context, p store.CodesStageParams) (store.TakenCode, error) {
	const what = "stage codes"
	open := []any{int64(p.TemplateID), p.ImportID, p.Staged}
	withCodes := slices.Concat(open, []any{jsonList(p.Codes)})
	taken, err := one(ctx, t.db.Read, what, rules.ImportEnded(p.TemplateID), func(scan Scan, taken *store.TakenCode) error {
		var position *int64
		var template *bool
		taken.At = -1
		err := scan(&position, &template)
		if position != nil {
			*taken = store.TakenCode{At: int(*position), Template: *template}
		}
		return err
	}, takenCode, withCodes...)
	if err != nil || taken.At >= 0 {
		return taken, err
	}
	var staged bool
	err = t.db.Write(ctx, what, func() []Statement {
		staged = false
		return []Statement{
			{SQL: lockImport, Args: open},
			{SQL: stageCodes, Args: withCodes},
			{SQL: countStaged, Args: slices.Concat(open, []any{len(p.Codes), p.Now}), Row: seen(&staged)},
		}
	})
	if err == nil && !staged {
		err = rules.ImportEnded(p.TemplateID)
	}
	return taken, err
}

const (
	// readForImport reads template $1, and whether import $2 is open and has $3 codes.
	readForImport = `SELECT ` + TemplateColumns + `, EXISTS (SELECT 1 FROM coupon_code_imports i WHERE` + openImport + `) FROM coupon_templates t WHERE t.id = $1`

	// publishImport gives the codes the numbers from $4 on, if what rules.CheckImport and
	// rules.LimitImport look at is still as it was read. It is compared as sums that a coupon
	// which the gate has promised does not change: otherwise an import would not get its turn in a rush.
	publishImport = `UPDATE coupon_code_imports AS i SET state = 1, first_number = $4 FROM coupon_templates t
WHERE` + openImport + ` AND t.id = $1 AND t.archived_at IS NULL AND t.codes_imported + 1 = $4 AND t.codes_returned = $5
  AND t.total_quantity = $6 AND t.awaiting_quantity = $7 AND (t.issued_total = 0) = $8
  AND t.live - t.issued_total = $9 AND t.live + t.granted - t.used = $10 RETURNING first_number`

	// countPublished follows publishImport.
	countPublished = `UPDATE coupon_templates SET version = version + 1, codes_imported = codes_imported + $2, total_quantity = $3, awaiting_quantity = $4 WHERE id = $1`
)

// CodesPublish gives the codes of an open import, as many as codes says, to its template,
// after those that the template has. The error is that of rules.CheckImport or
// rules.ImportEnded; nothing has then changed. above is the setting approval.codes-above, see
// rules.LimitImport.
func (t *Tables) CodesPublish(ctx context.Context, id reward.TemplateID, importID, codes, above int64) (change store.CouponChange, err error) {
	const what = "publish codes"
	of := []any{int64(id), importID, codes}
	err = whileStale(what, func() error {
		var open bool
		was, err := t.templateWith(ctx, what, id, readForImport, of, &open)
		switch {
		case err != nil:
			return err
		case was.ArchivedAt.IsZero() && !open:
			return rules.ImportEnded(id)
		}
		if err := cmp.Or(archivedError(&was), rules.CheckImport(&was, codes, above)); err != nil {
			return err
		}
		next := was
		rules.LimitImport(&next, above)
		change.Template, err = t.inTemplate(ctx, what, id, func() []Statement {
			return []Statement{
				{SQL: publishImport, Must: true, Args: slices.Concat(of, []any{
					was.CodesImported + 1, was.CodesReturned, was.TotalQuantity, was.AwaitingQuantity, was.IssuedTotal == 0,
					was.Live - was.IssuedTotal, was.Live + was.Promised(),
				})},
				{SQL: countPublished, Args: []any{int64(id), codes, next.TotalQuantity, next.AwaitingQuantity}},
			}
		})
		change.From, change.To = change.Template.Version-1, change.Template.Version
		return err
	})
	if err != nil {
		return store.CouponChange{}, err
	}
	return change, nil
}
