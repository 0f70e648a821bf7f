// Package queue defines the interface of the work queue. The queue has one stream
// per promotion, and each stream has one group: the set of its consumers. The
// database is the source of truth: if entries are lost, the sweeper returns their
// payouts to READY. Memory is the in-process driver, redisstream the driver for
// Redis and Valkey, and queuetest the test suite that both pass.
//
// Read delivers an entry to one consumer. The entry stays in its stream until it is
// acknowledged: nothing trims a stream. Add refuses entries that do not fit or come
// too late. Consumers may finish entries in any order. Entries may be lost with
// their server.
//
// A driver sends each command to its server once. After an error, the command may
// or may not have taken effect.
package queue

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/service"
)

// Stream identifies the stream of a promotion.
type Stream struct {
	Type        reward.PromotionType
	PromotionID reward.PromotionID
}

// StreamOf returns the stream of a promotion.
func StreamOf(p reward.Promotion) Stream { return Stream{Type: p.Type, PromotionID: p.ID} }

// streamPrefix begins the name of every stream.
const streamPrefix = "campaign-promotion-stream:"

// Name returns the stream's name, campaign-promotion-stream:TYPE:ID. The dead letter
// of an entry has this name as its Source.
func (s Stream) Name() string {
	return streamPrefix + string(s.Type) + ":" + s.PromotionID.String()
}

// IsStreamName reports whether the Source of a dead letter is the name of a stream.
// Otherwise it is the name of a topic.
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

// NewEntry is an entry to add to a stream. It names the target and the dispatch of a
// payout.
type NewEntry struct {
	TargetID reward.TargetID
	Dispatch int32
	Message  []byte // the payout as a reward.PublishMessage in JSON, for other systems and dead letters
}

// Entry is an entry of a stream, as Read, Claim and Range return it.
type Entry struct {
	ID string // of the entry in its stream
	// TargetID, Dispatch and Message are those that Add was given. Another
	// program may have added an entry with malformed fields: Readable is false
	// then, and Message holds all its fields.
	TargetID reward.TargetID
	Dispatch int32
	Readable bool
	Message  []byte
	// FirstDelivery reports whether the entry was never delivered before: only then it
	// may be charged. It is false if the server has restarted or failed over since it
	// stored the entry, because it may have forgotten a delivery.
	FirstDelivery bool
	Consumer      string // name of the consumer that got the entry
}

// The fields of a stream entry, which other systems may rely on.
const (
	FieldKey      = "key"      // target ID in decimal
	FieldMessage  = "message"  // publish message as JSON
	FieldDispatch = "dispatch" // dispatch number in decimal
)

// DecodeFields returns the Entry for the fields of a stream entry, given as
// name, value, name, value. Other systems can add to a stream: a malformed
// entry is not Readable, and its Message holds all fields as a JSON object, in
// their order.
func DecodeFields(id string, fields []string) Entry {
	var key, dispatch, message string
	for i := 0; i+1 < len(fields); i += 2 {
		switch fields[i] {
		case FieldKey:
			key = fields[i+1]
		case FieldDispatch:
			dispatch = fields[i+1]
		case FieldMessage:
			message = fields[i+1]
		}
	}
	target, errKey := reward.ParseTargetID(key)
	n, errDispatch := strconv.ParseInt(dispatch, 10, 32)
	body := []byte(message)
	if errKey != nil || errDispatch != nil || n < 0 || !json.Valid(body) {
		return Entry{ID: id, Message: rawFields(fields)}
	}
	return Entry{ID: id, TargetID: target, Dispatch: int32(n), Readable: true, Message: body}
}

// rawFields writes JSON itself, because a map would lose the order of fields
// and all but one of the fields with the same name.
func rawFields(fields []string) []byte {
	out := []byte{'{'}
	for i := 0; i+1 < len(fields); i += 2 {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(out, jsonText(fields[i])...)
		out = append(out, ':')
		out = append(out, jsonText(fields[i+1])...)
	}
	return append(out, '}')
}

// jsonText returns a JSON string, or {"base64": …} for bytes that are not
// UTF-8: a JSON string would replace them, and a dead letter must keep them.
func jsonText(s string) []byte {
	if !utf8.ValidString(s) {
		return []byte(`{"base64":"` + base64.StdEncoding.EncodeToString([]byte(s)) + `"}`)
	}
	out, err := json.Marshal(s)
	if err != nil {
		panic("queue: encode a string as JSON: " + err.Error()) // json.Marshal encodes every string
	}
	return out
}

// AddParams is a batch to add to one stream.
type AddParams struct {
	Stream Stream
	// MaxLen limits the length of the stream. Add adds the first entries, as many
	// as fit.
	MaxLen int
	// Deadline is the time, by the server's clock, after which Add adds nothing.
	Deadline time.Time
	Entries  []NewEntry
}

