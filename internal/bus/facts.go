package bus

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Inspection is what Inspect found out about the brokers. The caller judges it.
type Inspection struct {
	Brokers   int           // according to the cluster
	RoundTrip time.Duration // to one of them
	// Silent has, for each broker that is unreachable under the address it
	// advertises, that address and the reason.
	Silent []string
	// Topics describes the topics that Largesse needs, in the order of Topics,
	// and then their dead-letter topics.
	Topics []TopicInspection
}

// TopicInspection is what the cluster reports about a topic.
type TopicInspection struct {
	Topic      string // without the prefix
	Name       string // with the prefix
	Missing    bool
	Err        error // set if it cannot be described; the rest is then empty
	Partitions int
	Leaderless int // partitions without a leader, which are neither readable nor writable
	Replicas   int // of the partition with the fewest
	// Described reports whether Retention and Compacted are known. A Retention
	// below zero means forever. Compacted reports whether older records of a
	// key may be removed earlier.
	Described bool
	Retention time.Duration
	Compacted bool
}

// Inspect connects and reads what it can. It creates nothing. It returns an error
// if no broker is usable. ctx limits everything.
func Inspect(ctx context.Context, cfg Config) (Inspection, error) {
	dial := dialTimeout
	if end, ok := ctx.Deadline(); ok {
		dial = max(time.Until(end), time.Millisecond)
	}
	// Return the current state instead of waiting for a better one.
	c, err := connect(ctx, cfg, dial, kgo.RequestRetries(1))
	if err != nil {
		return Inspection{}, err
	}
	defer c.Close()
	asked := time.Now() // connect has pinged, too, but that included the dial
	if err := c.Ping(ctx); err != nil {
		return Inspection{}, err
	}
	took := time.Since(asked)
	cluster, err := c.admin.BrokerMetadata(ctx)
	if err != nil {
		return Inspection{}, fmt.Errorf("list Kafka brokers: %w", err)
	}
	f := Inspection{Brokers: len(cluster.Brokers), RoundTrip: took}
	answers, err := c.admin.ApiVersions(ctx)
	if err != nil {
		return Inspection{}, fmt.Errorf("contact every Kafka broker: %w", err)
	}
	for _, broker := range cluster.Brokers {
		if answer, ok := answers[broker.NodeID]; ok && answer.Err != nil {
			f.Silent = append(f.Silent, fmt.Sprintf("%s:%d: %v", broker.Host, broker.Port, answer.Err))
		}
	}
	f.Topics, err = c.inspectTopics(ctx)
	return f, err
}

func (c *Client) inspectTopics(ctx context.Context) ([]TopicInspection, error) {
	var topics []TopicInspection
	var names []string
	for _, suffix := range []string{"", DeadLetterSuffix} {
		for _, topic := range Topics {
			topics = append(topics, TopicInspection{Topic: topic + suffix, Name: c.full(topic + suffix)})
			names = append(names, c.full(topic+suffix))
		}
	}
	details, err := c.admin.ListTopics(ctx, names...)
	if err != nil {
		return nil, fmt.Errorf("list Kafka topics: %w", err)
	}
	var there []string
	for i := range topics {
		t := &topics[i]
		t.read(details)
		if !t.Missing && t.Err == nil {
			there = append(there, t.Name)
		}
	}
	if len(there) == 0 {
		return topics, nil
	}
	// A user that may use topics may not be allowed to read their settings.
	settings, err := c.admin.DescribeTopicConfigs(ctx, there...)
	if err != nil {
		return topics, nil //nolint:nilerr // Described reports it
	}
	for i := range topics {
		topics[i].readSettings(settings)
	}
	return topics, nil
}

func (t *TopicInspection) read(details kadm.TopicDetails) {
	detail, ok := details[t.Name]
	switch {
	case !ok || errors.Is(detail.Err, kerr.UnknownTopicOrPartition):
		t.Missing = true
		return
	case detail.Err != nil:
		t.Err = detail.Err
		return
	}
	t.Partitions = len(detail.Partitions)
	for _, partition := range detail.Partitions {
		if partition.Leader < 0 || partition.Err != nil {
			t.Leaderless++
		}
		if n := len(partition.Replicas); t.Replicas == 0 || n < t.Replicas {
			t.Replicas = n
		}
	}
}

func (t *TopicInspection) readSettings(all kadm.ResourceConfigs) {
	i := slices.IndexFunc(all, func(r kadm.ResourceConfig) bool { return r.Name == t.Name && r.Err == nil })
	if i < 0 {
		return
	}
	for _, setting := range all[i].Configs {
		switch setting.Key {
		case "retention.ms":
			millis, err := strconv.ParseInt(setting.MaybeValue(), 10, 64)
			// A value that overflows a Duration also means forever.
			t.Described, t.Retention = err == nil, time.Duration(millis)*time.Millisecond
			if millis < 0 || millis > int64(1<<63-1)/int64(time.Millisecond) {
				t.Retention = -1
			}
		case "cleanup.policy":
			t.Compacted = setting.MaybeValue() != "delete"
		}
	}
}
