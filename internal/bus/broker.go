package bus

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"

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
	// Login is what clients authenticate with, by SCRAM-SHA-256 or SCRAM-SHA-512. Nil
	// means that every process of this machine may read and write.
	Login *SASL
	// ListenOn and Dial replace TCP, for clients in this process that have the same Dial.
	// Both are nil or neither is.
	ListenOn func(network, address string) (net.Listener, error)
	Dial     func(ctx context.Context, network, address string) (net.Conn, error)
	Log      obs.Log
}

// BrokerMechanisms lists the SASL mechanisms of the embedded broker. PLAIN is not among
// them: the library accepts unknown users who send an empty password.
var BrokerMechanisms = []string{"SCRAM-SHA-256", "SCRAM-SHA-512"}

// PrivateLogin returns a login that only this process knows.
func PrivateLogin() *SASL {
	return &SASL{Mechanism: BrokerMechanisms[0], User: "largesse", Password: rand.Text()}
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
	if cfg.ListenOn == nil {
		cfg.ListenOn = func(network, address string) (net.Listener, error) {
			return new(net.ListenConfig).Listen(ctx, network, address)
		}
	}
	if err := CheckLog(cfg.Dir); err != nil {
		return nil, err
	}
	log := cfg.Log.For(obs.Broker)
	login, err := brokerLogin(cfg)
	if err != nil {
		return nil, err
	}
	opts := append(login,
		kfake.NumBrokers(1),
		kfake.ClusterID("largesse"),
		kfake.DataDir(cfg.Dir),
		kfake.SyncWrites(),
		kfake.ListenFn(func(network, _ string) (net.Listener, error) { return cfg.ListenOn(network, cfg.Listen) }),
		kfake.BrokerConfigs(map[string]string{
			"log.retention.ms": strconv.FormatInt(DefaultRetention.Milliseconds(), 10),
		}),
		kfake.WithLogger(brokerLog{log}),
	)
	kafka, err := kfake.NewCluster(opts...)
	if err != nil {
		return nil, fmt.Errorf("start the embedded broker on %s in %s: %w", cfg.Listen, cfg.Dir, err)
	}
	b := &Broker{kafka: kafka, addr: kafka.ListenAddrs()[0], log: log}
	client, err := connect(ctx, Config{Brokers: []string{b.addr}, SASL: cfg.Login, Dial: cfg.Dial}, dialTimeout)
	if err != nil {
		kafka.Close()
		return nil, fmt.Errorf("embedded broker on %s: %w", b.addr, err)
	}
	client.Close()
	// The broker's own timer does not run after a restart.
	b.keeping.Start(context.WithoutCancel(ctx), b.keepRetention)
	b.log.Info("embedded broker started", "listen", b.addr, "dir", cfg.Dir)
	return b, nil
}

// logFiles lists the files of a log that a broker must understand to start, and
// logVersion is the newest version of meta.json that it does.
var logFiles = []string{"meta.json", "topics.json", "broker_configs.json", "acls.json", "quotas.json", "seq_windows.json"}

const logVersion = 1

// CheckLog returns an error if no broker could start on the log in the directory, and
// changes nothing. It does not read the records: a broker drops those that are damaged.
func CheckLog(dir string) error {
	for _, name := range logFiles {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		var file struct{ Version int }
		if err == nil {
			err = json.Unmarshal(text, &file)
		}
		if err != nil {
			return fmt.Errorf("the log of the embedded broker is damaged: %s: %w", filepath.Join(dir, name), err)
		}
		if name == "meta.json" && file.Version > logVersion {
			return fmt.Errorf("the log of the embedded broker in %s has version %d, from a newer version of Largesse; this one knows version %d", dir, file.Version, logVersion)
		}
	}
	partitions := filepath.Join(dir, "partitions")
	if _, err := os.ReadDir(partitions); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("the log of the embedded broker is damaged: %w", err)
	}
	return nil
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

func brokerLogin(cfg BrokerConfig) ([]kfake.Opt, error) {
	// The broker stores its users, and would prefer them to those of this start.
	if err := os.Remove(filepath.Join(cfg.Dir, "sasl.json")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("embedded broker: %w", err)
	}
	l := cfg.Login
	if l == nil {
		return nil, nil
	}
	if !slices.Contains(BrokerMechanisms, l.Mechanism) {
		return nil, fmt.Errorf("embedded broker: SASL mechanism %q is none of %s", l.Mechanism, strings.Join(BrokerMechanisms, ", "))
	}
	password, err := l.password()
	if err != nil {
		return nil, fmt.Errorf("embedded broker: kafka.sasl-password-file %w", err)
	}
	return []kfake.Opt{kfake.EnableSASL(), kfake.Superuser(l.Mechanism, l.User, password)}, nil
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
