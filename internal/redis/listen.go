package redis

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/rueidis"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/service"
)

// The backoff between attempts to subscribe again.
const (
	subscribeBackoff    = 100 * time.Millisecond
	subscribeBackoffMax = 2 * time.Second
)

// Listener subscribes to one channel, and subscribes again after an outage.
// Messages of an outage are lost.
type Listener struct {
	service.Base
	client  *Client
	channel string
	log     obs.Log
	heard   func(message string)
}

// Listen subscribes, and returns once the subscription works. It calls heard
// with each message until Stop; heard must not block, because it runs on the
// goroutine that reads replies. ctx limits the first subscription only.
func Listen(ctx context.Context, client *Client, channel string, log obs.Log, heard func(message string)) (*Listener, error) {
	l := &Listener{client: client, channel: channel, log: log, heard: heard}
	first := make(chan error, 1)
	l.Start(context.WithoutCancel(ctx), func(ctx context.Context) { l.loop(ctx, first) })
	var err error
	select {
	case err = <-first:
	case <-ctx.Done():
		err = fmt.Errorf("SUBSCRIBE %s: %w", channel, ctx.Err())
	}
	if err != nil {
		l.Stop()
		return nil, err
	}
	return l, nil
}

// loop subscribes until ctx ends, or until the first attempt fails. It sends
// the result of the first attempt to first. It logs one line when a later
// outage begins and one when it ends.
func (l *Listener) loop(ctx context.Context, first chan<- error) {
	started, away, attempts := false, false, 0
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
				l.log.Info("Redis subscription available again", "channel", l.channel)
			}
			away, attempts = false, 0
		})
		cmd := l.client.B().Subscribe().Channel(l.channel).Build()
		err := l.client.Receive(subscribed, cmd, func(m rueidis.PubSubMessage) { l.heard(m.Message) })
		switch {
		case ctx.Err() != nil:
			return
		case !started:
			first <- fmt.Errorf("SUBSCRIBE %s: %w", l.channel, err)
			return
		case !away:
			l.log.Warn("Redis subscription unavailable", err, "channel", l.channel)
		}
		away = true
		if !service.Sleep(ctx, service.Backoff(attempts, subscribeBackoff, subscribeBackoffMax)) {
			return
		}
		attempts++
	}
}
