package bus

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/service"
)

const (
	defaultPartitions = 12
	// ensureTimeout limits how long created topics may take to become usable.
	ensureTimeout = 30 * time.Second
)

// Config configures the connection to Kafka.
type Config struct {
	// Brokers lists the host:port of some brokers. The client learns the others
	// from them.
	Brokers []string
	// TopicPrefix begins the name of every topic and group; empty: none.
	TopicPrefix string
	ClientID    string
	// TLS names PEM files, which are read for each connection, so that an operator can
	// rotate them without a restart. Nil means no encryption.
	TLS  *service.TLSFiles
	SASL *SASL // nil: no authentication
	// Partitions is the number of partitions of created publish and retry
	// topics. Zero means 12.
	Partitions int32
	// Retention is the retention of created topics. Zero means the broker's
	// default.
	Retention time.Duration
	// Dial connects to a broker on a network other than TCP. Nil means TCP. It is not
	// used with TLS.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	Log  obs.Log
}

// Client is the connection to Kafka. Publishers, listeners and broadcasts use
// its settings. It is safe for concurrent use.
type Client struct {
	cfg   Config
	opts  []kgo.Opt // options of every connection
	kafka *kgo.Client
	admin *kadm.Client
}

// Open connects. It fails if no broker answers before ctx ends. Stop everything
// that uses the client before Close.
func Open(ctx context.Context, cfg Config) (*Client, error) {
	if len(cfg.Brokers) == 0 {
		return nil, errors.New("kafka.brokers is empty: name at least one host:port")
	}
	if cfg.Partitions == 0 {
		cfg.Partitions = defaultPartitions
	}
	return connect(ctx, cfg, dialTimeout, publishOptions...)
}

// connect connects with more options than connectOptions. dial limits the time to connect.
func connect(ctx context.Context, cfg Config, dial time.Duration, more ...kgo.Opt) (*Client, error) {
	opts, err := connectOptions(cfg, dial)
	if err != nil {
		return nil, err
	}
	kafka, err := kgo.NewClient(append(slices.Clip(opts), more...)...)
	if err != nil {
		return nil, fmt.Errorf("kafka client: %w", err)
	}
	c := &Client{cfg: cfg, opts: opts, kafka: kafka, admin: kadm.NewClient(kafka)}
	if err := c.Ping(ctx); err != nil {
		kafka.Close()
		return nil, err
	}
	return c, nil
}

// connectOptions returns the options of every connection. dial limits the time
// to connect.
func connectOptions(cfg Config, dial time.Duration) ([]kgo.Opt, error) {
	log := cfg.Log.For(obs.Broker)
	opts := []kgo.Opt{
		kgo.SeedBrokers(cfg.Brokers...),
		kgo.WithHooks(newWatch(log)),
		// Send no client telemetry to the brokers.
		kgo.DisableClientMetrics(),
		// The library's default of 5 s would delay every start and every move
		// of a partition.
		kgo.MetadataMinAge(100 * time.Millisecond),
		// New partitions are found within this time.
		kgo.MetadataMaxAge(5 * time.Second),
	}
	if cfg.ClientID != "" {
		opts = append(opts, kgo.ClientID(cfg.ClientID))
	}
	switch {
	case cfg.TLS != nil:
		dialer, err := dialTLS(*cfg.TLS, dial, log)
		if err != nil {
			return nil, err
		}
		opts = append(opts, kgo.Dialer(dialer))
	case cfg.Dial != nil:
		opts = append(opts, kgo.Dialer(cfg.Dial))
	default:
		opts = append(opts, kgo.DialTimeout(dial))
	}
	if cfg.SASL != nil {
		mechanism, err := cfg.SASL.mechanism(log)
		if err != nil {
			return nil, err
		}
		opts = append(opts, kgo.SASL(mechanism))
	}
	return opts, nil
}

// Close closes the connection. Records that are being published fail.
func (c *Client) Close() { c.kafka.Close() }

