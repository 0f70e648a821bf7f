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

// process is a child with its own process group, so that its children stop with
// it. It dies if this process is killed.
type process struct {
	pid  int
	cmd  *exec.Cmd
	done chan struct{} // closed after it has exited
	err  error         // result of the exit; read it after done
}

// ownGroup puts cmd into its own process group and ties it to the life of this
// process.
func ownGroup(cmd *exec.Cmd) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
}

// startProcess starts cmd and sends its output to log. Linux ties Pdeathsig to
// the thread that started the child, so a locked thread starts it and waits for
// its exit.
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
		return nil, fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	p.pid = cmd.Process.Pid
	return p, nil
}

// ended reports whether the process has exited.
func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// errDeaf reports that a process had to be killed.
var errDeaf = errors.New("it ignored the signal and was killed")

// stop sends sig to the process. After its exit or the grace period, it kills
// the rest of the group. It returns after the process has exited.
func (p *process) stop(sig syscall.Signal, grace time.Duration) error {
	if !p.ended() {
		// An error means that the process has just exited, which done reports
		// too.
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

// kill kills the whole group and waits for the process to exit.
func (p *process) kill() error {
	if err := killGroup(p.pid); err != nil {
		return err
	}
	<-p.done
	return nil
}

// killGroup kills the rest of a process group. An empty group is not an error.
func killGroup(pid int) error {
	if err := syscall.Kill(-pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("kill process group %d: %w", pid, err)
	}
	return nil
}

// Output runs a command and returns its standard output, and after an error
// also its standard error. It kills the whole process group when ctx ends. env
// is added to the environment of this process.
func Output(ctx context.Context, dir string, env []string, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), env...)
	return outputOf(cmd)
}

// outputOf is Output for a command that has a context.
func outputOf(cmd *exec.Cmd) (string, error) {
	runtime.LockOSThread() // see startProcess
	defer runtime.UnlockOSThread()
	ownGroup(cmd)
	cmd.Cancel = func() error { return killGroup(cmd.Process.Pid) }
	cmd.WaitDelay = 10 * time.Second // a grandchild must not keep the pipes open forever
	var out, problems strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &problems
	if err := cmd.Run(); err != nil {
		return out.String() + problems.String(), fmt.Errorf("%s: %w", strings.Join(cmd.Args, " "), err)
	}
	return out.String(), nil
}

// Lines runs a command and passes each line of its standard output and standard
// error to each. It kills the whole process group when ctx ends. env is added
// to the environment of this process.
func Lines(ctx context.Context, dir string, env []string, each func(line string), name string, args ...string) error {
	runtime.LockOSThread() // see startProcess
	defer runtime.UnlockOSThread()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), env...)
	ownGroup(cmd)
	r, w, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("create a pipe for %s: %w", name, err)
	}
	defer r.Close()
	cmd.Stdout, cmd.Stderr = w, w
	cmd.Cancel = func() error { return killGroup(cmd.Process.Pid) }
	err = cmd.Start()
	_ = w.Close() // the child has its own copy
	if err != nil {
		return fmt.Errorf("start %s: %w", name, err)
	}
	ended := make(chan error, 1)
	go func() {
		err := cmd.Wait()
		// A test's leaked grandchild must not keep the pipe open forever.
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

// Tail returns the last n lines of text, and mentions how many it left out.
func Tail(text string, n int) string {
	all := strings.Split(strings.TrimRight(text, "\n"), "\n")
	if len(all) > n {
		all = append([]string{fmt.Sprintf("… %d earlier lines", len(all)-n)}, all[len(all)-n:]...)
	}
	return strings.Join(all, "\n")
}
