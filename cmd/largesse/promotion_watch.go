package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/largesse/largesse/client"
)

func (c *cli) promotionWatchCommand() *cobra.Command {
	return c.watchCommand(&cobra.Command{
		Use:   "watch ID",
		Short: "Follow a promotion until it is completed or cancelled",
		Long: `Follow a promotion until it is completed or cancelled. On a terminal, a bar shows
its states; elsewhere, each change prints a line, or a JSON object with --output
json. If nothing was paid for 3 s, the output says so and names each part of the
server that does not work as it should, and why, also on other instances, or that
the server does not answer. Ctrl-C ends only the command, not the promotion.`,
		Example: `  largesse promotion watch 12345
  largesse promotion watch 12345 --every 10s --output json`,
	}, func(ctx context.Context, cl *client.Client, id string, every time.Duration, s *screen) error {
		w := &watch{screen: s, client: cl, id: id, every: every}
		return w.run(ctx)
	})
}

type watch struct {
	*screen
	client *client.Client
	id     string
	every  time.Duration

	rate  rateMeter
	told  string        // latest line without the parts that change with the clock
	still time.Duration // still of the latest line

	away  bool      // whether the server does not answer
	asked time.Time // time of the latest read of the degraded parts
	parts []string  // result of that read
}

// run shows the promotion at an interval while the server answers, and at once
// after a change of its status.
func (w *watch) run(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	news := w.follow(ctx)
	tick := time.NewTicker(w.every)
	defer tick.Stop()
	var latest *client.Promotion
	for {
		select {
		case n, open := <-news:
			if !open || n.err != nil {
				return n.err
			}
			if w.away = n.away; n.promotion == nil {
				continue
			}
			changed := latest == nil || latest.Status != n.promotion.Status
			if latest = n.promotion; !changed && !latest.Ended() {
				continue
			}
		case <-tick.C:
			// Only a RUNNING promotion changes its line with the clock.
			if latest == nil || latest.Status != "RUNNING" && !w.live() {
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

type watchNews struct {
	promotion *client.Promotion // nil: unchanged
	away      bool              // whether the server does not answer
	err       error             // why the watch ended
}

// follow sends the updates of the promotion until it has ended.
func (w *watch) follow(ctx context.Context) <-chan watchNews {
	news := make(chan watchNews)
	tell := func(n watchNews) {
		select {
		case news <- n:
		case <-ctx.Done():
		}
	}
	go func() {
		defer close(news)
		o := client.WatchOptions{Every: w.every, Waiting: func(err error) { tell(watchNews{away: err != nil}) }}
		for p, err := range w.client.WatchPromotion(ctx, w.id, o) {
			if err != nil {
				tell(watchNews{err: err})
				return
			}
			tell(watchNews{promotion: &p})
		}
	}()
	return news
}

func (w *watch) look(ctx context.Context, p client.Promotion, now time.Time) error {
	s := w.rate.look(p, now)
	s.away = w.away
	if s.still > 0 && w.output != outputJSON {
		s.parts = w.degraded(ctx, now)
	}
	return w.show(s)
}

// degraded reads which parts of the server do not work as they should, and why, and
// what degrades other instances, or that the server does not answer, at most every few
// seconds.
func (w *watch) degraded(ctx context.Context, now time.Time) []string {
	if now.Sub(w.asked) < stillMin {
		return w.parts
	}
	w.asked, w.parts = now, nil
	ctx, cancel := context.WithTimeout(ctx, stillMin)
	defer cancel()
	ready, err := w.client.Ready(ctx)
	if err != nil {
		w.parts = []string{"the server does not answer"}
		if problem, ok := errors.AsType[*client.Problem](err); ok {
			w.parts = []string{problem.Detail}
		}
		return w.parts
	}
	reasons := make(map[string]string, len(ready.Troubles))
	for _, t := range ready.Troubles {
		reasons[t.Part] = t.Reason
	}
	for _, part := range ready.Degraded {
		text := reasons[part]
		if text == "" {
			text = cmp.Or(partNames[part], part) + " does not answer"
		}
		w.parts = append(w.parts, text)
	}
	if all, err := w.client.Instances(ctx); err == nil {
		w.parts = append(w.parts, elsewhere(all.Items, w.parts)...)
	}
	return w.parts
}

const elsewhereMax = 5 // reasons of other instances in one line

// elsewhere returns the reasons why instances are degraded, each once and with the
// instances, without those that are known.
func elsewhere(all []client.Instance, known []string) []string {
	var reasons []string
	at := make(map[string][]string) // names of instances by reason
	for _, i := range all {
		for _, t := range i.Troubles {
			if slices.Contains(known, t.Reason) {
				continue
			}
			if at[t.Reason] == nil {
				reasons = append(reasons, t.Reason)
			}
			at[t.Reason] = append(at[t.Reason], i.Name)
		}
	}
	var out []string
	for _, reason := range reasons[:min(len(reasons), elsewhereMax)] {
		where := at[reason][0]
		if others := len(at[reason]) - 1; others > 0 {
			where += fmt.Sprintf(" and %d more", others)
		}
		out = append(out, where+": "+reason)
	}
	if left := len(reasons) - len(out); left > 0 {
		out = append(out, fmt.Sprintf("%d more reasons of other instances", left))
	}
	return out
}

func (w *watch) show(s *snapshot) error {
	line, told := s.line(), s.counts()+strings.Join(s.parts, ",")
	if s.still > 0 && told == w.told && w.still > 0 && s.still < w.still+stillAgain {
		line = w.shown // only the clock has changed it
	}
	if line != w.shown {
		w.told, w.still = told, s.still
	}
	return w.screen.show(s.Promotion, s, line)
}

const (
	stillMin   = 3 * time.Second  // time without a final payout after which the output says so
	stillAgain = 10 * time.Second // between two such lines
)

// rateMeter measures the rate of a promotion over the last seconds.
type rateMeter struct {
	looks looks
	moved time.Time // time of the latest final payout, or of the first open one
}

func (m *rateMeter) look(p client.Promotion, now time.Time) *snapshot {
	s, done := &snapshot{Promotion: p}, p.Counts.Done()
	if last := len(m.looks) - 1; last < 0 || done != m.looks[last].done || p.Status != "RUNNING" || done == s.total() {
		if now.Sub(m.moved) >= stillMin {
			m.looks = m.looks[max(last, 0):] // after a standstill, the rate starts again
		}
		m.moved = now
	}
	m.looks.add(done, now)
	if still := now.Sub(m.moved); still >= stillMin {
		s.still = still
		return s
	}
	s.rate = m.looks.rate()
	if p.Status != "RUNNING" {
		return s
	}
	if p.ETASeconds != nil { // otherwise the server cannot tell yet
		s.left = time.Duration(*p.ETASeconds) * time.Second
	}
	return s
}
