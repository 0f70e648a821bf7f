package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/largesse/largesse/client"
)

func (c *cli) templateWatchCommand() *cobra.Command {
	return c.watchCommand(&cobra.Command{
		Use:   "watch ID",
		Short: "Follow a coupon template until it is closed and nobody waits",
		Long: `Follow a coupon template until it is closed and nobody waits. On a terminal, a bar
shows live coupons, waiting users and stock; elsewhere, each change prints a line,
or a JSON object with --output json. The command continues if the template is sold
out, because a cancelled coupon becomes available again. Ctrl-C ends only the
command, not the template.`,
		Example: `  largesse template watch 42
  largesse template watch 42 --every 10s --output json`,
	}, func(ctx context.Context, cl *client.Client, id string, every time.Duration, s *screen) error {
		w := &templateWatch{screen: s}
		return follow(ctx, every, func(ctx context.Context) (client.Template, error) { return cl.Template(ctx, id) }, w.show)
	})
}

type templateWatch struct {
	*screen
	looks  looks  // coupons ever issued
	counts string // latest line without its rate
}

func (w *templateWatch) show(t client.Template, now time.Time) (ended bool, err error) {
	w.looks.add(t.Counters.IssuedTotal, now)
	f := &templateFrame{Template: t, rate: w.looks.rate(), now: now}
	line := w.shown
	if counts := f.counts(); counts != w.counts {
		w.counts = counts
		line = strings.TrimSuffix(counts+", "+f.pace(), ", ")
	}
	return f.ended(), w.screen.show(t, f, line)
}

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
