package main

import (
	"bufio"
	"context"
	"errors"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

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
	deadline := time.Now().Add(10 * time.Second)
	for time.Now().Before(deadline) {
		if errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
			return
		}
		stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
		if err != nil || strings.Contains(string(stat), ") Z ") {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Fatalf("process %d is still there", pid)
}

func TestProcess(t *testing.T) {
	t.Parallel()

	t.Run("StopTakesGrandchildrenWithIt", func(t *testing.T) {
		t.Parallel()
		p, grandchild := startShell(t, "sleep 1000 & echo $!; wait")
		p.stop(syscall.SIGTERM, 10*time.Second)
		if !p.ended() {
			t.Error("it has not ended")
		}
		waitGone(t, grandchild)
	})

	t.Run("StopKillsWhatDoesNotListen", func(t *testing.T) {
		t.Parallel()
		p, grandchild := startShell(t, "trap '' TERM; sleep 1000 & echo $!; wait")
		began := time.Now()
		p.stop(syscall.SIGTERM, 50*time.Millisecond)
		if d := time.Since(began); d > 5*time.Second {
			t.Errorf("it took %s", d)
		}
		waitGone(t, grandchild)
	})

	t.Run("LinesComeOneByOneAndTheErrorNamesTheCommand", func(t *testing.T) {
		t.Parallel()
		var got []string
		err := lines(t.Context(), "", []string{"WORD=two"}, func(line string) { got = append(got, line) },
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
		err := lines(ctx, "", nil, func(line string) {
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
		text, err := output(t.Context(), "", nil, "sh", "-c", "echo good; echo noise >&2")
		if err != nil || text != "good\n" {
			t.Errorf("got %q, %v", text, err)
		}
		text, err = output(t.Context(), "", nil, "sh", "-c", "echo good; echo why >&2; exit 1")
		if err == nil || text != "good\nwhy\n" {
			t.Errorf("got %q, %v", text, err)
		}
	})
}
