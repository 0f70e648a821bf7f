//go:build ci

package test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/lab"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/money/moneysim"
	"github.com/largesse/largesse/internal/reward"
)

// TestKilledInTheMiddle: embedded, ended with SIGKILL again and again, started
// again on the same folder: the promotion finishes, everybody is paid once.
func TestKilledInTheMiddle(t *testing.T) {
	t.Parallel()
	sim, simURL := startSim(t, moneysim.Faults{LatencyMs: 20, JitterMs: 10, ErrorRate: 0.02, LostReplyRate: 0.01})
	args := []string{
		"--data-dir", t.TempDir(), "--money-url", simURL,
		"--money-timeout", "1s", "--money-settle-after", "1s", "--redis-stream-lease-seconds", "3",
		"--redis-stream-in-flight-per-consumer", "16",
	}
	p := serve(t, args...)
	r := rigOf(t, p, simURL)
	id, workload := r.create(2000, true, client.NewPromotion{RatePerSecond: 600})
	for _, share := range []int64{200, 800, 1400} {
		r.until(id, "under way", func(p client.Promotion) bool { return p.Counts.Succeeded > share })
		p.kill(t)
		p = serve(t, args...)
		r.api = p.api
	}
	r.balance(id, workload)
	if n := sim.MaxChargesPerKey(); n != 1 {
		t.Errorf("a key was charged %d times", n)
	}
}

// TestKilledWhileUploading: the rows before the cut are in, the same file again
// completes it, and no target is charged twice.
func TestKilledWhileUploading(t *testing.T) {
	t.Parallel()
	_, simURL := startSim(t, moneysim.Faults{})
	args := []string{"--data-dir", t.TempDir(), "--money-url", simURL}
	p := serve(t, args...)
	var file bytes.Buffer
	workload := fixture.Must(lab.WriteTargets(&file, 6000, false))(t)
	made := fixture.Must(p.api.CreatePromotion(t.Context(), client.NewPromotion{Name: "cut", Type: "POINT"}))(t)
	lines := file.String()
	cut := newStall(lines[:len(lines)/2])
	failed := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		_, err := p.api.UploadTargets(ctx, made.ID, cut, client.UploadOptions{})
		failed <- err
	}()
	r := rigOf(t, p, simURL)
	before := r.until(made.ID, "half uploaded", func(p client.Promotion) bool { return p.TotalCount > 0 }).TotalCount
	p.kill(t)
	close(cut.end)
	if err := <-failed; err == nil {
		t.Fatal("the upload succeeded although the server died")
	}
	p = serve(t, args...)
	r.api = p.api
	res, err := p.api.UploadTargets(t.Context(), made.ID, strings.NewReader(lines), client.UploadOptions{})
	if err != nil || res.Accepted+res.Duplicates != 6000 || res.Duplicates < before {
		t.Fatalf("the same file again: %+v, %v", res, err)
	}
	fixture.Must(p.api.StartPromotion(t.Context(), made.ID))(t)
	r.balance(made.ID, workload)
}

// stall gives a text and then holds the reader until its end is closed.
type stall struct {
	text *strings.Reader
	end  chan struct{}
}

func newStall(s string) *stall { return &stall{strings.NewReader(s), make(chan struct{})} }

func (s *stall) Read(p []byte) (int, error) {
	n, err := s.text.Read(p)
	if n == 0 {
		<-s.end
	}
	return n, err
}

// TestASecondSignalLeavesAtOnce: a second signal ends the process without waiting
// for calls in flight; the next instance pays the pending payouts, once.
func TestASecondSignalLeavesAtOnce(t *testing.T) {
	t.Parallel()
	sim, simURL := startSim(t, moneysim.Faults{LatencyMs: 30_000})
	args := []string{"--data-dir", t.TempDir(), "--money-url", simURL, "--money-timeout", "40s", "--redis-stream-lease-seconds", "60", "--money-settle-after", "1s"}
	p := serve(t, args...)
	r := rigOf(t, p, simURL)
	id, workload := r.create(20, false, client.NewPromotion{})
	fixture.Until(t, "a call came", func() bool { return sim.Stats().Requests > 0 })
	ended := make(chan struct{})
	go func() {
		_ = p.cmd.Wait() // it says that a signal ended it
		close(ended)
	}()
	fixture.Until(t, "the program has ended", func() bool {
		select {
		case <-ended:
			return true
		default:
			_ = p.cmd.Process.Signal(os.Interrupt) // those of the first 200 ms count as one
			return false
		}
	})
	if status := p.cmd.ProcessState.Sys().(syscall.WaitStatus); !status.Signaled() {
		t.Errorf("the program ended with %v after an orderly end, want at once by the signal", p.cmd.ProcessState)
	}
	fixture.OK(t, sim.SetFaults(moneysim.Faults{}))
	p = serve(t, args...)
	r.api = p.api
	checkCharges(t, sim, r.balance(id, workload))
}

// TestKilledWhileImportingCodes: a process that dies during an import has imported
// nothing, and the same file again is imported whole.
func TestKilledWhileImportingCodes(t *testing.T) {
	t.Parallel()
	const codes = 20_000
	_, simURL := startSim(t, moneysim.Faults{})
	args := []string{"--data-dir", t.TempDir(), "--money-url", simURL}
	p := serve(t, args...)
	made := fixture.Must(p.api.CreateTemplate(t.Context(), client.NewTemplate{Name: "codes", TotalQuantity: codes}))(t)
	half, end := make(chan struct{}), make(chan struct{})
	failed := make(chan error, 1)
	go func() {
		_, err := p.api.ImportCodes(t.Context(), made.ID, &codeFile{n: codes, rest: codes / 4, pause: func() {
			close(half)
			<-end
		}}, client.ImportOptions{})
		failed <- err
	}()
	<-half
	p.kill(t)
	close(end)
	if err := <-failed; err == nil {
		t.Fatal("the import succeeded although the server died")
	}
	p = serve(t, args...)
	if stands, err := p.api.Template(t.Context(), made.ID); err != nil || stands.ImportedCodes != nil {
		t.Fatalf("after the crash: %+v, %v", stands, err)
	}
	res, err := p.api.ImportCodes(t.Context(), made.ID, &codeFile{n: codes}, client.ImportOptions{})
	if err != nil || res.Accepted != codes {
		t.Fatalf("the same file again: %+v, %v", res, err)
	}
	givesCodes(t, p.api, made.ID, 0, 3)
	p.kill(t)
	p = serve(t, args...)
	givesCodes(t, p.api, made.ID, 3, 3)
	var refused *client.Problem
	if _, err := p.api.ImportCodes(t.Context(), made.ID, &codeFile{n: 1}, client.ImportOptions{}); !errors.As(err, &refused) || refused.Code != reward.CodeBadCodes {
		t.Errorf("a code that is known: %v", err)
	}
}
