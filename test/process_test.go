//go:build ci || nightly

package test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/lab/fleet"
)

// program builds the program once, as a release does, without the race detector.
var program = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "largesse-test-")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "largesse")
	out, err := exec.Command("go", "build", "-ldflags=-s -w", "-o", path, "./cmd/largesse").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build the program: %w: %s", err, out)
	}
	return path, nil
})

// process is a running `largesse serve`.
type process struct {
	cmd     *exec.Cmd
	address string // of its API: http://host:port
	api     *client.Client
	stderr  *fixture.Buffer
}

// serve starts the program and waits until it prints its address.
func serve(t *testing.T, args ...string) *process {
	t.Helper()
	path := fixture.Must(program())(t)
	return serveBinary(t, path, args...)
}

// serveBinary is serve for a program that was built another way.
func serveBinary(t *testing.T, path string, args ...string) *process {
	t.Helper()
	args = append([]string{"serve", "--output", "json", "--listen", "127.0.0.1:0", "--log-level", "warn"}, args...)
	p := &process{cmd: exec.Command(path, args...), stderr: &fixture.Buffer{}}
	p.cmd.Stderr = p.stderr
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	fixture.OK(t, p.cmd.Start())
	t.Cleanup(func() {
		if p.cmd.ProcessState == nil {
			_ = p.cmd.Process.Kill()
			_ = p.cmd.Wait()
		}
		if t.Failed() {
			t.Log(p.stderr.String())
		}
	})
	var said struct{ Server string }
	if err := json.NewDecoder(bufio.NewReader(stdout)).Decode(&said); err != nil {
		t.Fatalf("the program did not say where it listens: %v: %s", err, p.stderr)
	}
	p.address = said.Server
	if p.api, err = client.New(said.Server, client.Options{}); err != nil {
		t.Fatal(err)
	}
	return p
}

// kill ends the process the hard way.
func (p *process) kill(t *testing.T) {
	t.Helper()
	fixture.OK(t, p.cmd.Process.Kill())
	_ = p.cmd.Wait() // says that it was killed
}

// rigOf looks at a process as the suite looks at an engine.
func rigOf(t *testing.T, p *process, simURL string) *rig {
	t.Helper()
	return &rig{t: t, simURL: simURL, api: p.api}
}

// onServers returns the flags for the real servers: a new schema, and prefixes of its own
// for keys and topics.
func onServers(t *testing.T) []string {
	t.Helper()
	redis := fixture.Address(t, fleet.VariableRedis)
	brokers, topics := fixture.Topics(t)
	return []string{
		"--database-url", fixture.NewSchema(t), "--redis-url", redis, "--redis-key-prefix", fixture.Keys(t, redis),
		"--kafka-brokers", strings.Join(brokers, ","), "--kafka-topic-prefix", topics,
	}
}

// flagOf returns the value of a flag.
func flagOf(args []string, name string) string { return args[slices.Index(args, name)+1] }
