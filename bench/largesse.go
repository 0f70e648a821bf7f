package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/largesse/largesse"
	"github.com/largesse/largesse/client"
)

func newLargesse(j job, p *provider) (*largesse.Engine, error) {
	return largesse.New(largesse.Config{
		DataDir: filepath.Join(j.Dir, "largesse"), DatabaseURL: j.Database, RedisURL: j.Redis,
		Settings: map[string]string{
			"redis.stream.lease-seconds": strconv.Itoa(int(lease.Seconds())), "money.timeout": callTimeout.String(),
			"money.max-concurrency": strconv.Itoa(inFlight),
		},
	}, largesse.WithProvider(largesseProvider{p}), largesse.WithLogger(slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))))
}

func prepareLargesse(ctx context.Context, j job) error {
	e, err := newLargesse(j, nil)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		_, _ = e.Client().Ready(ctx) // the schema is then up to date
		stop()
	}()
	return e.Run(ctx)
}

// workLargesse runs the public package with its defaults, apart from a number of consumers
// that allows the calls in flight.
func workLargesse(ctx context.Context, j job, p *provider) error {
	e, err := newLargesse(j, p)
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- e.Run(ctx) }()
	api := e.Client()
	if _, err := api.Ready(ctx); err != nil {
		return fmt.Errorf("%w; %w", err, <-ended)
	}
	consumers := max(inFlight/64/j.Promotions, 1)
	eachPromotion := func(ctx context.Context, do func(i int, id string) error) error {
		all, _ := errgroup.WithContext(ctx)
		all.SetLimit(16)
		for i := range j.Promotions {
			all.Go(func() error { return do(i, strconv.Itoa(i+1)) })
		}
		return all.Wait()
	}
	if !j.Resumed {
		err := eachPromotion(ctx, func(_ int, id string) error {
			_, err := api.CreatePromotion(ctx, client.NewPromotion{ID: id, Name: "bench", Type: "POINT", ConsumersPerInstance: &consumers})
			return err
		})
		if err != nil {
			return err
		}
	}
	load := func(ctx context.Context) error {
		return eachPromotion(ctx, func(i int, id string) error {
			file, err := os.Open(j.targetsFile(i))
			if err != nil {
				return err
			}
			defer file.Close()
			_, err = api.UploadTargets(ctx, id, file, client.UploadOptions{})
			return err
		})
	}
	return j.run(ctx, load, func(ctx context.Context) error {
		if !j.Resumed {
			err := eachPromotion(ctx, func(_ int, id string) error {
				_, err := api.StartPromotion(ctx, id)
				return err
			})
			if err != nil {
				return err
			}
		}
		return <-ended
	})
}

// largesseProvider implements largesse.Provider.
type largesseProvider struct{ provider *provider }

func (p largesseProvider) Charge(ctx context.Context, c largesse.Charge) (string, error) {
	return p.provider.charge(ctx, c.TargetID)
}

func (p largesseProvider) Lookup(_ context.Context, key string) (string, error) {
	_, id, _ := strings.Cut(key, ":")
	target, err := strconv.ParseInt(id, 10, 64)
	if err != nil {
		return "", err
	}
	if p.provider.ledger.charges(target) == 0 {
		return "", largesse.ErrNotCharged
	}
	return transactionKey(target), nil
}
