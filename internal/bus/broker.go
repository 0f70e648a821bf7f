package bus

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/service"
)

const (
	// DefaultRetention is the time that the embedded broker retains a record.
	DefaultRetention  = 7 * 24 * time.Hour
	retentionInterval = time.Hour
)

// BrokerConfig configures the embedded broker.
type BrokerConfig struct {
	// Dir is the directory of the log. One process at a time may use it.
	Dir string
	// Listen is a loopback host:port; "": 127.0.0.1 and any free port.
	Listen string
	// Retention is the time that records are retained. Zero means
	// DefaultRetention.
	Retention time.Duration
	Log       obs.Log
}

// Broker is a Kafka broker in this process, which any Kafka client can use. It
// acknowledges a write after it is on disk.
type Broker struct {
	keeping service.Base // applies the retention
	kafka   *kfake.Cluster
	addr    string
	log     obs.Log
}

// StartBroker starts a broker on the log in the directory, and returns when it
// answers.
func StartBroker(ctx context.Context, cfg BrokerConfig) (*Broker, error) {
	if cfg.Dir == "" {
		return nil, errors.New("embedded broker: Dir is empty")
	}
	if cfg.Listen == "" {
		cfg.Listen = "127.0.0.1:0"
	}
	if err := checkLoopback(cfg.Listen); err != nil {
		return nil, err
	}
	if cfg.Retention == 0 {
		cfg.Retention = DefaultRetention
	}
	log := cfg.Log.For(obs.Broker)
	kafka, err := kfake.NewCluster(
		kfake.NumBrokers(1),
		kfake.ClusterID("largesse"),
		kfake.DataDir(cfg.Dir),
		kfake.SyncWrites(),
		kfake.ListenFn(func(network, _ string) (net.Listener, error) {
			return new(net.ListenConfig).Listen(ctx, network, cfg.Listen)
		}),
		kfake.BrokerConfigs(map[string]string{
			"log.retention.ms": strconv.FormatInt(cfg.Retention.Milliseconds(), 10),
		}),
		kfake.WithLogger(brokerLog{log}),
	)
	if err != nil {
		return nil, fmt.Errorf("start the embedded broker on %s in %s: %w", cfg.Listen, cfg.Dir, err)
	}
	b := &Broker{kafka: kafka, addr: kafka.ListenAddrs()[0], log: log}
	if err := ping(ctx, b.addr); err != nil {
		kafka.Close()
		return nil, fmt.Errorf("embedded broker on %s: %w", b.addr, err)
	}
	// The broker's own timer does not run after a restart.
	b.keeping.Start(context.WithoutCancel(ctx), b.keepRetention)
	b.log.Info("embedded broker started", "listen", b.addr, "dir", cfg.Dir)
	return b, nil
}

// checkLoopback returns an error for an address that other machines could
// reach, because the broker has no authentication.
func checkLoopback(listen string) error {
	host, _, err := net.SplitHostPort(listen)
	if err != nil {
		return fmt.Errorf("embedded broker: listen address %q is not host:port: %w", listen, err)
	}
	if ip := net.ParseIP(host); host == "localhost" || ip != nil && ip.IsLoopback() {
		return nil
	}
	return fmt.Errorf("embedded broker: %q is not a loopback address, and the broker has no authentication", listen)
}

func ping(ctx context.Context, addr string) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.DisableClientMetrics())
	if err != nil {
		return err
	}
	defer client.Close()
	return client.Ping(ctx)
}

func (b *Broker) keepRetention(ctx context.Context) {
	for {
		b.kafka.ApplyRetention()
		if !service.Sleep(ctx, retentionInterval) {
			return
		}
	}
}

// Addr returns the host:port that the broker listens on.
func (b *Broker) Addr() string { return b.addr }

// Close stops the broker; its log stays on disk. It may be called twice.
func (b *Broker) Close() {
	b.keeping.Stop()
	b.kafka.Close()
	b.log.Info("embedded broker stopped", "listen", b.addr)
}

// brokerLog logs the broker's errors and warnings, such as a failed write to
// disk.
type brokerLog struct{ log obs.Log }

func (l brokerLog) Logf(level kfake.LogLevel, format string, args ...any) {
	switch level {
	case kfake.LogLevelError:
		l.log.Error("embedded broker reported an error", fmt.Errorf(format, args...))
	case kfake.LogLevelWarn:
		l.log.Warn("embedded broker reported an error", fmt.Errorf(format, args...))
	}
}
