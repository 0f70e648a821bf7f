// Package parts says how the settings reach what an instance depends on: its database,
// Redis, Kafka, the provider, its data directory and its open files. Engine and doctor
// both use it, so doctor checks what an engine uses. It keeps nothing open itself,
// except for what its callers close.
package parts

import (
	"context"
	"path/filepath"

	"github.com/largesse/largesse/internal/auth"
	"github.com/largesse/largesse/internal/bus"
	"github.com/largesse/largesse/internal/config"
	"github.com/largesse/largesse/internal/money"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/queue/redisstream"
	"github.com/largesse/largesse/internal/store/postgres"
	"github.com/largesse/largesse/internal/store/rows"
	"github.com/largesse/largesse/internal/store/sqlite"
)

// SQLitePath returns the file of the embedded database.
func SQLitePath(cfg config.Config) string { return filepath.Join(cfg.Data.Dir, databaseName) }

// PostgresConfig returns the configuration of the PostgreSQL server.
func PostgresConfig(cfg config.Config, instance string, log obs.Log) postgres.Config {
	return postgres.Config{
		URL: cfg.Database.URL, PasswordFile: cfg.Database.PasswordFile, Log: log, MaxConnections: cfg.Database.MaxConnections, ReadConnections: cfg.Database.ReadConnections,
		ApplicationName: "largesse " + instance,
	}
}

// RedisConfig returns the configuration of each connection to Redis: of the work queue,
// the gate and the rates.
func RedisConfig(cfg config.Config, log obs.Log) redisstream.Config {
	return redisstream.Config{URL: cfg.Redis.URL, PasswordFile: cfg.Redis.PasswordFile, CAFile: cfg.Redis.CAFile, KeyPrefix: cfg.Redis.KeyPrefix, Log: log}
}

// BusConfig returns the configuration of the connection to Kafka brokers.
func BusConfig(cfg config.Config, instance string, log obs.Log) bus.Config {
	return bus.Config{
		Brokers: cfg.Kafka.Brokers, TopicPrefix: cfg.Kafka.TopicPrefix, ClientID: instance,
		TLS: cfg.Kafka.TLSFiles(), SASL: cfg.Kafka.SASL(), Log: log,
	}
}

// BrokerLogin returns the login of the embedded broker. Without a configured one, any
// process of this machine may use the broker if auth.mode is none, and otherwise only
// this instance: a publisher of payouts needs no API key.
func BrokerLogin(cfg config.Config) *bus.SASL {
	if login := cfg.Kafka.SASL(); login != nil || cfg.Auth.Mode == auth.ModeNone {
		return login
	}
	return bus.PrivateLogin()
}

// MoneyConfig returns the configuration of the client of the provider.
func MoneyConfig(cfg config.Config, log obs.Log) money.Config {
	return money.Config{
		URL: cfg.Money.URL, Timeout: cfg.Money.Timeout, MaxConcurrency: cfg.Money.MaxConcurrency,
		RefusalCodes: cfg.Money.RefusalCodes, Reasons: cfg.Money.Reasons, Currencies: cfg.Money.Currencies, Credentials: cfg.Money.Credentials(), Custom: cfg.Money.Custom(), Log: log,
	}
}

// OpenStore opens the configured database without migrating it. m counts its calls,
// unless it is nil. The caller must close it. An embedded database is in data.dir, which
// the caller has checked: see CheckDataDir.
func OpenStore(ctx context.Context, cfg config.Config, instance string, m *obs.Metrics, log obs.Log) (*rows.Tables, error) {
	if cfg.Database.URL != "" {
		pc := PostgresConfig(cfg, instance, log)
		pc.Metrics = m
		return postgres.Open(ctx, pc)
	}
	return sqlite.OpenWith(ctx, SQLitePath(cfg), cfg.Database.ReadConnections, m)
}
