package rows

import (
	"context"
	"time"

	"github.com/largesse/largesse/internal/store"
)

const (
	// heartbeat needs its WHERE: without it, SQLite parses ON as part of FROM.
	heartbeat = `INSERT INTO instances (name, version, roles, pools, troubles, started_at, seen_at, alive_until, approvals, governor)
SELECT $1, $2, $3, $4, $5, $6, c.now, c.now + CAST($7 AS interval), $8, $9 FROM (SELECT :clock AS now) c WHERE true
ON CONFLICT (name) DO UPDATE SET version = excluded.version, roles = excluded.roles, pools = excluded.pools,
  troubles = excluded.troubles, death_reported = false, started_at = excluded.started_at, seen_at = excluded.seen_at, alive_until = excluded.alive_until,
  approvals = excluded.approvals, governor = excluded.governor`

	// reportDead skips rows that another instance reports at the same time.
	reportDead = `WITH dead AS MATERIALIZED (
  SELECT name FROM instances WHERE alive_until <= :clock AND NOT death_reported :skip_locked
)
UPDATE instances SET death_reported = true WHERE name IN (SELECT name FROM dead) RETURNING name`

	deleteOldInstances = `WITH old AS MATERIALIZED (
  SELECT name FROM instances WHERE seen_at <= :clock - CAST($1 AS interval) :skip_locked
)
DELETE FROM instances WHERE name IN (SELECT name FROM old)`

	countAlive = `SELECT count(*) FROM instances WHERE alive_until > :clock`

	listInstances = `SELECT i.name, i.version, i.roles, i.pools, i.troubles, i.governor, i.started_at, i.seen_at, i.alive_until, i.alive_until > c.now
FROM (SELECT :clock AS now) c JOIN instances i ON i.seen_at > c.now - CAST($1 AS interval) ORDER BY i.name`

	otherApprovals = `SELECT i.name FROM (SELECT :clock AS now) c JOIN instances i ON i.alive_until > c.now WHERE i.approvals <> $1`

	aliveInstances = `SELECT i.name FROM (SELECT :clock AS now) c JOIN instances i ON i.alive_until > c.now`
)

// InstanceHeartbeat stores what an instance does and that it is alive for ttl
// from now, and returns how many instances are alive, including this one. It
// also removes instances that were last seen store.InstanceRetention ago or earlier. A text that
// the database cannot store is CodeInvalid.
//
// It writes its own row first, and waits for no lock of the rows that it deletes.
func (t *Tables) InstanceHeartbeat(ctx context.Context, i store.Instance, ttl time.Duration) (alive int, err error) {
	e, err := i.Encode()
	if err != nil {
		return 0, err
	}
	err = t.db.Write(ctx, "record a heartbeat", func() []Statement {
		return []Statement{
			{SQL: heartbeat, Args: []any{i.Name, i.Version, e.Roles, e.Pools, e.Troubles, i.StartedAt, ttl, i.Approvals, e.Governor}},
			{SQL: deleteOldInstances, Args: []any{store.InstanceRetention}},
			{SQL: countAlive, Row: func(scan Scan) error { return scan(&alive) }},
		}
	})
	return alive, err
}

// InstanceOtherApprovals returns the names of the instances that are alive and whose
// Approvals differ, ordered by their bytes. It leaves out instances of a version that
// stores none.
func (t *Tables) InstanceOtherApprovals(ctx context.Context, approvals string) ([]string, error) {
	return texts(ctx, t.db.Read, "compare the settings of approvals", otherApprovals, approvals)
}

// InstanceReportDead returns the names of the instances that died and were not
// returned before, to this or another caller, ordered by their bytes. An instance
// that is alive again can be returned again.
func (t *Tables) InstanceReportDead(ctx context.Context) ([]string, error) {
	return texts(ctx, t.write, "report dead instances", reportDead)
}

// InstanceRemove removes an instance that stops normally. A missing one is no
// error.
func (t *Tables) InstanceRemove(ctx context.Context, name string) error {
	if err := store.CheckText("instance name", name); err != nil {
		return err
	}
	return t.exec(ctx, "remove an instance", `DELETE FROM instances WHERE name = $1`, name)
}

// InstanceList returns every instance seen within store.InstanceRetention, ordered
// by the bytes of its name.
func (t *Tables) InstanceList(ctx context.Context) ([]store.Instance, error) {
	return list(ctx, t.db.Read, "list instances", func(scan Scan, i *store.Instance) error {
		var e store.EncodedInstance
		if err := scan(&i.Name, &i.Version, &e.Roles, &e.Pools, &e.Troubles, &e.Governor, (*at)(&i.StartedAt), (*at)(&i.SeenAt), (*at)(&i.AliveUntil), &i.Alive); err != nil {
			return err
		}
		return i.Decode(e)
	}, listInstances, store.InstanceRetention)
}

// InstanceAlive returns the names of the instances that are alive, ordered by
// their bytes. It reads nothing else, so it stays cheap with many pools.
func (t *Tables) InstanceAlive(ctx context.Context) ([]string, error) {
	return texts(ctx, t.db.Read, "list living instances", aliveInstances)
}
