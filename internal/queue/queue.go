// Package queue is the seam to the work queue: one stream per promotion with
// one consumer group. It carries work and is not the truth; all of it may be
// lost and is rebuilt from rows. Memory is the in-process driver; redisstream
// is the one on Redis or Valkey; queuetest is the suite that both pass.
//
// Guarantees: an entry is delivered by Read to one consumer; an entry stays
// until somebody acknowledges it; nothing is ever trimmed; Add refuses what
// does not fit or comes too late. Not guaranteed: order among consumers, and
// that an entry survives the loss of the server.
//
// Calls are never repeated by a driver: an error means that the outcome is
// unknown. [RedisStreamOperationExtensions]
package queue

import (
	"context"
	"strings"
	"time"

	"github.com/largesse/largesse/internal/reward"
)

// Stream names the work stream of a promotion.
type Stream struct {
	Type        reward.PromotionType
	PromotionID reward.PromotionID
}

// StreamOf returns the stream of a promotion.
func StreamOf(p reward.Promotion) Stream { return Stream{Type: p.Type, PromotionID: p.ID} }

// streamPrefix begins the name of every stream.
const streamPrefix = "campaign-promotion-stream:"

// Name returns the stream's name, campaign-promotion-stream:TYPE:ID. Dead
// letters of stream entries have it as their source.
func (s Stream) Name() string {
	return streamPrefix + string(s.Type) + ":" + s.PromotionID.String()
}

// IsStreamName reports whether a dead letter's source names a stream and not a
// topic.
func IsStreamName(source string) bool { return strings.HasPrefix(source, streamPrefix) }

// ParseStreamName reads what Name writes.
func ParseStreamName(name string) (Stream, error) {
	kind, promotion, _ := strings.Cut(strings.TrimPrefix(name, streamPrefix), ":")
	t, err := reward.ParsePromotionType(kind)
	if err != nil {
		return Stream{}, err
	}
	id, err := reward.ParsePromotionID(promotion)
	return Stream{Type: t, PromotionID: id}, err
}

// NewEntry is work to add.
type NewEntry struct {
	TargetID reward.TargetID
	Dispatch int32
	Message  []byte // the publish message as JSON
}

// Entry is work read or claimed.
type Entry struct {
	ID string // the stream entry's id
	// TargetID and Dispatch are as added; Readable is false when the entry's
	// fields cannot be understood (its raw fields are then in Message, as far as
	// there are any).
	TargetID reward.TargetID
	Dispatch int32
	Readable bool
	Message  []byte
	// Mine is true when the entry was read as new from the very server run that
	// took it. Only such an entry may be called; others count as claimed.
	Mine     bool
	Consumer string
}

// AddParams is a batch to add to one stream.
type AddParams struct {
	Stream Stream
	// MaxLen bounds the stream: as many as fit are added, in order.
	MaxLen int
	// Deadline refuses the whole batch when the server's clock is past it.
	Deadline time.Time
	Entries  []NewEntry
}

// ReadParams reads new entries for one consumer.
type ReadParams struct {
	Consumer string
	Count    int
}

// ClaimParams takes over entries that were idle for MinIdle.
type ClaimParams struct {
	Stream   Stream
	Consumer string
	MinIdle  time.Duration
	Count    int
}

// ConsumerInfo is a consumer of a group.
type ConsumerInfo struct {
	Name    string
	Pending int64
	Idle    time.Duration
}

// Info describes a stream.
type Info struct {
	Exists  bool
	Len     int64 // unfinished entries: read or not
	Pending int64 // read, not acknowledged
	// OldestAt is when the oldest entry was added, by the server's clock; zero
	// when the stream is empty.
	OldestAt time.Time
	// OldestPendingAt is when the oldest of the pending entries was added;
	// zero when none is pending.
	OldestPendingAt time.Time
}

// Lag is how many entries nobody has read yet.
func (i Info) Lag() int64 { return max(i.Len-i.Pending, 0) }

// Queue is the seam. All methods are safe for concurrent use. A stream or
// group that is missing is made (from its beginning) by Add, Read, Claim and
// Create; elsewhere it counts as empty.
type Queue interface {
	// Add appends a batch and says how many of it, from the front, went in: 0
	// when late or full. It wakes pools when there was nothing unread before.
	Add(ctx context.Context, p AddParams) (added int, err error)
	// Create makes the group, from the beginning of the stream, and the
	// consumers, if they are missing.
	Create(ctx context.Context, s Stream, consumers []string) error
	// Read gives new entries to consumers in one round trip; it never waits.
	Read(ctx context.Context, s Stream, reads []ReadParams) ([]Entry, error)
	// Claim takes over idle entries; none of them is Mine.
	Claim(ctx context.Context, p ClaimParams) ([]Entry, error)
	// Extend renews the lease of entries that the consumer still owns and
	// returns their ids; what somebody else has taken is left alone.
	Extend(ctx context.Context, s Stream, consumer string, ids []string) (owned []string, err error)
	// Ack acknowledges and deletes. Only for entries whose dispatch is settled
	// in the database.
	Ack(ctx context.Context, s Stream, ids []string) error
	// RemoveConsumer hands what the consumer has pending to the heir, then
	// removes it; never an entry is lost. heir "" refuses while anything is
	// pending (removed = false).
	RemoveConsumer(ctx context.Context, s Stream, consumer, heir string) (removed bool, err error)
	// Destroy removes an empty stream with its group, and refuses (false) when
	// anything is in it. A missing stream counts as destroyed.
	Destroy(ctx context.Context, s Stream) (bool, error)

	Consumers(ctx context.Context, s Stream) ([]ConsumerInfo, error)
	Info(ctx context.Context, s Stream) (Info, error)
	// Range returns entries from the oldest on, without taking them.
	Range(ctx context.Context, s Stream, count int) ([]Entry, error)

	// Wakes delivers hints that a stream has got work. Hints can be lost and
	// can be superfluous. The channel is closed by Close.
	Wakes() <-chan Stream
	// Ping answers whether the server can be reached.
	Ping(ctx context.Context) error
	Close()
}