// Ping returns an error if no broker is available.
func (c *Client) Ping(ctx context.Context) error {
	// The library ignores ctx until it is connected.
	answer := make(chan error, 1)
	go func() { answer <- c.kafka.Ping(ctx) }()
	var err error
	select {
	case err = <-answer:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	if err != nil {
		return fmt.Errorf("no Kafka broker of %s answers: %w", strings.Join(c.cfg.Brokers, ", "), err)
	}
	return nil
}

// EnsureTopics creates the missing ones of Topics and of their dead-letter
// topics, and returns when all are usable. It does not change existing topics.
// Several instances may call it at the same time.
func (c *Client) EnsureTopics(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, ensureTimeout)
	defer cancel()
	wanted := map[string]int32{}
	for _, topic := range Topics {
		partitions := c.cfg.Partitions
		if topic == TopicStarted {
			partitions = 1
		}
		wanted[c.full(topic)] = partitions
		wanted[c.full(topic+DeadLetterSuffix)] = 1
	}
	for {
		missing, pending, err := c.missing(ctx, wanted)
		if err != nil {
			return err
		}
		if len(missing) == 0 && !pending {
			return nil
		}
		for topic, partitions := range missing {
			if err := c.create(ctx, topic, partitions); err != nil {
				return err
			}
		}
		// A new topic takes some time to be on every broker.
		if !service.Sleep(ctx, 50*time.Millisecond) {
			return fmt.Errorf("wait for Kafka topics to become usable: %w", ctx.Err())
		}
	}
}

// IsTemporary reports whether an error of EnsureTopics may end by itself: the brokers did
// not answer in time, or refused for a reason that passes.
func IsTemporary(err error) bool {
	refusal, ok := errors.AsType[*kerr.Error](err)
	return !ok || refusal.Retriable
}

// missing returns the wanted topics that do not exist. pending reports whether
// some exist but are not usable yet.
func (c *Client) missing(ctx context.Context, wanted map[string]int32) (missing map[string]int32, pending bool, err error) {
	details, err := c.admin.ListTopics(ctx, slices.Collect(maps.Keys(wanted))...)
	if err != nil {
		return nil, false, fmt.Errorf("list Kafka topics: %w", err)
	}
	missing = map[string]int32{}
	for name, partitions := range wanted {
		detail, ok := details[name]
		switch {
		case !ok || errors.Is(detail.Err, kerr.UnknownTopicOrPartition):
			missing[name] = partitions
		case kerr.IsRetriable(detail.Err):
			pending = true
		case detail.Err != nil:
			return nil, false, fmt.Errorf("describe Kafka topic %s: %w", name, detail.Err)
		}
		for _, partition := range detail.Partitions {
			pending = pending || partition.Err != nil
		}
	}
	return missing, pending, nil
}

func (c *Client) create(ctx context.Context, topic string, partitions int32) error {
	var settings map[string]*string
	if c.cfg.Retention > 0 {
		settings = map[string]*string{"retention.ms": kadm.StringPtr(strconv.FormatInt(c.cfg.Retention.Milliseconds(), 10))}
	}
	const brokerDefault = -1
	_, err := c.admin.CreateTopic(ctx, partitions, brokerDefault, settings, topic)
	if err != nil && !errors.Is(err, kerr.TopicAlreadyExists) {
		return fmt.Errorf("create Kafka topic %s with %d partitions: %w", topic, partitions, err)
	}
	return nil
}

// LogID identifies the log behind a topic. Another cluster, or a topic that was
// deleted and created again, has another log, whose offsets mean other records.
func (c *Client) LogID(ctx context.Context, topic string) (string, error) {
	details, err := c.admin.ListTopics(ctx, c.full(topic))
	if err != nil {
		return "", fmt.Errorf("describe Kafka topic %s: %w", c.full(topic), err)
	}
	detail, ok := details[c.full(topic)]
	if !ok || detail.Err != nil {
		return "", fmt.Errorf("describe Kafka topic %s: %w", c.full(topic), errors.Join(errors.New("it has no ID yet"), detail.Err))
	}
	return c.full(topic) + "@" + detail.ID.String(), nil
}

// Lag returns the number of records of a topic that the group has not committed. A
// partition without a commit counts from its beginning.
func (c *Client) Lag(ctx context.Context, group, topic string) (int64, error) {
	left, err := c.uncommitted(ctx, group, topic)
	var records int64
	for _, b := range left {
		records += max(0, b.end-b.start)
	}
	return records, err
}

