package doctor

import (
	"context"
	"crypto/rand"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/largesse/largesse/internal/bus"
	"github.com/largesse/largesse/internal/config"
	"github.com/largesse/largesse/internal/engine"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/lab/fleet"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/parts"
	"github.com/largesse/largesse/internal/store"
)

// execSQL runs statements on the PostgreSQL at url, one after the other.
func execSQL(ctx context.Context, t *testing.T, url string, statements ...string) {
	t.Helper()
	db := fixture.Must(pgx.Connect(ctx, url))(t)
	defer func() { _ = db.Close(ctx) }()
	for _, sql := range statements {
		if _, err := db.Exec(ctx, sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
}

// smallDatabase returns settings for a database at url.
func smallDatabase(url string) config.Config {
	cfg := config.Default()
	cfg.Database.URL, cfg.Database.MaxConnections, cfg.Coupon.ConsumerConcurrency = url, 2, 1
	return cfg
}

func TestDoctorPostgres(t *testing.T) {
	t.Parallel()
	look := func(t *testing.T, url string) []Check {
		return lookAtDatabase(t.Context(), smallDatabase(url), "v1")
	}

	t.Run("Healthy", func(t *testing.T) {
		t.Parallel()
		cfg := smallDatabase(fixture.NewSchema(t))
		onlyBut(t, look(t, cfg.Database.URL), CheckWarn, "database.schema")
		fixture.OK(t, engine.Migrate(t.Context(), cfg, nil))
		checks := look(t, cfg.Database.URL)
		onlyBut(t, checks, CheckOK)
		if verdict(t, checks, "instances") != CheckOK {
			t.Errorf("%+v", checks)
		}

		rows := fixture.Must(parts.OpenStore(t.Context(), cfg, "test", nil, obs.Log{}))(t)
		defer rows.Close()
		fixture.Must(rows.InstanceHeartbeat(t.Context(), store.Instance{Name: "other-1", Version: "v0", Roles: config.Roles, StartedAt: time.Now()}, time.Minute))(t)
		onlyBut(t, look(t, cfg.Database.URL), CheckWarn, "instances")
		fixture.Must(rows.InstanceHeartbeat(t.Context(), store.Instance{Name: "killed-1", Version: "v1", Roles: config.Roles, StartedAt: time.Now()}, time.Microsecond))(t)
		onlyBut(t, look(t, cfg.Database.URL), CheckWarn, "instances", "instances.lost")
	})

	t.Run("ANewerProgramWasThere", func(t *testing.T) {
		t.Parallel()
		cfg := smallDatabase(fixture.NewSchema(t))
		fixture.OK(t, engine.Migrate(t.Context(), cfg, nil))
		execSQL(t.Context(), t, cfg.Database.URL, "INSERT INTO goose_db_version (version_id, is_applied) VALUES (99999, true)")
		onlyBut(t, look(t, cfg.Database.URL), CheckFail, "database.schema")
	})

	t.Run("NoSchemaAndReadOnly", func(t *testing.T) {
		t.Parallel()
		u := fixture.Must(url.Parse(fixture.Address(t, fleet.VariablePostgres)))(t)
		q := u.Query()
		q.Set("search_path", "nowhere")
		q.Set("default_transaction_read_only", "on")
		u.RawQuery = q.Encode()
		onlyBut(t, look(t, u.String()), CheckFail, "database.schema", "database.writes")
	})

	t.Run("AUserWhoMayNotMuch", func(t *testing.T) {
		t.Parallel()
		u := fixture.Must(url.Parse(fixture.NewSchema(t)))(t)
		schema, admin := u.Query().Get("search_path"), u.String()
		role := schema + "_r"
		execSQL(t.Context(), t, admin, "CREATE ROLE "+role+" LOGIN PASSWORD 'sekret' CONNECTION LIMIT 1", "GRANT USAGE ON SCHEMA "+schema+" TO "+role)
		t.Cleanup(func() {
			execSQL(context.Background(), t, admin, "REVOKE ALL ON SCHEMA "+schema+" FROM "+role, "DROP ROLE "+role)
		})
		u.User = url.UserPassword(role, "sekret")
		onlyBut(t, look(t, u.String()), CheckFail, "database.schema", "database.connections")
		u.Path = "/sekretless"
		var checks []Check
		fixture.Until(t, "the server has ended the session of the check before", func() bool {
			checks = look(t, u.String())
			return checks[0].Name == "database"
		})
		onlyBut(t, checks, CheckFail, "database")
		if strings.Contains(checks[0].Found, "sekret@") || strings.Contains(checks[0].Found, ":sekret") {
			t.Errorf("the password is shown: %+v", checks[0])
		}
	})
}

// ownRedis starts a Redis that ends with the test, and returns its address.
func ownRedis(t *testing.T, settings ...string) string {
	t.Helper()
	ports := fixture.Must(fleet.FreePorts(2))(t)
	port := strconv.Itoa(ports[0])
	address := net.JoinHostPort("127.0.0.1", port)
	dir := t.TempDir()
	server := exec.CommandContext(t.Context(), "redis-server", slices.Concat([]string{
		// By default, a cluster also listens on a port that others may have.
		"--port", port, "--cluster-port", strconv.Itoa(ports[1]), "--bind", "127.0.0.1", "--dir", dir, "--logfile", "log",
	}, settings)...)
	if err := server.Start(); err != nil {
		t.Fatalf("redis-server is needed: %v", err)
	}
	ended := make(chan struct{})
	go func() {
		_ = server.Wait()
		close(ended)
	}()
	t.Cleanup(func() {
		_ = server.Process.Kill()
		<-ended
	})
	fixture.Until(t, "redis-server listens", func() bool {
		select {
		case <-ended:
			said, _ := os.ReadFile(filepath.Join(dir, "log"))
			t.Fatalf("redis-server ended: %s", said)
		default:
		}
		conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", address)
		if err != nil {
			return false
		}
		conn.Close()
		return true
	})
	return address
}

func TestDoctorRedis(t *testing.T) {
	t.Parallel()
	look := func(t *testing.T, url string) []Check {
		cfg := config.Default()
		cfg.Redis.URL, cfg.Redis.KeyPrefix = url, "t-"+rand.Text()[:10]+":"
		return lookAtRedis(t.Context(), cfg)
	}

	for name, server := range map[string]fleet.Variable{"Redis": fleet.VariableRedis, "Valkey": fleet.VariableValkey} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := fixture.Address(t, server)
			cfg := config.Default()
			cfg.Redis.URL, cfg.Redis.KeyPrefix = url, "t-"+rand.Text()[:10]+":"
			onlyBut(t, lookAtRedis(t.Context(), cfg), CheckOK)
			plain := fixture.RedisClient(t, url)
			defer plain.Close()
			left, err := plain.Do(t.Context(), plain.B().Keys().Pattern("*"+cfg.Redis.KeyPrefix+"*").Build()).AsStrSlice()
			if err != nil || len(left) > 0 {
				t.Errorf("left behind: %v, error %v", left, err)
			}
		})
	}

	for name, tc := range map[string]struct {
		settings []string
		status   CheckStatus
		checks   []string
	}{
		"Evicts":       {[]string{"--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"}, CheckFail, []string{"redis.eviction"}},
		"NoSlots":      {[]string{"--cluster-enabled", "yes"}, CheckFail, []string{"redis"}},
		"NoConfig":     {[]string{"--rename-command", "CONFIG", ""}, CheckWarn, []string{"redis.persistence"}},
		"NoXAUTOCLAIM": {[]string{"--rename-command", "XAUTOCLAIM", ""}, CheckFail, []string{"redis.commands"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onlyBut(t, look(t, "redis://"+ownRedis(t, tc.settings...)), tc.status, tc.checks...)
		})
	}

	t.Run("Full", func(t *testing.T) {
		t.Parallel()
		checks := look(t, "redis://"+ownRedis(t, "--maxmemory", "1", "--maxmemory-policy", "noeviction"))
		if verdict(t, checks, "redis.memory") != CheckWarn || verdict(t, checks, "redis.role") != CheckFail {
			t.Errorf("%+v", checks)
		}
	})

	t.Run("ACluster", func(t *testing.T) {
		t.Parallel()
		address := ownRedis(t, "--cluster-enabled", "yes")
		conn := fixture.Must(new(net.Dialer).DialContext(t.Context(), "tcp", address))(t)
		defer conn.Close()
		fixture.Must(conn.Write([]byte("CLUSTER ADDSLOTSRANGE 0 16382\r\n")))(t)
		// A cluster takes its time before it says that it is well, and with a
		// slot too few it never does.
		settled := func(want CheckStatus) {
			t.Helper()
			var checks []Check
			fixture.Until(t, "the cluster is "+string(want), func() bool {
				checks = look(t, "redis://"+address)
				return slices.ContainsFunc(checks, func(c Check) bool { return c.Name == "redis.cluster" && c.Status == want })
			})
			if want == CheckOK {
				onlyBut(t, checks, CheckOK)
			}
		}
		settled(CheckFail)
		fixture.Must(conn.Write([]byte("CLUSTER ADDSLOTS 16383\r\n")))(t)
		settled(CheckOK)
	})

	t.Run("AUserWhoMayNotMuch", func(t *testing.T) {
		t.Parallel()
		address := ownRedis(t, "--user", "lg", "on", ">sekret", "~*", "&none", "+@all", "-xadd", "-config")
		checks := look(t, "redis://lg:sekret@"+address)
		for name, want := range map[string]CheckStatus{"redis.commands": CheckFail, "redis.wakes": CheckFail, "redis.persistence": CheckWarn, "redis.eviction": CheckOK} {
			if v := verdict(t, checks, name); v != want {
				t.Errorf("%s is %s, want %s: %+v", name, v, want, checks)
			}
		}
		few := ownRedis(t, "--user", "lg", "on", ">sekret", "~*", "&*", "+@all", "-info", "-time", "-hset")
		checks = look(t, "redis://lg:sekret@"+few)
		c := checks[slices.IndexFunc(checks, func(c Check) bool { return c.Name == "redis.commands" })]
		if c.Status != CheckFail || !strings.HasSuffix(c.Found, "run INFO, HSET, TIME") || !strings.Contains(c.Advice, "+@all -@dangerous +info") {
			t.Errorf("%+v", c)
		}
		wrong := look(t, "redis://lg:wrongsekret@"+address)
		onlyBut(t, wrong, CheckFail, "redis")
		if strings.Contains(wrong[0].Found, "sekret") {
			t.Errorf("the password is shown: %+v", wrong[0])
		}
	})
}

