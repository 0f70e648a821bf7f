package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/largesse/largesse/internal/store"
)

// InstanceBeat writes what an instance does, by the database's clock.
func (s *Store) InstanceBeat(ctx context.Context, i store.Instance, ttl time.Duration) error {
	roles, pools, err := i.Encode()
	if err != nil {
		return err
	}
	return s.write(ctx, "tell of an instance", func(tx *tx) error {
		if _, err := tx.exec(`INSERT INTO instances (name, version, roles, pools, started_at, seen_at, alive_until)
VALUES (?, ?, ?, ?, ?, `+clock+`, `+clock+` + ?)
ON CONFLICT (name) DO UPDATE SET version = excluded.version, roles = excluded.roles, pools = excluded.pools,
  started_at = excluded.started_at, seen_at = excluded.seen_at, alive_until = excluded.alive_until`,
			i.Name, i.Version, roles, pools, micros(i.StartedAt), ttl.Microseconds()); err != nil {
			return err
		}
		_, err := tx.exec(`DELETE FROM instances WHERE seen_at <= `+clock+` - ?`, store.InstanceKept.Microseconds())
		return err
	})
}

// InstanceGone forgets an instance that ended in order.
func (s *Store) InstanceGone(ctx context.Context, name string) error {
	if err := store.CheckText("instance name", name); err != nil {
		return err
	}
	return s.write(ctx, "forget an instance", func(tx *tx) error {
		_, err := tx.exec(`DELETE FROM instances WHERE name = ?`, name)
		return err
	})
}

// InstanceList returns the instances, ordered by name.
func (s *Store) InstanceList(ctx context.Context) ([]store.Instance, error) {
	list, err := collect(ctx, s.reader, func(rows *sql.Rows) (store.Instance, error) {
		var i store.Instance
		var roles, pools string
		var started, seen, until int64
		if err := rows.Scan(&i.Name, &i.Version, &roles, &pools, &started, &seen, &until, &i.Alive); err != nil {
			return i, err
		}
		i.StartedAt, i.SeenAt, i.AliveUntil = timeOf(started), timeOf(seen), timeOf(until)
		return i, i.Decode(roles, pools)
	}, `SELECT name, version, roles, pools, started_at, seen_at, alive_until, alive_until > `+clock+` FROM instances
WHERE seen_at > `+clock+` - ? ORDER BY name`, store.InstanceKept.Microseconds())
	if err != nil {
		return nil, fmt.Errorf("list instances: %w", err)
	}
	return list, nil
}
