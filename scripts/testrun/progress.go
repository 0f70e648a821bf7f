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

	mu        sync.Mutex // protects what follows
	running   []string   // names of suites, or what else takes time
	good, bad int        // tests
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

// passed counts a test. A nil progress ignores it.
func (p *progress) passed() {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.good++
}

// failed counts a failure and prints its name, so that nobody has to wait for the
// end to hear of it. A nil progress ignores it.
func (p *progress) failed(suite, name string) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.bad++
	if p.terminal {
		fmt.Fprint(p.out, "\r\x1b[K")
	}
	fmt.Fprintf(p.out, "failed: %s: %s\n", suite, name)
}

func (p *progress) print() {
	p.mu.Lock()
	defer p.mu.Unlock()
	line := fmt.Sprintf("%s  %d passed, %d failed  %s", time.Since(p.began).Round(time.Second), p.good, p.bad, strings.Join(p.running, " "))
	if p.terminal {
		fmt.Fprintf(p.out, "\r\x1b[K%s", line)
	} else {
		fmt.Fprintln(p.out, line)
	}
}
