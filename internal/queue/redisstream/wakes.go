package redisstream

import (
	"context"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/queue"
)

// wakesBuffer is how many hints wait for a slow listener; more are dropped.
const wakesBuffer = 1024

// Wakes implements queue.Queue.
func (q *Queue) Wakes() <-chan queue.Stream { return q.wakes }

// wake publishes that a stream has got its first work. A hint that is lost is
// made good by the rows, so a failure is no failure of the Add it follows.
func (q *Queue) wake(ctx context.Context, s queue.Stream) {
	cmd := q.client.B().Publish().Channel(wakeChannel(q.prefix)).Message(streamName(s)).Build()
	if err := q.client.Do(ctx, cmd).Error(); err != nil {
		q.log.Debug(obs.Failed, "channel", wakeChannel(q.prefix), "error", err)
	}
}

// heard must not wait: it runs where replies are read.
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
