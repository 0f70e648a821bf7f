package redisstream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/largesse/largesse/internal/queue"
)

const (
	// handOverMax limits the entries of one step of RemoveConsumer, so that a
	// script does not block the server for long.
	handOverMax = 500
	// handOverSteps limits a RemoveConsumer whose consumer continues to read.
	handOverSteps = 10_000
	// groupAttempts limits how often a call creates a group that disappears
	// again.
	groupAttempts = 3
)

// errGroupVanishes means that a group was missing again after it was created.
var errGroupVanishes = errors.New("the group disappears repeatedly: find out which other system deletes it")

// Create implements queue.Queue.
func (q *Queue) Create(ctx context.Context, s queue.Stream, consumers []string) (bool, error) {
	key := StreamKey(q.prefix, s)
	args := append([]string{ConsumerGroup(q.prefix, s)}, consumers...)
	made, err := makeGroup.Exec(ctx, q.client, []string{key, regroupedKey(q.prefix, s)}, args).AsInt64()
	if err != nil {
		return false, fmt.Errorf("redisstream: make_group %s: %w", key, err)
	}
	if made == 1 {
		q.log.Info("consumer group created", "promotion_id", s.PromotionID, "type", s.Type)
	}
	return made >= 0, nil
}

// withGroup runs a call. If the call reports that the stream lacks the group, and
// has therefore done nothing, withGroup creates the group and runs the call again.
func (q *Queue) withGroup(ctx context.Context, s queue.Stream, call func() (noGroup bool, err error)) error {
	for range groupAttempts {
		noGroup, err := call()
		if err != nil || !noGroup {
			return err
		}
		if _, err := q.Create(ctx, s, nil); err != nil {
			return err
		}
	}
	return fmt.Errorf("redisstream: %s: %w", ConsumerGroup(q.prefix, s), errGroupVanishes)
}

// isNoGroup reports whether the server refused a command because the stream or
// the group is missing.
func isNoGroup(err error) bool {
	reply, ok := rueidis.IsRedisErr(err)
	return ok && strings.HasPrefix(reply.Error(), "NOGROUP")
}

// RemoveConsumer implements queue.Queue.
func (q *Queue) RemoveConsumer(ctx context.Context, s queue.Stream, consumer, heir string) (bool, error) {
	if consumer == heir {
		return false, fmt.Errorf("redisstream: consumer %s cannot be its own heir", consumer)
	}
	key := StreamKey(q.prefix, s)
	args := []string{ConsumerGroup(q.prefix, s), consumer, heir, strconv.Itoa(handOverMax)}
	for range handOverSteps {
		handedOn, err := removeConsumer.Exec(ctx, q.client, []string{key}, args).AsInt64()
		switch {
		case err != nil:
			return false, fmt.Errorf("redisstream: remove_consumer %s %s: %w", key, consumer, err)
		case handedOn <= 0:
			return handedOn == 0, nil
		}
	}
	return false, fmt.Errorf("redisstream: remove_consumer %s %s: the consumer is still reading", key, consumer)
}

// Destroy implements queue.Queue.
func (q *Queue) Destroy(ctx context.Context, s queue.Stream) (bool, error) {
	key := StreamKey(q.prefix, s)
	gone, err := destroyStream.Exec(ctx, q.client, []string{key, regroupedKey(q.prefix, s)}, nil).AsBool()
	if err != nil {
		return false, fmt.Errorf("redisstream: destroy_stream %s: %w", key, err)
	}
	return gone, nil
}

// Consumers implements queue.Queue.
func (q *Queue) Consumers(ctx context.Context, s queue.Stream) ([]queue.ConsumerInfo, error) {
	key := StreamKey(q.prefix, s)
	replies := q.client.DoMulti(ctx,
		q.client.B().Exists().Key(key).Build(),
		q.client.B().XinfoConsumers().Key(key).Group(ConsumerGroup(q.prefix, s)).Build())
	exists, err := replies[0].AsBool()
	if err != nil {
		return nil, fmt.Errorf("redisstream: EXISTS %s: %w", key, err)
	}
	rows, err := replies[1].ToArray()
	if !exists || isNoGroup(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("redisstream: XINFO CONSUMERS %s: %w", key, err)
	}
	out := make([]queue.ConsumerInfo, 0, len(rows))
	for _, row := range rows {
		c, err := consumerInfo(row)
		if err != nil {
			return nil, fmt.Errorf("redisstream: XINFO CONSUMERS %s: %w", key, err)
		}
		out = append(out, c)
	}
	return out, nil
}

func consumerInfo(row rueidis.RedisMessage) (queue.ConsumerInfo, error) {
	fields, err := row.AsMap()
	if err != nil {
		return queue.ConsumerInfo{}, err
	}
	name, pending, idle := fields["name"], fields["pending"], fields["idle"]
	text, errName := name.ToString()
	count, errPending := pending.AsInt64()
	millis, errIdle := idle.AsInt64()
	return queue.ConsumerInfo{Name: text, Pending: count, Idle: time.Duration(millis) * time.Millisecond},
		errors.Join(errName, errPending, errIdle)
}

// Info implements queue.Queue.
func (q *Queue) Info(ctx context.Context, s queue.Stream) (queue.Info, error) {
	key := StreamKey(q.prefix, s)
	replies := q.client.DoMulti(ctx,
		q.client.B().Exists().Key(key).Build(),
		q.client.B().Xlen().Key(key).Build(),
		q.client.B().Xpending().Key(key).Group(ConsumerGroup(q.prefix, s)).Build(),
		q.client.B().Xrange().Key(key).Start("-").End("+").Count(1).Build())
	exists, errExists := replies[0].AsBool()
	length, errLen := replies[1].AsInt64()
	pending, oldestPending, errPending := pendingSummary(replies[2])
	oldest, errRange := replies[3].ToArray()
	// An unavailable server fails all of them with the same error: one is
	// enough.
	if err := cmp.Or(errExists, errLen, errPending, errRange); err != nil {
		return queue.Info{}, fmt.Errorf("redisstream: EXISTS, XLEN, XPENDING, XRANGE %s: %w", key, err)
	}
	info := queue.Info{Exists: exists, Len: length, Pending: pending}
	if oldestPending != "" {
		id, err := parseEntryID(oldestPending)
		if err != nil {
			return queue.Info{}, fmt.Errorf("redisstream: XPENDING %s: %w", key, err)
		}
		info.OldestPendingAt = id.at()
	}
	if len(oldest) == 0 {
		return info, nil
	}
	entry, err := oldest[0].AsXRangeEntry()
	if err != nil {
		return queue.Info{}, fmt.Errorf("redisstream: XRANGE %s: %w", key, err)
	}
	id, err := parseEntryID(entry.ID)
	if err != nil {
		return queue.Info{}, fmt.Errorf("redisstream: XRANGE %s: %w", key, err)
	}
	info.OldestAt = id.at()
	return info, nil
}

// pendingSummary reads from XPENDING's summary the number of pending entries
// and the ID of the oldest one ("" if there is none). A missing group has no
// pending entries.
func pendingSummary(reply rueidis.RedisResult) (count int64, oldest string, err error) {
	summary, err := reply.ToArray()
	if isNoGroup(err) {
		return 0, "", nil
	}
	if err != nil {
		return 0, "", err
	}
	if len(summary) < 2 {
		return 0, "", fmt.Errorf("XPENDING: the reply has %d elements", len(summary))
	}
	if count, err = summary[0].AsInt64(); err != nil || count == 0 {
		return 0, "", err
	}
	oldest, err = summary[1].ToString()
	return count, oldest, err
}
