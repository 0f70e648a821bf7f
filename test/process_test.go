package test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/lab"
	"github.com/largesse/largesse/internal/money/moneysim"
)

// program builds the program once, without the race detector.
var program = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "largesse-test-")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "largesse")
	out, err := exec.Command("go", "build", "-o", path, "./cmd/largesse").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build the program: %w: %s", err, out)
	}
	return path, nil
})

// process is a running `largesse serve`.
type process struct {
	cmd     *exec.Cmd
	address string // of its API: http://host:port
	api     *client.Client
	stderr  *lockedBuffer
}

type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// serve starts the program and waits until it prints its address. Tests that need it
// are skipped with -short, because the program must be built first.
func serve(t *testing.T, args ...string) *process {
	t.Helper()
	if testing.Short() {
		t.Skip("builds the program and runs it as a process of its own")
	}
	path, err := program()
	if err != nil {
		t.Fatal(err)
	}
	return serveBinary(t, path, args...)
}

// serveBinary is serve for a program that was built another way.
func serveBinary(t *testing.T, path string, args ...string) *process {
	t.Helper()
	args = append([]string{"serve", "--output", "json", "--listen", "127.0.0.1:0", "--log-level", "warn"}, args...)
	p := &process{cmd: exec.Command(path, args...), stderr: &lockedBuffer{}}
	p.cmd.Stderr = p.stderr
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if p.cmd.ProcessState == nil {
			_ = p.cmd.Process.Kill()
			_ = p.cmd.Wait()
		}
		if t.Failed() {
			t.Log(p.stderr.String())
		}
	})
	var said struct{ Server string }
	if err := json.NewDecoder(bufio.NewReader(stdout)).Decode(&said); err != nil {
		t.Fatalf("the program did not say where it listens: %v: %s", err, p.stderr)
	}
	p.address = said.Server
	if p.api, err = client.New(said.Server, client.Options{}); err != nil {
		t.Fatal(err)
	}
	return p
}

// kill ends the process the hard way.
func (p *process) kill(t *testing.T) {
	t.Helper()
	if err := p.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = p.cmd.Wait() // says that it was killed
}

// rigOf looks at a process as the suite looks at an engine.
func rigOf(t *testing.T, p *process, simURL string) *rig {
	t.Helper()
	return &rig{t: t, simURL: simURL, api: p.api}
}

func startSim(t *testing.T, faults moneysim.Faults) (*moneysim.Server, string) {
	t.Helper()
	sim, err := moneysim.New(moneysim.Config{Faults: faults, Seed: 7})
	if err != nil {
		t.Fatal(err)
	}
	addr, err := sim.Start("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(sim.Close)
	return sim, "http://" + addr
}

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
	id, workload := r.create(5000, true, client.NewPromotion{})
	for _, share := range []int64{500, 2000, 3500} {
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
	workload, err := lab.WriteTargets(&file, 20_000, false)
	if err != nil {
		t.Fatal(err)
	}
	made, err := p.api.CreatePromotion(t.Context(), client.NewPromotion{Name: "cut", Type: "POINT"})
	if err != nil {
		t.Fatal(err)
	}
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
	r.until(made.ID, "half uploaded", func(p client.Promotion) bool { return p.TotalCount > 2000 })
	p.kill(t)
	close(cut.end)
	if err := <-failed; err == nil {
		t.Fatal("the upload succeeded although the server died")
	}
	p = serve(t, args...)
	r.api = p.api
	res, err := p.api.UploadTargets(t.Context(), made.ID, strings.NewReader(lines), client.UploadOptions{})
	if err != nil || res.Accepted+res.Duplicates != 20_000 || res.Duplicates < 2000 {
		t.Fatalf("the same file again: %+v, %v", res, err)
	}
	if _, err := p.api.StartPromotion(t.Context(), made.ID); err != nil {
		t.Fatal(err)
	}
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

// TestTerminatedGently: SIGTERM ends the process with 0 in time, with calls
// open.
func TestTerminatedGently(t *testing.T) {
	t.Parallel()
	_, simURL := startSim(t, moneysim.Faults{LatencyMs: 500})
	p := serve(t, "--data-dir", t.TempDir(), "--money-url", simURL)
	r := rigOf(t, p, simURL)
	id, _ := r.create(2000, false, client.NewPromotion{})
	r.until(id, "under way", func(p client.Promotion) bool { return p.Counts.Succeeded > 0 })
	if err := p.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- p.cmd.Wait() }()
	select {
	case err := <-done:
		if err != nil {
			t.Errorf("the program ended with %v: %s", err, p.stderr)
		}
	case <-time.After(20 * time.Second):
		t.Error("still running 20 s after the signal")
	}
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
	for wait := time.Now().Add(patience); sim.Stats().Requests == 0; time.Sleep(10 * time.Millisecond) { // polls a condition
		if time.Now().After(wait) {
			t.Fatal("no call came")
		}
	}
	began := time.Now()
	ended := make(chan struct{})
	go func() {
		_ = p.cmd.Wait() // it says that a signal ended it
		close(ended)
	}()
	for signals := 0; ; signals++ {
		select {
		case <-ended:
			if took := time.Since(began); took > 3*time.Second || signals < 2 {
				t.Errorf("it ended %v after the first of %d signals; want at once after the second", took, signals)
			}
			if err := sim.SetFaults(moneysim.Faults{}); err != nil {
				t.Fatal(err)
			}
			p = serve(t, args...)
			r.api = p.api
			checkCharges(t, sim, r.balance(id, workload))
			return
		case <-time.After(500 * time.Millisecond): // time to begin an orderly end, which takes 5 s
			if time.Since(began) > 20*time.Second {
				t.Fatal("still running after several signals")
			}
			_ = p.cmd.Process.Signal(os.Interrupt) // it may have ended just now
		}
	}
}
