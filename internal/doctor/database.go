package doctor

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/largesse/largesse/internal/config"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/parts"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/service"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/store/postgres"
	"github.com/largesse/largesse/internal/store/sqlite"
)

// The oldest PostgreSQL version that the statements need, and the oldest one that
// they are tested on, as server_version_num.
const (
	postgresMin    = 13_00_00
	postgresTested = 15_00_00
)

func lookAtDatabase(ctx context.Context, cfg config.Config, version string) []Check {
	if cfg.Database.URL == "" {
		return lookAtSQLite(ctx, cfg)
	}
	facts, err := postgres.Inspect(ctx, parts.PostgresConfig(cfg, "doctor "+service.InstanceID(), obs.Log{}))
	if unfit, ok := errors.AsType[*postgres.UnfitError](err); ok {
		return []Check{passed(unfit.Check, "%s", unfit.Found).but(CheckFail, "%s", unfit.Advice)}
	}
	if err != nil {
		return []Check{passed("database", "%s", reason(ctx, err)).but(CheckFail, "%s", databaseAdvice(err))}
	}
	if facts.SchemaVersion != facts.SchemaKnown || facts.Encoding != "UTF8" {
		return judgePostgres(facts, 1, cfg) // the schema has the instances, and no database of another encoding opens
	}
	instances, templates, err := inUse(ctx, cfg)
	if err != nil {
		return append(judgePostgres(facts, 1, cfg), passed("instances", "reading the instances and the templates failed: %s", reason(ctx, err)).but(CheckWarn, "read the log of the database"))
	}
	living := slices.DeleteFunc(slices.Clone(instances), func(i store.Instance) bool { return !i.Alive })
	return slices.Concat(judgePostgres(facts, max(len(living), 1), cfg), judgeInstances(instances, version), judgeCodes(missingCodes(templates)))
}

func databaseAdvice(err error) string {
	if _, distrust := errors.AsType[*tls.CertificateVerificationError](err); distrust {
		return "name the CA of the server's certificate in database.url (&sslrootcert=/path/ca.pem), and check that database.url has the host name of the certificate"
	}
	return "check that PostgreSQL runs and that database.url has the right host, database, user and password"
}

func lookAtSQLite(ctx context.Context, cfg config.Config) []Check {
	if skipped := skipUnusable("database", cfg.Data.Dir); skipped != nil {
		return skipped
	}
	path := parts.SQLitePath(cfg)
	facts, err := sqlite.Inspect(ctx, path)
	switch {
	case errors.Is(err, fs.ErrPermission):
		return []Check{passed("database", "%s", OneLine(err)).but(CheckFail, "let this user read and write it")}
	case err != nil:
		return []Check{passed("database", "%s", reason(ctx, err)).
			but(CheckFail, "restore %s and its -wal and -shm files from one backup", path)}
	}
	return judgeSQLite(path, facts)
}

func judgeSQLite(path string, f sqlite.Inspection) []Check {
	if !f.Exists {
		return []Check{passed("database", "SQLite at %s does not exist yet; the first start creates it", path)}
	}
	c := passed("database", "SQLite at %s has no damage", path)
	switch {
	case f.Fault != "":
		c = c.saying("SQLite at %s is damaged: %s", path, f.Fault).
			but(CheckFail, "restore it and its -wal and -shm files from one backup, and check the disk")
	case !f.Checked:
		c = c.saying("SQLite at %s is readable; it is too large for a complete check within %s", path, checkTimeout)
	}
	return append([]Check{c, judgeSchema(f.SchemaVersion, f.SchemaKnown)}, judgeCodes(f.CodesMissing)...)
}

func judgeSchema(version, known int64) Check {
	c := passed("database.schema", "version %d, the version of this program", version)
	switch {
	case version > known:
		return c.saying("version %d; this program knows version %d, so a newer one migrated it", version, known).
			but(CheckFail, "run the newer version of largesse")
	case version < known:
		return c.saying("version %d; this program needs version %d", version, known).
			but(CheckWarn, "run largesse migrate, or let serve migrate it at the start")
	}
	return c
}

// judgePostgres judges a PostgreSQL server that so many instances use.
func judgePostgres(f postgres.Inspection, instances int, cfg config.Config) []Check {
	version := passed("database", "PostgreSQL %s responds within %s", f.Version, rounded(f.Clock.RoundTrip))
	switch {
	case f.VersionNumber < postgresMin:
		version = version.but(CheckFail, "upgrade it to PostgreSQL %d or newer", postgresTested/1_00_00)
	case f.VersionNumber < postgresTested:
		version = version.but(CheckWarn, "upgrade it: Largesse is tested on PostgreSQL %d and newer", postgresTested/1_00_00)
	}

	encoding := passed("database.encoding", "stores texts as %s", f.Encoding)
	if f.Encoding != "UTF8" {
		encoding = encoding.but(CheckFail, "%s: this encoding changes or refuses texts of users and promotions", postgres.EncodingAdvice)
	}

	writes := passed("database.writes", "accepts writes")
	switch {
	case f.InRecovery:
		writes = writes.saying("the server is a standby and accepts no writes").but(CheckFail, "set database.url to the primary, or promote this server")
	case f.ReadOnly:
		writes = writes.saying("sessions are read-only (default_transaction_read_only = on)").
			but(CheckFail, "turn it off for this user or database: ALTER ROLE … SET default_transaction_read_only = off")
	}

	schema := judgeSchema(f.SchemaVersion, f.SchemaKnown)
	switch {
	case f.Schema == "":
		schema = schema.saying("no schema of the search path exists").
			but(CheckFail, "create one with CREATE SCHEMA …, or name another one in database.url: ?search_path=…")
	case f.SchemaVersion < f.SchemaKnown && !f.MayCreate:
		schema.Found += fmt.Sprintf(", and this user may not create tables in schema %s", f.Schema)
		schema = schema.but(CheckFail, "GRANT CREATE ON SCHEMA %s TO …, or run largesse migrate as its owner", f.Schema)
	}

	durability := passed("database.durability", "commits are on disk before they are acknowledged")
	if len(f.Unsafe) > 0 {
		durability = durability.saying("%s", strings.Join(f.Unsafe, ", ")).
			but(CheckWarn, "turn it on: a power failure can lose outcomes, and then a payout is charged twice unless the Money API still remembers its key")
	}
	return []Check{
		version, encoding, writes, schema, judgeClock("database.clock", "the clock of the database is", f.Clock, cfg),
		judgeConnections(f, instances, cfg.Database), durability,
	}
}

