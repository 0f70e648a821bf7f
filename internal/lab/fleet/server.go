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
	// readyWithin is how long a server may take until it answers.
	readyWithin = 90 * time.Second
	// stopWithin is how long a server may take to end when asked to.
	stopWithin = 10 * time.Second
	// startTries is how many places a server is tried at for the first time.
	startTries = 3
	// againWithin is how long a server that has been up is started again and
	// again when it ends at once: what was there before it may still hold its
	// port or its data.
	againWithin = 20 * time.Second
	// answerPause lies between two questions whether a server answers.
	answerPause = 50 * time.Millisecond
	// logLines is how much of a log is told.
	logLines = 40
)

// Server is one real server. It is made, not started, by NewRedis and its
// like. A Server is used by one goroutine at a time.
type Server struct {
	name  string
	ports int // how many it listens on; the first is for its clients
	// prepare makes an empty folder ready. nil: nothing to do.
	prepare func(ctx context.Context, at place) error
	command func(at place) (*exec.Cmd, error)
	// answers says whether the process pid serves.
	answers  func(ctx context.Context, at place, pid int) error
	address  func(port int) string
	farewell syscall.Signal // asks it to end

	at      place // zero: none yet
	settled bool  // it has answered there
	process *process
	log     *os.File
}

// place is where a server lives.
type place struct {
	dir   string
	ports []int
}

// Name is what the server is, e.g. redis.
func (s *Server) Name() string { return s.name }

// Address is how clients reach the server, as the settings want it:
// redis://127.0.0.1:port, postgres://…, and 127.0.0.1:port for Kafka. It is
// known from the first Start on and stays the same until Remove; before, it is
// empty.
func (s *Server) Address() string {
	if len(s.at.ports) == 0 {
		return ""
	}
	return s.address(s.at.ports[0])
}

// Start starts the server and waits until it answers. The first time it
// chooses free ports and a folder; after a Stop or a Kill it comes back on the
// same ports with the data that was on disk. On an error it is not running.
func (s *Server) Start(ctx context.Context) error {
	if err := s.launch(ctx); err != nil {
		return err
	}
	return s.await(ctx)
}

// Restart stops the server gently and starts it on the same ports, with the
// data that was on disk.
func (s *Server) Restart(ctx context.Context) error {
	if err := s.Stop(); err != nil {
		return err
	}
	return s.Start(ctx)
}

// Stop asks the server to end, without waiting for its clients, and returns
// once it has. It is an error when it had to be killed. A server that is not
// running stays so.
func (s *Server) Stop() error {
	return s.end(func() error { return s.process.stop(s.farewell, stopWithin) })
}

// Kill ends the server at once, as a crash would, and returns once its process
// is gone. A server that is not running stays so.
func (s *Server) Kill() error {
	return s.end(func() error { return s.process.kill() })
}

// Remove stops the server and removes its data. A Start after it is a first
// one.
func (s *Server) Remove() error {
	err := s.Stop()
	if s.at.dir != "" {
		err = errors.Join(err, removeFolder(s.at.dir))
	}
	s.at, s.settled = place{}, false
	return err
}

// Running says whether the server's process is there.
func (s *Server) Running() bool { return s.process != nil && !s.process.ended() }

func (s *Server) end(how func() error) error {
	if s.process == nil {
		return nil
	}
	err := how()
	_ = s.log.Close() // what is in it was written by the server
	s.process, s.log = nil, nil
	if err != nil {
		return fmt.Errorf("ending %s at %s: %w", s.name, s.Address(), err)
	}
	return nil
}

// launch starts the process.
func (s *Server) launch(ctx context.Context) error {
	if s.Running() {
		return fmt.Errorf("starting %s: it is running at %s; stop it first", s.name, s.Address())
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

// killEnded ends what a server that ended by itself may have left of its
// group.
func (s *Server) killEnded() error { return s.process.kill() }

// settle chooses a place and makes it ready.
func (s *Server) settle(ctx context.Context) error {
	ports, err := freePorts(s.ports)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "largesse-"+s.name+"-")
	if err != nil {
		return fmt.Errorf("making a folder for %s: %w", s.name, err)
	}
	s.at = place{dir: dir, ports: ports}
	if s.prepare == nil {
		return nil
	}
	if err := s.prepare(ctx, s.at); err != nil {
		return fmt.Errorf("preparing %s: %w", s.name, err)
	}
	return nil
}

func (s *Server) run() error {
	log, err := os.OpenFile(s.logPath(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("making a log for %s: %w", s.name, err)
	}
	cmd, err := s.command(s.at)
	if err != nil {
		_ = log.Close() // empty
		return fmt.Errorf("preparing %s: %w", s.name, err)
	}
	process, err := startProcess(cmd, log)
	if err != nil {
		_ = log.Close() // empty
		return err
	}
	s.process, s.log = process, log
	return nil
}

// await waits until the server answers. A new one that ended at once is tried
// at another place: somebody may have taken a port between our look and its
// start. One that has been up is tried at its own place only.
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
			end := fmt.Errorf("%s ended before it answered (%w):\n%s", s.name, s.process.err, s.logTail())
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
			return errors.Join(fmt.Errorf("%s did not answer within %s (%w):\n%s", s.name, readyWithin, err, s.logTail()), s.Kill())
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
	return []string{fmt.Sprintf("it ended by itself: %v\n%s", s.process.err, s.logTail())}
}

func (s *Server) logPath() string { return filepath.Join(s.at.dir, "log.txt") }

func (s *Server) logTail() string {
	text, err := os.ReadFile(s.logPath())
	if err != nil {
		return fmt.Sprintf("(its log cannot be read: %v)", err)
	}
	return Tail(string(text), logLines)
}

// removeFolder removes a folder in which a killed server's children may still
// write for a moment.
func removeFolder(dir string) error {
	for deadline := time.Now().Add(5 * time.Second); ; {
		err := os.RemoveAll(dir)
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("removing a server's data: %w", err)
		}
		time.Sleep(answerPause) // polls a folder
	}
}

// cLocale is our environment with every locale setting replaced, so that no
// server depends on which locales a machine has.
func cLocale() []string {
	var env []string
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "LC_") && !strings.HasPrefix(e, "LANG") {
			env = append(env, e)
		}
	}
	return append(env, "LC_ALL=C")
}
