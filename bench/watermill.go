package main

import (
	"context"
	"encoding/json"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
)

const (
	watermillTopic      = "targets"
	watermillPublishers = 64 // at once: Publish sends one message at a time
	// watermillHandlers consume when the provider answers at once: more are slower. A handler has
	// one message in flight, so a slow provider needs one per call.
	watermillHandlers = 64
	// watermillClaimers of them claim the messages of a killed worker. Every claimer reads the
	// list of pending messages, so with many more of them Redis does little else.
	watermillClaimers = 64
	never             = 24 * time.Hour
)

func workWatermill(ctx context.Context, j job, p *provider) error {
	handlers := watermillHandlers
	if j.Delay > 0 {
		handlers = inFlight
	}
	options, err := redis.ParseURL(j.Redis)
	if err != nil {
		return err
	}
	options.PoolSize = 2*handlers + watermillPublishers // each handler blocks a connection while it reads
	server := redis.NewClient(options)
	db, err := pgxpool.New(ctx, j.Database)
	if err != nil {
		return err
	}
	recorded := newOutcomes(ctx, db)
	publisher, err := redisstream.NewPublisher(redisstream.PublisherConfig{Client: server}, watermill.NopLogger{})
	if err != nil {
		return err
	}
	subscribe := func(claimInterval time.Duration) (*redisstream.Subscriber, error) {
		return redisstream.NewSubscriber(redisstream.SubscriberConfig{
			Client: server, ConsumerGroup: "bench", BlockTime: time.Second, MaxIdleTime: lease, ClaimInterval: claimInterval, NackResendSleep: retryAfter,
		}, watermill.NopLogger{})
	}
	claimer, err := subscribe(time.Second)
	if err != nil {
		return err
	}
	subscriber, err := subscribe(never)
	if err != nil {
		return err
	}
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		return err
	}
	for i := range handlers {
		from := subscriber
		if i < watermillClaimers {
			from = claimer
		}
		router.AddConsumerHandler(strconv.Itoa(i), watermillTopic, from, func(m *message.Message) error {
			var t target
			if err := json.Unmarshal(m.Payload, &t); err != nil {
				return err
			}
			return payAndRecord(m.Context(), p, recorded, t)
		})
	}
	load := func(ctx context.Context) error {
		return j.eachTarget(ctx, watermillPublishers, func(t target) error {
			payload, err := json.Marshal(t)
			if err != nil {
				return err
			}
			return publisher.Publish(watermillTopic, message.NewMessage(strconv.FormatInt(t.ID, 10), payload))
		})
	}
	return j.run(ctx, load, router.Run)
}
