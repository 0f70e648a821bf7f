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
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/largesse/largesse/internal/lab/fixture"
)

// partTimeout is the time that a client of these tests has to read a part of an answer.
const partTimeout = 2 * time.Second

// slowly runs a test of a slow client on fake time.
func slowly(t *testing.T, limits Limits, test func(t *testing.T, b *site, s *Server)) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newSite(t)
		limits.Write = partTimeout
		test(t, b, b.serve(t, ServerConfig{Limits: limits}, fixture.NewListener()))
	})
}

// wantCut checks that the client of an answer that it did not read sees that it is cut.
func wantCut(t *testing.T, conn net.Conn) {
	t.Helper()
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err == nil {
		_, err = io.Copy(io.Discard, res.Body)
		_ = res.Body.Close()
	}
	if err == nil {
		t.Error("a cut answer looks like a whole one")
	}
}

func TestSlowReaders(t *testing.T) {
	t.Parallel()
	write := func(w http.ResponseWriter, pages int) error {
		page := bytes.Repeat([]byte{'x'}, 1<<20)
		for range pages {
			if _, err := w.Write(page); err != nil {
				return err
			}
		}
		return nil
	}
	t.Run("WhoNeverReadsIsCut", func(t *testing.T) {
		slowly(t, Limits{}, func(t *testing.T, b *site, _ *Server) {
			ended := make(chan error, 1)
			b.api.Handle("alive", "GET /endless", func(w http.ResponseWriter, r *http.Request) {
				ended <- errors.Join(write(w, 1<<20), r.Context().Err())
				panic(http.ErrAbortHandler)
			})
			conn := b.raw(t, "GET /endless HTTP/1.1\r\nHost: localhost\r\n\r\n")
			b.others(t)
			if err := <-ended; !errors.Is(err, os.ErrDeadlineExceeded) || !errors.Is(err, context.Canceled) {
				t.Errorf("ended by %v", err)
			}
			wantCut(t, conn)
		})
	})
	t.Run("WhoReadsSlowlyIsServed", func(t *testing.T) {
		slowly(t, Limits{}, func(t *testing.T, b *site, _ *Server) {
			const big = 24 << 20
			b.api.Handle("alive", "GET /big", func(w http.ResponseWriter, _ *http.Request) {
				if write(w, big>>20) != nil {
					panic(http.ErrAbortHandler)
				}
			})
			conn := b.raw(t, "GET /big HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
			res, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			for got := int64(0); ; time.Sleep(partTimeout / 3) {
				n, err := io.CopyN(io.Discard, res.Body, 32<<10)
				if got += n; err == nil {
					continue
				}
				if !errors.Is(err, io.EOF) || got != big {
					t.Errorf("after %d bytes: %v", got, err)
				}
				return
			}
		})
	})
}

func TestSlowHeads(t *testing.T) {
	t.Parallel()
	for name, sent := range map[string]string{"Nothing": "", "Headers": "GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-A: "} {
		t.Run(name, func(t *testing.T) {
			slowly(t, Limits{Header: partTimeout}, func(t *testing.T, b *site, _ *Server) {
				began, conn := time.Now(), b.raw(t, sent)
				var sending sync.WaitGroup
				sending.Go(func() {
					for sent != "" {
						if _, err := io.WriteString(conn, "x"); err != nil {
							return
						}
						time.Sleep(partTimeout / 100)
					}
				})
				b.others(t)
				if heard, err := io.ReadAll(conn); err != nil || len(heard) > 0 || time.Since(began) != partTimeout {
					t.Errorf("after %v: %q, %v", time.Since(began), heard, err)
				}
				_ = conn.Close()
				sending.Wait()
			})
		})
	}
}

func TestConnectionsAreBounded(t *testing.T) {
	slowly(t, Limits{Connections: 3}, func(t *testing.T, b *site, s *Server) {
		const ask = "GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
		first := b.raw(t, "GET / HT")
		b.raw(t, "GET / HT")
		b.raw(t, "GET / HT")
		answered := make(chan string, 1)
		go func() {
			conn, err := b.dial(t.Context(), "", "")
			if err != nil {
				answered <- err.Error()
				return
			}
			defer conn.Close()
			_, _ = io.WriteString(conn, ask)
			text, _ := io.ReadAll(conn)
			answered <- string(text)
		}()
		time.Sleep(idleMin / 2) // until then, no connection gives way
		if len(answered) > 0 {
			t.Fatal("a fourth one was admitted")
		}
		_ = first.Close()
		if text := <-answered; !strings.HasPrefix(text, "HTTP/1.1 200") {
			t.Errorf("once there was a place: %q", text)
		}
		// Where all places are taken, a stop does not wait for one.
		b.raw(t, "GET / HT")
		s.Stop()
		if n := strings.Count(b.log.String(), "raise http.max-connections"); n != 1 {
			t.Errorf("it was said %d times", n)
		}
	})
}

// TestManySlowReadersHaveLessTime each than one has.
func TestManySlowReadersHaveLessTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		buffered := new(atomic.Int64)
		buffered.Store(heldMax)
		w := &deadlines{}
		paced := &pacedWriter{ResponseWriter: w, rc: http.NewResponseController(w), wait: time.Minute, buffered: buffered}
		if _, err := paced.Write(nil); err != nil || w.last != time.Minute {
			t.Errorf("%v, %s left", err, w.last)
		}
		if _, err := paced.Write([]byte("x")); err != nil || w.last != time.Minute/heldDivisor || buffered.Load() != heldMax {
			t.Errorf("%v, %s left, %d held", err, w.last, buffered.Load())
		}
		paced.WriteHeader(http.StatusOK)
		if w.last != time.Minute {
			t.Errorf("%s left", w.last)
		}
	})
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
