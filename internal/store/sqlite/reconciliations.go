package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

// ReconciliationSave writes a report.
func (s *Store) ReconciliationSave(ctx context.Context, r store.Reconciliation) error {
	return s.write(ctx, "keep a reconciliation", func(tx *tx) error {
		_, err := tx.exec(`INSERT INTO reconciliations (id, report, at) VALUES (?, ?, ?)
ON CONFLICT (id) DO UPDATE SET report = excluded.report, at = excluded.at`, r.ID, r.Report, micros(r.At))
		return err
	})
}

// ReconciliationGet returns a report.
func (s *Store) ReconciliationGet(ctx context.Context, id int64) (store.Reconciliation, error) {
	r, found, err := one(ctx, s.reader, func(rows *sql.Rows) (store.Reconciliation, error) {
		r := store.Reconciliation{ID: id}
		var at int64
		err := rows.Scan(&r.Report, &at)
		r.At = timeOf(at)
		return r, err
	}, `SELECT report, at FROM reconciliations WHERE id = ?`, id)
	switch {
	case err != nil:
		return store.Reconciliation{}, fmt.Errorf("read a reconciliation: %w", err)
	case !found:
		return store.Reconciliation{}, reward.NewError(reward.KindNotFound, reward.CodeReconciliationNotFound,
			"there is no reconciliation %d", id)
	}
	return r, nil
}

// RestoreMarkSet notes that the database was restored from a backup.
func (s *Store) RestoreMarkSet(ctx context.Context, at time.Time) error {
	return s.write(ctx, "note a restore", func(tx *tx) error {
		_, err := tx.exec(`INSERT INTO restore_mark (one, at) VALUES (1, ?)
ON CONFLICT (one) DO UPDATE SET at = max(at, excluded.at)`, micros(at))
		return err
	})
}

// RestoreMark returns when a restore was last noted.
func (s *Store) RestoreMark(ctx context.Context) (time.Time, error) {
	at, found, err := one(ctx, s.reader, scanInt, `SELECT at FROM restore_mark`)
	if err != nil {
		return time.Time{}, fmt.Errorf("read the restore mark: %w", err)
	}
	if !found {
		return time.Time{}, nil
	}
	return timeOf(at), nil
}