func TestDoctorKafka(t *testing.T) {
	t.Parallel()
	cfg := config.Default()
	cfg.Kafka.Brokers, cfg.Kafka.TopicPrefix = fixture.Topics(t)
	kafka := fixture.Must(kgo.NewClient(kgo.SeedBrokers(cfg.Kafka.Brokers...)))(t)
	defer kafka.Close()
	admin := kadm.NewClient(kafka)
	point, voucher := cfg.Kafka.TopicPrefix+bus.TopicPointPublish, cfg.Kafka.TopicPrefix+bus.TopicVoucherPublish

	// Checks create nothing, however often they run.
	for range 2 {
		onlyBut(t, lookAtKafka(t.Context(), cfg), CheckWarn, "kafka.topics")
	}
	topics := fixture.Must(admin.ListTopics(t.Context()))(t)
	for _, topic := range topics.Names() {
		if strings.HasPrefix(topic, cfg.Kafka.TopicPrefix) {
			t.Errorf("topic %s was created", topic)
		}
	}

	hour, compact := "3600000", "compact"
	fixture.Must(admin.CreateTopic(t.Context(), 1, 1, map[string]*string{"retention.ms": &hour}, point))(t)
	fixture.Must(admin.CreateTopic(t.Context(), 2, 1, map[string]*string{"cleanup.policy": &compact}, voucher))(t)
	client := fixture.Must(bus.Open(t.Context(), parts.BusConfig(cfg, "test", obs.Log{})))(t)
	defer client.Close()
	fixture.OK(t, client.EnsureTopics(t.Context()))
	checks := lookAtKafka(t.Context(), cfg)
	for _, want := range []struct {
		name, found string
		status      CheckStatus
	}{
		{"kafka.partitions", point + " has 1 partition", CheckWarn},
		{"kafka.retention", point + " retains records for 1h", CheckWarn},
		{"kafka.retention", voucher + " is compacted", CheckFail},
		{"kafka.topics", "10 are correct", CheckOK},
	} {
		if !slices.ContainsFunc(checks, func(c Check) bool {
			return c.Name == want.name && c.Status == want.status && strings.HasPrefix(c.Found, want.found)
		}) {
			t.Errorf("%s %s %q is not in %+v", want.name, want.status, want.found, checks)
		}
	}
}

