package bus

import (
	"context"
	"errors"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/largesse/largesse/internal/obs"
)

// watch is a hook that logs once when a broker goes away and once when it is
// back, and errors of group membership.
type watch struct {
	log  obs.Log
	mu   sync.Mutex // protects away
	away map[string]bool
}

var (
	_ kgo.HookBrokerConnect    = (*watch)(nil)
	_ kgo.HookGroupManageError = (*watch)(nil)
)

func newWatch(log obs.Log) *watch {
	return &watch{log: log, away: map[string]bool{}}
}

// OnBrokerConnect is called after each try to connect.
func (w *watch) OnBrokerConnect(meta kgo.BrokerMetadata, _ time.Duration, _ net.Conn, err error) {
	if errors.Is(err, context.Canceled) {
		return
	}
	// The same broker has two ids, before and after it is known, and one address.
	addr := net.JoinHostPort(meta.Host, strconv.Itoa(int(meta.Port)))
	w.mu.Lock()
	was := w.away[addr]
	w.away[addr] = err != nil
	w.mu.Unlock()
	switch {
	case err != nil && !was:
		w.log.Warn(obs.Unavailable, err, "kafka_broker", addr)
	case err == nil && was:
		w.log.Info(obs.Recovered, "kafka_broker", addr)
	}
}

// OnGroupManageError is called when a membership ended for an error; the
// client joins again by itself.
func (w *watch) OnGroupManageError(err error) {
	if !errors.Is(err, context.Canceled) {
		w.log.Warn(obs.Failed, err, "doing", "being in a consumer group")
	}
}
