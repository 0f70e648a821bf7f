package web

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

func TestSlowReaders(t *testing.T) {
	t.Parallel()
	b := setup(t)
	limits := Limits{Write: 2 * time.Second}
	b.serveHTTP(t, limits)
	ended := make(chan error, 1)
	b.api.Handle("alive", "GET /endless", func(w http.ResponseWriter, r *http.Request) {
		page := bytes.Repeat([]byte{'x'}, 1<<20)
		for {
			if _, err := w.Write(page); err != nil {
				ended <- errors.Join(err, r.Context().Err())
				panic(http.ErrAbortHandler)
			}
		}
	})
	const big = 24 << 20
	b.api.Handle("alive", "GET /big", func(w http.ResponseWriter, _ *http.Request) {
		page := bytes.Repeat([]byte{'x'}, 1<<20)
		for range big >> 20 {
			if _, err := w.Write(page); err != nil {
				panic(http.ErrAbortHandler)
			}
		}
	})

	t.Run("WhoNeverReadsIsCut", func(t *testing.T) {
		t.Parallel()
		conn := b.raw(t, "GET /endless HTTP/1.1\r\nHost: localhost\r\n\r\n")
		b.others(t)
		select {
		case err := <-ended:
			if !errors.Is(err, os.ErrDeadlineExceeded) || !errors.Is(err, context.Canceled) {
				t.Errorf("ended by %v", err)
			}
		case <-time.After(patient):
			t.Fatal("it writes for ever")
		}
		res, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err == nil {
			_, err = io.Copy(io.Discard, res.Body)
			_ = res.Body.Close()
		}
		if err == nil {
			t.Error("a cut answer looks like a whole one")
		}
	})

	t.Run("WhoReadsSlowlyIsServed", func(t *testing.T) {
		t.Parallel()
		conn := b.raw(t, "GET /big HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
		res, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		began, got := time.Now(), int64(0)
		for {
			n, err := io.CopyN(io.Discard, res.Body, 512<<10)
			got += n
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatalf("after %d bytes: %v", got, err)
			}
			time.Sleep(100 * time.Millisecond) // what makes it slow
		}
		if took := time.Since(began); got != big || took < 2*limits.Write {
			t.Errorf("%d bytes in %s", got, took)
		}
	})
}

// TestAnExportThatNobodyReads checks that a stalled export ends, and that the client sees
// that it is incomplete.
func TestAnExportThatNobodyReads(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.serveHTTP(t, short)
	ended := make(chan error, 1)
	b.api.Handle("alive", "GET /export", func(w http.ResponseWriter, r *http.Request) {
		out := NewCSV(w, "x.csv", "name")
		var err error
		for err == nil {
			err = out.Page([][]string{{strings.Repeat("x", 100_000)}})
		}
		ended <- err
		b.api.EndCSV(out, r, err)
	})
	conn := b.raw(t, "GET /export HTTP/1.1\r\nHost: localhost\r\n\r\n")
	b.others(t)
	select {
	case err := <-ended:
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("ended by %v", err)
		}
	case <-time.After(patient):
		t.Fatal("it writes for ever")
	}
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err == nil {
		_, err = io.Copy(io.Discard, res.Body)
		_ = res.Body.Close()
	}
	if err == nil {
		t.Error("a cut export looks like a whole one")
	}
}

func TestConnectionsAreBounded(t *testing.T) {
	t.Parallel()
	b := setup(t)
	s := b.serveHTTP(t, Limits{Connections: 3})
	buffered := []net.Conn{b.raw(t, ""), b.raw(t, "GET / HT"), b.raw(t, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")}
	one := make([]byte, 1)
	if _, err := io.ReadFull(buffered[2], one); err != nil { // all three are in
		t.Fatal(err)
	}
	waiting := b.raw(t, "GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
	waitFor(t, func() bool { return strings.Contains(b.log.String(), "raise http.max-connections") })
	if err := waiting.SetReadDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if n, err := waiting.Read(one); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("a fourth one was admitted: %d, %v", n, err)
	}
	_ = buffered[0].Close()
	if err := waiting.SetReadDeadline(time.Now().Add(patient)); err != nil {
		t.Fatal(err)
	}
	if text, err := io.ReadAll(waiting); err != nil || !strings.HasPrefix(string(text), "HTTP/1.1 200") {
		t.Errorf("once there was a place: %q, %v", text, err)
	}
	// Where all places are taken, a stop does not wait for one.
	b.raw(t, "GET / HT")
	b.raw(t, "GET / HT")
	stopped := make(chan struct{})
	go func() { s.Stop(); close(stopped) }()
	select {
	case <-stopped:
	case <-time.After(drainTimeout + patient):
		t.Error("it does not stop")
	}
	if n := strings.Count(b.log.String(), "raise http.max-connections"); n != 1 {
		t.Errorf("it was said %d times", n)
	}
}

// TestManySlowReadersHaveLessTime each than one has.
func TestManySlowReadersHaveLessTime(t *testing.T) {
	t.Parallel()
	buffered := new(atomic.Int64)
	buffered.Store(heldMax)
	w := &deadlines{}
	paced := &pacedWriter{ResponseWriter: w, rc: http.NewResponseController(w), wait: time.Minute, buffered: buffered}
	if _, err := paced.Write(nil); err != nil || w.last < 59*time.Second {
		t.Errorf("%v, %s left", err, w.last)
	}
	if _, err := paced.Write([]byte("x")); err != nil || w.last > 2*time.Second || buffered.Load() != heldMax {
		t.Errorf("%v, %s left, %d held", err, w.last, buffered.Load())
	}
	paced.WriteHeader(http.StatusOK)
	if w.last < 59*time.Second {
		t.Errorf("%s left", w.last)
	}
}

// deadlines is a writer that notes how long it would be from now to its latest
// deadline.
type deadlines struct {
	http.ResponseWriter
	last time.Duration
}

func (d *deadlines) Write(b []byte) (int, error) { return len(b), nil }
func (d *deadlines) WriteHeader(int)             {}
func (d *deadlines) SetWriteDeadline(t time.Time) error {
	d.last = time.Until(t)
	return nil
}
