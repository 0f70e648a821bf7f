package main

import (
	"context"
	"os"
	"sync"

	"github.com/largesse/largesse/internal/lab"
)

// prepareBare leaves the table to the pipeline, which creates it.
func prepareBare(context.Context, job) error { return nil }

// workBare runs the pipeline without guarantees. It has four consumers that read 500 entries
// each, so it has about as many calls in flight as the others.
func workBare(ctx context.Context, j job, p *provider) error {
	work := func(ctx context.Context) error {
		file, err := os.Open(j.targetsFile(0))
		if err != nil {
			return err
		}
		defer file.Close()
		_, err = lab.Bare{PostgresURL: j.Database, RedisURL: j.Redis, Prefix: "bench-", Pay: func(ctx context.Context, targets []int64) error {
			return payAll(ctx, p, targets)
		}}.Run(ctx, file, j.Targets)
		if err == nil {
			<-ctx.Done()
		}
		return err
	}
	return j.run(ctx, func(context.Context) error { return nil }, work)
}

// payAll pays targets, at once if the provider is slow.
func payAll(ctx context.Context, p *provider, targets []int64) error {
	var calls sync.WaitGroup
	errs := make(chan error, len(targets))
	for _, id := range targets {
		pay := func() {
			_, err := p.charge(ctx, id)
			errs <- err
		}
		if p.delay > 0 {
			calls.Go(pay)
		} else {
			pay()
		}
	}
	calls.Wait()
	for range targets {
		if err := <-errs; err != nil {
			return err
		}
	}
	return nil
}
