package main

import (
	"context"
	"encoding/json"
	"strconv"
	"time"

	"github.com/hibiken/asynq"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
)

// asynqAdders is how many tasks are added at once: a call adds one.
const asynqAdders = 64

func workAsynq(ctx context.Context, j job, p *provider) error {
	options, err := redis.ParseURL(j.Redis)
	if err != nil {
		return err
	}
	options.PoolSize = 2 * asynqAdders
	server := redis.NewClient(options)
	db, err := pgxpool.New(ctx, j.Database)
	if err != nil {
		return err
	}
	recorded := newOutcomes(ctx, db)
	c := asynq.NewClientFromRedisClient(server)
	load := func(ctx context.Context) error {
		return j.eachTarget(ctx, asynqAdders, func(t target) error {
			payload, err := json.Marshal(t)
			if err != nil {
				return err
			}
			_, err = c.EnqueueContext(ctx, asynq.NewTask("pay", payload), asynq.TaskID(strconv.FormatInt(t.ID, 10)), asynq.Timeout(callTimeout))
			return err
		})
	}
	return j.run(ctx, load, func(context.Context) error {
		return asynq.NewServerFromRedisClient(server, asynq.Config{
			Concurrency: inFlight, TaskCheckInterval: 20 * time.Millisecond, DelayedTaskCheckInterval: time.Second, LogLevel: asynq.FatalLevel,
			RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return retryAfter },
		}).Run(asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
			var t target
			if err := json.Unmarshal(task.Payload(), &t); err != nil {
				return err
			}
			return payAndRecord(ctx, p, recorded, t)
		}))
	})
}
