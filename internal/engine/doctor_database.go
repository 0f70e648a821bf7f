package engine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/largesse/largesse/internal/config"
	"github.com/largesse/largesse/internal/service"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/store/postgres"
	"github.com/largesse/largesse/internal/store/sqlite"
)

// The PostgreSQL versions that the statements need, and that they are tested
// on, as server_version_num.
const (
	postgresLeast  = 13_00_00
	postgresTested = 15_00_00
)

func lookAtDatabase(ctx context.Context, cfg config.Config, version string) []Check {
	if cfg.Database.URL == "" {
		return lookAtSQLite(ctx, cfg)
	}
	facts, err := postgres.Inspect(ctx, postgresConfig(cfg, "doctor "+service.InstanceID()))
	if err != nil {
		return []Check{passed("database", "%s", reason(ctx, err)).
			but(CheckFail, "see that it runs and that database.url names its host, database, user and password")}
	}
	if facts.SchemaVersion != facts.SchemaKnown {
		return judgePostgres(facts, 1, cfg) // who lives there is in the schema
	}
	instances, err := knownInstances(ctx, cfg)
	if err != nil {
		return append(judgePostgres(facts, 1, cfg), passed("instances", "could not be read: %s", reason(ctx, err)).but(CheckWarn, "see the database's log"))
	}
	living := slices.DeleteFunc(slices.Clone(instances), func(i store.Instance) bool { return !i.Alive })
	return slices.Concat(judgePostgres(facts, max(len(living), 1), cfg), judgeInstances(instances, version))
}

func lookAtSQLite(ctx context.Context, cfg config.Config) []Check {
	path := sqlitePath(cfg)
	facts, err := sqlite.Inspect(ctx, path)
	switch {
	case errors.Is(err, fs.ErrPermission):
		return []Check{passed("database", "%s", oneLine(err)).but(CheckFail, "let this user read and write it")}
	case err != nil:
		return []Check{passed("database", "%s", reason(ctx, err)).
			but(CheckFail, "put %s and the files beside it back from a copy, all from the same moment", path)}
	}
	return judgeSQLite(path, facts)
}

func judgeSQLite(path string, f sqlite.Inspection) []Check {
	if !f.Exists {
		return []Check{passed("database", "SQLite at %s; it is made at the start", path)}
	}
	c := passed("database", "SQLite at %s, no damage found", path)
	switch {
	case f.Fault != "":
		c.Found = fmt.Sprintf("SQLite at %s is damaged: %s", path, f.Fault)
		c = c.but(CheckFail, "put it and the files beside it back from a copy, all from the same moment; look at the disk")
	case !f.Checked:
		c.Found = fmt.Sprintf("SQLite at %s can be read; too large to look through in %s", path, checkTimeout)
	}
	return []Check{c, judgeSchema(f.SchemaVersion, f.SchemaKnown)}
}

// judgeSchema compares a database's schema with the one of this program.
func judgeSchema(version, known int64) Check {
	c := passed("database.schema", "version %d, as this program knows it", version)
	switch {
	case version > known:
		c.Found = fmt.Sprintf("version %d, this program knows %d: a newer one has been here", version, known)
		return c.but(CheckFail, "run that newer version of largesse")
	case version < known:
		c.Found = fmt.Sprintf("version %d, this program needs %d", version, known)
		return c.but(CheckWarn, "run: largesse migrate (serve does the same at its start)")
	}
	return c
}

