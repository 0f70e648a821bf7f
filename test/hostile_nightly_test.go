//go:build nightly

package test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/money/moneysim"
)

// memoryAllowed is what callers may make an instance take above what it has when
// it is idle, in bytes, and memoryOfConnection what one of very many may, who
// does nothing.
const (
	memoryAllowed      = 200 << 20
	memoryOfConnection = 32 << 10
)

// besieged is an instance in a process of its own that callers abuse while
// others go on.
type besieged struct {
	*process
	t     *testing.T
	idle  int64 // bytes it has before
	addr  string
	conns sync.WaitGroup // the abusers
}

func newBesieged(t *testing.T) *besieged {
	t.Helper()
	_, simURL := startSim(t, moneysim.Faults{})
	b := &besieged{t: t, process: serve(t, "--data-dir", t.TempDir(), "--money-url", simURL)}
	b.addr = strings.TrimPrefix(b.address, "http://")
	for range 20 { // what is made once is there then
		b.promotion("POINT")
	}
	b.settle()
	return b
}

// keptWithin requires that the greatest memory so far was not that much above
// idle.
func (b *besieged) keptWithin(allowed int64) {
	b.t.Helper()
	above := memory(b.t, b.cmd.Process.Pid, "VmHWM") - b.idle
	b.t.Logf("idle %d MiB, at most %d MiB above that", b.idle>>20, above>>20)
	if above > allowed {
		b.t.Errorf("%d MiB above idle, %d are allowed", above>>20, allowed>>20)
	}
}

func (b *besieged) promotion(kind string) string {
	b.t.Helper()
	made, err := b.api.CreatePromotion(b.t.Context(), client.NewPromotion{Name: "besieged", Type: kind, Amount: 5})
	if err != nil {
		b.t.Fatal(err)
	}
	return made.ID
}

