package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
)

// openImport returns the number of codes of an import of a template, or
// rules.ImportEnded if it is not open.
func (t *tx) openImport(id reward.TemplateID, importID int64) (int64, error) {
	n, found, err := one(t.ctx, t, scanInt, `SELECT codes FROM coupon_code_imports WHERE id = ? AND template_id = ? AND state = 0`, importID, int64(id))
	if err == nil && !found {
		err = rules.ImportEnded(id)
	}
	return n, err
}

// CodesStage adds codes to an open import.
func (s *Store) CodesStage(ctx context.Context, p store.CodesStageParams) (store.TakenCode, error) {
	taken := store.TakenCode{At: -1}
	err := s.write(ctx, "stage codes", func(tx *tx) error {
		taken = store.TakenCode{At: -1}
		staged, err := tx.openImport(p.TemplateID, p.ImportID)
		if err != nil {
			return err
		}
		if staged != p.Staged {
			return rules.ImportEnded(p.TemplateID)
		}
		published, err := collect(tx.ctx, tx, scanInt, `SELECT id FROM coupon_code_imports WHERE template_id = ? AND first_number IS NOT NULL`, int64(p.TemplateID))
		if err != nil {
			return err
		}
		if taken, err = tx.takenCode(p, published); err != nil || taken.At >= 0 {
			return err
		}
		insert, err := tx.PrepareContext(tx.ctx, `INSERT INTO coupon_codes (import_id, line, code) VALUES (?, ?, ?)`)
		if err != nil {
			return err
		}
		defer func() { _ = insert.Close() }() // a failure shows at the end of the transaction
		for i, code := range p.Codes {
			if _, err := insert.ExecContext(tx.ctx, p.ImportID, staged+int64(i)+1, code); err != nil {
				return err
			}
		}
		return tx.exec(`UPDATE coupon_code_imports SET codes = codes + ?, touched_at = ? WHERE id = ?`, len(p.Codes), micros(p.Now), p.ImportID)
	})
	return taken, err
}

// takenCode finds the first code that the import or a published one has.
func (t *tx) takenCode(p store.CodesStageParams, published []int64) (store.TakenCode, error) {
	lookup, err := t.PrepareContext(t.ctx, `SELECT EXISTS (SELECT 1 FROM coupon_codes WHERE import_id = ? AND code = ?)`)
	if err != nil {
		return store.TakenCode{}, err
	}
	defer func() { _ = lookup.Close() }() // a failure shows at the end of the transaction
	has := func(lookup *sql.Stmt, importID int64, code string) (has bool, err error) {
		err = lookup.QueryRowContext(t.ctx, importID, code).Scan(&has)
		return has, err
	}
	for i, code := range p.Codes {
		for _, importID := range append([]int64{p.ImportID}, published...) {
			found, err := has(lookup, importID, code)
			if err != nil {
				return store.TakenCode{}, err
			}
			if found {
				return store.TakenCode{At: i, Template: importID != p.ImportID}, nil
			}
		}
	}
	return store.TakenCode{At: -1}, nil
}

// lastImport is the published import of a template that has its last codes.
const lastImport = `SELECT i.id, i.codes FROM coupon_code_imports i WHERE i.template_id = ?1 AND i.first_number IS NOT NULL ORDER BY i.first_number DESC LIMIT 1`

// returnCodes gives codes that nobody has seen back to a template: they move behind the
// last one of its last import, in the order of coupons. The caller stores the template.
func (t *tx) returnCodes(c *reward.CouponTemplate, coupons []reward.CouponID) error {
	if len(coupons) == 0 {
		return nil
	}
	ids, err := json.Marshal(coupons)
	if err != nil {
		return err
	}
	res, err := t.ExecContext(t.ctx, `UPDATE coupon_codes SET import_id = l.id, line = l.codes + r.place
FROM (SELECT k.import_id, k.code, row_number() OVER (ORDER BY e.key) AS place FROM json_each(?2) e JOIN coupons c ON c.id = e.value
  JOIN coupon_code_imports i ON i.template_id = ?1 AND i.first_number IS NOT NULL JOIN coupon_codes k ON k.import_id = i.id AND k.code = c.code) r, (`+lastImport+`) l
WHERE coupon_codes.import_id = r.import_id AND coupon_codes.code = r.code`, int64(c.ID), string(ids))
	if err != nil {
		return err
	}
	moved, err := res.RowsAffected()
	if err != nil {
		return err
	}
	if err := t.exec(`UPDATE coupons SET code = 'returned-' || id WHERE id IN (SELECT value FROM json_each(?))`, string(ids)); err != nil {
		return err
	}
	rules.ReturnCodes(c, moved)
	return t.exec(`UPDATE coupon_code_imports SET codes = codes + ?2 WHERE id = (SELECT id FROM (`+lastImport+`))`, int64(c.ID), moved)
}

// CodesPublish gives the codes of an open import to its template.
func (s *Store) CodesPublish(ctx context.Context, id reward.TemplateID, importID, codes, above int64) (store.CouponChange, error) {
	var change store.CouponChange
	err := s.write(ctx, "publish codes", func(tx *tx) error {
		t, err := tx.openTemplate(id)
		if err != nil {
			return err
		}
		staged, err := tx.openImport(id, importID)
		if err != nil {
			return err
		}
		if staged != codes {
			return rules.ImportEnded(id)
		}
		if err := rules.CheckImport(&t, codes, above); err != nil {
			return err
		}
		if err := tx.exec(`UPDATE coupon_code_imports SET state = 1, first_number = ? WHERE id = ?`, t.CodesImported+1, importID); err != nil {
			return err
		}
		change.From = t.Version
		rules.LimitImport(&t, above)
		t.CodesImported += codes
		t.Version++
		change.To, change.Template = t.Version, t
		return tx.putTemplate(&t)
	})
	if err != nil {
		return store.CouponChange{}, err
	}
	return change, nil
}
