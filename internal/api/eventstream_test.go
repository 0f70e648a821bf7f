package api

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/largesse/largesse/internal/auth"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/reward"
)

// What web promises of streams and stops.
const (
	readerWait = 10 * time.Second // how long a reader may make no progress
	stopWait   = 5 * time.Second  // how long a stop waits
)

// pipe is an answer whose connection can be taken over; the other end of it is
// remote.
type pipe struct {
	recorder
	local, remote net.Conn
}

func newPipe() *pipe {
	p := &pipe{recorder: recorder{done: make(chan struct{}), header: make(http.Header)}}
	p.local, p.remote = net.Pipe()
	return p
}

func (p *pipe) Hijack() (net.Conn, *bufio.ReadWriter, error) { return p.local, nil, nil }

// open begins a request whose connection can be taken over, and waits until it
// has been answered.
func (w *wire) open(t *testing.T, path string, headers ...string) *pipe {
	t.Helper()
	p := newPipe()
	req := httptest.NewRequestWithContext(t.Context(), "GET", path, nil)
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	w.api.ServeHTTP(p, req)
	return p
}

// hear reads from a stream until it has sent text.
func (p *pipe) hear(t *testing.T, text string) (all string) {
	t.Helper()
	buf := make([]byte, 1<<10)
	for !strings.Contains(all, text) {
		n, err := p.remote.Read(buf)
		if all += string(buf[:n]); err != nil {
			t.Fatalf("%v instead of %q after %q", err, text, all)
		}
	}
	return all
}

// wantEnd reads a stream to its end.
func (p *pipe) wantEnd(t *testing.T) string {
	t.Helper()
	rest, err := io.ReadAll(p.remote)
	if err != nil {
		t.Errorf("the stream ended with %v", err)
	}
	return string(rest)
}

// TestEventStreamTakesTheConnection: a stream lives without its request.
func TestEventStreamTakesTheConnection(t *testing.T) {
	t.Parallel()

	fixture.OnFakeTime(t, "TellsAllItWouldHaveTold", func(t *testing.T) {
		w := promotionWire(t, reward.Running)
		p := w.open(t, promotionEvents, "X-Request-Id", "r-1")
		head, rest, _ := strings.Cut(p.hear(t, "RUNNING"), "\r\n\r\n")
		status, fields, _ := strings.Cut(head, "\r\n")
		for _, want := range []string{
			"Content-Type: text/event-stream", "Cache-Control: no-store", "X-Request-Id: r-1", "X-Content-Type-Options: nosniff", "Connection: close", "Date: Sat, 01 Jan 2000",
		} {
			if !strings.Contains(fields, want) {
				t.Errorf("no %q in %q", want, fields)
			}
		}
		if status != "HTTP/1.1 200 OK" || !strings.HasPrefix(rest, "retry: 2000\n\n") {
			t.Errorf("%q, %q", status, rest)
		}
		w.paid(1)
		p.hear(t, "event: progress")
		w.become(reward.Completed)
		if rest := p.wantEnd(t); !strings.Contains(rest, "event: done") {
			t.Errorf("the end: %q", rest)
		}
		w.wantNobody(t)
		w.wantNoStreams(t)
	})

	fixture.OnFakeTime(t, "WhoNeverReadsIsDropped", func(t *testing.T) {
		w := promotionWire(t, reward.Running)
		stuck, other := w.open(t, promotionEvents), w.open(t, promotionEvents)
		other.hear(t, "RUNNING")
		time.Sleep(readerWait - time.Second)
		if n := w.watchers(); n != 2 {
			t.Errorf("%d watch before the time is over", n)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if n := w.watchers(); n != 1 {
			t.Errorf("%d watch after it", n)
		}
		if heard := stuck.wantEnd(t); strings.Contains(heard, "event") {
			t.Errorf("it heard %q", heard)
		}
		w.become(reward.Completed)
		other.wantEnd(t)
		w.wantNobody(t)
		w.wantNoStreams(t)
	})

	fixture.OnFakeTime(t, "WhoLeavesIsForgottenAtOnce", func(t *testing.T) {
		w := promotionWire(t, reward.Running)
		p := w.open(t, promotionEvents)
		p.hear(t, "RUNNING")
		fixture.OK(t, p.remote.Close())
		synctest.Wait()
		if w.watchers() != 0 {
			t.Error("it still gets events")
		}
		w.wantNobody(t)
		w.wantNoStreams(t)
	})

	fixture.OnFakeTime(t, "WhoTalksTooMuchIsDropped", func(t *testing.T) {
		w := promotionWire(t, reward.Running)
		p := w.open(t, promotionEvents)
		p.hear(t, "RUNNING")
		if _, err := p.remote.Write([]byte("\r\n")); err != nil {
			t.Errorf("a little: %v", err)
		}
		if _, err := p.remote.Write(make([]byte, 10*(4<<10))); err == nil {
			t.Error("all of it was read")
		}
		w.wantNobody(t)
		w.wantNoStreams(t)
	})

	fixture.OnFakeTime(t, "WhoseKeyIsRevokedIsDropped", func(t *testing.T) {
		w := promotionWire(t, reward.Running)
		badge := &revocable{}
		w.api.cfg.Verifier = badge
		p := w.open(t, promotionEvents, "Authorization", "Bearer lgs_k")
		p.hear(t, "RUNNING")
		go func() { _, _ = io.Copy(io.Discard, p.remote) }() // it continues reading
		time.Sleep(time.Minute)
		if w.watchers() != 1 {
			t.Error("it ended before")
		}
		badge.revoke()
		time.Sleep(keyRecheckInterval + progressInterval)
		synctest.Wait()
		if w.watchers() != 0 {
			t.Error("it still gets events")
		}
		w.wantNobody(t)
		w.wantNoStreams(t)
	})

	fixture.OnFakeTime(t, "AStopWaitsForThemAndThenCuts", func(t *testing.T) {
		w := promotionWire(t, reward.Running)
		polite, stuck := w.open(t, promotionEvents), w.open(t, promotionEvents)
		polite.hear(t, "RUNNING")
		w.api.Drain()
		polite.wantEnd(t)
		ctx, cancel := context.WithTimeout(t.Context(), stopWait)
		defer cancel()
		began := time.Now()
		w.api.CloseStreams(ctx)
		if took := time.Since(began); took != stopWait {
			t.Errorf("it took %s", took)
		}
		stuck.wantEnd(t)
		w.wantNobody(t)
		w.wantNoStreams(t)
		w.api.CloseStreams(ctx) // there is nothing to wait for
	})
}

func (w *wire) watchers() int {
	n, _, _ := w.api.progress.standing()
	return n
}

// wantNoStreams fails when a stream has not ended.
func (w *wire) wantNoStreams(t *testing.T) {
	t.Helper()
	synctest.Wait()
	if streams, conns := w.api.OpenStreams(); streams != 0 || conns != 0 {
		t.Errorf("%d streams, %d connections", streams, conns)
	}
}

// revocable lets everybody in until it does not.
type revocable struct {
	mu   sync.Mutex // protects over
	over bool
}

func (r *revocable) revoke() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.over = true
}

func (r *revocable) Verify(context.Context, string) (auth.Principal, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over {
		return auth.Principal{}, auth.ErrUnauthenticated
	}
	return auth.Principal{Name: "reader", Role: auth.RoleViewer}, nil
}
