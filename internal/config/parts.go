package config

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/largesse/largesse/internal/auth"
	"github.com/largesse/largesse/internal/bus"
	"github.com/largesse/largesse/internal/money"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/service"
	"github.com/largesse/largesse/internal/webhook"
)

// The functions in this file convert settings to the types of other packages.
// Validate and Engine both use them, so Validate checks what an instance uses.

// TLSFiles returns the TLS configuration for the brokers, or nil for plain
// connections.
func (c Kafka) TLSFiles() *service.TLSFiles {
	if !c.TLS {
		return nil
	}
	return &service.TLSFiles{Setting: "kafka", CA: c.CAFile, Cert: c.ClientCert, Key: c.ClientKey}
}

// SASL returns the SASL configuration for the brokers, or nil for none.
func (c Kafka) SASL() *bus.SASL {
	if c.SASLMechanism == "" {
		return nil
	}
	return &bus.SASL{Mechanism: c.SASLMechanism, User: c.SASLUser, PasswordFile: c.SASLPasswordFile}
}

// MailServer returns the server that sends e-mails, or nil for none. The error continues a
// sentence that begins with notify.smtp-url.
func (c Notify) MailServer() (*webhook.MailServer, error) {
	if c.SMTPURL == "" {
		return nil, nil //nolint:nilnil // none is set
	}
	var password func() (string, error)
	if c.SMTPPasswordFile != "" {
		password = func() (string, error) { return service.ReadPassword(c.SMTPPasswordFile) }
	}
	return webhook.NewMailServer(c.SMTPURL, c.From, password)
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

// Limits returns approval.above and approval.above-per-day. The error continues a sentence
// that begins with approval.currencies.
func (a Approval) Limits() (above, perDay reward.Limits, err error) {
	above = reward.Limits{Default: reward.Amount(a.Above), Own: make(map[string]reward.Amount)}
	perDay = reward.Limits{Default: reward.Amount(a.AbovePerDay), Own: make(map[string]reward.Amount)}
	for _, text := range a.Currencies {
		parts := strings.Split(text, ":")
		code := parts[0]
		if _, known := reward.CurrencyDigits(code); !known || len(parts) < 2 || len(parts) > 3 {
			return above, perDay, fmt.Errorf("has %q; each must be CODE:ABOVE or CODE:ABOVE:PER-DAY with a currency of ISO 4217, e.g. KRW:1000000", text)
		}
		if _, twice := above.Own[code]; twice {
			return above, perDay, fmt.Errorf("has %s twice", code)
		}
		for i, into := range []reward.Limits{above, perDay}[:len(parts)-1] {
			limit, err := strconv.ParseInt(parts[i+1], 10, 64)
			if err != nil || limit <= 0 || strconv.FormatInt(limit, 10) != parts[i+1] {
				return above, perDay, fmt.Errorf("has %q; its amounts must be whole numbers of minor units, at least 1", text)
			}
			into.Own[code] = reward.Amount(limit)
		}
	}
	if len(a.Currencies) > 0 && a.Above <= 0 {
		return above, perDay, errors.New("needs approval.above, for the currencies that it does not have")
	}
	return above, perDay, nil
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
