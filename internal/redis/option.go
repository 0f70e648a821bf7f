package redis

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
	"time"

	"github.com/redis/rueidis"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/service"
)

// replyTimeout limits the wait for a reply from a server that hangs or a
// network that is down. The caller's context may be shorter.
const replyTimeout = 5 * time.Second

// keepAlive is the interval of probes on an idle connection. A closed
// connection is noticed without them; an instance has several connections, and
// each probe wakes it.
const keepAlive = 3 * time.Second

// masterRefresh is the interval in which the client asks the Sentinels for the
// primary, in case it misses their message about a failover. A primary that
// becomes a replica keeps its connections, and would refuse writes forever.
const masterRefresh = 2 * time.Second

// Config says how to reach the servers, and which keys are Largesse's.
type Config struct {
	// URL is redis.url: redis://user:password@host:port/db, or rediss:// for TLS. Several
	// URLs, separated by commas, are nodes of one Cluster. If the first one has
	// ?master_set=NAME, they are Sentinels that know the primary of that name.
	URL string
	// PasswordFile is a file of one line, the password of the user in the URL. It is read
	// for each connection to a server, and Sentinels do not get it. Empty means the
	// password in the URL.
	PasswordFile string
	// CAFile is a PEM file of the CAs that may sign the certificates of the servers and of
	// the Sentinels. It is read for each connection. Empty means the system's CAs.
	CAFile string
	// KeyPrefix begins every key, group and channel; empty: none. It must not contain
	// braces.
	KeyPrefix string
	Log       obs.Log
}

// Option checks the configuration and reads its files. Errors never contain the URL,
// which may hold a password.
func (c Config) Option() (rueidis.ClientOption, error) {
	var option rueidis.ClientOption
	if strings.ContainsAny(c.KeyPrefix, "{}") {
		return option, fmt.Errorf("redis.key-prefix %q must not contain braces: they decide the cluster slot", c.KeyPrefix)
	}
	for i, text := range strings.Split(c.URL, ",") {
		node, err := rueidis.ParseURL(strings.Replace(strings.TrimSuffix(strings.TrimSpace(text), "/"), "/?", "?", 1)) // no database is named
		if err != nil {
			return option, fmt.Errorf("redis.url: part %d is not of the form redis://user:password@host:port/db (or rediss://)", i+1)
		}
		if i == 0 {
			option = node
			continue
		}
		if (node.TLSConfig == nil) != (option.TLSConfig == nil) {
			return option, errors.New("redis.url mixes redis:// and rediss://: use one of them")
		}
		if node.Sentinel.MasterSet != "" && node.Sentinel.MasterSet != option.Sentinel.MasterSet {
			return option, errors.New("redis.url: set master_set in the first address")
		}
		option.InitAddress = append(option.InitAddress, node.InitAddress...)
	}
	if option.TLSConfig != nil && (len(option.InitAddress) > 1 || option.Sentinel.MasterSet != "") {
		option.TLSConfig.ServerName = "" // verify each server by its own name
	}
	if option.Dialer.Timeout == 0 {
		option.Dialer.Timeout = rueidis.DefaultDialTimeout
	}
	if option.Dialer.KeepAlive == 0 {
		option.Dialer.KeepAlive = keepAlive
	}
	option.Sentinel.Dialer, option.Sentinel.TLSConfig = option.Dialer, option.TLSConfig
	option.Sentinel.TopologyRefreshInterval = masterRefresh
	option.DisableRetry = true // a write whose reply was lost must not be sent again
	option.DisableCache = true
	if option.ConnWriteTimeout == 0 {
		option.ConnWriteTimeout = replyTimeout
	}
	if option.ClientName == "" {
		option.ClientName = "largesse"
	}
	option.Sentinel.ClientName = option.ClientName
	if c.CAFile != "" {
		dial, err := dialTrusting(c.CAFile, c.Log)
		if err != nil {
			return option, err
		}
		option.DialCtxFn = dial
	}
	if c.PasswordFile == "" {
		return option, nil
	}
	password, err := service.NewPassword("redis.password-file", c.PasswordFile,
		c.Log.Streak("password file unusable, keeping the last one", "password file usable again"))
	if err != nil {
		return option, err
	}
	user := option.Username
	option.AuthCredentialsFn = func(rueidis.AuthCredentialsContext) (rueidis.AuthCredentials, error) {
		return rueidis.AuthCredentials{Username: user, Password: password.Get()}, nil
	}
	return option, nil
}

// dialTrusting returns a function that opens connections, each with the current CAs of the
// file. It fails if the file is unusable now.
func dialTrusting(caFile string, log obs.Log) (func(context.Context, string, *net.Dialer, *tls.Config) (net.Conn, error), error) {
	report := log.Streak("redis.ca-file unusable, keeping the last one", "redis.ca-file usable again")
	trusted, err := service.NewReloaded(0, service.TLSFiles{Setting: "redis", CA: caFile}.Config, func(err error) { report(err) })
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, address string, dialer *net.Dialer, config *tls.Config) (net.Conn, error) {
		if config == nil {
			return dialer.DialContext(ctx, "tcp", address)
		}
		config = config.Clone()
		config.RootCAs = trusted.Get().RootCAs
		return (&tls.Dialer{NetDialer: dialer, Config: config}).DialContext(ctx, "tcp", address)
	}, nil
}

// connectError adds the addresses to an error, and a hint if the server is not
// Redis: such a server sends replies that Redis never sends, or closes the
// connection.
func connectError(option rueidis.ClientOption, err error) error {
	hint := ""
	switch {
	case strings.Contains(err.Error(), "unknown message type"): // rueidis has no error value for it
		hint = "what listens there does not speak Redis's protocol: "
	case errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET):
		hint = "what listens there hangs up: it does not speak Redis's protocol, or wants TLS (rediss://): "
	}
	return fmt.Errorf("redis.url: cannot connect to %s: %s%w", strings.Join(option.InitAddress, ", "), hint, err)
}
