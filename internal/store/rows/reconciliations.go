package rows

import (
	"context"
	"time"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

// ReconciliationSave stores a report under its ID and replaces an earlier one.
// Its bytes are returned unchanged.
func (t *Tables) ReconciliationSave(ctx context.Context, r store.Reconciliation) error {
	return t.exec(ctx, "store a reconciliation", `INSERT INTO reconciliations (id, report, at, checked, drifts, repaired)
VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (id) DO UPDATE SET report = excluded.report, at = excluded.at, checked = excluded.checked, drifts = excluded.drifts,
  repaired = excluded.repaired`, r.ID, r.Report, r.At, r.Checked, r.Drifts, r.Repaired)
}

// ReconciliationGet returns a report, or CodeReconciliationNotFound.
func (t *Tables) ReconciliationGet(ctx context.Context, id int64) (store.Reconciliation, error) {
	missing := reward.NewError(reward.KindNotFound, reward.CodeReconciliationNotFound, "there is no reconciliation %d", id)
	return one(ctx, t.db.Read, "read a reconciliation", missing, func(scan Scan, r *store.Reconciliation) error {
		return scan(&r.ID, &r.Report, (*at)(&r.At), &r.Checked, &r.Drifts, &r.Repaired)
	}, `SELECT id, report, at, coalesce(checked, -1), coalesce(drifts, -1), coalesce(repaired, -1) FROM reconciliations WHERE id = $1`, id)
}

const listReconciliations = `SELECT id, at, coalesce(checked, -1), coalesce(drifts, -1), coalesce(repaired, -1) FROM reconciliations
WHERE id < $1 ORDER BY id DESC LIMIT $2`

// ReconciliationList returns at most limit reports without their texts, by
// descending ID. The first has an ID below before, unless before is 0.
func (t *Tables) ReconciliationList(ctx context.Context, before int64, limit int) ([]store.Reconciliation, error) {
	return list(ctx, t.db.Read, "list reconciliations", func(scan Scan, r *store.Reconciliation) error {
		return scan(&r.ID, (*at)(&r.At), &r.Checked, &r.Drifts, &r.Repaired)
	}, listReconciliations, below(before), max(limit, 0))
}

// RestoreMarkSet records that the database was restored from a backup. Charges
// may then exist that its rows do not show. A time before the recorded one
// changes nothing.
func (t *Tables) RestoreMarkSet(ctx context.Context, at time.Time) error {
	return t.exec(ctx, "record a restore", `INSERT INTO restore_mark AS m (one, at) VALUES (true, $1)
ON CONFLICT (one) DO UPDATE SET at = excluded.at WHERE m.at < excluded.at`, at)
}

// RestoreMark returns the time that RestoreMarkSet recorded; zero means never.
func (t *Tables) RestoreMark(ctx context.Context) (time.Time, error) {
	return one(ctx, t.db.Read, "read the restore mark", nil, func(scan Scan, mark *time.Time) error { return scan((*at)(mark)) },
		`SELECT at FROM restore_mark`)
}
