package fleet

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// shellServer is a server that is a shell script; it counts as answering once
// it has written its process id into the file up.
func shellServer(t *testing.T, script string) *Server {
	t.Helper()
	s := &Server{
		name: "shell", ports: 1, farewell: syscall.SIGTERM, address: loopback,
		command: func(at place) (*exec.Cmd, error) {
			cmd := exec.Command("sh", "-c", script)
			cmd.Dir = at.dir
			return cmd, nil
		},
		answers: func(_ context.Context, at place, pid int) error {
			text, err := os.ReadFile(filepath.Join(at.dir, "up"))
			if err == nil && string(text) != fmt.Sprintln(pid) {
				err = fmt.Errorf("process %s is up, not %d", text, pid)
			}
			return err
		},
	}
	t.Cleanup(func() {
		if err := s.Remove(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func TestServer(t *testing.T) {
	t.Parallel()

	t.Run("KeepsItsPlaceUntilItIsRemoved", func(t *testing.T) {
		t.Parallel()
		s := shellServer(t, "echo run >>runs; echo $$ >up; exec sleep 1000")
		if s.Address() != "" {
			t.Errorf("before its first start it is at %s", s.Address())
		}
		if err := s.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		address, dir, first := s.Address(), s.at.dir, s.process.pid
		if err := s.Start(t.Context()); err == nil || !strings.Contains(err.Error(), "stop it first") {
			t.Errorf("a second start said %v", err)
		}
		if err := s.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		waitGone(t, first)
		second := s.process.pid
		if err := s.Kill(); err != nil {
			t.Fatal(err)
		}
		waitGone(t, second)
		if s.Running() {
			t.Error("it runs after a Kill")
		}
		if err := s.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		if s.Address() != address || s.at.dir != dir {
			t.Errorf("it moved from %s, %s to %s, %s", address, dir, s.Address(), s.at.dir)
		}
		if text, err := os.ReadFile(filepath.Join(dir, "runs")); string(text) != "run\nrun\nrun\n" {
			t.Errorf("its folder holds %q, %v", text, err)
		}
		if err := s.Remove(); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("after Remove the folder is still there: %v", err)
		}
		if err := errors.Join(s.Stop(), s.Kill(), s.Remove()); err != nil {
			t.Errorf("ending it once more: %v", err)
		}
	})

	t.Run("TellsItsLogWhenItDoesNotComeUp", func(t *testing.T) {
		t.Parallel()
		s := shellServer(t, "echo I cannot; exit 3")
		places := map[string]bool{}
		command := s.command
		s.command = func(at place) (*exec.Cmd, error) {
			places[at.dir] = true
			return command(at)
		}
		err := s.Start(t.Context())
		if err == nil || !strings.Contains(err.Error(), "I cannot") || !strings.Contains(err.Error(), "exit status 3") {
			t.Errorf("got %v", err)
		}
		if len(places) != startTries || s.Running() {
			t.Errorf("it was tried at %d places, want %d", len(places), startTries)
		}
	})

	t.Run("ComesBackWhereItWasWhenWhatIsInItsWayGoes", func(t *testing.T) {
		t.Parallel()
		s := shellServer(t, "test ! -e way && echo $$ >up && exec sleep 1000; echo again >>tries; test $(wc -l <tries) -lt 3 || rm way; exit 1")
		if err := s.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		address := s.Address()
		if err := s.Stop(); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(s.at.dir, "way"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := s.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		if tries, err := os.ReadFile(filepath.Join(s.at.dir, "tries")); string(tries) != "again\nagain\nagain\n" || s.Address() != address {
			t.Errorf("tries %q, %v, at %s", tries, err, s.Address())
		}
	})

	t.Run("IsToldWhenItEndsByItself", func(t *testing.T) {
		t.Parallel()
		s := shellServer(t, "echo $$ >up; echo the end is near; read line <wait; exit 4")
		s.prepare = func(_ context.Context, at place) error { return syscall.Mkfifo(filepath.Join(at.dir, "wait"), 0o600) }
		if err := s.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := s.endings(); len(got) != 0 {
			t.Errorf("it runs, and is told to have ended: %q", got)
		}
		if err := os.WriteFile(filepath.Join(s.at.dir, "wait"), []byte("go\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		until(t, "it has ended", func() bool { return !s.Running() })
		if got := s.endings(); len(got) != 1 || !strings.Contains(got[0], "exit status 4") || !strings.Contains(got[0], "the end is near") {
			t.Errorf("it is told as %q", got)
		}
	})

	t.Run("GivesUpWithTheContextAndLeavesNothingRunning", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithCancel(t.Context())
		s := shellServer(t, "exec sleep 1000")
		pid := 0
		s.answers = func(_ context.Context, _ place, p int) error {
			pid = p
			cancel()
			return errors.New("not yet")
		}
		if err := s.Start(ctx); err == nil || s.Running() {
			t.Errorf("got %v, running %v", err, s.Running())
		}
		waitGone(t, pid)
	})
}

func TestFreePorts(t *testing.T) {
	t.Parallel()
	ports, err := freePorts(8)
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(ports)
	if len(slices.Compact(slices.Clone(ports))) != 8 || ports[0] < portMin || ports[7] > portMax {
		t.Errorf("got %v", ports)
	}
	// A child that is just being started elsewhere holds what we had open until
	// it runs.
	until(t, "a free port is free", func() bool {
		l, err := net.Listen("tcp", loopback(ports[0]))
		if err == nil {
			l.Close()
		}
		return err == nil
	})
}

func TestLookNeverInstalls(t *testing.T) {
	t.Parallel()
	in := Installer{Cache: filepath.Join(t.TempDir(), "none"), Out: io.Discard, LookOnly: true}
	_, missing := in.lookOrApt(t.Context(), "largesse-no-such-command", "largesse-no-such-package")
	_, valkey := in.findValkey(t.Context())
	for _, err := range []error{missing, valkey} {
		if !errors.Is(err, errMissing) {
			t.Errorf("got %v", err)
		}
	}
	if _, err := os.Stat(in.Cache); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("looking made the cache: %v", err)
	}
	found, err := Look()
	if err != nil || !found.LookOnly || filepath.Base(found.Cache) != ".servers" {
		t.Errorf("Look gave %+v, %v", found, err)
	}
	if _, err := os.Stat(filepath.Join(filepath.Dir(found.Cache), "go.mod")); err != nil {
		t.Errorf("the cache is not beside go.mod: %v", err)
	}
}

func TestReadReply(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"+OK\r\n":           "OK",
		":12\r\n":           "12",
		"$5\r\na\r\nbc\r\n": "a\r\nbc",
		"$0\r\n\r\n":        "",
		"-ERR no\r\n":       "error: ERR no",
		"$-1\r\n":           `error: the reply is "$-1"`,
		"*0\r\n":            `error: the reply is "*0"`,
		"\r\n":              "error: the reply is empty",
		"$5\r\nabc":         "abc\x00\x00error: unexpected EOF",
		"":                  "error: EOF",
	} {
		got, err := readReply(bufio.NewReader(strings.NewReader(text)))
		if err != nil {
			got += fmt.Sprintf("error: %v", err)
		}
		if got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}
