//go:build nightly

package test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/lab"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/money/moneysim"
)

// memory reads a figure of a process, such as VmRSS, in bytes.
func memory(t *testing.T, pid int, name string) int64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, name+":"); ok {
			kb, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			if err != nil {
				t.Fatal(err)
			}
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
	all    *atomic.Int64 // counts the events of several readers; nil: nobody does
	gap    time.Duration // the longest between two of them
	ended  bool          // it has heard the end
	err    error
}

// connect asks for events; little is the least that its kernel can be brought to
// hold for it.
func (r *reader) connect(address string, little bool) error {
	d := net.Dialer{Timeout: fixture.Patience}
	if little {
		d.Control = func(_, _ string, c syscall.RawConn) (err error) {
			return errors.Join(c.Control(func(fd uintptr) { err = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 1) }), err)
		}
	}
	conn, err := d.Dial("tcp", address)
	if err != nil {
		return err
	}
	r.conn = conn
	_, err = fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: %s\r\nAccept: text/event-stream\r\n\r\n", r.path, address)
	return err
}

// read reads events until the last one; first is called at the first.
func (r *reader) read(last string, first func()) {
	var previous time.Time
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
		if len(previousStatus(line)) > 0 {
			r.err = fmt.Errorf("%s", line)
			return
		}
		event, ok := strings.CutPrefix(string(line), "event: ")
		if !ok {
			continue
		}
		now := time.Now()
		if r.all != nil {
			r.all.Add(1)
		}
		if r.events++; r.events == 1 {
			first()
		} else {
			r.gap = max(r.gap, now.Sub(previous))
		}
		previous = now
		if strings.TrimSpace(event) == last {
			r.ended = true
			return
		}
	}
}

// previousStatus returns the line when it is the status of an answer that is none
// of events.
func previousStatus(line []byte) []byte {
	if s := string(line); strings.HasPrefix(s, "HTTP/") && !strings.HasPrefix(s, "HTTP/1.1 200 ") {
		return line
	}
	return nil
}

// TestNightlyTenThousandSubscribers: one instance sends 10,000 readers how twenty
// promotions come on, and 500 where they stand in a draw, while twenty more never
// read what they asked for. All hear the end, the twenty are dropped and hold
// no other, and it takes less than 500 MB.
func TestNightlyTenThousandSubscribers(t *testing.T) {
	const (
		promotions = 20
		watchers   = 10_000
		people     = 500
		stuck      = 20
		targets    = 150 // of each promotion
		perSecond  = 5
		most       = 500 * 1000 * 1000
	)
	var files syscall.Rlimit
	const needed = watchers + people + stuck + 1000
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err != nil || files.Cur < needed {
		t.Fatalf("a process may open %d files (%v), %d are needed: raise it with ulimit -n %d", files.Cur, err, needed, needed)
	}
	_, simURL := startSim(t, moneysim.Faults{LatencyMs: 5})
	p := serve(t, "--data-dir", t.TempDir(), "--money-url", simURL)
	address := strings.TrimPrefix(p.address, "http://")
	idle := memory(t, p.cmd.Process.Pid, "VmRSS")

	var ids []string
	for range promotions {
		made, err := p.api.CreatePromotion(t.Context(), client.NewPromotion{Name: "watched", Type: "POINT", RatePerSecond: perSecond})
		if err != nil {
			t.Fatal(err)
		}
		read, write := io.Pipe()
		go func() {
			_, err := lab.WriteTargets(write, targets, false)
			_ = write.CloseWithError(err)
		}()
		if res, err := p.api.UploadTargets(t.Context(), made.ID, read, client.UploadOptions{}); err != nil || res.Accepted != targets {
			t.Fatalf("%+v, %v", res, err)
		}
		ids = append(ids, made.ID)
	}
	from, opens := time.Now().Add(-time.Minute), time.Now().Add(time.Minute)
	draw, err := p.api.CreateTemplate(t.Context(), client.NewTemplate{
		Name: "drawn", TotalQuantity: people, OpensAt: &opens, Draw: &client.NewDraw{From: from},
	})
	if err != nil {
		t.Fatal(err)
	}
	for n := range people {
		if _, err := p.api.IssueCoupon(t.Context(), draw.ID, fmt.Sprint("u", n), 0); err != nil {
			t.Fatal(err)
		}
	}

	readers := make([]*reader, 0, watchers+people)
	for n := range watchers {
		readers = append(readers, &reader{path: "/v1/promotions/" + ids[n%promotions] + "/events"})
	}
	for n := range people {
		readers = append(readers, &reader{path: "/v1/issue-requests/" + url.PathEscape(fmt.Sprintf("%s:u%d", draw.ID, n)) + "/events"})
	}
	still := make([]*reader, stuck)
	for n := range still {
		still[n] = &reader{path: "/v1/promotions/" + ids[n%promotions] + "/events"}
		if err := still[n].connect(address, true); err != nil {
			t.Fatal(err)
		}
		defer still[n].conn.Close()
	}
	began := time.Now()
	var heard atomic.Int64
	var all, listening sync.WaitGroup
	places := make(chan struct{}, 200) // concurrent connects
	for n, r := range readers {
		listening.Add(1)
		last := "done"
		if n >= watchers {
			last = "result"
		}
		places <- struct{}{}
		all.Go(func() {
			once := sync.OnceFunc(func() {
				<-places
				listening.Done()
			})
			defer once()
			if r.err = r.connect(address, false); r.err != nil {
				return
			}
			defer r.conn.Close()
			r.read(last, func() { heard.Add(1); once() })
		})
	}
	listening.Wait()
	t.Logf("%d of %d listen after %.1f s; %d MB, %d MB before", heard.Load(), len(readers), time.Since(began).Seconds(), memory(t, p.cmd.Process.Pid, "VmRSS")/1e6, idle/1e6)
	for _, id := range ids {
		if _, err := p.api.StartPromotion(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	began = time.Now()
	ended := make(chan struct{})
	go func() {
		all.Wait()
		close(ended)
	}()
	for waiting := true; waiting; {
		select {
		case <-ended:
			waiting = false
		case <-time.After(5 * time.Second):
			t.Logf("%.0f s: %d MB", time.Since(began).Seconds(), memory(t, p.cmd.Process.Pid, "VmRSS")/1e6)
			if time.Since(began) > 2*fixture.Patience {
				t.Fatal("not all have heard the end")
			}
		}
	}
	peak := memory(t, p.cmd.Process.Pid, "VmHWM")
	t.Logf("all have ended after %.1f s; at most %d MB", time.Since(began).Seconds(), peak/1e6)
	if peak > most {
		t.Errorf("%d MB at the peak, above %d", peak/1e6, most/1_000_000)
	}
	var lost, fewest, total int
	var gap time.Duration
	fewest = 1 << 30
	for n, r := range readers {
		if !r.ended {
			if lost++; lost <= 5 {
				t.Errorf("%s did not hear the end: %v", r.path, r.err)
			}
		}
		if n < watchers {
			fewest, total, gap = min(fewest, r.events), total+r.events, max(gap, r.gap)
		}
	}
	t.Logf("%d events to who watches promotions, at least %d to each; the longest pause %s", total, fewest, gap)
	if lost > 0 {
		t.Errorf("%d did not hear the end", lost)
	}
	if fewest < targets/perSecond/2 || gap > 10*time.Second {
		t.Errorf("somebody has heard only %d events, with a pause of %s", fewest, gap)
	}
	for n, r := range still {
		if r.read("done", func() {}); r.ended {
			t.Errorf("reader %d stalled and still got %d events", n, r.events)
		}
	}
}
