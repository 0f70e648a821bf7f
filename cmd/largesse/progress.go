package main

import (
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"time"

	"github.com/mattn/go-runewidth"
	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"

	"github.com/largesse/largesse/client"
)

// byteBar shows how much of a file was sent. Without a terminal it is silent.
type byteBar struct {
	progress *mpb.Progress
	bar      *mpb.Bar
}

// uploadBar starts a bar for a number of bytes; 0: unknown.
func (c *cli) uploadBar(size int64) byteBar {
	if !c.live() {
		return byteBar{}
	}
	p := mpb.New(mpb.WithOutput(c.stderr), mpb.WithWidth(barWidth))
	bar := p.New(size, mpb.BarStyle().Rbound("]"),
		mpb.PrependDecorators(decor.Name("uploading ")),
		mpb.AppendDecorators(
			decor.CountersKibiByte("% .1f / % .1f"),
			decor.AverageSpeed(decor.SizeB1024(0), "  % .1f"),
			decor.OnComplete(decor.AverageETA(decor.ET_STYLE_GO, decor.WC{W: 6}), " done"),
		))
	return byteBar{p, bar}
}

// reader counts what is read from r.
func (b byteBar) reader(r io.Reader) io.Reader {
	if b.bar == nil {
		return r
	}
	return b.bar.ProxyReader(r)
}

// finish ends the bar: full, or at its current position.
func (b byteBar) finish(done bool) {
	if b.bar == nil {
		return
	}
	if done {
		b.bar.SetTotal(-1, true)
	}
	b.bar.Abort(false) // has no effect on a complete bar
	b.progress.Wait()
}

// snapshot is a promotion at one moment, with its rate.
type snapshot struct {
	client.Promotion
	rate float64       // final payouts per second; 0: unknown
	left time.Duration // 0: unknown
	// still is the time since the last payout became final while others are
	// open; 0: too short to report.
	still time.Duration
	away  bool     // whether the server does not answer, so that it is unknown what was paid
	parts []string // what does not work on the server, only if still is set
}

func (s *snapshot) total() int64 {
	if s.ExpectedCount != nil {
		return max(s.TotalCount, *s.ExpectedCount)
	}
	return s.TotalCount
}

// partNames maps the server's names of parts that do not answer to texts.
var partNames = map[string]string{"queue": "the work queue", "kafka": "Kafka"}

// pace describes the rate and the remaining time, or why nothing is paid.
func (s *snapshot) pace() string {
	var b strings.Builder
	if s.still > 0 {
		what := "nothing paid"
		if s.away {
			what = "no news"
		}
		fmt.Fprintf(&b, "%s for %s", what, s.still.Truncate(time.Second))
		for _, part := range s.parts {
			fmt.Fprintf(&b, ", %s", printable(part))
		}
		return b.String()
	}
	if s.rate > 0 {
		fmt.Fprintf(&b, "%s/s", number(int64(s.rate+0.5)))
	}
	if s.left > 0 {
		fmt.Fprintf(&b, " %s left", s.left.Round(time.Second))
	}
	return strings.TrimSpace(b.String())
}

// percent returns the share of final payouts, rounded down, so that 100 means
// all.
func (s *snapshot) percent() int64 {
	if s.total() == 0 {
		return 0
	}
	return s.Counts.Done() * 100 / s.total()
}

func (s *snapshot) counts() string {
	parts := []string{fmt.Sprintf("%s %d%% of %s", s.Status, s.percent(), number(s.total()))}
	for _, state := range states(s.Counts) {
		if state.count > 0 {
			parts = append(parts, state.name+" "+number(state.count))
		}
	}
	if s.PauseReason != "" {
		parts = append(parts, s.PauseReason)
	}
	return printable(strings.Join(parts, ", "))
}

func (s *snapshot) line() string {
	return strings.TrimSuffix(s.counts()+", "+s.pace(), ", ")
}

type layer struct {
	mark   string
	colour string // ANSI
	count  int64
}

