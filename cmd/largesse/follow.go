package main

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/largesse/largesse/client"
)

// watchPatience limits how long a watch continues without a response.
const watchPatience = 30 * time.Second

// follow reads something at an interval and shows it until it has ended. It
// waits for a server that restarts.
func follow[T any](ctx context.Context, every time.Duration, look func(context.Context) (T, error), show func(ctx context.Context, seen T, now time.Time) (ended bool, err error)) error {
	heard := time.Now()
	for first := true; ; first = false {
		seen, err := look(ctx)
		switch {
		case err == nil:
			heard = time.Now()
			if ended, err := show(ctx, seen, heard); ended || err != nil {
				return err
			}
		case first || ctx.Err() != nil || !passing(err) || time.Since(heard) > watchPatience:
			return err
		}
		pause := time.NewTimer(every)
		select {
		case <-ctx.Done():
			pause.Stop()
			return ctx.Err()
		case <-pause.C:
		}
	}
}

// passing reports whether an error may pass by itself, as when a server
// restarts.
func passing(err error) bool {
	var p *client.Problem
	return !errors.As(err, &p) || p.Status >= http.StatusInternalServerError || p.Status == http.StatusTooManyRequests
}
