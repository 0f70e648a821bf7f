// Package bus is the Kafka side: topics, publishing, group consumption with
// commits only after the work is safe, broadcast reading, and an embedded
// broker that speaks the Kafka protocol and keeps its log on disk.
package bus

import (
	"context"
	"time"
)

// Topics of the contract. [PocketEventType]
const (
	TopicPointPublish   = "campaign-promotion-point-publish"
	TopicVoucherPublish = "campaign-promotion-voucher-publish"
	TopicStarted        = "campaign-promotion-started"
	TopicPointRetry     = "campaign-promotion-point-retry"
	TopicVoucherRetry   = "campaign-promotion-voucher-retry"
	TopicCouponIssue    = "coupon-issue"
	// DeadLetterSuffix makes the name of a topic's dead-letter topic.
	DeadLetterSuffix = ".dlq"
)

// Consumer groups of the contract.
const (
	GroupPoint        = "prepay-admin-campaign-point"
	GroupVoucher      = "prepay-admin-campaign-voucher"
	GroupPointRetry   = "prepay-admin-campaign-point-retry"
	GroupVoucherRetry = "prepay-admin-campaign-voucher-retry"
	GroupCouponIssue  = "coupon-issue-group"
)

// Topics lists every topic that is created at start, dead-letter topics aside.
var Topics = []string{TopicPointPublish, TopicVoucherPublish, TopicStarted, TopicPointRetry, TopicVoucherRetry, TopicCouponIssue}

// Record is a Kafka record. Topic is without the configured prefix.
type Record struct {
	Topic     string
	Partition int32
	Offset    int64
	Key       []byte
	Value     []byte
	Headers   []Header
	At        time.Time // the record's timestamp
}

// Header is a record header.
type Header struct {
	Key   string
	Value []byte
}

// HandleFunc works on a batch of records of one topic, in order within each
// partition. When it returns nil the batch is safe and its offsets are
// committed; an error means "not now": the same batch is given again after a
// pause. It must end soon after ctx does.
type HandleFunc func(ctx context.Context, records []Record) error

// OffsetsFunc returns the offsets to start from, by partition, when partitions
// of the topic are assigned; partitions without one start from the group's
// commit, or the beginning.
type OffsetsFunc func(ctx context.Context, topic string) (map[int32]int64, error)
