// Package bus connects to Kafka: it creates topics, publishes records, consumes
// topics in a group or as a broadcast, and runs an embedded broker that speaks
// the Kafka protocol and stores its log on disk.
package bus

import (
	"context"
	"time"
)

// The topics. Other systems rely on their names.
const (
	TopicPointPublish   = "campaign-promotion-point-publish"
	TopicVoucherPublish = "campaign-promotion-voucher-publish"
	TopicStarted        = "campaign-promotion-started"
	TopicPointRetry     = "campaign-promotion-point-retry"
	TopicVoucherRetry   = "campaign-promotion-voucher-retry"
	TopicCouponIssue    = "coupon-issue"
	// DeadLetterSuffix ends the name of a topic's dead-letter topic.
	DeadLetterSuffix = ".dlq"
)

// The consumer groups. Other systems rely on their names.
const (
	GroupPoint        = "prepay-admin-campaign-point"
	GroupVoucher      = "prepay-admin-campaign-voucher"
	GroupPointRetry   = "prepay-admin-campaign-point-retry"
	GroupVoucherRetry = "prepay-admin-campaign-voucher-retry"
	GroupCouponIssue  = "coupon-issue-group"
)

// Topics lists the topics that Largesse creates, in addition to their
// dead-letter topics.
var Topics = []string{TopicPointPublish, TopicVoucherPublish, TopicStarted, TopicPointRetry, TopicVoucherRetry, TopicCouponIssue}

// Record is a Kafka record. Topic omits the configured prefix.
type Record struct {
	Topic     string
	Partition int32
	Offset    int64
	Key       []byte
	Value     []byte
	Headers   []Header
	At        time.Time // the record's timestamp
}

// Header is a header of a record.
type Header struct {
	Key   string
	Value []byte
}

// HandleFunc processes a batch of records of one topic, in order within each
// partition. If it returns nil, the batch is safely stored and its offsets are
// committed. If it returns an error, it gets the same batch again after a
// backoff. It must return soon after ctx ends.
type HandleFunc func(ctx context.Context, records []Record) error

// OffsetsFunc returns the offsets to start from, by partition, when partitions
// of the topic are assigned. A partition without an offset starts from the
// group's commit, or from its beginning.
type OffsetsFunc func(ctx context.Context, topic string) (map[int32]int64, error)