// layers returns the states in the order of the bar: final ones first.
func (s *snapshot) layers() []layer {
	c := s.Counts
	return []layer{
		{"█", "32", c.Succeeded},
		{"x", "31", c.Failed},
		{"-", "90", c.Cancelled},
		{"?", "35", c.Unknown},
		{"~", "33", c.Retrying},
		{"▒", "36", c.Queued},
		{"·", "90", s.total() - c.Succeeded - c.Failed - c.Cancelled - c.Unknown - c.Retrying - c.Queued},
	}
}

// stackedBar draws a bar with a number of cells. If the width allows it, each
// layer with a count gets at least one cell, so that a few failures among a
// million stay visible.
func stackedBar(layers []layer, width int, colour bool) string {
	cells := share(layers, width)
	var b strings.Builder
	for i, l := range layers {
		if cells[i] == 0 {
			continue
		}
		text := strings.Repeat(l.mark, cells[i])
		if colour {
			text = "\x1b[" + l.colour + "m" + text + "\x1b[0m"
		}
		b.WriteString(text)
	}
	return b.String()
}

// share distributes the cells among the layers. The cells fill the width,
// unless all counts are zero.
func share(layers []layer, width int) []int {
	cells := make([]int, len(layers))
	var total int64
	for _, l := range layers {
		total += max(0, l.count)
	}
	if total == 0 || width <= 0 {
		return cells
	}
	used := 0
	for i, l := range layers {
		if l.count > 0 {
			cells[i] = max(1, int(float64(l.count)/float64(total)*float64(width)))
			used += cells[i]
		}
	}
	// The widest layer absorbs the rounding error, cell by cell: then another is the widest.
	for ; used > width; used-- {
		cells[widest(cells)]--
	}
	cells[widest(cells)] += width - used
	return cells
}

// widest returns the last of the layers with the most cells.
func widest(cells []int) int {
	last := 0
	for i, n := range cells {
		if n >= cells[last] {
			last = i
		}
	}
	return last
}

func sum(cells []int) int {
	total := 0
	for _, n := range cells {
		total += n
	}
	return total
}

func (s *snapshot) title() string { return s.Name }

// frame is something to draw, at one moment.
type frame interface {
	title() string
	layers() []layer
	percent() int64
	pace() string   // the rate, or why it is unknown
	counts() string // all counts in one line
}

type watchBar struct {
	progress *mpb.Progress
	bar      *mpb.Bar
	latest   *atomic.Pointer[frame]
}

func (c *cli) watchBar(first frame) *watchBar {
	w := &watchBar{latest: &atomic.Pointer[frame]{}}
	w.latest.Store(&first)
	latest := func() frame { return *w.latest.Load() }
	w.progress = mpb.New(mpb.WithOutput(c.stderr), mpb.WithWidth(barWidth))
	colour := c.colour()
	stacked := mpb.BarFillerFunc(func(out io.Writer, st decor.Statistics) error {
		_, err := io.WriteString(out, stackedBar(latest().layers(), min(barWidth, st.AvailableWidth), colour))
		return err
	})
	detail := mpb.BarFillerFunc(func(out io.Writer, st decor.Statistics) error {
		// A wrapped line could not be redrawn.
		_, err := io.WriteString(out, runewidth.Truncate(latest().counts(), st.AvailableWidth, "…")+"\n")
		return err
	})
	w.bar = w.progress.MustAdd(0, stacked,
		mpb.BarExtender(detail, false),
		mpb.PrependDecorators(decor.Any(func(decor.Statistics) string { return printable(latest().title()) + " " })),
		mpb.AppendDecorators(decor.Any(func(decor.Statistics) string {
			f := latest()
			return fmt.Sprintf(" %d%% %s", f.percent(), f.pace())
		})))
	return w
}

func (w *watchBar) show(f frame) { w.latest.Store(&f) }

func (w *watchBar) finish() {
	w.bar.SetTotal(-1, true)
	w.progress.Wait()
}

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
