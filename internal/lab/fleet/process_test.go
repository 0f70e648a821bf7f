package fleet

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/largesse/largesse/internal/service"
)

// childVariable turns this test binary into a parent that is to be killed.
const childVariable = "LARGESSE_FLEET_TEST_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(childVariable) != "" {
		startAndWait()
	}
	goleak.VerifyTestMain(m)
}

// startAndWait starts a process, says its id and waits to be killed.
func startAndWait() {
	p, err := startProcess(exec.Command("sleep", "1000"), os.Stderr)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(p.pid)
	<-p.done
	os.Exit(1)
}

// startShell runs a shell script that prints the id of a grandchild it has
// started, and returns the process and that id.
func startShell(t *testing.T, script string) (p *process, grandchild int) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	p, err = startProcess(exec.Command("sh", "-c", script), w)
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(r).ReadString('\n')
	if err != nil {
		t.Fatalf("the shell said nothing: %v", err)
	}
	grandchild, err = strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		t.Fatalf("the shell said %q", line)
	}
	return p, grandchild
}

// waitGone waits until a process is gone; a zombie that nobody has reaped yet
// counts as gone.
func waitGone(t *testing.T, pid int) {
	t.Helper()
	until(t, fmt.Sprintf("process %d is gone", pid), func() bool {
		if errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
			return true
		}
		stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
		return err != nil || strings.Contains(string(stat), ") Z ")
	})
}

// until polls a condition for up to three minutes. Package fixture imports this one, so its
// Until is out of reach.
func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	for !holds() {
		if service.Sleep(ctx, 5*time.Millisecond); ctx.Err() != nil {
			t.Fatalf("waited in vain until %s", what)
		}
	}
}

func TestProcess(t *testing.T) {
	t.Parallel()

	t.Run("StopTakesGrandchildrenWithIt", func(t *testing.T) {
		t.Parallel()
		p, grandchild := startShell(t, "sleep 1000 & echo $!; wait")
		if err := p.stop(syscall.SIGTERM, 10*time.Second); err != nil {
			t.Error(err)
		}
		if !p.ended() {
			t.Error("it has not ended")
		}
		waitGone(t, grandchild)
	})

	t.Run("StopKillsWhatDoesNotListen", func(t *testing.T) {
		t.Parallel()
		p, grandchild := startShell(t, "trap '' TERM; sleep 1000 & echo $!; wait")
		if err := p.stop(syscall.SIGTERM, 50*time.Millisecond); !errors.Is(err, errDeaf) {
			t.Errorf("got %v", err)
		}
		waitGone(t, grandchild)
	})

	t.Run("ItDiesWithItsParent", func(t *testing.T) {
		t.Parallel()
		parent := exec.Command(os.Args[0])
		parent.Env = append(os.Environ(), childVariable+"=1")
		out, err := parent.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := parent.Start(); err != nil {
			t.Fatal(err)
		}
		line, err := bufio.NewReader(out).ReadString('\n')
		if killErr := parent.Process.Kill(); killErr != nil {
			t.Error(killErr)
		}
		_ = parent.Wait() // says that it was killed
		pid, numberErr := strconv.Atoi(strings.TrimSpace(line))
		if err != nil || numberErr != nil {
			t.Fatalf("the parent said %q, %v", line, err)
		}
		waitGone(t, pid)
	})

	t.Run("ItOutlivesTheThreadThatAskedForIt", func(t *testing.T) {
		t.Parallel()
		in, toChild, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		fromChild, out, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range []*os.File{in, toChild, fromChild, out} {
			defer f.Close()
		}
		cmd := exec.Command("cat")
		cmd.Stdin = in
		type start struct {
			process *process
			err     error
			thread  int
		}
		started := make(chan start, 1)
		var startAndEnd func()
		startAndEnd = func() {
			runtime.LockOSThread() // and not unlocked: the thread ends with the goroutine
			if syscall.Gettid() == os.Getpid() {
				// The main thread never ends; while we hold it, it is another's turn.
				other := make(chan struct{})
				go func() {
					defer close(other)
					startAndEnd()
				}()
				<-other
				runtime.UnlockOSThread()
				return
			}
			p, err := startProcess(cmd, out)
			started <- start{p, err, syscall.Gettid()}
		}
		go startAndEnd()
		s := <-started
		if s.err != nil {
			t.Fatal(s.err)
		}
		defer func() {
			if err := s.process.kill(); err != nil {
				t.Error(err)
			}
		}()
		thread := fmt.Sprintf("/proc/self/task/%d", s.thread)
		until(t, "the thread is gone", func() bool { _, err := os.Stat(thread); return errors.Is(err, os.ErrNotExist) })
		if _, err := toChild.WriteString("still here\n"); err != nil {
			t.Fatal(err)
		}
		out.Close()
		line, err := bufio.NewReader(fromChild).ReadString('\n')
		if line != "still here\n" {
			t.Fatalf("the child said %q, %v", line, err)
		}
	})

	t.Run("LinesComeOneByOneAndTheErrorNamesTheCommand", func(t *testing.T) {
		t.Parallel()
		var got []string
		err := Lines(t.Context(), "", []string{"WORD=two"}, func(line string) { got = append(got, line) },
			"sh", "-c", "echo one; echo $WORD >&2; printf three; exit 3")
		if strings.Join(got, ",") != "one,two,three" {
			t.Errorf("got %q", got)
		}
		if err == nil || !strings.Contains(err.Error(), "exit status 3") || !strings.HasPrefix(err.Error(), "sh ") {
			t.Errorf("got %v", err)
		}
	})

	t.Run("ACancelledCommandIsKilledWithItsChildren", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var grandchild int
		err := Lines(ctx, "", nil, func(line string) {
			grandchild, _ = strconv.Atoi(line)
			cancel()
		}, "sh", "-c", "sleep 1000 & echo $!; wait")
		if err == nil || grandchild == 0 {
			t.Fatalf("error %v, grandchild %d", err, grandchild)
		}
		waitGone(t, grandchild)
	})

	t.Run("OutputKeepsTheTwoStreamsApartUnlessItFailed", func(t *testing.T) {
		t.Parallel()
		text, err := Output(t.Context(), "", nil, "sh", "-c", "echo good; echo noise >&2")
		if err != nil || text != "good\n" {
			t.Errorf("got %q, %v", text, err)
		}
		text, err = Output(t.Context(), "", nil, "sh", "-c", "echo good; echo why >&2; exit 1")
		if err == nil || text != "good\nwhy\n" {
			t.Errorf("got %q, %v", text, err)
		}
	})
}

func TestTailKeepsTheEnd(t *testing.T) {
	t.Parallel()
	if got := Tail("a\nb\nc\n", 3); got != "a\nb\nc" {
		t.Errorf("got %q", got)
	}
	if got := Tail("a\nb\nc\n", 1); got != "… 2 earlier lines\nc" {
		t.Errorf("got %q", got)
	}
}
