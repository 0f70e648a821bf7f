package rows

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

// UploadOpen inserts an upload, and records its CreatedBy as an author of the
// promotion, as PromotionAuthorAdd does. While the upload is open, a repeat with the same
// promotion and CreatedAt changes nothing. Any other known ID is CodeExists. A
// missing promotion is CodeNotFound.
func (t *Tables) UploadOpen(ctx context.Context, u store.Upload) error {
	if err := store.CheckText("uploader", u.CreatedBy); err != nil {
		return err
	}
	if err := store.CheckText("file name", u.FileName); err != nil {
		return err
	}
	var open bool
	err := t.db.Write(ctx, "open an upload", func() []Statement {
		open = false
		return append([]Statement{
			{
				SQL: `INSERT INTO uploads (id, promotion_id, leased_until, created_at, created_by, file_name) VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT DO NOTHING`,
				Args: []any{u.ID, int64(u.PromotionID), u.LeasedUntil, u.CreatedAt, u.CreatedBy, u.FileName},
			},
			{
				SQL:  `SELECT 1 FROM uploads WHERE id = $1 AND promotion_id = $2 AND created_at = $3 AND finished_at IS NULL`,
				Args: []any{u.ID, int64(u.PromotionID), u.CreatedAt}, Row: seen(&open),
			},
		}, authored(u.PromotionID, u.CreatedBy)...)
	})
	switch {
	case errors.Is(err, ErrNoParent):
		return store.NoPromotion(u.PromotionID)
	case err != nil:
		return err
	case !open:
		return reward.NewError(reward.KindConflict, reward.CodeExists, "upload %d exists", u.ID)
	}
	return nil
}

// UploadExtend moves the end of the lease of an open upload. A closed upload is
// CodeIllegalState.
func (t *Tables) UploadExtend(ctx context.Context, id int64, leasedUntil time.Time) error {
	return t.changeUpload(ctx, "extend an upload", id,
		`UPDATE uploads SET leased_until = $2 WHERE id = $1 AND finished_at IS NULL RETURNING id`, id, leasedUntil)
}

// UploadClose closes an upload and stores its totals. A repeat with the same
// totals changes nothing. Other totals are CodeIllegalState.
func (t *Tables) UploadClose(ctx context.Context, u store.Upload, now time.Time) error {
	return t.changeUpload(ctx, "close an upload", u.ID, `UPDATE uploads SET
  finished_at = coalesce(finished_at, $2), accepted = $3, duplicates = $4, conflicts = $5, rejected = $6, amount = $7,
  bytes = $8, interrupted = $9, header = $10
WHERE id = $1 AND (finished_at IS NULL OR (accepted, duplicates, conflicts, rejected, amount) = ($3, $4, $5, $6, $7)) RETURNING id`,
		u.ID, now, u.Accepted, u.Duplicates, u.Conflicts, u.Rejected, int64(u.Amount), u.Bytes, u.Interrupted, cellsOf(u.Header))
}

// cellsOf returns cells as they are stored: as JSON, or NULL for none.
func cellsOf(cells []string) any {
	if cells == nil {
		return nil
	}
	clean := make([]string, len(cells))
	for i, cell := range cells {
		clean[i] = reward.SanitizeText(cell)
	}
	text, _ := json.Marshal(clean) // texts have no reason to fail
	return string(text)
}

// storedCells scans what cellsOf returned, with ” for NULL.
type storedCells []string

func (c *storedCells) Scan(stored any) error {
	*c = nil
	switch text := stored.(type) {
	case nil:
		return nil
	case string:
		return json.Unmarshal([]byte(text), (*[]string)(c))
	default:
		return fmt.Errorf("cells are stored as %T", stored)
	}
}

// changeUpload runs an UPDATE of one upload, which returns its ID. If it changes
// nothing, the error says whether the upload is missing or closed.
func (t *Tables) changeUpload(ctx context.Context, what string, id int64, sql string, args ...any) error {
	var changed, exists bool
	err := t.db.Write(ctx, what, func() []Statement {
		changed, exists = false, false
		return []Statement{
			{SQL: sql, Args: args, Row: seen(&changed)},
			{SQL: `SELECT 1 FROM uploads WHERE id = $1`, Args: []any{id}, Row: seen(&exists)},
		}
	})
	switch {
	case err != nil || changed:
		return err
	case !exists:
		return noUpload(id)
	}
	return reward.NewError(reward.KindConflict, reward.CodeIllegalState, "upload %d is closed", id)
}

