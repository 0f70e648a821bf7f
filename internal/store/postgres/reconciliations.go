package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

// ReconciliationSave writes a report.
func (s *Store) ReconciliationSave(ctx context.Context, r store.Reconciliation) error {
	return s.send(ctx, "keep a reconciliation", func(b *pgx.Batch) {
		b.Queue(`INSERT INTO reconciliations (id, report, at) VALUES ($1, $2, $3)
ON CONFLICT (id) DO UPDATE SET report = excluded.report, at = excluded.at`, r.ID, r.Report, instant(r.At))
	})
}

// ReconciliationGet returns a report.
func (s *Store) ReconciliationGet(ctx context.Context, id int64) (store.Reconciliation, error) {
	var r store.Reconciliation
	var found bool
	err := s.send(ctx, "read a reconciliation", func(b *pgx.Batch) {
		r, found = store.Reconciliation{ID: id}, false
		b.Queue(`SELECT report, at FROM reconciliations WHERE id = $1`, id).Query(each(func(rows pgx.Rows) error {
			found = true
			err := rows.Scan(&r.Report, &r.At)
			r.At = r.At.UTC()
			return err
		}))
	})
	switch {
	case err != nil:
		return store.Reconciliation{}, err
	case !found:
		return store.Reconciliation{}, reward.NewError(reward.KindNotFound, reward.CodeReconciliationNotFound,
			"there is no reconciliation %d", id)
	}
	return r, nil
}

// RestoreMarkSet notes that the database was restored from a backup.
func (s *Store) RestoreMarkSet(ctx context.Context, at time.Time) error {
	return s.send(ctx, "note a restore", func(b *pgx.Batch) {
		b.Queue(`INSERT INTO restore_mark AS m (one, at) VALUES (true, $1)
ON CONFLICT (one) DO UPDATE SET at = greatest(m.at, excluded.at)`, instant(at))
	})
}

// RestoreMark returns when a restore was last noted.
func (s *Store) RestoreMark(ctx context.Context) (time.Time, error) {
	var at time.Time
	err := s.query(ctx, "read the restore mark", `SELECT at FROM restore_mark`, func(rows pgx.Rows) error {
		err := rows.Scan(&at)
		at = at.UTC()
		return err
	})
	return at, err
}
