package postgres

import (
	"cmp"
	"context"
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
)

// stageCodes adds codes $4 to import $2 of template $1, which is open and has $3
// codes, unless one is taken. It locks the import, so that a repeat finds another
// number of codes. The LIMIT of each search keeps the planner from joining all codes of
// the import with the list, as it would while coupon_codes is empty.
const stageCodes = `WITH open AS MATERIALIZED (
  SELECT i.id, i.template_id FROM coupon_code_imports i WHERE i.id = $2 AND i.template_id = $1 AND i.state = 0 AND i.codes = $3 FOR NO KEY UPDATE
), asked AS MATERIALIZED (
  SELECT a.code, a.ord FROM open, unnest($4::text[]) WITH ORDINALITY AS a(code, ord)
), found AS MATERIALIZED (
  SELECT a.ord, false AS template FROM asked a, LATERAL (SELECT 1 FROM coupon_codes k WHERE k.import_id = $2 AND k.code = a.code LIMIT 1) k
  UNION ALL
  SELECT a.ord, true FROM coupon_code_imports p CROSS JOIN asked a, LATERAL (SELECT 1 FROM coupon_codes k WHERE k.import_id = p.id AND k.code = a.code LIMIT 1) k
  WHERE p.template_id = $1 AND p.first_number IS NOT NULL
), first AS MATERIALIZED (
  SELECT f.ord, f.template FROM found f ORDER BY f.ord, f.template LIMIT 1
), inserted AS (
  INSERT INTO coupon_codes (import_id, line, code)
  SELECT $2, $3 + a.ord, a.code FROM asked a WHERE NOT EXISTS (SELECT 1 FROM first)
), counted AS (
  UPDATE coupon_code_imports i SET codes = i.codes + cardinality($4::text[]), touched_at = $5
  FROM open WHERE i.id = open.id AND NOT EXISTS (SELECT 1 FROM first)
)
SELECT first.ord, first.template FROM open LEFT JOIN first ON true`

// CodesStage adds codes to an open import. It is one INSERT of an array and not a
// COPY, because it must check the codes in the same transaction.
func (s *Store) CodesStage(ctx context.Context, p store.CodesStageParams) (store.TakenCode, error) {
	taken := store.TakenCode{At: -1}
	open := false
	err := s.send(ctx, "stage codes", func(b *pgx.Batch) {
		taken, open = store.TakenCode{At: -1}, false
		b.Queue(stageCodes, int64(p.TemplateID), p.ImportID, p.Staged, p.Codes, instant(p.Now)).Query(each(func(rows pgx.Rows) error {
			open = true
			var ord *int64
			var template *bool
			if err := rows.Scan(&ord, &template); err != nil || ord == nil {
				return err
			}
			taken = store.TakenCode{At: int(*ord - 1), Template: *template}
			return nil
		}))
	})
	if err == nil && !open {
		err = rules.ImportEnded(p.TemplateID)
	}
	return taken, err
}

// returnedCodes has CTEs that give codes back to a template, by rules.ReturnCodes: those of
// the CTE freed, in the order of ord. The caller holds the lock of the template, and adds
// the rows of found to its counts. A code moves behind the last one of the last import.
func returnedCodes(template string) string {
	return `last AS MATERIALIZED (
  SELECT i.id, i.codes FROM coupon_code_imports i WHERE i.template_id = ` + template + ` AND i.first_number IS NOT NULL ORDER BY i.first_number DESC LIMIT 1
), found AS MATERIALIZED (
  SELECT k.import_id, k.line, row_number() OVER (ORDER BY f.ord) AS nth
  FROM freed f CROSS JOIN coupon_code_imports i, LATERAL (SELECT k.import_id, k.line FROM coupon_codes k WHERE k.import_id = i.id AND k.code = f.code LIMIT 1) k
  WHERE i.template_id = ` + template + ` AND i.first_number IS NOT NULL
), returned AS (
  UPDATE coupon_codes k SET import_id = l.id, line = l.codes + f.nth FROM found f, last l WHERE k.import_id = f.import_id AND k.line = f.line
), longer AS (
  UPDATE coupon_code_imports i SET codes = i.codes + n.n FROM last l, (SELECT count(*) AS n FROM found) n WHERE i.id = l.id AND n.n > 0
)`
}

