package fleet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

const (
	// readyWithin limits the wait until a server responds.
	readyWithin = 90 * time.Second
	// stopWithin limits the wait until a server exits after its signal.
	stopWithin = 10 * time.Second
	// startTries is the number of places at which a new server is tried.
	startTries = 3
	// againWithin limits the repeated starts of an existing server that exits
	// at once, because its previous process may still use its port or data.
	againWithin = 20 * time.Second
	// answerPause is the interval between two checks whether a server responds.
	answerPause = 50 * time.Millisecond
	// logLines is the number of log lines in an error.
	logLines = 40
)

// Server is one real server. NewRedis and similar functions return a Server
// that is not started. A Server is not safe for concurrent use.
type Server struct {
	name  string
	ports int // number of ports; the first is for clients
	// prepare initializes an empty directory. Nil: nothing to do.
	prepare func(ctx context.Context, at place) error
	command func(at place) (*exec.Cmd, error)
	// answers returns nil if the process pid serves.
	answers  func(ctx context.Context, at place, pid int) error
	address  func(port int) string
	farewell syscall.Signal // signal for a graceful exit

	at      place // zero: not chosen yet
	settled bool  // whether it has responded there
	process *process
	log     *os.File
}

// place is the directory and the ports of a server.
type place struct {
	dir   string
	ports []int
}

// Name returns the name of the server, e.g. redis.
func (s *Server) Name() string { return s.name }

// Address returns the address for clients, in the form of the settings:
// redis://127.0.0.1:port, postgres://…, and 127.0.0.1:port for Kafka. It is
// empty before the first Start and stays the same until Remove.
func (s *Server) Address() string {
	if len(s.at.ports) == 0 {
		return ""
	}
	return s.address(s.at.ports[0])
}

// Start starts the server and waits until it responds. The first Start chooses
// free ports and a directory. After Stop or Kill, the server returns on the
// same ports with the data on disk. After an error it does not run.
func (s *Server) Start(ctx context.Context) error {
	if err := s.launch(ctx); err != nil {
		return err
	}
	return s.await(ctx)
}

// Restart stops the server gracefully and starts it on the same ports with the
// data on disk.
func (s *Server) Restart(ctx context.Context) error {
	if err := s.Stop(); err != nil {
		return err
	}
	return s.Start(ctx)
}

// Stop stops the server gracefully, without waiting for its clients, and
// returns after it has exited. It returns an error if the server had to be
// killed. It has no effect on a stopped server.
func (s *Server) Stop() error {
	return s.end(func() error { return s.process.stop(s.farewell, stopWithin) })
}

// Kill kills the server, as in a crash, and returns after its process has
// exited. It has no effect on a stopped server.
func (s *Server) Kill() error {
	return s.end(func() error { return s.process.kill() })
}

// Hang stops the process of the server without ending it: connections stay open,
// and nothing is answered until Resume.
func (s *Server) Hang() error { return s.signal(syscall.SIGSTOP) }

// Resume lets a server continue that Hang stopped.
func (s *Server) Resume() error { return s.signal(syscall.SIGCONT) }

func (s *Server) signal(sig syscall.Signal) error {
	if !s.Running() {
		return fmt.Errorf("signal %s: it does not run", s.name)
	}
	if err := syscall.Kill(-s.process.pid, sig); err != nil {
		return fmt.Errorf("signal %s at %s: %w", s.name, s.Address(), err)
	}
	return nil
}

// Remove stops the server and removes its data. The next Start starts a new
// server.
func (s *Server) Remove() error {
	err := s.Stop()
	if s.at.dir != "" {
		err = errors.Join(err, removeFolder(s.at.dir))
	}
	s.at, s.settled = place{}, false
	return err
}

// Running reports whether the process of the server runs.
func (s *Server) Running() bool { return s.process != nil && !s.process.ended() }

func (s *Server) end(how func() error) error {
	if s.process == nil {
		return nil
	}
	err := how()
	_ = s.log.Close() // the server wrote the content
	s.process, s.log = nil, nil
	if err != nil {
		return fmt.Errorf("stop %s at %s: %w", s.name, s.Address(), err)
	}
	return nil
}