func noUpload(id int64) error {
	return reward.NewError(reward.KindNotFound, reward.CodeUploadNotFound, "there is no upload %d", id)
}

// UploadAddErrors stores rejected lines for the report. The first error of a
// line counts.
func (t *Tables) UploadAddErrors(ctx context.Context, id int64, errs []store.LineError) error {
	if len(errs) == 0 {
		return nil
	}
	sorted := slices.Clone(errs)
	slices.SortStableFunc(sorted, func(a, b store.LineError) int { return cmp.Compare(a.Line, b.Line) })
	err := t.db.Write(ctx, "store the errors of an upload", func() []Statement {
		statements := make([]Statement, len(sorted))
		for i, e := range sorted {
			statements[i] = Statement{
				SQL:  `INSERT INTO upload_errors (upload_id, line, code, detail, cells) VALUES ($1, $2, $3, $4, $5) ON CONFLICT DO NOTHING`,
				Args: []any{id, e.Line, reward.SanitizeText(e.Code), reward.SanitizeText(e.Detail), cellsOf(e.Cells)},
			}
		}
		return statements
	})
	if errors.Is(err, ErrNoParent) {
		return noUpload(id)
	}
	return err
}

const uploadColumns = `id, promotion_id, leased_until, created_at, created_by, file_name, finished_at, accepted, duplicates, conflicts, rejected,
  amount, bytes, interrupted, header`

func scanUpload(scan Scan, u *store.Upload, more ...any) error {
	return scan(append([]any{
		&u.ID, &u.PromotionID, (*at)(&u.LeasedUntil), (*at)(&u.CreatedAt), &u.CreatedBy, &u.FileName, (*at)(&u.FinishedAt), &u.Accepted, &u.Duplicates,
		&u.Conflicts, &u.Rejected, &u.Amount, &u.Bytes, &u.Interrupted, (*storedCells)(&u.Header),
	}, more...)...)
}

// UploadGet returns an upload of a promotion, or CodeUploadNotFound.
func (t *Tables) UploadGet(ctx context.Context, promotion reward.PromotionID, id int64) (store.Upload, error) {
	return one(ctx, t.db.Read, "read an upload", noUpload(id), func(scan Scan, u *store.Upload) error { return scanUpload(scan, u) },
		`SELECT `+uploadColumns+` FROM uploads WHERE id = $1 AND promotion_id = $2`, id, int64(promotion))
}

// uploadsSQL returns the statement that lists the uploads of promotion $3.
func (d Dialect) uploadsSQL() string {
	where, order := d.Walk([]string{"promotion_id"}, []string{"CAST($3 AS bigint)"})
	return `SELECT ` + uploadColumns + `, finished_at IS NULL AND leased_until > ` + d.Clock + ` FROM uploads
WHERE ` + where + ` ORDER BY ` + order + ` LIMIT $2`
}

// UploadList returns at most limit uploads of a promotion by descending ID. Only
// IDs below before count; 0 starts at the newest.
func (t *Tables) UploadList(ctx context.Context, promotion reward.PromotionID, before int64, limit int) ([]store.Upload, error) {
	return list(ctx, t.db.ReadLong, "list uploads", func(scan Scan, u *store.Upload) error { return scanUpload(scan, u, &u.Running) },
		t.dialect.uploadsSQL(), below(before), max(limit, 0), int64(promotion))
}

// UploadErrors returns at most limit rejected lines with a number above after,
// by line.
func (t *Tables) UploadErrors(ctx context.Context, id, after int64, limit int) ([]store.LineError, error) {
	return list(ctx, t.db.Read, "list the errors of an upload", func(scan Scan, e *store.LineError) error {
		return scan(&e.Line, &e.Code, &e.Detail, (*storedCells)(&e.Cells))
	}, `SELECT line, code, detail, cells FROM upload_errors WHERE upload_id = $1 AND line > $2 ORDER BY line LIMIT $3`, id, after, limit)
}