// freedCode replaces the code of coupon c, which goes back to its template.
const freedCode = `'returned-' || c.id`

var (
	// lockImport locks import $1. A sweep may end it otherwise.
	lockImport = `SELECT 1 FROM coupon_code_imports i WHERE i.id = $1 FOR NO KEY UPDATE`

	// publishCodes gives the $3 codes of import $2 to template $1, if rules.CheckImport
	// allows it, and lowers its quantity by rules.LimitImport; $4 is approval.codes-above.
	// The caller holds the locks of both.
	publishCodes = `WITH moved AS (
  UPDATE coupon_templates t SET codes_imported = t.codes_imported + i.codes, version = t.version + 1, total_quantity = least(t.total_quantity, k.force),
    awaiting_quantity = CASE WHEN t.total_quantity > k.force THEN greatest(t.awaiting_quantity, t.total_quantity) ELSE t.awaiting_quantity END
  FROM coupon_code_imports i, (SELECT p.id, CASE WHEN $4::int8 > 0
      THEN greatest($4::int8, p.live + greatest(p.codes_imported - p.issued_total, p.granted - p.used)) ELSE p.total_quantity END AS force
    FROM coupon_templates p WHERE p.id = $1) k
  WHERE k.id = t.id AND t.id = $1 AND i.id = $2 AND i.template_id = t.id AND i.state = 0 AND i.codes = $3
    AND t.code_length = 0 AND t.codes_imported - t.codes_returned + i.codes <= ` + strconv.FormatInt(reward.TemplateQuantityMax, 10) + `
    AND (t.codes_imported > 0 OR t.issued_total = 0 AND t.total_quantity - t.live <= i.codes
      AND ($4::int8 <= 0 OR t.granted - t.used <= $4::int8))
  RETURNING t.codes_imported - i.codes + 1 AS first
)
UPDATE coupon_code_imports i SET state = 1, first_number = m.first FROM moved m WHERE i.id = $2 RETURNING i.id`
)

// CodesPublish gives the codes of an open import to its template. After a refusal, it
// finds the reason in what it has read in the same transaction.
func (s *Store) CodesPublish(ctx context.Context, id reward.TemplateID, importID, codes, above int64) (store.CouponChange, error) {
	var published, open bool
	var t reward.CouponTemplate
	err := s.send(ctx, "publish codes", func(b *pgx.Batch) {
		published, open = false, false
		b.Queue(lockTemplate, int64(id))
		b.Queue(lockImport, importID)
		b.Queue(`SELECT 1 FROM coupon_code_imports i WHERE i.id = $1 AND i.template_id = $2 AND i.state = 0 AND i.codes = $3`, importID, int64(id), codes).
			Query(each(func(pgx.Rows) error {
				open = true
				return nil
			}))
		b.Queue(publishCodes, int64(id), importID, codes, above).Query(each(func(pgx.Rows) error {
			published = true
			return nil
		}))
		queueTemplate(b, id, &t)
	})
	if err := cmp.Or(templateError(t.ID, id, err), archivedError(&t)); err != nil {
		return store.CouponChange{}, err
	}
	switch {
	case published:
		return store.CouponChange{From: t.Version - 1, To: t.Version, Template: t}, nil
	case !open:
		return store.CouponChange{}, rules.ImportEnded(id)
	}
	if err := rules.CheckImport(&t, codes, above); err != nil {
		return store.CouponChange{}, err
	}
	return store.CouponChange{}, fmt.Errorf("publish codes: template %d did not change, although no rule forbids it", id)
}
