package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

// UploadOpen notes an upload. The same one again changes nothing.
func (s *Store) UploadOpen(ctx context.Context, u store.Upload) error {
	var mine bool
	err := s.send(ctx, "open an upload", func(b *pgx.Batch) {
		mine = false
		b.Queue(`INSERT INTO uploads (id, promotion_id, leased_until, created_at) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING`,
			u.ID, int64(u.PromotionID), instant(u.LeasedUntil), instant(u.CreatedAt))
		b.Queue(`SELECT 1 FROM uploads WHERE id = $1 AND promotion_id = $2 AND created_at = $3 AND finished_at IS NULL`,
			u.ID, int64(u.PromotionID), instant(u.CreatedAt)).Query(each(func(pgx.Rows) error {
			mine = true
			return nil
		}))
	})
	switch {
	case hasState(err, "23503"):
		return noPromotion(u.PromotionID)
	case err != nil:
		return err
	case !mine:
		return reward.NewError(reward.KindConflict, reward.CodeExists, "upload %d exists", u.ID)
	}
	return nil
}

// UploadExtend moves the lease of an open upload.
func (s *Store) UploadExtend(ctx context.Context, id int64, leasedUntil time.Time) error {
	return s.changeUpload(ctx, "extend an upload", id,
		`UPDATE uploads SET leased_until = $2 WHERE id = $1 AND finished_at IS NULL`, id, instant(leasedUntil))
}

// UploadClose ends an upload with its totals. A repeat changes nothing.
func (s *Store) UploadClose(ctx context.Context, u store.Upload, now time.Time) error {
	return s.changeUpload(ctx, "close an upload", u.ID, `UPDATE uploads SET
  finished_at = coalesce(finished_at, $2), accepted = $3, duplicates = $4, conflicts = $5, rejected = $6, amount = $7
WHERE id = $1 AND (finished_at IS NULL OR (accepted, duplicates, conflicts, rejected, amount) = ($3, $4, $5, $6, $7))`,
		u.ID, instant(now), u.Accepted, u.Duplicates, u.Conflicts, u.Rejected, int64(u.Amount))
}

func (s *Store) changeUpload(ctx context.Context, what string, id int64, sql string, args ...any) error {
	var changed, exists bool
	err := s.send(ctx, what, func(b *pgx.Batch) {
		changed, exists = false, false
		b.Queue(sql+` RETURNING id`, args...).Query(each(func(pgx.Rows) error {
			changed = true
			return nil
		}))
		b.Queue(`SELECT 1 FROM uploads WHERE id = $1`, id).Query(each(func(pgx.Rows) error {
			exists = true
			return nil
		}))
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

// UploadAddErrors keeps rejected lines; the first error of a line counts.
func (s *Store) UploadAddErrors(ctx context.Context, id int64, errs []store.LineError) error {
	if len(errs) == 0 {
		return nil
	}
	lines, codes, details := make([]int64, len(errs)), make([]string, len(errs)), make([]string, len(errs))
	for i, e := range errs {
		lines[i], codes[i], details[i] = e.Line, store.Text(e.Code), store.Text(e.Detail)
	}
	err := s.send(ctx, "keep the errors of an upload", func(b *pgx.Batch) {
		b.Queue(`INSERT INTO upload_errors (upload_id, line, code, detail)
SELECT $1, * FROM unnest($2::int8[], $3::text[], $4::text[]) ON CONFLICT DO NOTHING`, id, lines, codes, details)
	})
	if hasState(err, "23503") {
		return noUpload(id)
	}
	return err
}

// UploadGet returns one upload of a promotion.
func (s *Store) UploadGet(ctx context.Context, promotion reward.PromotionID, id int64) (store.Upload, error) {
	var u store.Upload
	err := s.query(ctx, "read an upload", `SELECT id, promotion_id, leased_until, created_at, finished_at, accepted, duplicates,
  conflicts, rejected, amount FROM uploads WHERE id = $1 AND promotion_id = $2`, func(rows pgx.Rows) error {
		var finished *time.Time
		err := rows.Scan(&u.ID, &u.PromotionID, &u.LeasedUntil, &u.CreatedAt, &finished, &u.Accepted, &u.Duplicates,
			&u.Conflicts, &u.Rejected, &u.Amount)
		u.LeasedUntil, u.CreatedAt, u.FinishedAt = u.LeasedUntil.UTC(), u.CreatedAt.UTC(), timeOf(finished)
		return err
	}, id, int64(promotion))
	if err != nil {
		return store.Upload{}, err
	}
	if u.PromotionID == 0 {
		return store.Upload{}, noUpload(id)
	}
	return u, nil
}

// UploadErrors pages by line.
func (s *Store) UploadErrors(ctx context.Context, id, after int64, limit int) ([]store.LineError, error) {
	var list []store.LineError
	err := s.query(ctx, "list the errors of an upload", `SELECT line, code, detail FROM upload_errors
WHERE upload_id = $1 AND line > $2 ORDER BY line LIMIT $3`, func(rows pgx.Rows) error {
		var e store.LineError
		err := rows.Scan(&e.Line, &e.Code, &e.Detail)
		list = append(list, e)
		return err
	}, id, after, limit)
	if err != nil {
		return nil, err
	}
	return list, nil
}
