package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/largesse/largesse/client"
)

func (c *cli) promotionWatchCommand() *cobra.Command {
	var every time.Duration
	cmd := &cobra.Command{
		Use:   "watch ID",
		Short: "Follow a promotion until it is completed or cancelled",
		Long: `Follow a promotion until it is completed or cancelled: a bar on a terminal, else
a line for each change, or a JSON object per line with --output json. When nothing
is paid for a while it says so, and which part of the server does not answer.
Leaving by Ctrl-C does nothing to the promotion.`,
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
	shown string        // the latest line
	told  string        // of the latest line, without what only the clock changes
	still time.Duration // of the latest line

	asked  time.Time // when the server was last asked for its parts
	silent []string  // what it said
}

// run shows the promotion every so often while the server is heard, and at once
// when its status has changed.
func (w *watch) run(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	news := w.follow(ctx)
	tick := time.NewTicker(w.every)
	defer tick.Stop()
	var latest *client.Promotion
	for away := false; ; {
		select {
		case n := <-news:
			if n.over {
				return n.err
			}
			if away = n.away; n.promotion == nil {
				continue
			}
			changed := latest == nil || latest.Status != n.promotion.Status
			if latest = n.promotion; !changed && !latest.Ended() {
				continue
			}
		case <-tick.C:
			// Only of a running one the clock alone makes another line.
			if latest == nil || away || latest.Status != "RUNNING" && !w.live() {
				continue
			}
		case <-ctx.Done():
			return ctx.Err()
		}
		if err := w.look(ctx, *latest, time.Now()); err != nil {
			return err
		}
	}
}

// watchNews is what a watch hears.
type watchNews struct {
	promotion *client.Promotion // nil: nothing new of it
	away      bool              // the server is not heard
	over      bool              // nothing more will come
	err       error             // why, of over
}

// follow passes on what is heard of the promotion until it has ended.
func (w *watch) follow(ctx context.Context) <-chan watchNews {
	news := make(chan watchNews)
	tell := func(n watchNews) {
		select {
		case news <- n:
		case <-ctx.Done():
		}
	}
	go func() {
		o := client.WatchOptions{Every: w.every, Waiting: func(err error) { tell(watchNews{away: err != nil}) }}
		for p, err := range w.client.WatchPromotion(ctx, w.id, o) {
			if err != nil {
				tell(watchNews{over: true, err: err})
				return
			}
			tell(watchNews{promotion: &p})
		}
		tell(watchNews{over: true})
	}()
	return news
}

func (w *watch) look(ctx context.Context, p client.Promotion, now time.Time) error {
	s := w.rate.look(p, now)
	if s.still > 0 && w.output != outputJSON {
		s.silent = w.silentParts(ctx, now)
	}
	return w.show(s)
}

// silentParts asks the server, every few seconds at most, which of its parts do
// not answer; none when it does not tell.
func (w *watch) silentParts(ctx context.Context, now time.Time) []string {
	if now.Sub(w.asked) < stillLeast {
		return w.silent
	}
	w.asked = now
	ctx, cancel := context.WithTimeout(ctx, stillLeast)
	defer cancel()
	ready, err := w.client.Ready(ctx)
	if err != nil {
		ready.Degraded = nil
	}
	w.silent = ready.Degraded
	return w.silent
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
	line, told := s.line(), s.counts()+strings.Join(s.silent, ",")
	if line == w.shown || s.still > 0 && told == w.told && w.still > 0 && s.still < w.still+stillAgain {
		return nil
	}
	w.shown, w.told, w.still = line, told, s.still
	_, err := fmt.Fprintln(w.stdout, line)
	return err
}

func (w *watch) finish() {
	if w.bar != nil {
		w.bar.finish()
	}
}

const (
	// rateWindow is how far back a rate looks.
	rateWindow = 10 * time.Second
	// stillLeast is how long nothing has to be decided before there is no rate
	// any more, and stillAgain how often a line tells of it.
	stillLeast = 3 * time.Second
	stillAgain = 10 * time.Second
)

// rateMeter tells how fast a promotion goes, from the looks of the last
// seconds.
type rateMeter struct {
	looks []look
	moved time.Time // when more was last seen to be decided, or to be decided at all
}

type look struct {
	at   time.Time
	done int64
}

func (m *rateMeter) look(p client.Promotion, now time.Time) *snapshot {
	done := p.Counts.Done()
	if last := len(m.looks) - 1; last < 0 || done != m.looks[last].done || p.Status != "RUNNING" || done == p.TotalCount {
		if now.Sub(m.moved) >= stillLeast {
			m.looks = m.looks[max(last, 0):] // a rate after a standstill is that after it
		}
		m.moved = now
	}
	m.looks = append(m.looks, look{now, done})
	for len(m.looks) > 2 && now.Sub(m.looks[1].at) >= rateWindow {
		m.looks = m.looks[1:]
	}
	s := &snapshot{Promotion: p}
	if still := now.Sub(m.moved); still >= stillLeast {
		s.still = still
		return s
	}
	oldest := m.looks[0]
	if span := now.Sub(oldest.at); span > 0 && done > oldest.done {
		s.rate = float64(done-oldest.done) / span.Seconds()
	}
	if p.Status != "RUNNING" {
		return s
	}
	switch {
	case p.ETASeconds != nil:
		s.left = time.Duration(*p.ETASeconds * float64(time.Second))
	case s.rate > 0:
		s.left = time.Duration(float64(s.total()-done) / s.rate * float64(time.Second))
	}
	return s
}
