package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"github.com/largesse/largesse/client"
)

const watchPatience = 30 * time.Second // without a response

// follow reads something at an interval and shows it until it has ended. It
// waits for a server that restarts.
func follow[T any](ctx context.Context, every time.Duration, look func(context.Context) (T, error), show func(seen T, now time.Time) (ended bool, err error)) error {
	heard := time.Now()
	for first := true; ; first = false {
		seen, err := look(ctx)
		switch {
		case err == nil:
			heard = time.Now()
			if ended, err := show(seen, heard); ended || err != nil {
				return err
			}
		case first || ctx.Err() != nil || !passing(err) || time.Since(heard) > watchPatience:
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(every):
		}
	}
}

// passing reports whether an error may pass by itself, as when a server
// restarts.
func passing(err error) bool {
	var p *client.Problem
	return !errors.As(err, &p) || p.Status >= http.StatusInternalServerError || p.Status == http.StatusTooManyRequests
}

// screen shows what a watch follows: as a bar on a terminal, elsewhere as a line per
// change.
type screen struct {
	*cli
	bar   *watchBar
	shown string // latest line
}

// show shows a value: by a frame, by a line unless it is the latest one, or as JSON.
func (s *screen) show(value any, f frame, line string) error {
	switch {
	case s.output == outputJSON:
		text, err := json.Marshal(value)
		if err != nil {
			return err
		}
		line = string(text)
	case s.live():
		if s.bar == nil {
			s.bar = s.watchBar(f)
		}
		s.bar.show(f)
		return nil
	}
	if line == s.shown {
		return nil
	}
	s.shown = line
	_, err := fmt.Fprintln(s.stdout, line)
	return err
}

func (s *screen) finish() {
	if s.bar != nil {
		s.bar.finish()
	}
}

// watchCommand completes the command of a watch, which reads at an interval.
func (c *cli) watchCommand(cmd *cobra.Command, do func(ctx context.Context, cl *client.Client, id string, every time.Duration, s *screen) error) *cobra.Command {
	every := time.Second
	addFlag(cmd.Flags(), &every, "every", "interval between two reads, at least 10ms", bounded(time.ParseDuration, 10*time.Millisecond, 0, ""))
	cmd.RunE = c.calling(func(ctx context.Context, cl *client.Client, args []string) error {
		s := &screen{cli: c}
		defer s.finish()
		return do(ctx, cl, args[0], every, s)
	})
	return cmd
}

const rateWindow = 10 * time.Second // over which a rate is measured

// looks are counts at the times when they were read, those of the last seconds.
type looks []look

type look struct {
	at   time.Time
	done int64
}

func (l *looks) add(done int64, now time.Time) {
	*l = append(*l, look{now, done})
	for len(*l) > 2 && now.Sub((*l)[1].at) >= rateWindow {
		*l = (*l)[1:]
	}
}

// rate returns by how much the count grew per second; 0: it did not, or it is unknown.
func (l looks) rate() float64 {
	first, last := l[0], l[len(l)-1]
	if last.done <= first.done || !last.at.After(first.at) {
		return 0
	}
	return float64(last.done-first.done) / last.at.Sub(first.at).Seconds()
}
