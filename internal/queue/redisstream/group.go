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

var (
	// errGroupVanishes means that a group was missing again after it was created.
	errGroupVanishes = errors.New("the group disappears repeatedly: find out which other system deletes it")
	// errNoGroup means that a script has done nothing because the stream lacks the group.
	errNoGroup = errors.New("no group")
)

// Create implements queue.Queue.
func (q *Queue) Create(ctx context.Context, s queue.Stream, consumers []string) (bool, error) {
	args := append([]string{ConsumerGroup(q.prefix, s)}, consumers...)
	made, err := run(ctx, q, makeGroup, s, args, rueidis.RedisResult.AsInt64)
	if err != nil {
		return false, err
	}
	if made == 1 {
		q.groupCreated(s)
	}
	return made >= 0, nil
}

func (q *Queue) groupCreated(s queue.Stream) {
	q.log.Info("consumer group created", "promotion_id", s.PromotionID, "type", s.Type)
}

// withGroup runs a call. If the stream lacks the group, so that the call has done nothing,
// withGroup creates the group and runs the call again.
func (q *Queue) withGroup(ctx context.Context, s queue.Stream, call func() error) error {
	for range groupAttempts {
		if err := call(); !isNoGroup(err) {
			return err
		}
		if _, err := q.Create(ctx, s, nil); err != nil {
			return err
		}
	}
	return fmt.Errorf("redisstream: %s: %w", ConsumerGroup(q.prefix, s), errGroupVanishes)
}

// isNoGroup reports whether a command was refused because the stream or the group is
// missing.
func isNoGroup(err error) bool {
	refusal, refused := errors.AsType[*rueidis.RedisError](err)
	return errors.Is(err, errNoGroup) || refused && strings.HasPrefix(refusal.Error(), "NOGROUP")
}

// RemoveConsumer implements queue.Queue.
func (q *Queue) RemoveConsumer(ctx context.Context, s queue.Stream, consumer, heir string) (bool, error) {
	if consumer == heir {
		return false, fmt.Errorf("redisstream: consumer %s cannot be its own heir", consumer)
	}
	args := []string{ConsumerGroup(q.prefix, s), consumer, heir, strconv.Itoa(passMax)}
	for range passSteps {
		handedOn, err := run(ctx, q, removeConsumer, s, args, rueidis.RedisResult.AsInt64)
		switch {
		case err != nil:
			return false, fmt.Errorf("remove consumer %s: %w", consumer, err)
		case handedOn <= 0:
			return handedOn == 0, nil
		}
	}
	return false, fmt.Errorf("redisstream: remove_consumer %s %s: the consumer is still reading", StreamKey(q.prefix, s), consumer)
}

// Destroy implements queue.Queue.
func (q *Queue) Destroy(ctx context.Context, s queue.Stream) (bool, error) {
	state, err := run(ctx, q, destroyStream, s, nil, rueidis.RedisResult.AsInt64)
	if err != nil {
		return false, err
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
	d := decoder{err: err}
	out := make([]queue.ConsumerInfo, len(rows))
	for i, row := range rows {
		fields, err := row.AsMap()
		d.note(err)
		out[i] = queue.ConsumerInfo{
			Name: d.text(fields["name"]), Pending: d.number(fields["pending"]), Idle: time.Duration(d.number(fields["idle"])) * time.Millisecond,
		}
	}
	if d.err != nil {
		return nil, fmt.Errorf("redisstream: XINFO CONSUMERS %s: %w", key, d.err)
	}
	return out, nil
}

// Info implements queue.Queue.
func (q *Queue) Info(ctx context.Context, s queue.Stream) (queue.Info, error) {
	return run(ctx, q, streamInfo, s, []string{ConsumerGroup(q.prefix, s)}, func(r rueidis.RedisResult) (queue.Info, error) {
		reply, err := elements(r, 7)
		if err != nil {
			return queue.Info{}, err
		}
		var d decoder
		addedAt := func(m rueidis.RedisMessage) (at time.Time) {
			if id := d.id(d.text(m)); id != (entryID{}) {
				at = id.at()
			}
			return at
		}
		info := queue.Info{
			Exists: d.number(reply[0]) == 1, Len: d.number(reply[1]), Pending: d.number(reply[2]),
			OldestAt: addedAt(reply[3]), OldestPendingAt: addedAt(reply[4]),
			At: time.Unix(d.number(reply[5]), d.number(reply[6])*int64(time.Microsecond)),
		}
		return info, d.err
	})
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