func (b *besieged) dial() net.Conn {
	b.t.Helper()
	conn, err := net.Dial("tcp", b.addr)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// upload begins an upload, announced with so many bytes, and returns where its
// body goes. headers end with a line end each.
func (b *besieged) upload(promotion, media string, announced int64, headers string) net.Conn {
	b.t.Helper()
	conn := b.dial()
	if _, err := fmt.Fprintf(conn, "POST /v1/promotions/%s/targets HTTP/1.1\r\nHost: localhost\r\nContent-Type: %s\r\nContent-Length: %d\r\n%s\r\n",
		promotion, media, announced, headers); err != nil {
		b.t.Fatal(err)
	}
	return conn
}

// answered reads one answer.
func answered(t *testing.T, conn net.Conn) (int, string) {
	t.Helper()
	if err := conn.SetReadDeadline(time.Now().Add(fixture.Patience)); err != nil {
		t.Fatal(err)
	}
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatalf("no answer: %v", err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatalf("half an answer: %v", err)
	}
	return res.StatusCode, string(text)
}

// othersWithin is how long others may wait for an answer meanwhile, on a machine
// that the abusers keep busy too.
const othersWithin = 5 * time.Second

// others does what others do, until the returned function is called: that all of
// it is answered is required then.
func (b *besieged) others() (end func()) {
	ctx, cancel := context.WithCancel(b.t.Context())
	var working sync.WaitGroup
	var mu sync.Mutex // protects what follows
	var took []time.Duration
	var failed error
	for range 4 {
		transport := &http.Transport{}
		api, err := client.New(b.address, client.Options{Transport: transport})
		if err != nil {
			b.t.Fatal(err)
		}
		working.Go(func() {
			defer transport.CloseIdleConnections()
			for n := 0; ctx.Err() == nil; n++ {
				began := time.Now()
				made, err := api.CreatePromotion(ctx, client.NewPromotion{Name: "other", Type: "POINT", Amount: 5})
				if err == nil {
					_, err = api.Promotion(ctx, made.ID)
				}
				if n%10 == 0 { // somebody new
					transport.CloseIdleConnections()
				}
				if ctx.Err() != nil {
					return
				}
				mu.Lock()
				took = append(took, time.Since(began)/2)
				if err != nil && failed == nil {
					failed = err
				}
				mu.Unlock()
				time.Sleep(20 * time.Millisecond) // no client sends without pause
			}
		})
	}
	return func() {
		b.t.Helper()
		cancel()
		working.Wait()
		if len(took) == 0 || failed != nil {
			b.t.Fatalf("%d others, %v", len(took), failed)
		}
		slices.Sort(took)
		most := took[len(took)-1]
		b.t.Logf("%d others: half within %s, 99%% within %s, all within %s", len(took), took[len(took)/2], took[len(took)*99/100], most)
		if most > othersWithin {
			b.t.Errorf("somebody else waited for %s", most)
		}
	}
}

// zipped is text as a member of a gzip file; members follow each other.
func zipped(t *testing.T, text ...[]byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range text {
		if _, err := w.Write(part); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// TestNightlyGzipBombs: 10 GB of zeros are one line that is too long, and 10 GB of good
// lines are as many targets as come before the cut.
func TestNightlyGzipBombs(t *testing.T) {
	const gib = 1 << 30

	t.Run("OfZeros", func(t *testing.T) {
		b := newBesieged(t)
		end := b.others()
		id := b.promotion("POINT")
		zeros := zipped(t, slices.Repeat([][]byte{bytes.Repeat([]byte{'0'}, 1<<20)}, gib>>20)...)
		head, tail := zipped(t, []byte("targetId\n")), zipped(t, []byte("\n7\n"))
		conn := b.upload(id, "text/csv", int64(len(head)+10*len(zeros)+len(tail)), "Content-Encoding: gzip\r\n")
		began := time.Now()
		for _, part := range slices.Concat([][]byte{head}, slices.Repeat([][]byte{zeros}, 10), [][]byte{tail}) {
			if _, err := conn.Write(part); err != nil {
				t.Fatal(err)
			}
		}
		status, text := answered(t, conn)
		t.Logf("10 GiB out of %d KiB in %.1f s", 10*len(zeros)>>10, time.Since(began).Seconds())
		if status != http.StatusOK || !strings.Contains(text, `"accepted":1,`) || !strings.Contains(text, `"rejected":1,`) || !strings.Contains(text, "LINE_TOO_LONG") {
			t.Errorf("%d %s", status, text)
		}
		end()
		b.keptWithin(memoryAllowed)
	})

	t.Run("OfGoodLines", func(t *testing.T) {
		b := newBesieged(t)
		end := b.others()
		id := b.promotion("POINT")
		// 10 GiB would be more than 900 million lines; what comes in 8 s is enough.
		conn := b.upload(id, "text/csv", 10<<30, "Content-Encoding: gzip\r\n")
		if _, err := conn.Write(zipped(t, []byte("targetId\n"))); err != nil {
			t.Fatal(err)
		}
		stop := time.Now().Add(8 * time.Second)
		if err := conn.SetWriteDeadline(stop); err != nil {
			t.Fatal(err)
		}
		for next := 0; time.Now().Before(stop); {
			var lines bytes.Buffer
			for range 100_000 {
				lines.WriteString(strconv.Itoa(next) + "\n")
				next++
			}
			if _, err := conn.Write(zipped(t, lines.Bytes())); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Fatal(err)
			}
		}
		if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		status, text := answered(t, conn)
		p, err := b.api.Promotion(t.Context(), id)
		if err != nil || status != http.StatusBadRequest || !strings.Contains(text, fmt.Sprintf("%d targets were accepted", p.TotalCount)) || p.TotalCount < 1000 {
			t.Errorf("%d %s, %+v, %v", status, text, p, err)
		}
		t.Logf("%d lines", p.TotalCount)
		end()
		b.keptWithin(memoryAllowed)
	})
}

// abuse opens a connection, sends a text, does something with it, and notes
// that the server has ended it.
func (b *besieged) abuse(ended *atomic.Int64, sent string, then func(conn net.Conn)) {
	conn, err := net.Dial("tcp", b.addr)
	if err != nil {
		b.t.Error(err)
		return
	}
	b.conns.Go(func() {
		defer conn.Close()
		if _, err := io.WriteString(conn, sent); err == nil {
			then(conn)
		}
		ended.Add(1)
	})
}

// drips sends a text byte by byte until the server stops reading.
func drips(text string) func(net.Conn) {
	return func(conn net.Conn) {
		for i := 0; ; i++ {
			if _, err := conn.Write([]byte{text[i%len(text)]}); err != nil {
				return
			}
			time.Sleep(time.Second) // what makes it slow
		}
	}
}

// TestNightlySlowLoris: clients that send or read as slowly as possible are all cut, and
// cost little until then.
func TestNightlySlowLoris(t *testing.T) {
	t.Parallel()
	b := newBesieged(t)
	id, big := b.promotion("POINT"), b.promotion("POINT")
	var file bytes.Buffer
	file.WriteString("targetId,userId\n")
	for i := range 100_000 {
		fmt.Fprintf(&file, "%d,%0250d\n", i, i)
	}
	if _, err := b.api.UploadTargets(t.Context(), big, &file, client.UploadOptions{}); err != nil {
		t.Fatal(err)
	}
	b.settle()
	end := b.others()
	var ended atomic.Int64
	began := time.Now()
	const each = 300
	for range each {
		b.abuse(&ended, "", drips("GET /v1/promotions HTTP/1.1\r\nHost: localhost\r\nX-A: b"))
		b.abuse(&ended, "POST /v1/promotions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 60000\r\n\r\n", drips(`{"name":"x"`))
		b.abuse(&ended, "POST /v1/promotions/"+id+"/start HTTP/1.1\r\nHost: localhost\r\nContent-Length: 60000\r\n\r\n", drips(`x`))
		b.abuse(&ended, "POST /v1/promotions/"+id+"/targets HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/csv\r\nTransfer-Encoding: chunked\r\n\r\n9\r\ntargetId\n\r\n", drips("2\r\n1\n\r\n"))
		b.abuse(&ended, "GET /v1/promotions/"+big+"/payouts HTTP/1.1\r\nHost: localhost\r\nLargesse-Actor: abuser\r\nAccept: text/csv\r\n\r\n", func(conn net.Conn) {
			if err := conn.(*net.TCPConn).SetReadBuffer(4 << 10); err != nil {
				b.t.Error(err)
			}
			// The client sees that a connection was cut when it writes.
			drips("x")(conn)
		})
		b.abuse(&ended, "GET /v1/promotions/"+big+"/payouts?limit=1000 HTTP/1.1\r\nHost: localhost\r\nLargesse-Actor: abuser\r\n\r\n", func(conn net.Conn) {
			if err := conn.(*net.TCPConn).SetReadBuffer(4 << 10); err != nil {
				b.t.Error(err)
			}
			drips("x")(conn)
		})
	}
	fixture.Until(t, "all are cut", func() bool { return ended.Load() == 6*each })
	t.Logf("%d were cut, the last after %s", ended.Load(), time.Since(began).Round(time.Second))
	end()
	b.keptWithin(memoryAllowed)
}

// settle takes what the instance has now for what it has when idle.
func (b *besieged) settle() {
	b.t.Helper()
	b.idle = memory(b.t, b.cmd.Process.Pid, "VmRSS")
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", b.cmd.Process.Pid), []byte("5"), 0o600); err != nil {
		b.t.Fatal(err)
	}
}

// TestNightlyTenThousandConnections: half of them say nothing more after an answer, the
// other half begin a request and do not end it.
func TestNightlyTenThousandConnections(t *testing.T) {
	b := newBesieged(t)
	end := b.others()
	var ended atomic.Int64
	began := time.Now()
	for range 5000 {
		b.abuse(&ended, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", func(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) })
		b.abuse(&ended, "GET /healthz HTTP/1.1\r\nHost: loc", func(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) })
	}
	t.Logf("10,000 connections in %s", time.Since(began))
	fixture.Until(t, "the clients that did not end their request are cut", func() bool { return ended.Load() >= 5000 })
	if ended.Load() > 5000 {
		t.Errorf("%d were cut, 5000 of them have done nothing wrong", ended.Load())
	}
	end()
	b.keptWithin(10_000 * memoryOfConnection)
	b.kill(t)
	b.conns.Wait()
}

// TestNightlyFloods: headers and bodies that are too much, as fast as they go, and as
// many as they may be at once.
func TestNightlyFloods(t *testing.T) {
	var many strings.Builder
	for i := range 90 { // as many as may be, and as long
		fmt.Fprintf(&many, "%d: %0160d\r\n", i, i)
	}
	const head = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
	json := func(body string) string {
		return fmt.Sprintf("POST /v1/promotions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	}
	for name, sent := range map[string]string{
		"BigHeader":   head + "X-A: " + strings.Repeat("x", 1<<20),
		"ManyHeaders": head + strings.Repeat(many.String(), 10),
		"LongURL":     "GET /v1/promotions?cursor=" + strings.Repeat("x", 1<<20) + " HTTP/1.1\r\nHost: localhost\r\n\r\n",
		"HugeJSON":    json(`{"name":"` + strings.Repeat("x", 10<<20) + `"}`),
		"DeepJSON":    json(strings.Repeat("[", 60_000)),
		"WideJSON":    json("[" + strings.Repeat("{},", 20_000) + "{}]"),
	} {
		t.Run(name, func(t *testing.T) {
			b := newBesieged(t)
			end := b.others()
			var ended atomic.Int64
			stop := time.Now().Add(5 * time.Second)
			for range 100 {
				b.conns.Go(func() {
					for time.Now().Before(stop) {
						conn, err := net.Dial("tcp", b.addr)
						if err != nil {
							b.t.Error(err)
							return
						}
						go func() { _, _ = io.WriteString(conn, sent) }() // it is cut before it has sent all
						line, _ := bufio.NewReader(conn).ReadString('\n') // an end without an answer is one too
						if line != "" && !strings.HasPrefix(line, "HTTP/1.1 4") {
							b.t.Errorf("%q", line)
						}
						_ = conn.Close()
						ended.Add(1)
					}
				})
			}
			b.conns.Wait()
			t.Logf("%d in 5 s", ended.Load())
			end()
			b.keptWithin(memoryAllowed)
		})
	}

	t.Run("HeadersHeld", func(t *testing.T) {
		b := newBesieged(t)
		end := b.others()
		var ended atomic.Int64
		for range 1000 {
			b.abuse(&ended, head+many.String(), func(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) })
		}
		b.conns.Wait()
		end()
		b.keptWithin(memoryAllowed)
	})
}
