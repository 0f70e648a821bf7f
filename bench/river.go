package main

import (
	"context"
	"log/slog"
	"os"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
	"github.com/riverqueue/river/rivertype"
)

// riverArgs is the job of a target.
type riverArgs struct{ target }

// Kind implements river.JobArgs.
func (riverArgs) Kind() string { return "pay" }

type riverWorker struct {
	river.WorkerDefaults[riverArgs]
	provider *provider
	outcomes *outcomes
}

// Work implements river.Worker.
func (w *riverWorker) Work(ctx context.Context, j *river.Job[riverArgs]) error {
	return payAndRecord(ctx, w.provider, w.outcomes, j.Args.target)
}

type riverRetry struct{}

// NextRetry implements river.ClientRetryPolicy.
func (riverRetry) NextRetry(*rivertype.JobRow) time.Time { return time.Now().Add(retryAfter) }

func prepareRiver(ctx context.Context, j job) error {
	db, err := pgxpool.New(ctx, j.Database)
	if err != nil {
		return err
	}
	defer db.Close()
	migrator, err := rivermigrate.New(riverpgxv5.New(db), &rivermigrate.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return err
	}
	return prepareOutcomes(ctx, j)
}

// workRiver inserts by COPY, fetches as often as River's own benchmark does, and completes
// jobs in batches, as River does by default.
func workRiver(ctx context.Context, j job, p *provider) error {
	cfg, err := pgxpool.ParseConfig(j.Database)
	if err != nil {
		return err
	}
	cfg.MaxConns = 20
	db, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return err
	}
	workers := river.NewWorkers()
	river.AddWorker(workers, &riverWorker{provider: p, outcomes: newOutcomes(ctx, db)})
	c, err := river.NewClient[pgx.Tx](riverpgxv5.New(db), &river.Config{
		Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: inFlight}}, Workers: workers,
		FetchCooldown: 2 * time.Millisecond, FetchPollInterval: 20 * time.Millisecond,
		JobTimeout: callTimeout, RescueStuckJobsAfter: lease, RetryPolicy: riverRetry{},
		Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError + 1})), // it logs each failed job as an error
	})
	if err != nil {
		return err
	}
	load := func(ctx context.Context) error {
		return j.eachBatch(func(batch []target) error {
			all := make([]river.InsertManyParams, len(batch))
			for i, t := range batch {
				all[i].Args = riverArgs{t}
			}
			_, err := c.InsertManyFast(ctx, all)
			return err
		})
	}
	return j.run(ctx, load, func(ctx context.Context) error {
		if err := c.Start(ctx); err != nil {
			return err
		}
		<-c.Stopped()
		return nil
	})
}
