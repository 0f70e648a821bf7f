package config

import (
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/largesse/largesse/internal/auth"
	"github.com/largesse/largesse/internal/money"
)

// plainText returns a warning for each connection that is not encrypted and leaves this
// machine: others on the network can read it, and change what it carries.
func (c Config) plainText() []string {
	var warnings []string
	warn := func(format string, args ...any) { warnings = append(warnings, fmt.Sprintf(format, args...)) }
	if host, _, ok := HostPort(c.HTTP.Listen); ok && c.HTTP.TLSCert == "" && c.Auth.Mode != auth.ModeNone &&
		slices.Contains(c.Roles, RoleAPI) && !auth.IsLoopback(host) {
		warn("http.listen %s accepts API keys in clear text; set http.tls-cert and http.tls-key, or listen on 127.0.0.1 behind a proxy that encrypts", c.HTTP.Listen)
	}
	if host := c.Database.plainHost(); host != "" {
		warn("database.url does not require TLS to %s; add sslmode=verify-full, or sslmode=require", host)
	}
	for address := range strings.SplitSeq(c.Redis.URL, ",") {
		if u, err := url.Parse(strings.TrimSpace(address)); err == nil && u.Scheme == "redis" && !auth.IsLoopback(u.Hostname()) {
			warn("redis.url uses no TLS to %s; use rediss://", u.Hostname())
			break
		}
	}
	for _, broker := range c.Kafka.Brokers {
		if host, _, ok := HostPort(broker); ok && !c.Kafka.TLS && !auth.IsLoopback(host) {
			warn("kafka.brokers uses no TLS to %s; set kafka.tls, because a record can pay", host)
			if c.Kafka.SASLMechanism == "PLAIN" {
				warn("kafka.sasl-mechanism PLAIN without kafka.tls sends the password in clear text; set kafka.tls, or use SCRAM-SHA-512")
			}
			break
		}
	}
	if u, err := url.Parse(c.Money.URL); err == nil && u.Scheme == "http" && !auth.IsLoopback(u.Hostname()) {
		warn("money.url is http:// to %s, so charges can be read and changed on the way; use https://", u.Hostname())
		if c.Money.Credentials() != (money.Credentials{}) {
			warn("money.url is http://, so credentials are sent in clear text and certificates are not used; use https://")
		}
	}
	return warnings
}

// plainHost returns a host to which connections may be unencrypted, or "". A path is a
// socket of this machine.
func (c Database) plainHost() string {
	u, err := url.Parse(c.URL)
	if err != nil || c.URL == "" {
		return ""
	}
	query := u.Query()
	if slices.Contains([]string{"require", "verify-ca", "verify-full"}, query.Get("sslmode")) {
		return ""
	}
	hosts := query["host"]
	if len(hosts) == 0 {
		hosts = strings.Split(u.Host, ",")
	}
	for _, host := range hosts {
		if h, _, ok := HostPort(host); ok {
			host = h
		}
		if host = strings.Trim(host, "[]"); host != "" && !strings.HasPrefix(host, "/") && !auth.IsLoopback(host) {
			return host
		}
	}
	return ""
}