// judgePostgres judges what a database tells beside so many living instances.
func judgePostgres(f postgres.Inspection, instances int, cfg config.Config) []Check {
	version := passed("database", "PostgreSQL %s answers within %s", f.Version, rounded(f.Clock.RoundTrip))
	switch {
	case f.VersionNumber < postgresLeast:
		version = version.but(CheckFail, "upgrade it to PostgreSQL %d or newer", postgresTested/1_00_00)
	case f.VersionNumber < postgresTested:
		version = version.but(CheckWarn, "upgrade it: Largesse is tested on PostgreSQL %d and newer", postgresTested/1_00_00)
	}

	writes := passed("database.writes", "takes writes")
	switch {
	case f.InRecovery:
		writes.Found = "the server is a standby and takes no writes"
		writes = writes.but(CheckFail, "name the primary in database.url, or promote this one")
	case f.ReadOnly:
		writes.Found = "sessions are read-only (default_transaction_read_only = on)"
		writes = writes.but(CheckFail, "turn it off for this user and database: ALTER ROLE … SET default_transaction_read_only = off")
	}

	schema := judgeSchema(f.SchemaVersion, f.SchemaKnown)
	switch {
	case f.Schema == "":
		schema.Found = "no schema of the search path exists"
		schema = schema.but(CheckFail, "make one: CREATE SCHEMA …, or put another into database.url: ?search_path=…")
	case f.SchemaVersion < f.SchemaKnown && !f.MayCreate:
		schema.Found += fmt.Sprintf(", and this user may not make tables in schema %s", f.Schema)
		schema = schema.but(CheckFail, "GRANT CREATE ON SCHEMA %s TO …, or run largesse migrate as its owner", f.Schema)
	}

	durability := passed("database.durability", "a commit is on the disk before it counts")
	if len(f.Unsafe) > 0 {
		durability.Found = strings.Join(f.Unsafe, ", ")
		durability = durability.but(CheckWarn, "turn it on: after a power cut outcomes can be gone, and what was paid is paid again unless the Money API still knows its key")
	}
	return []Check{
		version, writes, schema, judgeClock("database.clock", "the database's clock is", f.Clock, cfg),
		judgeConnections(f, instances, cfg.Database.MaxConnections), durability,
	}
}

func judgeConnections(f postgres.Inspection, instances, each int) Check {
	need, free := instances*each, f.ConnectionsMax-f.ConnectionsOthers
	c := passed("database.connections", "instances %d × database.max-connections %d, of at most %d here; other programs have %d now", instances, each, f.ConnectionsMax, f.ConnectionsOthers)
	advice := "lower database.max-connections, or raise max_connections of the server or the limit of this role or database"
	switch {
	case need > f.ConnectionsMax:
		return c.but(CheckFail, "%s", advice)
	case need > free:
		return c.but(CheckWarn, "%s", advice)
	}
	return c
}

// knownInstances are those that run, and those of the last day that did not
// sign off.
func knownInstances(ctx context.Context, cfg config.Config) ([]store.Instance, error) {
	cfg.Database.MaxConnections = 1
	rows, err := OpenStore(ctx, cfg, "doctor "+service.InstanceID())
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	return rows.InstanceList(ctx)
}

// lostShown is how many instances that did not sign off are named.
const lostShown = 5

// judgeInstances has a line for those that run, and one for those that ended
// without signing off, if any did.
func judgeInstances(all []store.Instance, version string) []Check {
	var names, others []string
	var lost []store.Instance
	for _, i := range all {
		switch {
		case !i.Alive:
			lost = append(lost, i)
			continue
		case i.Version != version:
			others = append(others, fmt.Sprintf("%s runs %s", i.Name, i.Version))
		}
		names = append(names, i.Name)
	}
	running := passed("instances", "%d running: %s", len(names), strings.Join(names, ", "))
	switch {
	case len(names) == 0:
		running.Found = "none is running"
	case len(others) > 0:
		running.Found = fmt.Sprintf("this is version %s, but %s", version, strings.Join(others, ", "))
		running = running.but(CheckWarn, "bring all to one version; a moment of both is what an update looks like")
	}
	if len(lost) == 0 {
		return []Check{running}
	}
	return []Check{running, judgeLost(lost)}
}

func judgeLost(lost []store.Instance) Check {
	slices.SortStableFunc(lost, func(a, b store.Instance) int { return b.SeenAt.Compare(a.SeenAt) })
	var said []string
	for _, i := range lost[:min(len(lost), lostShown)] {
		said = append(said, fmt.Sprintf("%s was last heard of at %s", i.Name, i.SeenAt.UTC().Format(time.RFC3339)))
	}
	c := passed("instances.lost", "%d did not sign off: %s", len(lost), strings.Join(said, ", "))
	if more := len(lost) - len(said); more > 0 {
		c.Found += fmt.Sprintf(", and %d more", more)
	}
	return c.but(CheckWarn, "see why in their logs (killed, out of memory, cut off from the database): others have taken over what they had; each is forgotten a day after it was last heard of")
}
