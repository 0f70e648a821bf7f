package main

import (
	"io"
	"os"
	"slices"
	"strings"

	"github.com/mattn/go-isatty"
	"github.com/mattn/go-runewidth"
	"github.com/vbauerster/mpb/v8/cwriter"
)

const (
	columnGap  = 2
	flushEvery = 200 // rows that are aligned together, so that a long list needs little memory and appears early
	cutMin     = 8   // width to which a column in cuts shrinks first
	columnMin  = 3   // width to which any other column may shrink
	wrapMin    = 24  // width of a wrapped last column
)

// table aligns cells in columns. On a terminal it fits the width: it first cuts
// the columns in cuts, then headers that are wider than their column, and other
// cells only as a last resort. Output to anything else is never cut.
type table struct {
	out    io.Writer
	width  int // width of the terminal; 0: unlimited
	header []string
	cuts   []string // headers of the columns that may be cut first
	wrap   bool     // whether the last column is broken into lines instead of being cut

	rows   [][]string
	widths []int // widths of the rows printed so far
	begun  bool  // whether the header is printed, or there is none
}

// table creates a table on stdout. Without arguments it has no header.
func (c *cli) table(header ...string) *table {
	return &table{out: c.stdout, width: terminalWidth(c.stdout), header: header, begun: len(header) == 0}
}

// terminalWidth returns the width of the terminal behind w, or 0 if w is not a
// terminal or the terminal does not report its size.
func terminalWidth(w io.Writer) int {
	f, ok := w.(*os.File)
	if !ok || !isatty.IsTerminal(f.Fd()) {
		return 0
	}
	width, height, err := cwriter.GetSize(int(f.Fd()))
	if err != nil || width <= 0 || height <= 0 {
		return 0
	}
	return width
}

func (t *table) add(cells ...string) error {
	for i := range cells {
		cells[i] = printable(cells[i])
	}
	t.rows = append(t.rows, cells)
	if len(t.rows) < flushEvery {
		return nil
	}
	return t.flush()
}

// flush prints the rows. A table without rows prints nothing.
func (t *table) flush() error {
	if len(t.rows) == 0 {
		return nil
	}
	widths := t.layout()
	t.widths = widths
	var b strings.Builder
	if !t.begun {
		t.begun = true
		t.line(&b, t.header, widths)
	}
	for _, row := range t.rows {
		t.line(&b, row, widths)
	}
	t.rows = t.rows[:0]
	_, err := io.WriteString(t.out, b.String())
	return err
}

func (t *table) layout() []int {
	cells := make([]int, len(t.rows[0])) // width of the widest cell of each column
	for _, row := range t.rows {
		for i, cell := range row {
			cells[i] = max(cells[i], runewidth.StringWidth(cell))
		}
	}
	widths := slices.Clone(cells)
	for i := range widths {
		if !t.begun {
			widths[i] = max(widths[i], runewidth.StringWidth(t.header[i]))
		}
		if i < len(t.widths) {
			widths[i] = max(widths[i], t.widths[i])
		}
	}
	if t.width == 0 {
		return widths
	}
	room := t.width - columnGap*(len(widths)-1)
	last := len(widths) - 1
	if left := room - sum(widths[:last]); t.wrap && left >= wrapMin {
		widths[last] = min(widths[last], left)
	}
	t.shrink(widths, room, func(i int) int {
		if t.header != nil && slices.Contains(t.cuts, t.header[i]) {
			return cutMin
		}
		return widths[i]
	})
	t.shrink(widths, room, func(i int) int { return max(cells[i], columnMin) })
	t.shrink(widths, room, func(i int) int {
		if i == 0 {
			return widths[0] // the ID, which identifies the row
		}
		return columnMin
	})
	t.shrink(widths, room, func(int) int { return 1 })
	return widths
}

// shrink takes cells from the widest column above its minimum, until all
// columns fit.
func (t *table) shrink(widths []int, room int, least func(column int) int) {
	for over := sum(widths) - room; over > 0; over-- {
		widest := -1
		for i, w := range widths {
			if w > least(i) && (widest < 0 || w > widths[widest]) {
				widest = i
			}
		}
		if widest < 0 {
			return
		}
		widths[widest]--
	}
}

func (t *table) line(b *strings.Builder, cells []string, widths []int) {
	last := len(cells) - 1
	rest := []string{cells[last]}
	if t.wrap && t.width > 0 {
		rest = wrapped(cells[last], widths[last])
	}
	for n, part := range rest {
		var line strings.Builder
		for i := range last {
			cell := ""
			if n == 0 {
				cell = cells[i]
			}
			line.WriteString(t.cell(cell, widths[i]))
			line.WriteString(strings.Repeat(" ", columnGap))
		}
		line.WriteString(t.cell(part, widths[last]))
		b.WriteString(strings.TrimRight(line.String(), " "))
		b.WriteByte('\n')
	}
}

func (t *table) cell(text string, width int) string {
	if runewidth.StringWidth(text) > width {
		text = runewidth.Truncate(text, width, "…")
	}
	return runewidth.FillRight(text, width)
}

// wrapped breaks text into lines between words, or within a word that is longer
// than a line.
func wrapped(text string, width int) []string {
	var lines []string
	line := ""
	for _, word := range strings.Fields(text) {
		if line != "" && runewidth.StringWidth(line)+1+runewidth.StringWidth(word) <= width {
			line += " " + word
			continue
		}
		if line != "" {
			lines = append(lines, line)
		}
		parts := strings.Split(runewidth.Wrap(word, width), "\n")
		lines = append(lines, parts[:len(parts)-1]...)
		line = parts[len(parts)-1]
	}
	return append(lines, line)
}

// details aligns the names and values of one object, one per line. It never
// cuts values, because nothing else shows them.
type details struct{ table }

func (c *cli) details() details { return details{table{out: c.stdout, begun: true}} }

// add appends a line, unless its value is empty.
func (d *details) add(name, value string) {
	if value != "" {
		d.rows = append(d.rows, []string{printable(name), printable(value)})
	}
}
