package redis

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/rueidis"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/service"
)

// The pauses between tries to subscribe again.
const (
	subscribePause    = 100 * time.Millisecond
	subscribePauseMax = 2 * time.Second
)

// Listener keeps a subscription to one channel, through outages.
type Listener struct {
	service.Base
	client  *Client
	channel string
	log     obs.Log
	heard   func(message string)
}

// Listen subscribes, and returns once the subscription stands. heard gets every
// message until Stop; it must not wait, as it runs where replies are read. ctx
// bounds the first subscription only.
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

// loop tells first how the first try went. Each later outage is told once when
// it begins and once when it is over, however many tries it took.
func (l *Listener) loop(ctx context.Context, first chan<- error) {
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
				l.log.Info(obs.Recovered, "channel", l.channel)
			}
			away, tries = false, 0
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
			l.log.Warn(obs.Unavailable, err, "channel", l.channel)
		}
		away = true
		if !service.Sleep(ctx, service.Backoff(tries, subscribePause, subscribePauseMax)) {
			return
		}
		tries++
	}
}
