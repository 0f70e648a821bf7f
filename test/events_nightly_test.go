//go:build nightly

package test

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/largesse/largesse/internal/lab/fixture"
)

// memory reads a figure of a process, such as VmRSS, in bytes.
func memory(t *testing.T, pid int, name string) int64 {
	t.Helper()
	text := fixture.Must(os.ReadFile(fmt.Sprintf("/proc/%d/status", pid)))(t)
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, name+":"); ok {
			kb := fixture.Must(strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64))(t)
			return kb << 10
		}
	}
	t.Fatalf("the process reports no %s", name)
	return 0
}

// reader is one that follows events over a connection of its own.
type reader struct {
	path string
	conn net.Conn

	events int           // that it has heard
	all    *atomic.Int64 // counts the events of several readers
	ended  bool          // it has heard the end
	err    error
}

// connect asks for events.
func (r *reader) connect(address string) error {
	conn, err := (&net.Dialer{Timeout: fixture.Patience}).Dial("tcp", address)
	if err != nil {
		return err
	}
	r.conn = conn
	_, err = fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: %s\r\nAccept: text/event-stream\r\n\r\n", r.path, address)
	return err
}

// read reads events until the last one; first is called at the first.
func (r *reader) read(last string, first func()) {
	lines := bufio.NewReaderSize(r.conn, 512)
	for {
		line, err := lines.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			err = nil // the start of a long line is enough
		}
		if err != nil {
			r.err = err
			return
		}
		if status := string(line); strings.HasPrefix(status, "HTTP/") && !strings.HasPrefix(status, "HTTP/1.1 200 ") {
			r.err = fmt.Errorf("%s", line)
			return
		}
		event, ok := strings.CutPrefix(string(line), "event: ")
		if !ok {
			continue
		}
		r.all.Add(1)
		if r.events++; r.events == 1 {
			first()
		}
		if strings.TrimSpace(event) == last {
			r.ended = true
			return
		}
	}
}
