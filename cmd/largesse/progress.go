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

// byteBar shows how much of a file has gone out. Off a terminal it is silent.
type byteBar struct {
	progress *mpb.Progress
	bar      *mpb.Bar
}

// uploadBar begins a bar for so many bytes; 0: not known.
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

// reader counts what is read from r. A reader that can do more than read is
// not passed on as such.
func (b byteBar) reader(r io.Reader) io.Reader {
	if b.bar == nil {
		return r
	}
	return &countedReader{r, b.bar}
}

// countedReader moves a bar on.
type countedReader struct {
	io.Reader
	bar *mpb.Bar
}

func (r *countedReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	r.bar.IncrBy(n)
	return n, err
}

// finish ends the bar: full, or left as it stands.
func (b byteBar) finish(done bool) {
	if b.bar == nil {
		return
	}
	if done {
		b.bar.SetTotal(-1, true)
	}
	b.bar.Abort(false) // does nothing to a bar that is complete
	b.progress.Wait()
}

// snapshot is a promotion at one moment, and how fast it goes.
type snapshot struct {
	client.Promotion
	rate float64       // decided a second; 0 = not known
	left time.Duration // 0 = not known
	// still is how long nothing was decided although there is something to
	// decide; 0 = not for so long that it is worth a word.
	still  time.Duration
	silent []string // parts of the server that do not answer, asked when still
}

// total is how many targets there will be, as far as is known.
func (s *snapshot) total() int64 {
	if s.ExpectedCount != nil {
		return max(s.TotalCount, *s.ExpectedCount)
	}
	return s.TotalCount
}

// partNames are what people call the parts that a server names as degraded.
var partNames = map[string]string{"queue": "the work queue", "kafka": "Kafka"}

// pace is the part of a line that says how fast it goes, or that it does not.
func (s *snapshot) pace() string {
	var b strings.Builder
	if s.still > 0 {
		fmt.Fprintf(&b, "nothing paid for %s", s.still.Truncate(time.Second))
		for _, part := range s.silent {
			if name := partNames[part]; name != "" {
				part = name
			}
			fmt.Fprintf(&b, ", %s does not answer", printable(part))
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

// percent is how much is decided, rounded down, so that 100 means all.
func (s *snapshot) percent() int64 {
	if s.total() == 0 {
		return 0
	}
	return s.Counts.Done() * 100 / s.total()
}

// counts tells how many stand where.
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

// line tells it all without a bar.
func (s *snapshot) line() string {
	return strings.TrimSuffix(s.counts()+", "+s.pace(), ", ")
}

// layer is one part of a stacked bar.
type layer struct {
	mark   string
	colour string // ANSI
	count  int64
}

// layers stacks the states: what is decided first, then what is under way.
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

// stackedBar draws a bar of so many cells. Each layer that is not empty has
// one cell at least, where there is room, so that a few failures among a
// million do not vanish.
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

// share gives the layers their cells; together they fill the width, unless
// there is nothing to show.
func share(layers []layer, width int) []int {
	cells := make([]int, len(layers))
	var total int64
	for _, l := range layers {
		total += max(0, l.count)
	}
	if total == 0 || width <= 0 {
		return cells
	}
	used, widest := 0, 0
	for i, l := range layers {
		if l.count <= 0 {
			continue
		}
		cells[i] = max(1, int(float64(l.count)/float64(total)*float64(width)))
		used += cells[i]
		if cells[i] > cells[widest] {
			widest = i
		}
	}
	// What rounding left over, or took too much of, is the widest one's.
	cells[widest] = max(0, cells[widest]+width-used)
	for i := len(cells) - 1; i >= 0 && sum(cells) > width; i-- {
		cells[i] = 0
	}
	return cells
}

func sum(cells []int) int {
	total := 0
	for _, n := range cells {
		total += n
	}
	return total
}

func (s *snapshot) title() string { return s.Name }

// frame is something at one moment, to be drawn.
type frame interface {
	title() string
	layers() []layer
	percent() int64
	pace() string   // the rate, or why there is none
	counts() string // in a line
}

// watchBar redraws something on a terminal.
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
		// A line that wraps could not be redrawn.
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
