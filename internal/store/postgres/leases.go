package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/largesse/largesse/internal/store"
)

// LeaseTake takes a free, lapsed or own lease, by the database's clock.
func (s *Store) LeaseTake(ctx context.Context, p store.LeaseTakeParams) (store.Lease, error) {
	if err := store.CheckText("prefix", p.Among); err != nil {
		return store.Lease{}, err
	}
	var l store.Lease
	err := s.send(ctx, "take a lease", func(b *pgx.Batch) {
		l = store.Lease{}
		b.Queue(`INSERT INTO leases AS l (name, owner, until) VALUES ($1, $2, clock_timestamp() + $3::interval)
ON CONFLICT (name) DO UPDATE SET owner = excluded.owner, until = clock_timestamp() + $3::interval
WHERE l.owner = excluded.owner OR l.until <= clock_timestamp() RETURNING l.name`, p.Name, p.Owner, p.TTL).
			Query(each(func(pgx.Rows) error {
				l.OK = true
				return nil
			}))
		b.Queue(`SELECT owner, until FROM leases WHERE name = $1`, p.Name).Query(each(func(rows pgx.Rows) error {
			err := rows.Scan(&l.Owner, &l.Until)
			l.Until = l.Until.UTC()
			return err
		}))
		if p.Among == "" {
			return
		}
		// There are few leases at any time.
		b.Queue(`SELECT owner FROM leases WHERE starts_with(name, $1) AND until > clock_timestamp()
GROUP BY owner ORDER BY owner COLLATE "C"`, p.Among).Query(each(func(rows pgx.Rows) error {
			var owner string
			err := rows.Scan(&owner)
			l.Holders = append(l.Holders, owner)
			return err
		}))
	})
	if err != nil {
		return store.Lease{}, err
	}
	return l, nil
}

// LeaseRelease gives up what owner holds.
func (s *Store) LeaseRelease(ctx context.Context, name, owner string) error {
	return s.send(ctx, "release a lease", func(b *pgx.Batch) {
		b.Queue(`DELETE FROM leases WHERE name = $1 AND owner = $2`, name, owner)
	})
}
