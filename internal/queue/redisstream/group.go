package redisstream

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/largesse/largesse/internal/queue"
	"github.com/largesse/largesse/internal/service"
)

const (
	// passMax limits the entries of one step of RemoveConsumer, so that a
	// script does not block the server for long.
	passMax = 500
	// passSteps limits a RemoveConsumer whose consumer continues to read.
	passSteps = 10_000
	// groupAttempts limits how often a call creates a group that disappears
	// again.
	groupAttempts = 3
)

// Replies of destroy_stream. The third, 1, means that the stream was missing.
const (
	streamHasEntries = 0
	streamDestroyed  = 2
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
		q.groupCreated(s)
	}
	return made >= 0, nil
}

func (q *Queue) groupCreated(s queue.Stream) {
	q.log.Info("consumer group created", "promotion_id", s.PromotionID, "type", s.Type)
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
	args := []string{ConsumerGroup(q.prefix, s), consumer, heir, strconv.Itoa(passMax)}
	for range passSteps {
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
	state, err := destroyStream.Exec(ctx, q.client, []string{key, regroupedKey(q.prefix, s)}, nil).AsInt64()
	if err != nil {
		return false, fmt.Errorf("redisstream: destroy_stream %s: %w", key, err)
	}
	if state == streamDestroyed {
		q.log.Info("stream destroyed", "promotion_id", s.PromotionID, "type", s.Type)
	}
	return state != streamHasEntries, nil
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
	reply, err := streamInfo.Exec(ctx, q.client, []string{key}, []string{ConsumerGroup(q.prefix, s)}).ToArray()
	var info queue.Info
	if err == nil {
		info, err = decodeInfo(reply)
	}
	if err != nil {
		return queue.Info{}, fmt.Errorf("redisstream: stream_info %s: %w", key, err)
	}
	return info, nil
}

// decodeInfo decodes the reply of stream_info.
func decodeInfo(reply []rueidis.RedisMessage) (queue.Info, error) {
	if len(reply) != 7 {
		return queue.Info{}, fmt.Errorf("the reply has %d elements", len(reply))
	}
	var numbers [7]int64
	var errs []error
	for _, i := range []int{0, 1, 2, 5, 6} {
		n, err := reply[i].AsInt64()
		numbers[i], errs = n, append(errs, err)
	}
	oldestAt, errOldest := addedAt(reply[3])
	oldestPendingAt, errPending := addedAt(reply[4])
	return queue.Info{
		Exists: numbers[0] == 1, Len: numbers[1], Pending: numbers[2],
		OldestAt: oldestAt, OldestPendingAt: oldestPendingAt,
		At: time.Unix(numbers[5], numbers[6]*int64(time.Microsecond)),
	}, errors.Join(append(errs, errOldest, errPending)...)
}

// addedAt returns the time at which the entry with an ID was added, or zero if
// the ID is empty.
func addedAt(reply rueidis.RedisMessage) (time.Time, error) {
	text, err := reply.ToString()
	if err != nil || text == "" {
		return time.Time{}, err
	}
	id, err := parseEntryID(text)
	if err != nil {
		return time.Time{}, err
	}
	return id.at(), nil
}

// Clocks implements queue.Queue.
func (q *Queue) Clocks(ctx context.Context) (queue.Clocks, error) {
	clocks, err := q.client.CompareClocks(ctx)
	if err != nil {
		return queue.Clocks{}, fmt.Errorf("redisstream: %w", err)
	}
	return queue.Clocks{
		Worst: clocks.Worst(),
		Of:    func(s queue.Stream) service.Clock { return clocks.Of(StreamKey(q.prefix, s)) },
	}, nil
}
