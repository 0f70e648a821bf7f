package config

import (
	"github.com/largesse/largesse/internal/auth"
	"github.com/largesse/largesse/internal/bus"
	"github.com/largesse/largesse/internal/money"
	"github.com/largesse/largesse/internal/obs"
)

// What other packages need of the settings in a form of their own. Validate
// checks the same values that an instance uses.

// TLSFiles returns how connections to the brokers are encrypted; nil: not at
// all.
func (c Kafka) TLSFiles() *bus.TLS {
	if !c.TLS {
		return nil
	}
	return &bus.TLS{CAFile: c.CAFile, CertFile: c.ClientCert, KeyFile: c.ClientKey}
}

// SASL returns how an instance logs in to the brokers; nil: not at all.
func (c Kafka) SASL() *bus.SASL {
	if c.SASLMechanism == "" {
		return nil
	}
	return &bus.SASL{Mechanism: c.SASLMechanism, User: c.SASLUser, PasswordFile: c.SASLPasswordFile}
}

// Tokens returns what tokens are verified by.
func (c JWT) Tokens(log obs.Log) auth.TokensConfig {
	return auth.TokensConfig{
		JWKS: c.JWKS, Issuer: c.Issuer, Audience: c.Audience, UserClaim: c.UserClaim, RoleClaim: c.RoleClaim, Log: log,
	}
}

// Credentials returns what shows the provider who we are.
func (c Money) Credentials() money.Credentials {
	return money.Credentials{
		Header: c.AuthHeader, TokenFile: c.TokenFile, CAFile: c.CAFile, CertFile: c.ClientCert, KeyFile: c.ClientKey,
	}
}
