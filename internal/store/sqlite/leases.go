package sqlite

import (
	"context"
	"database/sql"

	"github.com/largesse/largesse/internal/store"
)

// clock is the database's time in microseconds.
const clock = `CAST(unixepoch('subsec') * 1000000 AS INTEGER)`

// LeaseTake takes a free, lapsed or own lease, by the database's clock.
func (s *Store) LeaseTake(ctx context.Context, p store.LeaseTakeParams) (store.Lease, error) {
	if err := store.CheckText("prefix", p.Among); err != nil {
		return store.Lease{}, err
	}
	var l store.Lease
	err := s.write(ctx, "take a lease", func(tx *tx) error {
		taken, err := tx.exec(`INSERT INTO leases (name, owner, until) VALUES (?, ?, `+clock+` + ?)
ON CONFLICT (name) DO UPDATE SET owner = excluded.owner, until = excluded.until
WHERE leases.owner = excluded.owner OR leases.until <= `+clock, p.Name, p.Owner, p.TTL.Microseconds())
		if err != nil {
			return err
		}
		l, _, err = one(tx.ctx, tx, func(rows *sql.Rows) (store.Lease, error) {
			held := store.Lease{OK: taken}
			var until int64
			err := rows.Scan(&held.Owner, &until)
			held.Until = timeOf(until)
			return held, err
		}, `SELECT owner, until FROM leases WHERE name = ?`, p.Name)
		if err != nil || p.Among == "" {
			return err
		}
		l.Holders, err = collect(tx.ctx, tx, scanText, `SELECT DISTINCT owner FROM leases
WHERE substr(CAST(name AS BLOB), 1, length(CAST(?1 AS BLOB))) = CAST(?1 AS BLOB) AND until > `+clock+` ORDER BY owner`, p.Among)
		return err
	})
	if err != nil {
		return store.Lease{}, err
	}
	return l, nil
}

// LeaseRelease gives up what owner holds.
func (s *Store) LeaseRelease(ctx context.Context, name, owner string) error {
	return s.write(ctx, "release a lease", func(tx *tx) error {
		_, err := tx.exec(`DELETE FROM leases WHERE name = ? AND owner = ?`, name, owner)
		return err
	})
}

func scanText(rows *sql.Rows) (text string, err error) {
	err = rows.Scan(&text)
	return text, err
}