func judgeConnections(f postgres.Inspection, instances int, each config.Database) Check {
	need, free := instances*(each.MaxConnections+each.ReadConnections), f.ConnectionsMax-f.ConnectionsOthers
	c := passed("database.connections", "%d instances × (database.max-connections %d + database.read-connections %d), of at most %d; other programs use %d now",
		instances, each.MaxConnections, each.ReadConnections, f.ConnectionsMax, f.ConnectionsOthers)
	switch {
	case f.Crowded:
		c.Found += "; the server refuses a second one now, and an instance needs two at least"
		return c.but(CheckFail, "%s", store.ConnectionsAdvice)
	case need > f.ConnectionsMax:
		return c.but(CheckFail, "%s", store.ConnectionsAdvice)
	case need > free:
		return c.but(CheckWarn, "%s", store.ConnectionsAdvice)
	}
	return c
}

// inUse returns the running instances, those of the last day that ended without a
// shutdown, and the templates that are not closed.
func inUse(ctx context.Context, cfg config.Config) ([]store.Instance, []reward.CouponTemplate, error) {
	cfg.Database.MaxConnections, cfg.Database.ReadConnections = 1, 1
	rows, err := parts.OpenStore(ctx, cfg, "doctor "+service.InstanceID(), nil, obs.Log{})
	if err != nil {
		return nil, nil, err
	}
	defer rows.Close()
	instances, err := rows.InstanceList(ctx)
	if err != nil {
		return nil, nil, err
	}
	templates, err := rows.TemplateActive(ctx, time.Now())
	return instances, templates, err
}

// missingCodes returns the templates that have fewer imported codes left than coupons
// to issue.
func missingCodes(templates []reward.CouponTemplate) []reward.TemplateID {
	var ids []reward.TemplateID
	for i := range templates {
		if templates[i].CodesMissing() > 0 {
			ids = append(ids, templates[i].ID)
		}
	}
	return ids
}

// judgeCodes returns a check for templates with missing codes, if there are any.
func judgeCodes(missing []reward.TemplateID) []Check {
	if len(missing) == 0 {
		return nil
	}
	var names []string
	for _, id := range missing {
		names = append(names, id.String())
	}
	return []Check{passed("coupons.codes", "too few imported codes are left for the quantity of template %s", listed(names, ", ", " and")).
		but(CheckWarn, "import more codes with largesse template codes ID FILE, or lower the quantity; largesse template show ID shows how many are missing")}
}

// judgeInstances returns a check for the running instances, one for those that are
// degraded, and one for the instances that ended without a shutdown, if there are any.
func judgeInstances(all []store.Instance, version string) []Check {
	var names, others, degraded []string
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
		for _, t := range i.Troubles {
			degraded = append(degraded, i.Name+": "+t.Reason)
		}
	}
	running := passed("instances", "%d running: %s", len(names), strings.Join(names, ", "))
	switch {
	case len(names) == 0:
		running.Found = "no instance is running"
	case len(others) > 0:
		running = running.saying("this is version %s, but %s", version, strings.Join(others, ", ")).
			but(CheckWarn, "update all instances to one version; different versions are normal only during an update")
	}
	checks := []Check{running}
	if len(degraded) > 0 {
		checks = append(checks, passed("instances.degraded", "%s", listed(degraded, "; ", "; and")).
			but(CheckWarn, "follow the reasons; /readyz of each instance and GET /v1/instances show them all"))
	}
	if len(lost) > 0 {
		checks = append(checks, judgeLost(lost))
	}
	return checks
}

func judgeLost(lost []store.Instance) Check {
	slices.SortStableFunc(lost, func(a, b store.Instance) int { return b.SeenAt.Compare(a.SeenAt) })
	var said []string
	for _, i := range lost {
		said = append(said, fmt.Sprintf("%s was last seen at %s", i.Name, i.SeenAt.UTC().Format(time.RFC3339)))
	}
	return passed("instances.lost", "%d ended without a shutdown: %s", len(lost), listed(said, ", ", ", and")).
		but(CheckWarn, "find the cause in their logs (killed, out of memory, or cut off from the database); other instances took over their work, and each one is removed from this list a day after it was last seen")
}