// Positions returns, by partition, the offset from which a group without stored
// offsets reads a topic: after its commit, or from the beginning of the log.
func (c *Client) Positions(ctx context.Context, group, topic string) (map[int32]int64, error) {
	left, err := c.uncommitted(ctx, group, topic)
	if err != nil {
		return nil, err
	}
	positions := make(map[int32]int64, len(left))
	for partition, b := range left {
		positions[partition] = b.start
	}
	return positions, nil
}

// uncommitted returns what is left of each partition of a topic after the commits of a
// group.
func (c *Client) uncommitted(ctx context.Context, group, topic string) (map[int32]bound, error) {
	commits, err := c.admin.FetchOffsets(ctx, c.full(group))
	if err != nil && !errors.Is(err, kerr.GroupIDNotFound) { // such a group has no commits
		return nil, fmt.Errorf("read the commits of group %s: %w", group, err)
	}
	bounds, err := c.bounds(ctx, topic)
	if err != nil {
		return nil, err
	}
	for partition, b := range bounds {
		if commit, ok := commits.Lookup(c.full(topic), partition); ok && commit.Err == nil {
			b.start = max(b.start, commit.At)
			bounds[partition] = b
		}
	}
	return bounds, nil
}

// Ends returns the end offset of each partition of a topic, as readers see it.
func (c *Client) Ends(ctx context.Context, topic string) (map[int32]int64, error) {
	bounds, err := c.bounds(ctx, topic)
	if err != nil {
		return nil, err
	}
	ends := make(map[int32]int64, len(bounds))
	for partition, b := range bounds {
		ends[partition] = b.end
	}
	return ends, nil
}

// bound is the start and the end (exclusive) of a partition's log for readers,
// who do not see open transactions.
type bound struct{ start, end int64 }

func (c *Client) bounds(ctx context.Context, topic string) (map[int32]bound, error) {
	name := c.full(topic)
	ends, err := c.admin.ListCommittedOffsets(ctx, name)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		return nil, fmt.Errorf("list the end offsets of %s: %w", name, err)
	}
	starts, err := c.admin.ListStartOffsets(ctx, name)
	if err == nil {
		err = starts.Error()
	}
	if err != nil {
		return nil, fmt.Errorf("list the start offsets of %s: %w", name, err)
	}
	bounds := map[int32]bound{}
	for partition, end := range ends[name] {
		bounds[partition] = bound{start: starts[name][partition].Offset, end: end.Offset}
	}
	return bounds, nil
}

// TopicLag is how many records of a topic its group has not committed. Both names
// have the configured prefix.
type TopicLag struct {
	Topic, Group string
	Records      int64
}

var consumed = []struct{ topic, group string }{
	{TopicPointPublish, GroupPoint},
	{TopicVoucherPublish, GroupVoucher},
	{TopicPointRetry, GroupPointRetry},
	{TopicVoucherRetry, GroupVoucherRetry},
	{TopicCouponIssue, GroupCouponIssue},
}

// Lags returns the lag of every topic that a group consumes. It reads them at the
// same time, and returns when ctx ends.
func (c *Client) Lags(ctx context.Context) ([]TopicLag, error) {
	out := make([]TopicLag, len(consumed))
	failed := make(chan error, len(consumed))
	for i, t := range consumed {
		out[i] = TopicLag{Topic: c.full(t.topic), Group: c.full(t.group)}
		go func() { // the library may ignore ctx until it is connected
			records, err := c.Lag(ctx, t.group, t.topic)
			out[i].Records = records
			failed <- err
		}()
	}
	for range consumed {
		select {
		case err := <-failed:
			if err != nil {
				return nil, err
			}
		case <-ctx.Done():
			return nil, fmt.Errorf("read the lag of topics: %w", context.Cause(ctx))
		}
	}
	return out, nil
}

func (c *Client) readOptions(topic string) []kgo.Opt {
	return append(slices.Clone(c.opts),
		kgo.ConsumeTopics(c.full(topic)),
		// Do not read records of aborted transactions.
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		// Never skip records: if the log does not have an offset, read from its
		// beginning.
		kgo.ConsumeStartOffset(kgo.NewOffset().AtStart()),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchMaxWait(fetchMaxWait),
	)
}

func (c *Client) full(name string) string { return c.cfg.TopicPrefix + name }

func (c *Client) bare(name string) string { return strings.TrimPrefix(name, c.cfg.TopicPrefix) }
