package redis

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"
	"time"

	"github.com/redis/rueidis"
)

// replyTimeout bounds the wait for a reply that does not come (a hung server,
// a dead network); the caller's context may be shorter.
const replyTimeout = 5 * time.Second

// keepAlive is how often a connection that has nothing to say asks whether its
// server is still there. One that was closed is noticed without it; an instance
// holds several, and each question wakes it.
const keepAlive = 3 * time.Second

// masterRefresh is how often Sentinels are asked who the master is, should what
// they tell of a failover be missed: a master that was made a replica keeps its
// connections, and would refuse our writes for ever.
const masterRefresh = 2 * time.Second

// Option reads redis.url: redis://user:password@host:port/db, or rediss:// for
// TLS. Several, separated by commas, are nodes of one Cluster, or with
// ?master_set=NAME behind the first the Sentinels that know the master of that
// name. Its errors never show the URL, which may hold a password.
func Option(urls string) (rueidis.ClientOption, error) {
	var option rueidis.ClientOption
	for i, text := range strings.Split(urls, ",") {
		node, err := rueidis.ParseURL(strings.TrimSpace(text))
		if err != nil {
			return option, fmt.Errorf("redis.url: part %d is no redis://user:password@host:port/db (or rediss://)", i+1)
		}
		if i == 0 {
			option = node
			continue
		}
		if (node.TLSConfig == nil) != (option.TLSConfig == nil) {
			return option, errors.New("redis.url: redis:// and rediss:// are mixed")
		}
		if node.Sentinel.MasterSet != "" && node.Sentinel.MasterSet != option.Sentinel.MasterSet {
			return option, errors.New("redis.url: master_set belongs behind the first address")
		}
		option.InitAddress = append(option.InitAddress, node.InitAddress...)
	}
	if option.TLSConfig != nil && (len(option.InitAddress) > 1 || option.Sentinel.MasterSet != "") {
		option.TLSConfig.ServerName = "" // each server is checked by its own name
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
	return option, nil
}

// connectError says where nobody could be connected to. Something that takes
// the connection and is no Redis either answers what no Redis would, or hangs
// up on what it does not understand.
func connectError(option rueidis.ClientOption, err error) error {
	hint := ""
	switch {
	case strings.Contains(err.Error(), "unknown message type"): // the client has no name for it
		hint = "what listens there does not speak Redis's protocol: "
	case errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET):
		hint = "what listens there hangs up: it does not speak Redis's protocol, or wants TLS (rediss://): "
	}
	return fmt.Errorf("redis.url: cannot connect to %s: %s%w", strings.Join(option.InitAddress, ", "), hint, err)
}
