package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// process is a child with a process group of its own, so that all it starts is
// stopped with it, and that dies when this process is killed.
type process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed once it has ended
	err  error         // how it ended; read after done
}

// ownGroup puts cmd into its own process group and ties it to our life.
func ownGroup(cmd *exec.Cmd) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
}

// startProcess starts cmd with its output going to log.
func startProcess(cmd *exec.Cmd, log io.Writer) (*process, error) {
	ownGroup(cmd)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting %s: %w", cmd.Path, err)
	}
	p := &process{cmd: cmd, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		p.err = cmd.Wait()
	}()
	return p, nil
}

// ended says whether the process has ended.
func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// stop asks the process to end with sig, and kills its group when it has not
// within the grace.
func (p *process) stop(sig syscall.Signal, grace time.Duration) {
	if !p.ended() {
		// A failure means that it has just ended, which done tells too.
		_ = p.cmd.Process.Signal(sig)
	}
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-p.done:
	case <-timer.C:
	}
	killGroup(p.cmd.Process.Pid)
	<-p.done
}

// killGroup kills what is left of a process group; an empty one is no error.
func killGroup(pid int) {
	if err := syscall.Kill(-pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		fmt.Fprintf(os.Stderr, "testrun: killing process group %d: %v\n", pid, err)
	}
}

// output runs a command to its end, killing its whole group with ctx, and
// returns what it printed on its standard output; with an error, also what it
// printed on the other.
func output(ctx context.Context, dir string, env []string, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), env...)
	ownGroup(cmd)
	cmd.Cancel = func() error { killGroup(cmd.Process.Pid); return nil }
	cmd.WaitDelay = 10 * time.Second // a grandchild must not hold the pipes for ever
	var out, problems strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &problems
	if err := cmd.Run(); err != nil {
		return out.String() + problems.String(), fmt.Errorf("%s %s: %w", name, strings.Join(args, " "), err)
	}
	return out.String(), nil
}

// lines runs a command to its end and hands over each line it prints, on
// either of its outputs.
func lines(ctx context.Context, dir string, env []string, each func(line string), name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), env...)
	ownGroup(cmd)
	r, w, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("making a pipe for %s: %w", name, err)
	}
	defer r.Close()
	cmd.Stdout, cmd.Stderr = w, w
	cmd.Cancel = func() error { killGroup(cmd.Process.Pid); return nil }
	if err := cmd.Start(); err != nil {
		w.Close()
		return fmt.Errorf("starting %s: %w", name, err)
	}
	w.Close()
	ended := make(chan error, 1)
	go func() {
		err := cmd.Wait()
		// A test's forgotten grandchild must not hold the pipe open for ever.
		killGroup(cmd.Process.Pid)
		ended <- err
	}()
	in := bufio.NewReader(r)
	for {
		line, err := in.ReadString('\n')
		if line != "" {
			each(strings.TrimSuffix(line, "\n"))
		}
		if err != nil {
			break
		}
	}
	if err := <-ended; err != nil {
		return fmt.Errorf("%s %s: %w", name, strings.Join(args, " "), err)
	}
	return nil
}

// tail returns the last n lines of text.
func tail(text string, n int) string {
	all := strings.Split(strings.TrimRight(text, "\n"), "\n")
	if len(all) > n {
		all = append([]string{fmt.Sprintf("… %d lines before", len(all)-n)}, all[len(all)-n:]...)
	}
	return strings.Join(all, "\n")
}