// launch starts the process.
func (s *Server) launch(ctx context.Context) error {
	if s.Running() {
		return fmt.Errorf("start %s: it already runs at %s; stop it first", s.name, s.Address())
	}
	if err := s.end(s.killEnded); err != nil {
		return err
	}
	if s.at.dir == "" {
		if err := s.settle(ctx); err != nil {
			return errors.Join(err, s.Remove())
		}
	}
	return s.run()
}

// killEnded kills the rest of the process group of a server that exited
// unexpectedly.
func (s *Server) killEnded() error { return s.process.kill() }

// settle chooses a place and prepares it.
func (s *Server) settle(ctx context.Context) error {
	ports, err := FreePorts(s.ports)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "largesse-"+s.name+"-")
	if err != nil {
		return fmt.Errorf("create a directory for %s: %w", s.name, err)
	}
	s.at = place{dir: dir, ports: ports}
	if s.prepare == nil {
		return nil
	}
	if err := s.prepare(ctx, s.at); err != nil {
		return fmt.Errorf("prepare %s: %w", s.name, err)
	}
	return nil
}

func (s *Server) run() error {
	log, err := os.OpenFile(s.logPath(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("create a log for %s: %w", s.name, err)
	}
	cmd, err := s.command(s.at)
	if err != nil {
		_ = log.Close() // empty
		return fmt.Errorf("prepare %s: %w", s.name, err)
	}
	process, err := startProcess(cmd, log)
	if err != nil {
		_ = log.Close() // empty
		return err
	}
	s.process, s.log = process, log
	return nil
}

// await waits until the server responds. If a new server exits at once, it
// tries another place: another process may have taken a port before the start.
// An existing server is tried only at its own place.
func (s *Server) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyWithin)
	defer cancel()
	began := time.Now()
	for tries := 1; ; {
		err := s.answersOnce(ctx)
		if err == nil {
			s.settled = true
			return nil
		}
		if s.process.ended() {
			end := fmt.Errorf("%s exited before it responded (%w):\n%s", s.name, s.process.err, s.logTail())
			if s.settled && time.Since(began) > againWithin || !s.settled && tries == startTries {
				return errors.Join(end, s.Kill())
			}
			tries++
			if !s.settled {
				if err := s.Remove(); err != nil {
					return errors.Join(end, err)
				}
			}
			if err := s.launch(ctx); err != nil {
				return errors.Join(end, err)
			}
		}
		select {
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("%s did not respond within %s (%w):\n%s", s.name, readyWithin, err, s.logTail()), s.Kill())
		case <-time.After(answerPause):
		}
	}
}

func (s *Server) answersOnce(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	return s.answers(ctx, s.at, s.process.pid)
}

func (s *Server) endings() []string {
	if s.process == nil || !s.process.ended() {
		return nil
	}
	return []string{fmt.Sprintf("it exited unexpectedly: %v\n%s", s.process.err, s.logTail())}
}

func (s *Server) logPath() string { return filepath.Join(s.at.dir, "log.txt") }

func (s *Server) logTail() string {
	text, err := os.ReadFile(s.logPath())
	if err != nil {
		return fmt.Sprintf("(reading its log failed: %v)", err)
	}
	return Tail(string(text), logLines)
}

// removeFolder removes a directory into which the children of a killed server
// may still write for a moment.
func removeFolder(dir string) error {
	for deadline := time.Now().Add(5 * time.Second); ; {
		err := os.RemoveAll(dir)
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("remove the data of a server: %w", err)
		}
		time.Sleep(answerPause) // polls a directory
	}
}

// cLocale returns the environment of this process with all locale settings
// replaced, so that servers do not depend on the locales of the machine.
func cLocale() []string {
	var env []string
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "LC_") && !strings.HasPrefix(e, "LANG") {
			env = append(env, e)
		}
	}
	return append(env, "LC_ALL=C")
}
