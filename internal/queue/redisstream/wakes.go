package redisstream

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/rueidis"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/queue"
	"github.com/largesse/largesse/internal/service"
)

// wakesBuffer is how many hints wait for a slow listener; more are dropped.
const wakesBuffer = 1024

// The pauses between tries to subscribe again.
const (
	subscribePause    = 100 * time.Millisecond
	subscribePauseMax = 2 * time.Second
)

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

// listen keeps a subscription to the wake-ups until Close, and returns once
// the first one stands.
func (q *Queue) listen(ctx context.Context) error {
	first := make(chan error, 1)
	q.listener.Start(context.WithoutCancel(ctx), func(ctx context.Context) { q.listenLoop(ctx, first) })
	select {
	case err := <-first:
		return err
	case <-ctx.Done():
		return fmt.Errorf("redisstream: SUBSCRIBE %s: %w", wakeChannel(q.prefix), ctx.Err())
	}
}

// listenLoop tells first how the first try went. Each later outage is told
// once when it begins and once when it is over, however many tries it took.
func (q *Queue) listenLoop(ctx context.Context, first chan<- error) {
	channel := wakeChannel(q.prefix)
	started, away, tries := false, false, 0
	for {
		subscribed := rueidis.WithOnSubscriptionHook(ctx, func(s rueidis.PubSubSubscription) {
			if s.Kind != "subscribe" {
				return
			}
			if !started {
				started = true
				first <- nil
			}
			if away {
				q.log.Info(obs.Recovered, "channel", channel)
			}
			away, tries = false, 0
		})
		cmd := q.client.B().Subscribe().Channel(channel).Build()
		err := q.client.Receive(subscribed, cmd, q.heard)
		switch {
		case ctx.Err() != nil:
			return
		case !started:
			first <- fmt.Errorf("redisstream: SUBSCRIBE %s: %w", channel, err)
			return
		case !away:
			q.log.Warn(obs.Unavailable, err, "channel", channel)
		}
		away = true
		if !service.Sleep(ctx, service.Backoff(tries, subscribePause, subscribePauseMax)) {
			return
		}
		tries++
	}
}

// heard must not wait: it runs where replies are read.
func (q *Queue) heard(m rueidis.PubSubMessage) {
	s, ok := parseStreamName(m.Message)
	if !ok {
		return
	}
	select {
	case q.wakes <- s:
	default:
	}
}
