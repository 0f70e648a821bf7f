package redisstream

import (
	"context"

	"github.com/largesse/largesse/internal/queue"
)

// wakesBuffer is the number of hints that wait for a slow receiver. Queue drops
// further hints.
const wakesBuffer = 1024

// Wakes implements queue.Queue.
func (q *Queue) Wakes() <-chan queue.Stream { return q.wakes }

// wake publishes a hint that a stream has got its first work. Its failure is no
// failure of Add: pools also start when they read the rows.
func (q *Queue) wake(ctx context.Context, s queue.Stream) {
	cmd := q.client.B().Publish().Channel(wakeChannel(q.prefix)).Message(streamName(s)).Build()
	if err := q.client.Do(ctx, cmd).Error(); err != nil {
		q.log.Debug("publishing wake-up failed", "channel", wakeChannel(q.prefix), "error", err)
	}
}

// heard must not block: it runs on the goroutine that reads replies.
func (q *Queue) heard(message string) {
	s, ok := parseStreamName(message)
	if !ok {
		return
	}
	select {
	case q.wakes <- s:
	default:
	}
}