// TestTheUpgradeWaitsForOlderInstances checks that a migration of the coupon protocol
// waits until no instance of the older schema is alive, and names those that are.
func TestTheUpgradeWaitsForOlderInstances(t *testing.T) {
	t.Parallel()
	cfg := smallDatabase(fixture.NewSchema(t))
	fixture.OK(t, engine.Migrate(t.Context(), cfg, nil))
	execSQL(t.Context(), t, cfg.Database.URL, "DELETE FROM goose_db_version WHERE version_id >= 8", "ALTER TABLE instances DROP COLUMN troubles",
		`INSERT INTO instances (name, version, roles, pools, started_at, seen_at, alive_until)
VALUES ('old-1', '0', '[]', '[]', now(), now(), now() + interval '1 hour'), ('dead-1', '0', '[]', '[]', now(), now(), now() - interval '1 s')`)
	waits, done := make(chan []string, 10), make(chan error, 1)
	go func() {
		done <- engine.Migrate(t.Context(), cfg, func(instances []string) error {
			waits <- instances
			return nil
		})
	}()
	select {
	case names := <-waits:
		if !slices.Equal(names, []string{"old-1"}) {
			t.Fatalf("waits for %v", names)
		}
	case err := <-done:
		t.Fatalf("the migration did not wait: %v", err)
	}
	execSQL(t.Context(), t, cfg.Database.URL, "DELETE FROM instances")
	fixture.OK(t, <-done)
	fixture.OK(t, engine.Migrate(t.Context(), cfg, nil))
	// A schema before coupons may have no table of instances.
	execSQL(t.Context(), t, cfg.Database.URL, "DELETE FROM goose_db_version WHERE version_id >= 2", "DROP TABLE instances")
	fixture.OK(t, engine.Migrate(t.Context(), cfg, nil))
}
