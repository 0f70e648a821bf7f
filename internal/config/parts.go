package config

import (
	"fmt"
	"net/netip"

	"github.com/largesse/largesse/internal/auth"
	"github.com/largesse/largesse/internal/bus"
	"github.com/largesse/largesse/internal/money"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
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

// Proxies returns the networks of trusted proxies. The error continues a sentence that
// begins with the name of the setting.
func (c HTTP) Proxies() ([]netip.Prefix, error) {
	networks := make([]netip.Prefix, len(c.TrustedProxies))
	for i, text := range c.TrustedProxies {
		network, err := netip.ParsePrefix(text)
		if address, wrong := netip.ParseAddr(text); wrong == nil {
			address = address.Unmap().WithZone("")
			network, err = netip.PrefixFrom(address, address.BitLen()), nil
		}
		if err != nil {
			return nil, fmt.Errorf("has %q; each must be a network like 10.0.0.0/8 or an IP address", text)
		}
		networks[i] = network
	}
	return networks, nil
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

// Payable says which promotions the provider can pay. The settings must be valid.
func (c Money) Payable() reward.Payable {
	var payable reward.Payable
	if custom := c.Custom(); custom != (money.Custom{}) {
		payable, _ = money.CheckCustom(custom)
	}
	payable.Currencies = c.Currencies
	return payable
}

// Custom returns the description of an API other than the Money API. It is zero for
// the Money API.
func (c Money) Custom() money.Custom {
	if c.Request.Path == "" {
		return money.Custom{}
	}
	return money.Custom{
		Method: c.Request.Method, Path: c.Request.Path, Headers: c.Request.Headers, Key: c.Request.Key, Body: c.Request.Body,
		Signature: c.Request.Signature, SignatureKeyFile: c.Request.SignatureKeyFile, SignatureEncoding: c.Request.SignatureEncoding,
		Paid: c.Response.Paid, TransactionKey: c.Response.TransactionKey, Refused: c.Response.Refused, Misconfigured: c.Response.Misconfigured,
		Throttled: c.Response.Throttled, Code: c.Response.Code, Message: c.Response.Message,
		LookupPath: c.Lookup.Path, LookupFound: c.Lookup.Found, LookupTransactionKey: c.Lookup.TransactionKey, LookupNotFound: c.Lookup.NotFound,
		WithoutLookup: c.Lookup.Without,
	}
}
