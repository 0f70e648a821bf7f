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
	"strconv"
	"strings"
	"syscall"
	"time"
)

// NewRedis finds a Redis and returns a server without persistence and eviction.
// It is empty after a restart.
func NewRedis(ctx context.Context, in Installer) (*Server, error) {
	binary, err := in.findRedis(ctx)
	if err != nil {
		return nil, fmt.Errorf("find Redis: %w", err)
	}
	return redisServer("redis", binary), nil
}

// NewValkey finds a Valkey and returns a server without persistence and
// eviction. It is empty after a restart.
func NewValkey(ctx context.Context, in Installer) (*Server, error) {
	binary, err := in.findValkey(ctx)
	if err != nil {
		return nil, fmt.Errorf("find Valkey: %w", err)
	}
	return redisServer("valkey", binary), nil
}

// NewSentinel finds a Redis and returns a Sentinel that watches a running Redis by the
// name of master. The Redis is down for it when it has not answered for downAfter.
func NewSentinel(ctx context.Context, in Installer, master string, of *Server, downAfter time.Duration) (*Server, error) {
	binary, err := in.findRedis(ctx)
	if err != nil {
		return nil, fmt.Errorf("find Redis: %w", err)
	}
	if !of.Running() {
		return nil, fmt.Errorf("watch %s: it does not run", of.Name())
	}
	settings := fmt.Sprintf("sentinel monitor %s 127.0.0.1 %d 1\nsentinel down-after-milliseconds %s %d\n",
		master, of.at.ports[0], master, downAfter.Milliseconds())
	return &Server{
		name: "sentinel", ports: 1, farewell: syscall.SIGTERM, address: redisAddress, answers: redisAnswers,
		prepare: func(_ context.Context, at place) error { // a Sentinel keeps its state in this file
			text := fmt.Sprintf("port %d\nbind 127.0.0.1\ndir %s\n", at.ports[0], at.dir) + settings
			return os.WriteFile(sentinelFile(at), []byte(text), 0o600)
		},
		command: func(at place) (*exec.Cmd, error) {
			cmd := exec.Command(binary, sentinelFile(at), "--sentinel") //nolint:noctx // Stop ends it with grace, a context would kill it
			cmd.Env = cLocale()
			return cmd, nil
		},
	}, nil
}

func sentinelFile(at place) string { return filepath.Join(at.dir, "sentinel.conf") }

func redisServer(name, binary string) *Server {
	return &Server{
		name: name, ports: 1, farewell: syscall.SIGTERM, address: redisAddress, answers: redisAnswers,
		command: func(at place) (*exec.Cmd, error) { return redisCommand(binary, at), nil },
	}
}

func redisAddress(port int) string { return "redis://" + loopback(port) }

// redisCommand returns the command of a Redis or Valkey without persistence.
// more holds further settings.
func redisCommand(binary string, at place, more ...string) *exec.Cmd {
	args := append([]string{
		"--port", strconv.Itoa(at.ports[0]), "--bind", "127.0.0.1", "--dir", at.dir,
		"--save", "", "--appendonly", "no", "--maxmemory-policy", "noeviction", "--daemonize", "no",
	}, more...)
	cmd := exec.Command(binary, args...) //nolint:noctx // Stop ends it with grace, a context would kill it
	cmd.Env = cLocale()
	return cmd
}

// redisAnswers checks the process ID of the server, because another server may
// listen on the port.
func redisAnswers(ctx context.Context, at place, pid int) error {
	info, err := ask(ctx, at.ports[0], "INFO", "server")
	if err != nil {
		return err
	}
	if got := valueOf(info, "process_id"); got != strconv.Itoa(pid) {
		return fmt.Errorf("process %q responds at port %d, want %d", got, at.ports[0], pid)
	}
	return nil
}

// valueOf returns the value of a line name:value.
func valueOf(info, name string) string {
	for line := range strings.Lines(info) {
		if v, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

// ask sends one command on its own connection and returns the reply; an integer
// as its digits. It does not support arrays.
func ask(ctx context.Context, port int, words ...string) (string, error) {
	reply, err := exchange(ctx, port, words)
	if err != nil {
		return "", fmt.Errorf("%s at port %d: %w", strings.Join(words, " "), port, err)
	}
	return reply, nil
}

func exchange(ctx context.Context, port int, words []string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", loopback(port))
	if err != nil {
		return "", err
	}
	defer conn.Close()
	deadline, _ := ctx.Deadline() // set above
	if err := conn.SetDeadline(deadline); err != nil {
		return "", err
	}
	request := fmt.Sprintf("*%d\r\n", len(words))
	for _, word := range words {
		request += fmt.Sprintf("$%d\r\n%s\r\n", len(word), word)
	}
	if _, err := io.WriteString(conn, request); err != nil {
		return "", err
	}
	return readReply(bufio.NewReader(conn))
}

func readReply(in *bufio.Reader) (string, error) {
	line, err := in.ReadString('\n')
	if err != nil {
		return "", err
	}
	line = strings.TrimSuffix(line, "\r\n")
	if line == "" {
		return "", errors.New("the reply is empty")
	}
	kind, rest := line[0], line[1:]
	switch kind {
	case '+', ':':
		return rest, nil
	case '-':
		return "", errors.New(rest)
	case '$':
		n, err := strconv.Atoi(rest)
		if err != nil || n < 0 {
			return "", fmt.Errorf("the reply is %q", line)
		}
		text := make([]byte, n)
		_, err = io.ReadFull(in, text)
		return string(text), err
	}
	return "", fmt.Errorf("the reply is %q", line)
}
