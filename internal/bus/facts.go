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

// Facts is what a look at the brokers tells. Judging them is the caller's.
type Facts struct {
	Brokers   int           // that the cluster says it has
	RoundTrip time.Duration // to one of them
	// Silent has, for each broker that cannot be reached from here under the
	// address it names itself, that address and why.
	Silent []string
	// Topics are those that Largesse needs, in the order of Topics, then their
	// dead-letter topics.
	Topics []TopicFacts
}

// TopicFacts is what the cluster tells of a topic.
type TopicFacts struct {
	Topic      string // without the prefix
	Name       string // with it
	Missing    bool
	Err        error // it cannot be looked at; the rest is empty
	Partitions int
	Leaderless int // partitions that nobody can read or write now
	Replicas   int // of the partition that has fewest
	// Retention is how long a record is kept, below zero: for ever. Compacted
	// says that an older record of a key may go before. Both only if Described.
	Described bool
	Retention time.Duration
	Compacted bool
}

// Look connects, reads what it can, and makes nothing. An error means that no
// broker could be used; ctx bounds everything.
func Look(ctx context.Context, cfg Config) (Facts, error) {
	dial := dialTimeout
	if end, ok := ctx.Deadline(); ok {
		dial = max(time.Until(end), time.Millisecond)
	}
	opts, err := connectOptions(cfg, dial)
	if err != nil {
		return Facts{}, err
	}
	// One answer is wanted now, not a good one some time.
	opts = append(opts, kgo.RequestRetries(1))
	kafka, err := kgo.NewClient(opts...)
	if err != nil {
		return Facts{}, fmt.Errorf("kafka client: %w", err)
	}
	c := &Client{cfg: cfg, opts: opts, kafka: kafka, admin: kadm.NewClient(kafka)}
	defer c.Close()
	if err := c.Ping(ctx); err != nil { // this one dials, the next is timed
		return Facts{}, err
	}
	asked := time.Now()
	if err := c.Ping(ctx); err != nil {
		return Facts{}, err
	}
	took := time.Since(asked)
	cluster, err := c.admin.BrokerMetadata(ctx)
	if err != nil {
		return Facts{}, fmt.Errorf("list Kafka brokers: %w", err)
	}
	f := Facts{Brokers: len(cluster.Brokers), RoundTrip: took}
	answers, err := c.admin.ApiVersions(ctx)
	if err != nil {
		return Facts{}, fmt.Errorf("ask every Kafka broker: %w", err)
	}
	for _, broker := range cluster.Brokers {
		if answer, ok := answers[broker.NodeID]; ok && answer.Err != nil {
			f.Silent = append(f.Silent, fmt.Sprintf("%s:%d: %v", broker.Host, broker.Port, answer.Err))
		}
	}
	f.Topics, err = c.lookAtTopics(ctx)
	return f, err
}

func (c *Client) lookAtTopics(ctx context.Context) ([]TopicFacts, error) {
	var topics []TopicFacts
	var names []string
	for _, suffix := range []string{"", DeadLetterSuffix} {
		for _, topic := range Topics {
			topics = append(topics, TopicFacts{Topic: topic + suffix, Name: c.full(topic + suffix)})
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
	// Who may use topics may not always see their settings.
	settings, err := c.admin.DescribeTopicConfigs(ctx, there...)
	if err != nil {
		return topics, nil //nolint:nilerr // Described tells it
	}
	for i := range topics {
		topics[i].readSettings(settings)
	}
	return topics, nil
}

func (t *TopicFacts) read(details kadm.TopicDetails) {
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

func (t *TopicFacts) readSettings(all kadm.ResourceConfigs) {
	i := slices.IndexFunc(all, func(r kadm.ResourceConfig) bool { return r.Name == t.Name && r.Err == nil })
	if i < 0 {
		return
	}
	for _, setting := range all[i].Configs {
		switch setting.Key {
		case "retention.ms":
			millis, err := strconv.ParseInt(setting.MaybeValue(), 10, 64)
			// What a Duration cannot hold is for ever as well.
			t.Described, t.Retention = err == nil, time.Duration(millis)*time.Millisecond
			if millis < 0 || millis > int64(1<<63-1)/int64(time.Millisecond) {
				t.Retention = -1
			}
		case "cleanup.policy":
			t.Compacted = setting.MaybeValue() != "delete"
		}
	}
}
