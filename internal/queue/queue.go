// Package queue defines the interface of the work queue: one stream with one
// consumer group per promotion. A queue carries work, but the database is the
// source of truth: a lost queue is rebuilt from rows. Memory is the in-process
// implementation, redisstream implements the queue on Redis or Valkey, and the
// suite queuetest tests both.
//
// Read delivers an entry to one consumer, and the entry stays until a consumer
// acknowledges it. Nothing trims a stream. Add refuses entries that do not fit
// or come too late. The queue guarantees neither order among consumers nor that
// an entry survives the loss of the server.
//
// An implementation never repeats a call: after an error, the outcome is
// unknown.
package queue

import (
	"context"
	"strings"
	"time"

	"github.com/largesse/largesse/internal/reward"
)

// Stream identifies the work stream of a promotion.
type Stream struct {
	Type        reward.PromotionType
	PromotionID reward.PromotionID
}

// StreamOf returns the stream of a promotion.
func StreamOf(p reward.Promotion) Stream { return Stream{Type: p.Type, PromotionID: p.ID} }

// streamPrefix begins the name of every stream.
const streamPrefix = "campaign-promotion-stream:"

// Name returns the stream's name, campaign-promotion-stream:TYPE:ID. It is the
// source of a stream entry's dead letter.
func (s Stream) Name() string {
	return streamPrefix + string(s.Type) + ":" + s.PromotionID.String()
}

// IsStreamName reports whether a dead letter's source names a stream and not a
// topic.
func IsStreamName(source string) bool { return strings.HasPrefix(source, streamPrefix) }

// ParseStreamName parses a stream's name.
func ParseStreamName(name string) (Stream, error) {
	kind, promotion, _ := strings.Cut(strings.TrimPrefix(name, streamPrefix), ":")
	t, err := reward.ParsePromotionType(kind)
	if err != nil {
		return Stream{}, err
	}
	id, err := reward.ParsePromotionID(promotion)
	return Stream{Type: t, PromotionID: id}, err
}

// NewEntry is a payout to add to a stream.
type NewEntry struct {
	TargetID reward.TargetID
	Dispatch int32
	Message  []byte // publish message as JSON
}

// Entry is a delivered or claimed entry.
type Entry struct {
	ID string // the stream entry's id
	// TargetID and Dispatch are as added. If the entry's fields are malformed,
	// Readable is false and Message holds the raw fields.
	TargetID reward.TargetID
	Dispatch int32
	Readable bool
	Message  []byte
	// FirstDelivery reports whether this is the entry's first delivery, by the server
	// run that stored it. A consumer may charge only such an entry.
	FirstDelivery bool
	Consumer      string
}

// AddParams is a batch to add to one stream.
type AddParams struct {
	Stream Stream
	// MaxLen limits the length of the stream. Add adds the entries that fit, in
	// order.
	MaxLen int
	// Deadline refuses the whole batch if the server's clock is past it.
	Deadline time.Time
	Entries  []NewEntry
}

// ReadParams requests new entries for one consumer.
type ReadParams struct {
	Consumer string
	Count    int
}

// ClaimParams requests entries that have been idle for MinIdle.
type ClaimParams struct {
	Stream   Stream
	Consumer string
	MinIdle  time.Duration
	Count    int
}

// ConsumerInfo describes a consumer of a group.
type ConsumerInfo struct {
	Name    string
	Pending int64
	Idle    time.Duration
}

// Info describes a stream.
type Info struct {
	Exists  bool
	Len     int64 // unacknowledged entries, delivered or not
	Pending int64 // delivered, not acknowledged
	// OldestAt is the time at which the oldest entry was added, by the server's
	// clock; zero if the stream is empty.
	OldestAt time.Time
	// OldestPendingAt is the time at which the oldest pending entry was added;
	// zero if none is pending.
	OldestPendingAt time.Time
}

// Lag returns the number of entries that no consumer has read.
func (i Info) Lag() int64 { return max(i.Len-i.Pending, 0) }

// Queue is the interface of the work queue. All methods are safe for concurrent
// use. Add, Read, Claim and Create create a missing stream or group, from its
// beginning; to the other methods it is empty.
type Queue interface {
	// Add appends a batch and returns how many of its first entries it added:
	// none if the batch is late or the stream is full. It sends a hint to Wakes
	// if the stream had no unread entry before.
	Add(ctx context.Context, p AddParams) (added int, err error)
	// Create creates the group, from the beginning of the stream, and the
	// consumers, if they are missing.
	Create(ctx context.Context, s Stream, consumers []string) error
	// Read delivers new entries to consumers in one round trip. It never
	// blocks.
	Read(ctx context.Context, s Stream, reads []ReadParams) ([]Entry, error)
	// Claim takes over idle entries. None of them is a first delivery.
	Claim(ctx context.Context, p ClaimParams) ([]Entry, error)
	// Extend renews the lease of the entries that the consumer still owns, and
	// returns their IDs. It does not change entries that another consumer owns.
	Extend(ctx context.Context, s Stream, consumer string, ids []string) (owned []string, err error)
	// Ack acknowledges and deletes entries. Call it only for entries whose
	// outcome is committed to the database.
	Ack(ctx context.Context, s Stream, ids []string) error
	// RemoveConsumer gives the consumer's pending entries to the heir, and then
	// removes the consumer. No entry is lost. With an empty heir, it removes
	// nothing and reports false while an entry is pending.
	RemoveConsumer(ctx context.Context, s Stream, consumer, heir string) (removed bool, err error)
	// Destroy removes an empty stream and its group. It reports false if the
	// stream has entries, and true if the stream is missing.
	Destroy(ctx context.Context, s Stream) (bool, error)

	Consumers(ctx context.Context, s Stream) ([]ConsumerInfo, error)
	Info(ctx context.Context, s Stream) (Info, error)
	// Range returns up to count entries, oldest first, without delivering them.
	Range(ctx context.Context, s Stream, count int) ([]Entry, error)

	// Wakes delivers hints that a stream may have work. Hints may be lost or
	// superfluous. Close closes the channel.
	Wakes() <-chan Stream
	// Ping returns an error if the server is unavailable.
	Ping(ctx context.Context) error
	Close()
}
