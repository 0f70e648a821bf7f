package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

const uploadColumns = `id, promotion_id, leased_until, created_at, finished_at, accepted, duplicates, conflicts, rejected, amount`

func scanUpload(rows *sql.Rows) (store.Upload, error) {
	var u store.Upload
	var leased, created int64
	var finished sql.NullInt64
	err := rows.Scan(&u.ID, &u.PromotionID, &leased, &created, &finished, &u.Accepted, &u.Duplicates, &u.Conflicts,
		&u.Rejected, &u.Amount)
	u.LeasedUntil, u.CreatedAt, u.FinishedAt = timeOf(leased), timeOf(created), maybeTime(finished)
	return u, err
}

func (t *tx) upload(id int64) (store.Upload, error) {
	u, found, err := one(t.ctx, t, scanUpload, `SELECT `+uploadColumns+` FROM uploads WHERE id = ?`, id)
	if err == nil && !found {
		err = noUpload(id)
	}
	return u, err
}

func noUpload(id int64) error {
	return reward.NewError(reward.KindNotFound, reward.CodeUploadNotFound, "there is no upload %d", id)
}

// UploadOpen notes an upload. The same one again changes nothing.
func (s *Store) UploadOpen(ctx context.Context, u store.Upload) error {
	return s.write(ctx, "open an upload", func(tx *tx) error {
		old, err := tx.upload(u.ID)
		switch {
		case err == nil:
			if old.PromotionID == u.PromotionID && old.CreatedAt.Equal(instant(u.CreatedAt)) && old.FinishedAt.IsZero() {
				return nil
			}
			return reward.NewError(reward.KindConflict, reward.CodeExists, "upload %d exists", u.ID)
		case !reward.HasCode(err, reward.CodeUploadNotFound):
			return err
		}
		_, err = tx.exec(`INSERT INTO uploads (id, promotion_id, leased_until, created_at) VALUES (?, ?, ?, ?)`,
			u.ID, int64(u.PromotionID), micros(u.LeasedUntil), micros(u.CreatedAt))
		if hasCode(err, foreignKey) {
			return noPromotion(u.PromotionID)
		}
		return err
	})
}

// UploadExtend moves the lease of an open upload.
func (s *Store) UploadExtend(ctx context.Context, id int64, leasedUntil time.Time) error {
	return s.write(ctx, "extend an upload", func(tx *tx) error {
		u, err := tx.upload(id)
		if err != nil {
			return err
		}
		if !u.FinishedAt.IsZero() {
			return uploadClosed(id)
		}
		_, err = tx.exec(`UPDATE uploads SET leased_until = ? WHERE id = ?`, micros(leasedUntil), id)
		return err
	})
}

func uploadClosed(id int64) error {
	return reward.NewError(reward.KindConflict, reward.CodeIllegalState, "upload %d is closed", id)
}

// UploadClose ends an upload with its totals. A repeat changes nothing.
func (s *Store) UploadClose(ctx context.Context, u store.Upload, now time.Time) error {
	return s.write(ctx, "close an upload", func(tx *tx) error {
		old, err := tx.upload(u.ID)
		if err != nil {
			return err
		}
		if !old.FinishedAt.IsZero() {
			if old.Accepted == u.Accepted && old.Duplicates == u.Duplicates && old.Conflicts == u.Conflicts &&
				old.Rejected == u.Rejected && old.Amount == u.Amount {
				return nil
			}
			return uploadClosed(u.ID)
		}
		_, err = tx.exec(`UPDATE uploads SET finished_at = ?, accepted = ?, duplicates = ?, conflicts = ?, rejected = ?, amount = ?
WHERE id = ?`, micros(now), u.Accepted, u.Duplicates, u.Conflicts, u.Rejected, int64(u.Amount), u.ID)
		return err
	})
}

// UploadAddErrors keeps rejected lines; the first error of a line counts.
func (s *Store) UploadAddErrors(ctx context.Context, id int64, errs []store.LineError) error {
	return s.write(ctx, "keep the errors of an upload", func(tx *tx) error {
		if _, err := tx.upload(id); err != nil {
			return err
		}
		for _, e := range errs {
			if _, err := tx.exec(`INSERT INTO upload_errors (upload_id, line, code, detail) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING`,
				id, e.Line, store.Text(e.Code), store.Text(e.Detail)); err != nil {
				return err
			}
		}
		return nil
	})
}

// UploadGet returns one upload of a promotion.
func (s *Store) UploadGet(ctx context.Context, promotion reward.PromotionID, id int64) (store.Upload, error) {
	u, found, err := one(ctx, s.reader, scanUpload, `SELECT `+uploadColumns+` FROM uploads WHERE id = ? AND promotion_id = ?`,
		id, int64(promotion))
	switch {
	case err != nil:
		return store.Upload{}, fmt.Errorf("read an upload: %w", err)
	case !found:
		return store.Upload{}, noUpload(id)
	}
	return u, nil
}

// UploadErrors pages by line.
func (s *Store) UploadErrors(ctx context.Context, id, after int64, limit int) ([]store.LineError, error) {
	list, err := collect(ctx, s.reader, func(rows *sql.Rows) (store.LineError, error) {
		var e store.LineError
		err := rows.Scan(&e.Line, &e.Code, &e.Detail)
		return e, err
	}, `SELECT line, code, detail FROM upload_errors WHERE upload_id = ? AND line > ? ORDER BY line LIMIT ?`, id, after, limit)
	if err != nil {
		return nil, fmt.Errorf("list the errors of an upload: %w", err)
	}
	return list, nil
}
