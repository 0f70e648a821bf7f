package config

import (
	"github.com/largesse/largesse/internal/auth"
	"github.com/largesse/largesse/internal/bus"
	"github.com/largesse/largesse/internal/money"
	"github.com/largesse/largesse/internal/obs"
)

// The functions in this file convert settings to the types of other packages.
// Validate and Engine both use them, so Validate checks what an instance uses.

// TLSFiles returns the TLS configuration for the brokers, or nil for plain
// connections.
func (c Kafka) TLSFiles() *bus.TLS {
	if !c.TLS {
		return nil
	}
	return &bus.TLS{CAFile: c.CAFile, CertFile: c.ClientCert, KeyFile: c.ClientKey}
}

// SASL returns the SASL configuration for the brokers, or nil for none.
func (c Kafka) SASL() *bus.SASL {
	if c.SASLMechanism == "" {
		return nil
	}
	return &bus.SASL{Mechanism: c.SASLMechanism, User: c.SASLUser, PasswordFile: c.SASLPasswordFile}
}

// Tokens returns the configuration for the verification of tokens.
func (c JWT) Tokens(log obs.Log) auth.TokensConfig {
	return auth.TokensConfig{
		JWKS: c.JWKS, Issuer: c.Issuer, Audience: c.Audience, UserClaim: c.UserClaim, RoleClaim: c.RoleClaim, Log: log,
	}
}

// Credentials returns the credentials for the provider.
func (c Money) Credentials() money.Credentials {
	return money.Credentials{
		Header: c.AuthHeader, TokenFile: c.TokenFile, CAFile: c.CAFile, CertFile: c.ClientCert, KeyFile: c.ClientKey,
	}
}
