package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/mattn/go-isatty"
	"github.com/mattn/go-runewidth"
	"github.com/vbauerster/mpb/v8/cwriter"
)

const (
	columnGap   = 2
	flushEvery  = 200 // lines that are lined up together, so that a long list is neither held in memory nor waited for
	cutLeast    = 8   // cells of a column that may be cut, where that is enough
	columnLeast = 3   // of any other column, when nothing else helps
	wrapLeast   = 24  // of a last column that is wrapped
)

// table lines cells up in columns. On a terminal it fits the width: cells of the
// columns in cuts are cut first, then headings that are wider than what is below
// them, and other cells only when nothing else helps. What is not shown on a
// terminal is never cut.
type table struct {
	out    io.Writer
	width  int // of the terminal; 0: as wide as it takes
	header []string
	// cuts are the headings of columns that may be long.
	cuts []string
	// wrap breaks the last column into lines instead.
	wrap bool

	rows   [][]string
	widths []int // of what was written so far
	begun  bool  // the header is written, or there is none
}

// table makes a table on stdout; without a header it has none.
func (c *cli) table(header ...string) *table {
	return &table{out: c.stdout, width: terminalWidth(c.stdout), header: header, begun: len(header) == 0}
}

// terminalWidth is how many cells wide the terminal behind a writer is; 0 when it
// is no terminal, or one that does not tell its size.
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

// add adds a row.
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

// flush writes what was added. A table without rows writes nothing.
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

// layout gives each column its width.
func (t *table) layout() []int {
	cells := make([]int, len(t.rows[0])) // the widest cell of each column
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
	if left := room - sum(widths[:last]); t.wrap && left >= wrapLeast {
		widths[last] = min(widths[last], left)
	}
	t.shrink(widths, room, func(i int) int {
		if t.header != nil && slices.Contains(t.cuts, t.header[i]) {
			return cutLeast
		}
		return widths[i]
	})
	t.shrink(widths, room, func(i int) int { return max(cells[i], columnLeast) })
	t.shrink(widths, room, func(i int) int {
		if i == 0 {
			return widths[0] // what the others can be found by
		}
		return columnLeast
	})
	t.shrink(widths, room, func(int) int { return 1 })
	return widths
}

// shrink takes from the widest column that is above its least width, until all
// of them fit.
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

// wrapped breaks text into lines: between words, and within one that is too long
// for a line.
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

// details lines up the names and values of one thing, a line each. Long values
// are left to the terminal: there is nowhere else to read them.
type details struct {
	out   io.Writer
	lines [][2]string
}

// add adds a line, unless its value is empty.
func (d *details) add(name, value string) {
	if value != "" {
		d.lines = append(d.lines, [2]string{name, printable(value)})
	}
}

func (d *details) flush() error {
	width := 0
	for _, l := range d.lines {
		width = max(width, runewidth.StringWidth(l[0]))
	}
	var b strings.Builder
	for _, l := range d.lines {
		fmt.Fprintf(&b, "%s  %s\n", runewidth.FillRight(l[0], width), l[1])
	}
	_, err := io.WriteString(d.out, b.String())
	return err
}
