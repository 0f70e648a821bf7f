package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// readyWithin is how long a server may take until it answers.
const readyWithin = 90 * time.Second

// server is one real server that the tests need.
type server struct {
	name     string
	variable string // environment variable that carries its address
	// command makes the command line for a port, after whatever has to be
	// prepared in the folder, which is the server's own and empty.
	command func(ctx context.Context, dir string, port int) (*exec.Cmd, error)
	// answers says whether it serves at the port.
	answers  func(ctx context.Context, port int) error
	address  func(port int) string
	farewell syscall.Signal // asks it to end

	port    int
	process *process
	log     *os.File
}

// fleet is all servers of a run, and the folder with their data.
type fleet struct {
	dir     string
	servers []*server
}

// startFleet installs and starts every server and waits until each answers.
// The fleet has to be stopped on an error too.
func startFleet(ctx context.Context, cache string, out io.Writer) (*fleet, error) {
	f := &fleet{}
	servers, err := findServers(ctx, installer{cache: cache, out: out})
	if err != nil {
		return f, err
	}
	dir, err := os.MkdirTemp("", "largesse-testrun-")
	if err != nil {
		return f, fmt.Errorf("making a folder for the servers' data: %w", err)
	}
	f.dir = dir
	// PostgreSQL runs as another user than root and has to reach its part.
	if err := os.Chmod(dir, 0o711); err != nil { //nolint:gosec // may be passed through, not read
		return f, fmt.Errorf("opening the folder for the servers' data: %w", err)
	}
	started := time.Now()
	for _, s := range servers {
		if err := s.start(ctx, dir, 0); err != nil {
			return f, err
		}
		f.servers = append(f.servers, s)
	}
	for _, s := range f.servers {
		if err := s.wait(ctx, dir); err != nil {
			return f, err
		}
		fmt.Fprintf(out, "%s answers at %s\n", s.name, s.address(s.port))
	}
	fmt.Fprintf(out, "servers up in %.1f s\n", time.Since(started).Seconds())
	return f, nil
}

// findServers looks for everything, and gets what is missing, before anything
// is started.
func findServers(ctx context.Context, in installer) ([]*server, error) {
	if _, err := in.lookOrApt(ctx, "gcc", "gcc", "libc6-dev"); err != nil {
		return nil, fmt.Errorf("finding a C compiler, which the race detector needs: %w", err)
	}
	redisBinary, err := in.lookOrApt(ctx, "redis-server", "redis-server")
	if err != nil {
		return nil, fmt.Errorf("finding Redis: %w", err)
	}
	valkeyBinary, err := in.valkey(ctx)
	if err != nil {
		return nil, fmt.Errorf("finding Valkey: %w", err)
	}
	postgresDir, err := in.postgres(ctx)
	if err != nil {
		return nil, fmt.Errorf("finding PostgreSQL: %w", err)
	}
	java, classPath, err := in.kafka(ctx)
	if err != nil {
		return nil, fmt.Errorf("finding Kafka: %w", err)
	}
	return []*server{
		newKafka(java, classPath), // first: it takes longest
		newPostgres(postgresDir),
		newRedis("redis", "LARGESSE_TEST_REDIS", redisBinary),
		newRedis("valkey", "LARGESSE_TEST_VALKEY", valkeyBinary),
	}, nil
}

// start runs the server on a free port in a folder of its own below dir; try
// counts from 0.
func (s *server) start(ctx context.Context, dir string, try int) error {
	port, err := freePort()
	if err != nil {
		return err
	}
	own := filepath.Join(dir, fmt.Sprintf("%s-%d", s.name, try))
	if err := os.Mkdir(own, 0o700); err != nil {
		return fmt.Errorf("making a folder for %s: %w", s.name, err)
	}
	log, err := os.Create(filepath.Join(dir, fmt.Sprintf("%s-%d.log", s.name, try)))
	if err != nil {
		return fmt.Errorf("making a log for %s: %w", s.name, err)
	}
	cmd, err := s.command(ctx, own, port)
	if err != nil {
		log.Close()
		return fmt.Errorf("preparing %s: %w", s.name, err)
	}
	process, err := startProcess(cmd, log)
	if err != nil {
		log.Close()
		return err
	}
	s.port, s.process, s.log = port, process, log
	return nil
}

// wait polls until the server answers. One that ended at once is started anew
// on another port: somebody may have taken the first between our look and its
// start.
func (s *server) wait(ctx context.Context, dir string) error {
	const triesMax = 3
	ctx, cancel := context.WithTimeout(ctx, readyWithin)
	defer cancel()
	for try := 1; ; {
		err := s.answersOnce(ctx)
		if err == nil {
			return nil
		}
		if s.process.ended() {
			if try == triesMax {
				return fmt.Errorf("%s ended before it answered (%w):\n%s", s.name, s.process.err, s.logTail())
			}
			s.log.Close()
			if err := s.start(ctx, dir, try); err != nil {
				return err
			}
			try++
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s did not answer within %s (%w):\n%s", s.name, readyWithin, err, s.logTail())
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func (s *server) answersOnce(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	return s.answers(ctx, s.port)
}

func (s *server) logTail() string {
	text, err := os.ReadFile(s.log.Name())
	if err != nil {
		return fmt.Sprintf("(its log cannot be read: %v)", err)
	}
	return tail(string(text), 40)
}

// env is the servers' addresses as NAME=value.
func (f *fleet) env() []string {
	var env []string
	for _, s := range f.servers {
		env = append(env, s.variable+"="+s.address(s.port))
	}
	return env
}

// checkAlive adds a failure for each server that ended by itself, and the end
// of every server's log when the suite failed.
func (f *fleet) checkAlive(r *result) {
	for _, s := range f.servers {
		if s.process.ended() {
			r.fail("server "+s.name, fmt.Sprintf("it ended during this suite: %v\n%s", s.process.err, s.logTail()))
		}
	}
}

// stop ends every server and removes their data. It may be called on a fleet
// that only half started.
func (f *fleet) stop() {
	var wg sync.WaitGroup
	for _, s := range f.servers {
		wg.Go(func() {
			s.process.stop(s.farewell, 10*time.Second)
			s.log.Close()
		})
	}
	wg.Wait()
	if f.dir == "" {
		return
	}
	if err := os.RemoveAll(f.dir); err != nil {
		fmt.Fprintf(os.Stderr, "testrun: removing the servers' data: %v\n", err)
	}
}

// freePort asks the kernel for a loopback port that nobody listens on.
func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // a loopback port is there at once
	if err != nil {
		return 0, fmt.Errorf("looking for a free port: %w", err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	if err := l.Close(); err != nil {
		return 0, fmt.Errorf("giving back port %d: %w", port, err)
	}
	return port, nil
}

// asUser makes cmd run as another user, given to us by name; only root may.
func asUser(cmd *exec.Cmd, name string) error {
	uid, gid, err := lookupUser(name)
	if err != nil {
		return err
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: gid}}
	return nil
}

func lookupUser(name string) (uid, gid uint32, err error) {
	u, err := user.Lookup(name)
	if err != nil {
		return 0, 0, fmt.Errorf("looking up user %s: %w", name, err)
	}
	id, err := strconv.ParseUint(u.Uid, 10, 32)
	group, groupErr := strconv.ParseUint(u.Gid, 10, 32)
	if err := errors.Join(err, groupErr); err != nil {
		return 0, 0, fmt.Errorf("user %s has ids that are no numbers: %w", name, err)
	}
	return uint32(id), uint32(group), nil
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
