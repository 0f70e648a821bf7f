package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/largesse/largesse/internal/store"
)

// InstanceBeat writes what an instance does, by the database's clock. Its own
// row first; of the forgotten ones it waits for none.
func (s *Store) InstanceBeat(ctx context.Context, i store.Instance, ttl time.Duration) error {
	roles, pools, err := i.Encode()
	if err != nil {
		return err
	}
	return s.send(ctx, "tell of an instance", func(b *pgx.Batch) {
		b.Queue(`INSERT INTO instances (name, version, roles, pools, started_at, seen_at, alive_until)
SELECT $1, $2, $3, $4, $5, c.now, c.now + $6::interval FROM (SELECT clock_timestamp() AS now) c
ON CONFLICT (name) DO UPDATE SET version = excluded.version, roles = excluded.roles, pools = excluded.pools,
  started_at = excluded.started_at, seen_at = excluded.seen_at, alive_until = excluded.alive_until`,
			i.Name, i.Version, roles, pools, instant(i.StartedAt), ttl)
		b.Queue(`WITH old AS MATERIALIZED (
  SELECT i.name FROM instances i WHERE i.seen_at <= clock_timestamp() - $1::interval FOR UPDATE SKIP LOCKED
)
DELETE FROM instances i USING old o WHERE i.name = o.name`, store.InstanceKept)
	})
}

// InstanceGone forgets an instance that ended in order.
func (s *Store) InstanceGone(ctx context.Context, name string) error {
	if err := store.CheckText("instance name", name); err != nil {
		return err
	}
	return s.send(ctx, "forget an instance", func(b *pgx.Batch) {
		b.Queue(`DELETE FROM instances WHERE name = $1`, name)
	})
}

// InstanceList returns the instances, ordered by name.
func (s *Store) InstanceList(ctx context.Context) ([]store.Instance, error) {
	var list []store.Instance
	err := s.send(ctx, "list instances", func(b *pgx.Batch) {
		list = nil
		b.Queue(`SELECT i.name, i.version, i.roles, i.pools, i.started_at, i.seen_at, i.alive_until, i.alive_until > c.now
FROM (SELECT clock_timestamp() AS now) c JOIN instances i ON i.seen_at > c.now - $1::interval ORDER BY i.name`,
			store.InstanceKept).Query(each(func(rows pgx.Rows) error {
			var i store.Instance
			var roles, pools string
			if err := rows.Scan(&i.Name, &i.Version, &roles, &pools, &i.StartedAt, &i.SeenAt, &i.AliveUntil, &i.Alive); err != nil {
				return err
			}
			i.StartedAt, i.SeenAt, i.AliveUntil = i.StartedAt.UTC(), i.SeenAt.UTC(), i.AliveUntil.UTC()
			list = append(list, i)
			return list[len(list)-1].Decode(roles, pools)
		}))
	})
	if err != nil {
		return nil, err
	}
	return list, nil
}
