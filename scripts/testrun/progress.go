package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"
)

// progress prints which suites run and how many tests have passed: on a
// terminal one line that is rewritten, elsewhere a line every 30 seconds. It is
// safe for concurrent use.
type progress struct {
	out      io.Writer
	terminal bool
	began    time.Time
	end      func()

	mu             sync.Mutex // protects what follows
	running        []string   // names of suites, or what else takes time
	passed, failed int
}

func startProgress(out io.Writer) *progress {
	p := &progress{out: out, began: time.Now(), running: []string{"starting servers"}}
	interval := 30 * time.Second
	if f, ok := out.(*os.File); ok {
		if info, err := f.Stat(); err == nil && info.Mode()&os.ModeCharDevice != 0 {
			p.terminal, interval = true, 500*time.Millisecond
		}
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	p.end = func() { close(stop); <-stopped }
	go func() {
		defer close(stopped)
		ticker := time.NewTicker(interval)
		defer ticker.Stop()
		for {
			select {
			case <-stop:
				return
			case <-ticker.C:
				p.print()
			}
		}
	}()
	return p
}

func (p *progress) stop() {
	p.end()
	if p.terminal {
		fmt.Fprintln(p.out)
	}
}

// begin prints the names of the suites that start now.
func (p *progress) begin(suites []suite) {
	p.mu.Lock()
	p.running = nil
	for _, s := range suites {
		p.running = append(p.running, s.name)
	}
	p.mu.Unlock()
	p.print()
}

// count adds to the counts. A nil progress ignores it.
func (p *progress) count(passed, failed int) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.passed += passed
	p.failed += failed
}

func (p *progress) print() {
	p.mu.Lock()
	defer p.mu.Unlock()
	line := fmt.Sprintf("%s  %d passed, %d failed  %s", time.Since(p.began).Round(time.Second), p.passed, p.failed, strings.Join(p.running, " "))
	if p.terminal {
		fmt.Fprintf(p.out, "\r\x1b[K%s", line)
	} else {
		fmt.Fprintln(p.out, line)
	}
}
