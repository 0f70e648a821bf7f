// Command up starts one real server of each kind on free loopback ports, runs a command
// that finds their addresses in its environment, and stops them. Without a command it
// prints the addresses and keeps the servers until it is interrupted. Several runs can
// share a machine: the data is in temporary folders.
//
//	go run ./scripts/up -- go test ./internal/store/...
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"github.com/largesse/largesse/internal/lab/fleet"
)

func main() {
	flag.Usage = func() {
		fmt.Fprintln(os.Stderr, "usage: go run ./scripts/up [-- COMMAND ...]")
	}
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := up(withParent(ctx), flag.Args(), os.Stdout); err != nil {
		var failed *exec.ExitError
		if errors.As(err, &failed) { // the command has said why
			os.Exit(max(failed.ExitCode(), 1))
		}
		fmt.Fprintf(os.Stderr, "up: %v\n", err)
		os.Exit(1)
	}
}

// up starts the servers, runs the command, and returns its error. A server that exited
// meanwhile is an error, too.
func up(ctx context.Context, command []string, out io.Writer) (err error) {
	in, err := fleet.NewInstaller(out)
	if err != nil {
		return err
	}
	remove, err := inMemory()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remove()) }()
	servers, err := fleet.Start(ctx, in, out)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, servers.Remove()) }()
	if len(command) == 0 {
		for _, e := range servers.Env() {
			fmt.Fprintf(out, "export %s\n", e)
		}
		fmt.Fprintln(out, "The servers stay up until this is interrupted (Ctrl-C). With these exports in another shell: go test -run TestName ./internal/…")
		<-ctx.Done()
		return nil
	}
	c := exec.CommandContext(ctx, command[0], command[1:]...)
	c.Env = append(os.Environ(), servers.Env()...)
	c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stdout, os.Stderr
	c.Cancel = func() error { return c.Process.Signal(os.Interrupt) }
	c.WaitDelay = time.Minute
	err = c.Run()
	for name, endings := range servers.Endings() {
		for _, text := range endings {
			err = errors.Join(err, fmt.Errorf("server %s exited during the run: %s", name, text))
		}
	}
	return err
}

// memory is where Linux mounts a file system in memory.
const memory = "/dev/shm"

// inMemory lets the servers and the command keep their temporary files in memory, if this
// machine has a file system for that with enough space: the data of hundreds of tests
// costs a quarter of the run on a disk. The returned function removes the files.
func inMemory() (remove func() error, err error) {
	remove = func() error { return nil }
	if os.Getenv("TMPDIR") != "" || !hasRoom(memory) {
		return remove, nil
	}
	dir, err := os.MkdirTemp(memory, "largesse-")
	if err != nil {
		return nil, fmt.Errorf("create a folder for temporary files: %w", err)
	}
	// PostgreSQL runs as a user of its own.
	err = errors.Join(os.Chmod(dir, 0o777|os.ModeSticky), os.Setenv("TMPDIR", dir))
	return func() error { return os.RemoveAll(dir) }, err
}

// hasRoom reports whether a file system has 8 GiB left, and lets programs run from it.
func hasRoom(path string) bool {
	const enough, noExec = 8 << 30, 0x8
	var fs syscall.Statfs_t
	return syscall.Statfs(path, &fs) == nil && fs.Bavail*uint64(fs.Bsize) >= enough && fs.Flags&noExec == 0 //nolint:gosec // a size of blocks is positive
}

// withParent returns a context that also ends when the parent process is gone: a kill of
// `go run` does not reach its child.
func withParent(ctx context.Context) context.Context {
	parent := os.Getppid()
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		for ctx.Err() == nil && os.Getppid() == parent {
			time.Sleep(time.Second)
		}
		cancel()
	}()
	return ctx
}
