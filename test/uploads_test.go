//go:build ci

package test

import (
	"errors"
	"fmt"
	"io"
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
