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

// watch is a hook that logs one line when a broker becomes unavailable and one
// when it is available again, and each loss of a consumer group session.
type watch struct {
	log obs.Log

	mu          sync.Mutex // protects unavailable
	unavailable map[string]bool
}

var (
	_ kgo.HookBrokerConnect    = (*watch)(nil)
	_ kgo.HookGroupManageError = (*watch)(nil)
)

func newWatch(log obs.Log) *watch {
	return &watch{log: log, unavailable: make(map[string]bool)}
}

// OnBrokerConnect is called after each attempt to connect.
func (w *watch) OnBrokerConnect(meta kgo.BrokerMetadata, _ time.Duration, _ net.Conn, err error) {
	if stopped(err) {
		return
	}
	// The client gives a broker another ID once it knows the broker; the address
	// stays.
	addr := net.JoinHostPort(meta.Host, strconv.Itoa(int(meta.Port)))
	w.mu.Lock()
	was := w.unavailable[addr]
	w.unavailable[addr] = err != nil
	w.mu.Unlock()
	switch {
	case err != nil && !was:
		w.log.Warn("Kafka broker unavailable", err, "kafka_broker", addr)
	case err == nil && was:
		w.log.Info("Kafka broker available again", "kafka_broker", addr)
	}
}

// OnGroupManageError is called when an error ends a group session. The client
// joins the group again automatically.
func (w *watch) OnGroupManageError(err error) {
	if !stopped(err) {
		w.log.Warn("consumer group session lost", err)
	}
}

// stopped reports whether err only says that this side ended the work: it
// canceled the call or closed its client.
func stopped(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, kgo.ErrClientClosed)
}
