package main

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"
)

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// newRedis describes Redis or Valkey: nothing on disk, nothing evicted.
func newRedis(name, variable, binary string) *server {
	return &server{
		name:     name,
		variable: variable,
		farewell: syscall.SIGTERM,
		address:  func(port int) string { return "redis://" + loopback(port) },
		command: func(_ context.Context, dir string, port int) (*exec.Cmd, error) {
			cmd := exec.Command(binary, "--port", strconv.Itoa(port), "--bind", "127.0.0.1", "--dir", dir, //nolint:noctx // stop ends it with grace, ctx would kill it
				"--save", "", "--appendonly", "no", "--maxmemory-policy", "noeviction", "--daemonize", "no")
			cmd.Env = cLocale()
			return cmd, nil
		},
		answers: func(ctx context.Context, port int) error {
			conn, err := new(net.Dialer).DialContext(ctx, "tcp", loopback(port))
			if err != nil {
				return err
			}
			defer conn.Close()
			if err := conn.SetDeadline(time.Now().Add(time.Second)); err != nil {
				return err
			}
			if _, err := conn.Write([]byte("PING\r\n")); err != nil {
				return err
			}
			line, err := bufio.NewReader(conn).ReadString('\n')
			if err == nil && !strings.HasPrefix(line, "+PONG") {
				err = fmt.Errorf("it answered PING with %q", line)
			}
			return err
		},
	}
}

// newPostgres describes a PostgreSQL that keeps its promises (fsync on) and
// refuses to run as root, so it runs as postgres when we are root.
func newPostgres(binaries string) *server {
	url := func(port int) string {
		return "postgres://postgres@" + loopback(port) + "/postgres?sslmode=disable"
	}
	return &server{
		name:     "postgres",
		variable: "LARGESSE_TEST_POSTGRES",
		farewell: syscall.SIGINT, // fast: does not wait for clients
		address:  url,
		command: func(ctx context.Context, dir string, port int) (*exec.Cmd, error) {
			data := filepath.Join(dir, "data")
			initdb := exec.CommandContext(ctx, filepath.Join(binaries, "initdb"), "-D", data, "-U", "postgres",
				"-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
			server := exec.Command(filepath.Join(binaries, "postgres"), "-D", data, "-p", strconv.Itoa(port), //nolint:noctx // stop ends it with grace, ctx would kill it
				"-h", "127.0.0.1", "-k", dir, "-c", "max_connections=200", "-c", "fsync=on")
			for _, cmd := range []*exec.Cmd{initdb, server} {
				cmd.Dir, cmd.Env = dir, cLocale()
				if os.Getuid() != 0 {
					continue
				}
				if err := asUser(cmd, "postgres"); err != nil {
					return nil, err
				}
			}
			if os.Getuid() == 0 {
				uid, gid, err := lookupUser("postgres")
				if err != nil {
					return nil, err
				}
				if err := os.Chown(dir, int(uid), int(gid)); err != nil {
					return nil, fmt.Errorf("giving %s to postgres: %w", dir, err)
				}
			}
			ownGroup(initdb)
			if text, err := initdb.CombinedOutput(); err != nil {
				return nil, fmt.Errorf("initdb: %w\n%s", err, tail(string(text), 20))
			}
			return server, nil
		},
		answers: func(ctx context.Context, port int) error {
			conn, err := pgx.Connect(ctx, url(port))
			if err != nil {
				return err
			}
			defer conn.Close(ctx)
			return conn.Ping(ctx)
		},
	}
}

// kafkaSettings is a single node that is broker and controller in one; the
// internal topics have one replica, as there is one node.
const kafkaSettings = `process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:%[2]d
listeners=PLAINTEXT://127.0.0.1:%[1]d,CONTROLLER://127.0.0.1:%[2]d
advertised.listeners=PLAINTEXT://127.0.0.1:%[1]d
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
controller.listener.names=CONTROLLER
log.dirs=%[3]s
num.partitions=1
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
`

func newKafka(java, classPath string) *server {
	jvm := func(class string, args ...string) []string {
		return append([]string{
			"-Xmx512m", "-XX:+UseSerialGC", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
			"-cp", classPath, class,
		}, args...)
	}
	return &server{
		name:     "kafka",
		variable: "LARGESSE_TEST_KAFKA",
		farewell: syscall.SIGTERM,
		address:  loopback,
		command: func(ctx context.Context, dir string, port int) (*exec.Cmd, error) {
			controllerPort, err := freePort()
			if err != nil {
				return nil, err
			}
			settings := filepath.Join(dir, "server.properties")
			text := fmt.Sprintf(kafkaSettings, port, controllerPort, filepath.Join(dir, "log"))
			if err := os.WriteFile(settings, []byte(text), 0o600); err != nil {
				return nil, fmt.Errorf("writing %s: %w", settings, err)
			}
			// A cluster id is 16 bytes in URL-safe base64; StorageTool's
			// random-uuid makes the same, with a second JVM.
			id := make([]byte, 16)
			if _, err := rand.Read(id); err != nil {
				return nil, fmt.Errorf("making a cluster id: %w", err)
			}
			id[0] &= 0x3f // Kafka refuses ids that begin with a dash
			out, err := output(ctx, dir, nil, java, jvm("kafka.tools.StorageTool", "format",
				"-t", base64.RawURLEncoding.EncodeToString(id), "-c", settings)...)
			if err != nil {
				return nil, fmt.Errorf("%w\n%s", err, tail(out, 20))
			}
			cmd := exec.Command(java, jvm("kafka.Kafka", settings)...) //nolint:noctx // stop ends it with grace, ctx would kill it
			cmd.Dir = dir
			return cmd, nil
		},
		answers: func(ctx context.Context, port int) error {
			client, err := kgo.NewClient(kgo.SeedBrokers(loopback(port)), kgo.RetryTimeout(time.Second))
			if err != nil {
				return err
			}
			defer client.Close()
			return client.Ping(ctx)
		},
	}
}
