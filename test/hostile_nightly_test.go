//go:build nightly

package test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
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
// it is idle, in bytes.
const memoryAllowed = 200 << 20

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
	return fixture.Must(b.api.CreatePromotion(b.t.Context(), client.NewPromotion{Name: "besieged", Type: kind, Amount: 5}))(b.t).ID
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
	fixture.Must(b.api.UploadTargets(t.Context(), big, &file, client.UploadOptions{}))(t)
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
	fixture.OK(b.t, os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", b.cmd.Process.Pid), []byte("5"), 0o600))
}
