//go:build ci

package test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/money/moneysim"
)

// endless is a file of targets without an end, until it is closed.
type endless struct {
	next  int
	lines []byte
	over  atomic.Bool
}

func (e *endless) Read(p []byte) (int, error) {
	if e.over.Load() {
		return 0, io.EOF
	}
	for len(e.lines) < len(p) {
		if e.next == 0 {
			e.lines = append(e.lines, "targetId,userId,amount\n"...)
		}
		e.next++
		e.lines = fmt.Appendf(e.lines, "%d,u%d,5\n", e.next, e.next)
	}
	n := copy(p, e.lines)
	e.lines = e.lines[n:]
	return n, nil
}

// TestAnEndlessUploadHoldsNoPayoutUp pays a promotion while somebody uploads targets
// without an end into another one.
func TestAnEndlessUploadHoldsNoPayoutUp(t *testing.T) {
	t.Parallel()
	r := newRig(t, servers, moneysim.Faults{LatencyMs: 5})
	made := fixture.Must(r.api.CreatePromotion(t.Context(), client.NewPromotion{Name: "endless", Type: "POINT"}))(t)
	file := &endless{}
	type uploaded struct {
		result client.UploadResult
		err    error
	}
	ended := make(chan uploaded, 1)
	var interrupted atomic.Int64
	go func() {
		for {
			result, err := r.api.UploadTargets(t.Context(), made.ID, file, client.UploadOptions{})
			if p, ok := errors.AsType[*client.Problem](err); ok && p.Code == "UPLOAD_INTERRUPTED" {
				interrupted.Add(1) // the database of a busy machine took too long: repeat it, as the error says
				continue
			}
			ended <- uploaded{result, err}
			return
		}
	}()
	r.until(made.ID, "begun", func(now client.Promotion) bool { return now.TotalCount > 0 })
	id, workload := r.create(200, false, client.NewPromotion{})
	r.balance(id, workload)
	before := r.until(made.ID, "begun", func(client.Promotion) bool { return true }).TotalCount
	file.over.Store(true)
	last := <-ended
	if last.err != nil {
		t.Fatalf("the upload ended with %+v, %v", last.result, last.err)
	}
	now := r.until(made.ID, "counted", func(now client.Promotion) bool { return now.TotalCount >= max(before, last.result.Accepted) })
	if interrupted.Load() == 0 && now.TotalCount != last.result.Accepted || now.Counts.Ready != now.TotalCount {
		t.Errorf("%d of %d targets are ready, %d were accepted", now.Counts.Ready, now.TotalCount, last.result.Accepted)
	}
}

// wideLines is NDJSON of lines of 430 bytes, of targets from 1.
type wideLines struct {
	next, whole int64 // the target of the next line, and those handed out whole
	line        []byte
}

func (w *wideLines) Read(p []byte) (int, error) {
	n := 0
	for n < len(p) {
		if len(w.line) == 0 {
			w.next++
			w.line = fmt.Appendf(nil, `{"targetId":%d,"userId":"%0255d","amount":7}`, w.next, w.next)
			w.line = append(w.line, bytes.Repeat([]byte{' '}, 429-len(w.line))...)
			w.line = append(w.line, '\n')
		}
		m := copy(p[n:], w.line)
		if w.line = w.line[m:]; len(w.line) == 0 {
			w.whole++
		}
		n += m
	}
	return n, nil
}

// TestAnUploadIsCut cuts an upload that was announced as 10 GB: what came before the cut is
// in. A sender that disappears leaves nothing open either.
func TestAnUploadIsCut(t *testing.T) {
	t.Parallel()
	r := newRig(t, embedded, moneysim.Faults{})
	begin := func() (promotion string, conn *net.TCPConn) {
		t.Helper()
		made := fixture.Must(r.api.CreatePromotion(t.Context(), client.NewPromotion{Name: "cut", Type: "POINT", Amount: 5}))(t)
		dialed := fixture.Must(net.Dial("tcp", r.engine.Addr()))(t)
		t.Cleanup(func() { _ = dialed.Close() })
		fmt.Fprintf(dialed, "POST /v1/promotions/%s/targets HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-ndjson\r\nContent-Length: %d\r\n\r\n", made.ID, int64(10<<30))
		return made.ID, dialed.(*net.TCPConn)
	}
	id, conn := begin()
	var lines wideLines
	fixture.Must(io.CopyN(conn, &lines, 20_000_000))(t)
	fixture.OK(t, conn.CloseWrite())
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(res.Body)
	_ = res.Body.Close()
	if err != nil || res.StatusCode != http.StatusBadRequest || !strings.Contains(string(text), `"BODY_BROKEN"`) ||
		!strings.Contains(string(text), fmt.Sprintf("%d targets were accepted", lines.whole)) {
		t.Errorf("%d %s, %v", res.StatusCode, text, err)
	}
	p, err := r.api.Promotion(t.Context(), id)
	if err != nil || p.TotalCount != lines.whole || p.Counts.Ready != lines.whole || p.AmountTotal != 7*lines.whole {
		t.Errorf("%+v, %v, want %d", p, err, lines.whole)
	}

	id, conn = begin()
	fixture.Must(io.CopyN(conn, &wideLines{}, 1_000_000))(t)
	r.until(id, "begun", func(p client.Promotion) bool { return p.TotalCount > 0 })
	fixture.OK(t, conn.SetLinger(0))
	_ = conn.Close()
	fixture.Must(r.api.StartPromotion(t.Context(), id))(t)
	done := r.until(id, "completed", func(p client.Promotion) bool { return p.Status == "COMPLETED" })
	if done.Counts.Succeeded == 0 || done.Counts.Succeeded != done.TotalCount {
		t.Errorf("%+v", done)
	}
}
