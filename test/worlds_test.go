package test

import (
	"context"
	"crypto/rand"
	"errors"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/largesse/largesse/internal/config"
	"github.com/largesse/largesse/internal/lab/fleet"
)

// TestEngineServers runs the payout suite on real PostgreSQL, Redis (and, for
// the queue, Valkey and a Redis Cluster) and Apache Kafka.
func TestEngineServers(t *testing.T) {
	t.Parallel()
	for name, queue := range map[string]string{
		"Redis": "LARGESSE_TEST_REDIS", "Valkey": "LARGESSE_TEST_VALKEY", "Cluster": "LARGESSE_TEST_REDIS_CLUSTER",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			exercisePayouts(t, servers(queue))
		})
	}
}

// TestEngineServersWithoutStreams runs it with redis.stream.enabled off, with
// and without a Redis for the rates.
func TestEngineServersWithoutStreams(t *testing.T) {
	t.Parallel()
	exercisePayouts(t, withoutStreams(servers("LARGESSE_TEST_REDIS")))
	t.Run("WithoutRedis", func(t *testing.T) {
		t.Parallel()
		w := withoutStreams(servers("LARGESSE_TEST_REDIS"))
		exercisePayouts(t, world{name: w.name, config: func(t *testing.T, cfg *config.Config) {
			t.Helper()
			w.config(t, cfg)
			cfg.Redis = config.Redis{Stream: cfg.Redis.Stream}
		}})
	})
}

// servers is the world of real servers: a schema, a key prefix and a topic
// prefix for each test.
func servers(queue string) world {
	return world{name: "servers", config: func(t *testing.T, cfg *config.Config) {
		t.Helper()
		name := "t_" + strings.ToLower(rand.Text()[:10])
		cfg.Database.URL = ownSchema(t, server(t, "LARGESSE_TEST_POSTGRES"), name)
		cfg.Database.MaxConnections, cfg.Coupon.ConsumerConcurrency = 10, 4
		cfg.Redis.URL = server(t, queue)
		cfg.Redis.KeyPrefix = name + ":"
		cfg.Kafka.Brokers = []string{server(t, "LARGESSE_TEST_KAFKA")}
		cfg.Kafka.TopicPrefix = ownTopics(t, name)
	}}
}

func server(t *testing.T, variable string) string {
	t.Helper()
	address := os.Getenv(variable)
	if address == "" {
		t.Fatalf("%s is not set: this test needs a real server; run it by make test", variable)
	}
	return address
}

// ownTopics returns a prefix for topics that go with the test.
func ownTopics(t *testing.T, name string) string {
	t.Helper()
	brokers, prefix := []string{server(t, "LARGESSE_TEST_KAFKA")}, name+"-"
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := fleet.DeleteTopics(ctx, brokers, prefix); err != nil {
			t.Log(err)
		}
	})
	return prefix
}

// ownSchema makes a schema that goes with the test, and returns a URL in whose
// search path it is.
func ownSchema(t *testing.T, base, name string) string {
	t.Helper()
	exec := func(ctx context.Context, sql string) {
		db, err := pgx.Connect(ctx, base)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = db.Close(ctx) }()
		_, err = db.Exec(ctx, sql)
		// The last statement of a process that was killed may still run, and hold what
		// the schema's end needs.
		for refused := (*pgconn.PgError)(nil); errors.As(err, &refused) && refused.Code == "40P01" && ctx.Err() == nil; {
			_, err = db.Exec(ctx, sql)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	exec(t.Context(), "CREATE SCHEMA "+name)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		exec(ctx, "DROP SCHEMA "+name+" CASCADE")
	})
	u, err := url.Parse(base)
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	q.Set("search_path", name)
	u.RawQuery = q.Encode()
	return u.String()
}

// ownServer starts a server that a test may restart, and that ends with it.
func ownServer(t *testing.T, make func(in fleet.Installer) (*fleet.Server, error)) *fleet.Server {
	t.Helper()
	in, err := fleet.Look()
	if err != nil {
		t.Fatal(err)
	}
	s, err := make(in)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Remove(); err != nil {
			t.Error(err)
		}
	})
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return s
}
