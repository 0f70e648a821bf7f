package rows

import (
	"context"
	"slices"
	"time"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

// The statements that archive coupon templates.
const (
	// closedBefore lists templates that closed before $1, after the position $2, $3.
	closedBefore = `SELECT id, closes_at, archived_at IS NOT NULL FROM coupon_templates
WHERE closes_at IS NOT NULL AND NOT rows_removed AND closes_at < $1 AND (closes_at, id) > ($2, $3)
ORDER BY closes_at, id LIMIT $4`

	// isOver is what the row of template t, and its imports, must show.
	isOver = `t.id = $1 AND t.archived_at IS NULL AND t.closes_at < $2 AND t.draw_state IN ('', 'DONE') AND t.granted = t.used
  AND NOT EXISTS (SELECT 1 FROM coupon_code_imports i WHERE i.template_id = t.id AND i.state = 0)`

	// overAtVersion reads the version at which a template is over. Its duration grows
	// with the coupons. After it, a coupon changes only by a transaction that raises the
	// version, or becomes EXPIRED: none is HELD, and no ISSUED one is still valid.
	overAtVersion = `SELECT t.version FROM coupon_templates t WHERE ` + isOver + `
  AND NOT EXISTS (SELECT 1 FROM coupons c WHERE c.template_id = t.id AND (c.status = 4
    OR c.status IN (0, 3) AND (c.expires_at IS NULL OR c.expires_at >= $2)
    OR c.issued_at >= $2 OR c.used_at >= $2 OR c.cancelled_at >= $2))
  AND NOT EXISTS (SELECT 1 FROM coupon_rejections r WHERE r.template_id = t.id AND r.at >= $2)`

	// archiveTemplate follows the lock of the template: it sees what was committed before the lock.
	archiveTemplate = `UPDATE coupon_templates AS t SET archived_at = $3, generation = generation + 1, epoch = epoch + 1
WHERE ` + isOver + ` AND t.version = $4 RETURNING id`

	templateArchived = ` AND EXISTS (SELECT 1 FROM coupon_templates t WHERE t.id = $1 AND t.archived_at IS NOT NULL)`
)

// TemplateEnded returns at most limit coupon templates that closed before a time and may
// have rows left, ordered by ClosesAt, then ID. It begins after a template of an
// earlier page; the zero value begins at the first one.
func (t *Tables) TemplateEnded(ctx context.Context, before time.Time, after store.EndedTemplate, limit int) ([]store.EndedTemplate, error) {
	from := after.ClosesAt
	if from.IsZero() {
		from = time.Unix(0, 0)
	}
	return list(ctx, t.db.Read, "list closed templates", func(scan Scan, e *store.EndedTemplate) error {
		return scan((*int64)(&e.ID), (*at)(&e.ClosesAt), &e.Archived)
	}, closedBefore, before, from, int64(after.ID), max(limit, 0))
}

// TemplateArchive archives a template that is over since before a time, and reports
// whether it did: it has closed, its draw is DONE, no place is promised, no import of
// codes is open, and nobody can use, cancel or confirm a coupon. No coupon was
// issued, used, cancelled or expired later, and no request was rejected later. It raises Generation and
// Epoch.
//
// It looks at the coupons first, and decides under the lock of the template, which
// must still have the version that it had. An archived template stays archived. Its
// counts stay.
func (t *Tables) TemplateArchive(ctx context.Context, id reward.TemplateID, before, now time.Time) (bool, error) {
	seenAt, err := list(ctx, t.db.ReadLong, "look for what is open of a template", scanOne[int64], overAtVersion, int64(id), before)
	if err != nil || len(seenAt) == 0 {
		return false, err
	}
	var archived bool
	err = t.db.Write(ctx, "archive a coupon template", func() []Statement {
		archived = false
		return []Statement{
			{SQL: lockTemplateSQL, Args: []any{int64(id)}},
			{SQL: archiveTemplate, Args: []any{int64(id), before, now, seenAt[0]}, Row: seen(&archived)},
		}
	})
	return archived && err == nil, err
}

// forgetPart are the statements that remove one part of the rows of a template. A position is
// two numbers, or one text. at returns pointers to them.
type forgetPart struct {
	page   string   // at most $4 positions after $2, $3, in their order; $3 after $2 of a text
	remove []string // the rows after $2, $3, up to $4, $5; after $2 up to $3 of a text
	at     func(*store.TemplateRow) []any
}

func numbersAt(r *store.TemplateRow) []any { return []any{&r.Major, &r.Minor} }
func userAt(r *store.TemplateRow) []any    { return []any{&r.User} }

// lineAfter is the line of import i after which its codes are left, and importLeft the
// first import with such a code, after the position $2, $3.
const (
	lineAfter  = `CASE WHEN i.id = $2 THEN CAST($3 AS bigint) ELSE 0 END`
	importLeft = ` FROM coupon_code_imports i WHERE i.template_id = $1 AND i.id >= $2
  AND EXISTS (SELECT 1 FROM coupon_codes c WHERE c.import_id = i.id AND c.line > ` + lineAfter + `) ORDER BY i.id LIMIT 1`
)

// forgetOutcomes and forgetCodes name the range of a page, as forgetPayouts does.
var (
	forgetOutcomes = forgetPart{
		page: `SELECT ticket, generation FROM (
  SELECT ticket, generation FROM (
    SELECT ticket, generation FROM coupons WHERE template_id = $1 AND (ticket, generation) > ($2, $3) ORDER BY ticket, generation LIMIT $4) AS c
  UNION ALL
  SELECT ticket, generation FROM (
    SELECT ticket, generation FROM coupon_rejections WHERE template_id = $1 AND (ticket, generation) > ($2, $3) ORDER BY ticket, generation LIMIT $4) AS r
) AS o ORDER BY ticket, generation LIMIT $4`,
		at: numbersAt, remove: []string{
			`DELETE FROM coupons WHERE template_id = $1 AND (ticket, generation) > ($2, $3) AND (ticket, generation) <= ($4, $5)` + templateArchived + ` RETURNING ticket`,
			`DELETE FROM coupon_rejections WHERE template_id = $1 AND (ticket, generation) > ($2, $3) AND (ticket, generation) <= ($4, $5)` + templateArchived + ` RETURNING ticket`,
		},
	}
	// A page of codes is of one import: the first one from $2 on that has codes left. Its
	// range is lines after those that were removed, so it reads no codes of other imports.
	forgetCodes = forgetPart{
		page: `SELECT k.import_id, k.line FROM coupon_codes k
WHERE k.import_id = (SELECT i.id` + importLeft + `) AND k.line > (SELECT ` + lineAfter + importLeft + `)
ORDER BY k.import_id, k.line LIMIT $4`,
		at: numbersAt, remove: []string{`DELETE FROM coupon_codes WHERE import_id = $4 AND line <= $5
  AND line > CASE WHEN $2 = CAST($4 AS bigint) THEN CAST($3 AS bigint) ELSE 0 END
  AND EXISTS (SELECT 1 FROM coupon_code_imports i WHERE i.id = $4 AND i.template_id = $1)` + templateArchived + ` RETURNING line`},
	}
	forgetEntrants = forgetPart{page: listEntrants, at: userAt, remove: []string{
		`DELETE FROM coupon_entrants WHERE template_id = $1 AND user_id > $2 AND user_id <= $3` + templateArchived + ` RETURNING user_id`,
	}}

	// forgetParts are the parts of store.TemplateRow, in the order of their removal.
	forgetParts = []*forgetPart{&forgetOutcomes, &forgetEntrants, &forgetCodes}
)

const (
	// The last statements leave the template without any other row.
	forgetRefusals = `DELETE FROM coupon_refusals WHERE template_id = $1` + templateArchived
	forgetImports  = `DELETE FROM coupon_code_imports WHERE template_id = $1` + templateArchived + `
  AND NOT EXISTS (SELECT 1 FROM coupon_codes k WHERE k.import_id = coupon_code_imports.id)`
	templateRemoved = `UPDATE coupon_templates SET rows_removed = true WHERE id = $1 AND archived_at IS NOT NULL AND NOT rows_removed
  AND NOT EXISTS (SELECT 1 FROM coupons c WHERE c.template_id = $1) AND NOT EXISTS (SELECT 1 FROM coupon_rejections r WHERE r.template_id = $1)
  AND NOT EXISTS (SELECT 1 FROM coupon_entrants e WHERE e.template_id = $1) AND NOT EXISTS (SELECT 1 FROM coupon_code_imports i WHERE i.template_id = $1)`
)

// TemplateForget removes a page of the rows of an archived template: its coupons,
// rejected requests, entrants and imported codes, and with the last page its refusals.
func (t *Tables) TemplateForget(ctx context.Context, p store.TemplateForgetParams) (store.TemplateForgotten, error) {
	for after := p.After; after.Part < len(forgetParts); after = (store.TemplateRow{Part: after.Part + 1}) {
		removed, last, err := t.forgetPart(ctx, forgetParts[after.Part], p, after)
		if err != nil || last != nil {
			return store.TemplateForgotten{Removed: removed, Last: last}, err
		}
	}
	return store.TemplateForgotten{}, t.db.Write(ctx, "end the removal of coupons", func() []Statement {
		args := []any{int64(p.TemplateID)}
		return []Statement{{SQL: forgetRefusals, Args: args}, {SQL: forgetImports, Args: args}, {SQL: templateRemoved, Args: args}}
	})
}

// forgetPart removes a page of one part. last is nil if nothing of it is left.
func (t *Tables) forgetPart(ctx context.Context, part *forgetPart, p store.TemplateForgetParams, after store.TemplateRow) (removed int, last *store.TemplateRow, err error) {
	from := append([]any{int64(p.TemplateID)}, part.at(&after)...)
	page, err := list(ctx, t.db.Read, "read a page of old coupons", func(scan Scan, r *store.TemplateRow) error {
		r.Part = after.Part
		return scan(part.at(r)...)
	}, part.page, slices.Concat(from, []any{max(p.Limit, 1)})...)
	if err != nil || len(page) == 0 {
		return 0, nil, err
	}
	last = &page[len(page)-1]
	err = t.db.Write(ctx, "remove old coupons", func() []Statement {
		removed = 0
		var all []Statement
		for _, sql := range part.remove {
			all = append(all, Statement{SQL: sql, Args: slices.Concat(from, part.at(last)), Row: counted(&removed)})
		}
		return all
	})
	return removed, last, err
}

// counted returns a row reader that counts rows.
func counted(n *int) func(Scan) error {
	return func(Scan) error {
		*n++
		return nil
	}
}
