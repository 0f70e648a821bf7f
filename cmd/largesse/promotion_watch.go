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

// watchPatience is how long a watch goes on without hearing from the server.
const watchPatience = 30 * time.Second

func (c *cli) promotionWatchCommand() *cobra.Command {
	var every time.Duration
	cmd := &cobra.Command{
		Use:   "watch ID",
		Short: "Follow a promotion until it is completed or cancelled",
		Long: `Follow a promotion until it is completed or cancelled: a bar on a terminal, else
a line for each change, or a JSON object per line with --output json. Leaving by
Ctrl-C does nothing to the promotion.`,
		Example: `  largesse promotion watch 12345
  largesse promotion watch 12345 --every 10s --output json`,
		Args: promotionArgs(),
		RunE: func(cmd *cobra.Command, args []string) error {
			if every < 10*time.Millisecond {
				return wrongUse("--every %s is below 10ms", every)
			}
			cl, err := c.connect()
			if err != nil {
				return err
			}
			w := &watch{cli: c, client: cl, id: args[0], every: every}
			defer w.finish()
			return w.run(cmd.Context())
		},
	}
	cmd.Flags().DurationVar(&every, "every", time.Second, "pause between two looks, at least 10ms")
	return cmd
}

// watch follows one promotion.
type watch struct {
	*cli
	client *client.Client
	id     string
	every  time.Duration

	rate  rateMeter
	bar   *watchBar
	shown string // the latest line
}

func (w *watch) run(ctx context.Context) error {
	heard := time.Now()
	for first := true; ; first = false {
		p, err := w.client.Promotion(ctx, w.id)
		switch {
		case err == nil:
			heard = time.Now()
			s := w.rate.look(p, heard)
			if err := w.show(s); err != nil {
				return err
			}
			if s.ended() {
				return nil
			}
		case first || ctx.Err() != nil || !passing(err) || time.Since(heard) > watchPatience:
			return err
		}
		pause := time.NewTimer(w.every)
		select {
		case <-ctx.Done():
			pause.Stop()
			return ctx.Err()
		case <-pause.C:
		}
	}
}

// passing says whether an error can go away by itself, as when a server
// starts again.
func passing(err error) bool {
	var p *client.Problem
	return !errors.As(err, &p) || p.Status >= http.StatusInternalServerError || p.Status == http.StatusTooManyRequests
}

func (w *watch) show(s *snapshot) error {
	if w.output == outputJSON {
		text, err := json.Marshal(s.Promotion)
		if err != nil || string(text) == w.shown {
			return err
		}
		w.shown = string(text)
		_, err = fmt.Fprintln(w.stdout, w.shown)
		return err
	}
	if w.live() {
		if w.bar == nil {
			w.bar = w.watchBar(s)
		}
		w.bar.show(s)
		return nil
	}
	line := s.line()
	if line == w.shown {
		return nil
	}
	w.shown = line
	_, err := fmt.Fprintln(w.stdout, line)
	return err
}

func (w *watch) finish() {
	if w.bar != nil {
		w.bar.finish()
	}
}

// rateWindow is how far back a rate looks.
const rateWindow = 10 * time.Second

// rateMeter tells how fast a promotion goes, from the looks of the last
// seconds.
type rateMeter struct{ looks []look }

type look struct {
	at   time.Time
	done int64
}

func (m *rateMeter) look(p client.Promotion, now time.Time) *snapshot {
	m.looks = append(m.looks, look{now, p.Counts.Done()})
	for len(m.looks) > 2 && now.Sub(m.looks[1].at) >= rateWindow {
		m.looks = m.looks[1:]
	}
	s := &snapshot{Promotion: p}
	oldest := m.looks[0]
	if span := now.Sub(oldest.at); span > 0 && p.Counts.Done() > oldest.done {
		s.rate = float64(p.Counts.Done()-oldest.done) / span.Seconds()
	}
	if p.Status != "RUNNING" {
		return s
	}
	switch {
	case p.ETASeconds != nil:
		s.left = time.Duration(*p.ETASeconds * float64(time.Second))
	case s.rate > 0:
		s.left = time.Duration(float64(s.total()-p.Counts.Done()) / s.rate * float64(time.Second))
	}
	return s
}
