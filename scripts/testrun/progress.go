package main

import (
	"fmt"
	"io"
	"os"
	"time"
)

// progress shows how far a suite is: on a terminal a line that is rewritten,
// elsewhere a line twice a minute.
type progress struct {
	out      io.Writer
	terminal bool
	suite    string
	began    time.Time
	shown    time.Time
}

func newProgress(out io.Writer) *progress {
	p := &progress{out: out}
	if f, ok := out.(*os.File); ok {
		if info, err := f.Stat(); err == nil {
			p.terminal = info.Mode()&os.ModeCharDevice != 0
		}
	}
	return p
}

func (p *progress) begin(suite string) {
	p.suite, p.began, p.shown = suite, time.Now(), time.Now()
	if p.terminal {
		fmt.Fprintf(p.out, "%s …", suite)
	} else {
		fmt.Fprintf(p.out, "%s begins\n", suite)
	}
}

func (p *progress) update(r *result) {
	pause := 30 * time.Second
	if p.terminal {
		pause = 200 * time.Millisecond
	}
	if time.Since(p.shown) < pause {
		return
	}
	p.shown = time.Now()
	p.print(r, "so far")
}

func (p *progress) end(r *result) {
	p.print(r, "done")
	if p.terminal {
		fmt.Fprintln(p.out)
	}
}

func (p *progress) print(r *result, word string) {
	line := fmt.Sprintf("%s: %d passed, %d failed, %d skipped, %s %s", p.suite, r.passed, len(r.failures), len(r.skipped),
		time.Since(p.began).Round(time.Second), word)
	if p.terminal {
		fmt.Fprintf(p.out, "\r\x1b[K%s", line)
	} else {
		fmt.Fprintln(p.out, line)
	}
}
