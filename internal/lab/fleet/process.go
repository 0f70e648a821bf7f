package fleet

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// process is a child with a process group of its own, so that all it starts is
// stopped with it, and that dies when this process is killed.
type process struct {
	pid  int
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

// startProcess starts cmd with its output going to log. Linux ties Pdeathsig
// to the thread that started the child, so one thread does nothing but start
// it and wait for its end.
func startProcess(cmd *exec.Cmd, log *os.File) (*process, error) {
	ownGroup(cmd)
	cmd.Stdout, cmd.Stderr = log, log
	p := &process{cmd: cmd, done: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		defer close(p.done)
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			p.err = cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("starting %s: %w", cmd.Path, err)
	}
	p.pid = cmd.Process.Pid
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

// errDeaf says that a process had to be killed.
var errDeaf = errors.New("it did not end when asked to and was killed")

// stop asks the process to end with sig, and kills what is left of its group
// when it has, or when the grace is over. It returns once the process is gone.
func (p *process) stop(sig syscall.Signal, grace time.Duration) error {
	if !p.ended() {
		// A failure means that it has just ended, which done tells too.
		_ = p.cmd.Process.Signal(sig)
	}
	timer := time.NewTimer(grace)
	defer timer.Stop()
	var late error
	select {
	case <-p.done:
	case <-timer.C:
		late = fmt.Errorf("process %d: %w (grace %s)", p.pid, errDeaf, grace)
	}
	return errors.Join(late, p.kill())
}

// kill kills the whole group and waits for the process's end.
func (p *process) kill() error {
	if err := killGroup(p.pid); err != nil {
		return err
	}
	<-p.done
	return nil
}

// killGroup kills what is left of a process group; an empty one is no error.
func killGroup(pid int) error {
	if err := syscall.Kill(-pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("killing process group %d: %w", pid, err)
	}
	return nil
}

// Output runs a command to its end, killing its whole group with ctx, and
// returns what it printed on its standard output; with an error, also what it
// printed on the other. env is added to our own environment.
func Output(ctx context.Context, dir string, env []string, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), env...)
	return outputOf(cmd)
}

// outputOf runs a command that was made with a context, as Output does.
func outputOf(cmd *exec.Cmd) (string, error) {
	runtime.LockOSThread() // see startProcess
	defer runtime.UnlockOSThread()
	ownGroup(cmd)
	cmd.Cancel = func() error { return killGroup(cmd.Process.Pid) }
	cmd.WaitDelay = 10 * time.Second // a grandchild must not hold the pipes for ever
	var out, problems strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &problems
	if err := cmd.Run(); err != nil {
		return out.String() + problems.String(), fmt.Errorf("%s: %w", strings.Join(cmd.Args, " "), err)
	}
	return out.String(), nil
}

// Lines runs a command to its end, killing its whole group with ctx, and hands
// over each line it prints, on either of its outputs. env is added to our own
// environment.
func Lines(ctx context.Context, dir string, env []string, each func(line string), name string, args ...string) error {
	runtime.LockOSThread() // see startProcess
	defer runtime.UnlockOSThread()
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
	cmd.Cancel = func() error { return killGroup(cmd.Process.Pid) }
	err = cmd.Start()
	_ = w.Close() // the child has its own
	if err != nil {
		return fmt.Errorf("starting %s: %w", name, err)
	}
	ended := make(chan error, 1)
	go func() {
		err := cmd.Wait()
		// A test's forgotten grandchild must not hold the pipe open for ever.
		ended <- errors.Join(err, killGroup(cmd.Process.Pid))
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

// Tail returns the last n lines of text, and how many there were before.
func Tail(text string, n int) string {
	all := strings.Split(strings.TrimRight(text, "\n"), "\n")
	if len(all) > n {
		all = append([]string{fmt.Sprintf("… %d lines before", len(all)-n)}, all[len(all)-n:]...)
	}
	return strings.Join(all, "\n")
}
