package fleet

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// kafkaSettings configures a single node that is both broker and controller.
// Internal topics have one replica, because there is one node.
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

// NewKafka finds an Apache Kafka and returns a single node that creates topics
// on demand. It keeps its log across restarts.
func NewKafka(ctx context.Context, in Installer) (*Server, error) {
	java, classPath, err := in.findKafka(ctx)
	if err != nil {
		return nil, fmt.Errorf("find Kafka: %w", err)
	}
	jvm := func(class string, args ...string) []string {
		return append([]string{
			// The optimizing compiler costs a broker that lives for minutes more than it saves.
			"-Xmx1g", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
			"-cp", classPath, class,
		}, args...)
	}
	settings := func(at place) string { return filepath.Join(at.dir, "server.properties") }
	return &Server{
		name: "kafka", ports: 2, farewell: syscall.SIGTERM, address: loopback,
		prepare: func(ctx context.Context, at place) error {
			text := fmt.Sprintf(kafkaSettings, at.ports[0], at.ports[1], filepath.Join(at.dir, "log"))
			if err := os.WriteFile(settings(at), []byte(text), 0o600); err != nil {
				return fmt.Errorf("write %s: %w", settings(at), err)
			}
			// A cluster ID is 16 bytes in URL-safe base64. Kafka's StorageTool
			// random-uuid does the same, but needs a second JVM.
			id := make([]byte, 16)
			if _, err := rand.Read(id); err != nil {
				return fmt.Errorf("create a cluster ID: %w", err)
			}
			id[0] &= 0x3f // Kafka refuses IDs that start with a dash
			out, err := Output(ctx, at.dir, nil, java, jvm("kafka.tools.StorageTool", "format",
				"-t", base64.RawURLEncoding.EncodeToString(id), "-c", settings(at))...)
			if err != nil {
				return fmt.Errorf("%w\n%s", err, Tail(out, 20))
			}
			return nil
		},
		command: func(at place) (*exec.Cmd, error) {
			cmd := exec.Command(java, jvm("kafka.Kafka", settings(at))...) //nolint:noctx // Stop ends it gracefully, a context would kill it
			cmd.Dir = at.dir
			return cmd, nil
		},
		answers: func(ctx context.Context, at place, _ int) error {
			client, err := kgo.NewClient(kgo.SeedBrokers(loopback(at.ports[0])), kgo.RetryTimeout(time.Second))
			if err != nil {
				return err
			}
			defer client.Close()
			return client.Ping(ctx)
		},
	}, nil
}

// LoseTopic deletes the records of a topic from the disk of a Kafka that does not run. The
// next start begins the topic, which keeps its ID, with an empty log.
func LoseTopic(s *Server, topic string) error {
	if s.Running() {
		return fmt.Errorf("delete the records of %s: %s runs; stop it first", topic, s.name)
	}
	partitions, err := filepath.Glob(filepath.Join(s.at.dir, "log", topic+"-*"))
	if err == nil && len(partitions) == 0 {
		err = errors.New("it has no partition there")
	}
	for _, dir := range partitions {
		err = errors.Join(err, os.RemoveAll(dir))
	}
	if err != nil {
		return fmt.Errorf("delete the records of %s at %s: %w", topic, s.Address(), err)
	}
	return nil
}

// DeleteTopics deletes the topics whose names begin with prefix. A broker keeps every
// partition in memory: with over 10,000, those of a few hundred tests, it stops responding.
func DeleteTopics(ctx context.Context, brokers []string, prefix string) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.DisableClientMetrics())
	if err != nil {
		return fmt.Errorf("delete the topics of %s: %w", prefix, err)
	}
	defer client.Close()
	admin := kadm.NewClient(client)
	topics, err := admin.ListTopics(ctx)
	if err != nil {
		return fmt.Errorf("delete the topics of %s: %w", prefix, err)
	}
	var names []string
	for _, name := range topics.Names() {
		if strings.HasPrefix(name, prefix) {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	deleted, err := admin.DeleteTopics(ctx, names...)
	if err == nil {
		err = deleted.Error()
	}
	if err != nil {
		return fmt.Errorf("delete the topics of %s: %w", prefix, err)
	}
	return nil
}
