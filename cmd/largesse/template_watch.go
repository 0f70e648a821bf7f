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

func (c *cli) templateWatchCommand() *cobra.Command {
	var every time.Duration
	cmd := &cobra.Command{
		Use:   "watch ID",
		Short: "Follow a coupon template until it is closed and nobody waits",
		Long: `Follow a coupon template until it is closed and nobody waits. On a terminal, a bar
shows live coupons, waiting users and stock; elsewhere, each change prints a line,
or a JSON object with --output json. The command continues if the template is sold
out, because a cancelled coupon becomes available again. Ctrl-C ends only the
command, not the template.`,
		Example: `  largesse template watch 42
  largesse template watch 42 --every 10s --output json`,
		Args: templateArgs(),
		RunE: func(cmd *cobra.Command, args []string) error {
			if every < 10*time.Millisecond {
				return wrongUse("--every %s must be at least 10ms", every)
			}
			cl, err := c.connect()
			if err != nil {
				return err
			}
			w := &templateWatch{cli: c}
			defer w.finish()
			return follow(cmd.Context(), every, func(ctx context.Context) (client.Template, error) { return cl.Template(ctx, args[0]) }, w.show)
		},
	}
	cmd.Flags().DurationVar(&every, "every", time.Second, "interval between two reads, at least 10ms")
	return cmd
}

// templateWatch follows one template.
type templateWatch struct {
	*cli
	looks []look
	bar   *watchBar
	shown string // latest line without its rate
}

func (w *templateWatch) show(_ context.Context, t client.Template, now time.Time) (ended bool, err error) {
	f := &templateFrame{Template: t, rate: w.rate(t.Counters.IssuedTotal, now), now: now}
	switch {
	case w.output == outputJSON:
		text, err := json.Marshal(t)
		if err != nil {
			return false, err
		}
		if string(text) != w.shown {
			w.shown = string(text)
			_, err = fmt.Fprintln(w.stdout, w.shown)
		}
		return f.ended(), err
	case w.live():
		if w.bar == nil {
			w.bar = w.watchBar(f)
		}
		w.bar.show(f)
		return f.ended(), nil
	}
	if f.counts() == w.shown {
		return f.ended(), nil
	}
	w.shown = f.counts()
	_, err = fmt.Fprintln(w.stdout, strings.TrimSuffix(w.shown+", "+f.pace(), ", "))
	return f.ended(), err
}

// rate returns the coupons issued per second over the last seconds; 0: unknown.
func (w *templateWatch) rate(issued int64, now time.Time) float64 {
	w.looks = append(w.looks, look{now, issued})
	for len(w.looks) > 2 && now.Sub(w.looks[1].at) >= rateWindow {
		w.looks = w.looks[1:]
	}
	oldest := w.looks[0]
	if span := now.Sub(oldest.at); span > 0 {
		return float64(issued-oldest.done) / span.Seconds()
	}
	return 0
}

func (w *templateWatch) finish() {
	if w.bar != nil {
		w.bar.finish()
	}
}

// templateFrame is a template at one moment.
type templateFrame struct {
	client.Template
	rate float64 // coupons issued per second
	now  time.Time
}

func (f *templateFrame) title() string { return f.Name }

// ended reports that no more coupons will be issued.
func (f *templateFrame) ended() bool {
	return hasClosed(f.Template, f.now) && f.Counters.Waiting == 0 && len(f.Degraded) == 0
}

// percent returns the share of live coupons, rounded down.
func (f *templateFrame) percent() int64 {
	if f.TotalQuantity == 0 {
		return 0
	}
	return f.Counters.Count * 100 / f.TotalQuantity
}

func (f *templateFrame) counts() string {
	n := f.Counters
	text := fmt.Sprintf("%s %d%% of %s, live %s, waiting %s, stock %s", templateState(f.Template, f.now), f.percent(), number(f.TotalQuantity), number(n.Count), waiting(f.Template), number(n.Stock))
	if n.IssuedTotal != n.Count {
		text += ", ever issued " + number(n.IssuedTotal)
	}
	if f.Path == "DATABASE" {
		text += ", Redis is unavailable"
	}
	return printable(text)
}

func (f *templateFrame) pace() string {
	if f.rate < 0.5 {
		return ""
	}
	return number(int64(f.rate+0.5)) + "/s"
}

func (f *templateFrame) layers() []layer {
	return []layer{
		{"█", "32", f.Counters.Count},
		{"▒", "36", f.Counters.Waiting},
		{"·", "90", f.Counters.Stock},
	}
}
