package engine

import (
	"path/filepath"

	"github.com/largesse/largesse/internal/auth"
	"github.com/largesse/largesse/internal/bus"
	"github.com/largesse/largesse/internal/config"
	"github.com/largesse/largesse/internal/money"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/queue/redisstream"
	"github.com/largesse/largesse/internal/store/postgres"
)

// The functions in this file configure the connection to each part. Doctor and
// Engine both use them, so Doctor checks what an Engine uses.

func sqlitePath(cfg config.Config) string { return filepath.Join(cfg.Data.Dir, databaseName) }

func postgresConfig(cfg config.Config, instance string, log obs.Log) postgres.Config {
	return postgres.Config{
		URL: cfg.Database.URL, PasswordFile: cfg.Database.PasswordFile, Log: log, MaxConnections: cfg.Database.MaxConnections, ReadConnections: cfg.Database.ReadConnections,
		ApplicationName: "largesse " + instance,
	}
}

func redisConfig(cfg config.Config, log obs.Log) redisstream.Config {
	return redisstream.Config{URL: cfg.Redis.URL, PasswordFile: cfg.Redis.PasswordFile, CAFile: cfg.Redis.CAFile, KeyPrefix: cfg.Redis.KeyPrefix, Log: log}
}

func busConfig(cfg config.Config, instance string, log obs.Log) bus.Config {
	return bus.Config{
		Brokers: cfg.Kafka.Brokers, TopicPrefix: cfg.Kafka.TopicPrefix, ClientID: instance,
		TLS: cfg.Kafka.TLSFiles(), SASL: cfg.Kafka.SASL(), Log: log,
	}
}

// embeddedLogin returns the login of the embedded broker. Without a configured one, any
// process of this machine may use the broker if auth.mode is none, and otherwise only
// this instance: a publisher of payouts needs no API key.
func embeddedLogin(cfg config.Config) *bus.SASL {
	if login := cfg.Kafka.SASL(); login != nil || cfg.Auth.Mode == auth.ModeNone {
		return login
	}
	return bus.PrivateLogin()
}

func moneyConfig(cfg config.Config, log obs.Log) money.Config {
	return money.Config{
		URL: cfg.Money.URL, Timeout: cfg.Money.Timeout, MaxConcurrency: cfg.Money.MaxConcurrency,
		RefusalCodes: cfg.Money.RefusalCodes, Currencies: cfg.Money.Currencies, Credentials: cfg.Money.Credentials(), Custom: cfg.Money.Custom(), Log: log,
	}
}
