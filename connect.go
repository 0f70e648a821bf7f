package largesse

import (
	"path/filepath"

	"github.com/largesse/largesse/internal/auth"
	"github.com/largesse/largesse/internal/bus"
	"github.com/largesse/largesse/internal/money"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/queue/redisstream"
	"github.com/largesse/largesse/internal/store/postgres"
)

// How each part is reached is said here once, so that what Doctor has looked
// at is what an Engine uses.

func sqlitePath(cfg Config) string { return filepath.Join(cfg.Data.Dir, "largesse.db") }

func postgresConfig(cfg Config, instance string) postgres.Config {
	return postgres.Config{
		URL: cfg.Database.URL, MaxConnections: cfg.Database.MaxConnections, ApplicationName: "largesse " + instance,
	}
}

func redisConfig(cfg Config, log obs.Log) redisstream.Config {
	return redisstream.Config{URL: cfg.Redis.URL, KeyPrefix: cfg.Redis.KeyPrefix, Log: log}
}

func busConfig(cfg Config, instance string, log obs.Log) bus.Config {
	return bus.Config{
		Brokers: cfg.Kafka.Brokers, TopicPrefix: cfg.Kafka.TopicPrefix, ClientID: instance,
		TLS: kafkaTLS(cfg.Kafka), SASL: kafkaSASL(cfg.Kafka), Log: log,
	}
}

func kafkaTLS(c KafkaConfig) *bus.TLS {
	if !c.TLS {
		return nil
	}
	return &bus.TLS{CAFile: c.CAFile, CertFile: c.ClientCert, KeyFile: c.ClientKey}
}

func kafkaSASL(c KafkaConfig) *bus.SASL {
	if c.SASLMechanism == "" {
		return nil
	}
	return &bus.SASL{Mechanism: c.SASLMechanism, User: c.SASLUser, PasswordFile: c.SASLPasswordFile}
}

// tokensConfig is what tokens are verified by.
func tokensConfig(c JWTConfig, log obs.Log) auth.TokensConfig {
	return auth.TokensConfig{
		JWKS: c.JWKS, Issuer: c.Issuer, Audience: c.Audience, UserClaim: c.UserClaim, RoleClaim: c.RoleClaim, Log: log,
	}
}

func moneyConfig(cfg Config, log obs.Log) money.Config {
	return money.Config{
		URL: cfg.Money.URL, Timeout: cfg.Money.Timeout, MaxConcurrency: cfg.Money.MaxConcurrency,
		RefusalCodes: cfg.Money.RefusalCodes, Credentials: moneyCredentials(cfg.Money), Log: log,
	}
}

func moneyCredentials(c MoneyConfig) money.Credentials {
	return money.Credentials{
		Header: c.AuthHeader, TokenFile: c.TokenFile, CAFile: c.CAFile, CertFile: c.ClientCert, KeyFile: c.ClientKey,
	}
}
