package main

import (
	"fmt"
	"io"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
)

const (
	barWidth   = 40
	linesEvery = 5 * time.Second
)

// bars shows the progress of several activities: bars with rate and remaining
// time on a terminal, and a line every few seconds elsewhere.
type bars struct {
	live  *mpb.Progress // nil: stderr is not a terminal
	lines io.Writer
	each  map[string]*bar
}

type bar struct {
	shown  *mpb.Bar
	from   time.Time
	lastAt time.Time
	done   bool
}

func newBars(w world) *bars {
	b := &bars{lines: w.stdout, each: make(map[string]*bar)}
	if w.live() {
		b.live = mpb.New(mpb.WithOutput(w.stderr), mpb.WithWidth(barWidth), mpb.WithAutoRefresh())
	}
	return b
}

// quiet returns the world without stdout if the output is JSON, so that
// progress lines do not mix with it.
func (c *cli) quiet() world {
	w := c.world
	if c.output == outputJSON {
		w.stdout = io.Discard
	}
	return w
}

// Update moves the bar with a name, and creates it on the first call.
func (b *bars) Update(name string, done, total int64) {
	x := b.each[name]
	if x == nil {
		x = &bar{from: time.Now()}
		if b.live != nil {
			x.shown = b.live.AddBar(total,
				mpb.PrependDecorators(decor.Name(name, decor.WCSyncSpaceR), decor.Any(func(s decor.Statistics) string { return number(s.Current) + " / " + number(s.Total) }, decor.WCSyncSpace)),
				mpb.AppendDecorators(
					decor.Percentage(decor.WCSyncSpace),
					decor.Any(func(s decor.Statistics) string { return rateAndLeft(s.Current, s.Total, time.Since(x.from)) }, decor.WCSyncSpace),
				))
		}
		b.each[name] = x
	}
	if x.shown != nil {
		x.shown.SetCurrent(done)
		return
	}
	if x.done || done < total && time.Since(x.lastAt) < linesEvery {
		return
	}
	x.lastAt, x.done = time.Now(), done == total
	_, _ = fmt.Fprintf(b.lines, "  %-20s %9s of %s  %s\n", name, number(done), number(total), rateAndLeft(done, total, time.Since(x.from)))
}

// Live reports whether stderr is a terminal, on which a bar can also shrink.
func (b *bars) Live() bool { return b.live != nil }

// Close stops the bars and leaves them on the terminal.
func (b *bars) Close() {
	if b.live == nil {
		return
	}
	for _, x := range b.each {
		x.shown.Abort(false)
	}
	b.live.Wait()
}

// rateAndLeft formats the mean rate so far and the remaining time, as in
// "1,234/s, 5s left". It is empty while nothing is known.
func rateAndLeft(done, total int64, took time.Duration) string {
	if done == 0 || took < time.Second/2 {
		return ""
	}
	rate := float64(done) / took.Seconds()
	if done >= total {
		return fmt.Sprintf("%s/s", number(int64(rate)))
	}
	left := time.Duration(float64(total-done) / rate * float64(time.Second)).Round(time.Second)
	return fmt.Sprintf("%s/s, %s left", number(int64(rate)), left)
}