// ReadParams requests new entries for one consumer.
type ReadParams struct {
	Consumer string
	Count    int
}

// ClaimParams requests entries whose lease began or was renewed at least MinIdle ago.
type ClaimParams struct {
	Stream   Stream
	Consumer string
	MinIdle  time.Duration
	Count    int
	// From is the Next of an earlier claim; empty starts at the oldest pending
	// entry.
	From string
}

// AdoptParams looks for entries that were delivered, were added at least MinAge ago and
// belong to no consumer.
type AdoptParams struct {
	Stream   Stream
	Consumer string
	MinAge   time.Duration
	// From is where an earlier call stopped; empty starts at the oldest entry.
	From string
}

// Claimed is the result of a claim.
type Claimed struct {
	Entries []Entry
	// Next is where the next claim continues; empty is the oldest pending entry.
	Next string
}

// ConsumerInfo describes a consumer of a group.
type ConsumerInfo struct {
	Name    string
	Pending int64         // its pending entries
	Idle    time.Duration // since its latest command
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
	// At is the time of this description, by the server's clock.
	At time.Time
}

// Clocks holds the clocks of the servers, compared with the clock of this process.
type Clocks struct {
	Worst service.Clock // the one that differs most
	// Of returns the clock of the server that has a stream.
	Of func(s Stream) service.Clock
}

// Lag returns the number of entries that no consumer has read.
func (i Info) Lag() int64 { return max(i.Len-i.Pending, 0) }

// Queue is the interface of the work queue. All methods are safe for concurrent
// use. Only Add creates a stream, with its group, which starts at the oldest entry.
// The other methods treat a missing stream as empty, so that a late call does not
// leave a stream behind that no promotion needs. Add, Read, Claim and Create create the
// group of a stream that has lost it.
type Queue interface {
	// Add appends the first entries of a batch, as many as fit, and returns their
	// number. The number is 0 if the deadline has passed or the stream is full.
	// If the stream had no unread entry before, Add sends a hint to Wakes.
	Add(ctx context.Context, p AddParams) (added int, err error)
	// Create creates what is missing of the group and the consumers, and reports
	// whether the stream exists. It does nothing for a missing stream.
	Create(ctx context.Context, s Stream, consumers []string) (exists bool, err error)
	// Read delivers new entries to consumers in one round trip. It never
	// blocks.
	Read(ctx context.Context, s Stream, reads []ReadParams) ([]Entry, error)
	// Claim gives entries whose lease has expired to a consumer, and a new lease to them.
	// Of many pending entries, a claim scans only a part, so ask for the rest at Next.
	// Five such claims scan all of them, unless one stops early because it has Count
	// entries.
	Claim(ctx context.Context, p ClaimParams) (Claimed, error)
	// Adopt gives a lease to old entries that were delivered but belong to no consumer,
	// so that a later claim gets them. It looks at a part of the old entries, and returns
	// where the next call continues: empty for the oldest entry.
	Adopt(ctx context.Context, p AdoptParams) (next string, err error)
	// Extend renews the lease of the entries that the consumer still owns, and
	// returns their IDs. It does not change entries that another consumer owns.
	Extend(ctx context.Context, s Stream, consumer string, ids []string) (owned []string, err error)
	// Ack acknowledges entries, which deletes them. Call it only for an entry that
	// the database no longer needs: its row is not QUEUED under its dispatch, or
	// a dead letter holds its bytes.
	Ack(ctx context.Context, s Stream, ids []string) error
	// RemoveConsumer removes consumer, after it has given its pending entries to heir. If
	// heir is empty and there are pending entries, it removes nothing and reports false.
	RemoveConsumer(ctx context.Context, s Stream, consumer, heir string) (removed bool, err error)
	// Destroy removes an empty stream and its group. It reports false if the
	// stream has entries, and true if the stream is missing.
	Destroy(ctx context.Context, s Stream) (bool, error)

	Consumers(ctx context.Context, s Stream) ([]ConsumerInfo, error)
	Info(ctx context.Context, s Stream) (Info, error)
	// Range returns up to count entries, oldest first, without delivering them.
	Range(ctx context.Context, s Stream, count int) ([]Entry, error)

	// Wakes delivers hints that a stream may have unread entries. Hints may be
	// lost or superfluous. Close closes the channel.
	Wakes() <-chan Stream
	// Clocks compares the clocks of the servers with the clock of this process.
	Clocks(ctx context.Context) (Clocks, error)
	// Ping returns an error if the server does not answer, or refuses what every stream
	// needs. A server without free memory is available.
	Ping(ctx context.Context) error
	// Try returns an error if the server would refuse an Add to the stream, or a Read of
	// it.
	Try(ctx context.Context, s Stream) error
	Close()
}
