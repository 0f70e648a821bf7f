package engine

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/largesse/largesse/internal/bus"
	"github.com/largesse/largesse/internal/config"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/service"
)

// retentionLeast is how long a record should be kept: for as long as nobody
// may be there to read it.
const retentionLeast = 24 * time.Hour

func lookAtKafka(ctx context.Context, cfg config.Config) []Check {
	if len(cfg.Kafka.Brokers) == 0 {
		return []Check{lookAtListen(ctx, cfg)}
	}
	facts, err := bus.Inspect(ctx, busConfig(cfg, "doctor-"+service.InstanceID(), obs.Log{}))
	if err != nil {
		return []Check{passed("kafka", "%s", reason(ctx, err)).but(CheckFail, "%s", kafkaAdvice(err, cfg.Kafka))}
	}
	return judgeKafka(facts)
}

// kafkaAdvice says what to do about brokers that cannot be used.
func kafkaAdvice(err error, c config.Kafka) string {
	_, distrust := errors.AsType[*tls.CertificateVerificationError](err)
	broken, isBroken := errors.AsType[*net.OpError](err)
	_, noTLS := errors.AsType[tls.RecordHeaderError](err)
	_, nowhere := errors.AsType[*net.DNSError](err)
	switch {
	case errors.Is(err, syscall.ECONNREFUSED), nowhere:
	case distrust:
		return "put who has signed the brokers' certificate into kafka.ca-file, and see that kafka.brokers names the hosts as the certificate does"
	case isBroken && broken.Op == "remote error": // what crypto/tls calls an alert of the other side
		return "correct kafka.client-cert and kafka.client-key: the brokers do not take what they are shown"
	case errors.Is(err, kerr.SaslAuthenticationFailed):
		return "correct kafka.sasl-user and kafka.sasl-password-file, or give that user this password in Kafka"
	case errors.Is(err, kerr.UnsupportedSaslMechanism):
		return "set kafka.sasl-mechanism to one that the brokers offer"
	case errors.Is(err, io.EOF) && c.SASLMechanism != "": // brokers that say nothing end so too
		return "correct kafka.sasl-user and kafka.sasl-password-file, and see that kafka.tls and kafka.sasl-mechanism say the same as the listener behind that port"
	case noTLS, errors.Is(err, io.EOF), c.TLS:
		return "see which listener that port is (plain, TLS, SASL), and that kafka.tls and kafka.sasl-mechanism say the same"
	}
	return "see that it runs and that kafka.brokers names host:port of its brokers"
}

func judgeKafka(f bus.Inspection) []Check {
	brokers := passed("kafka", "%d of %d brokers answer, one within %s", f.Brokers-len(f.Silent), f.Brokers, rounded(f.RoundTrip))
	if f.Brokers == 1 {
		brokers.Found = fmt.Sprintf("1 broker answers within %s", rounded(f.RoundTrip))
	}
	if len(f.Silent) > 0 {
		brokers.Found = fmt.Sprintf("%d of %d brokers cannot be reached by the address they give: %s", len(f.Silent), f.Brokers, strings.Join(f.Silent, ", "))
		brokers = brokers.but(CheckFail, "see that they run, and that advertised.listeners names addresses that this machine can reach")
	}
	return append([]Check{brokers}, judgeTopics(f)...)
}

// judgeTopics has one line for all that is well, one for all topics that are
// missing, and one for each fault.
func judgeTopics(f bus.Inspection) []Check {
	var checks []Check
	var fine, missing []string
	for _, t := range f.Topics {
		if t.Missing {
			missing = append(missing, t.Name)
			continue
		}
		if faults := judgeTopic(t, f.Brokers); len(faults) > 0 {
			checks = append(checks, faults...)
			continue
		}
		fine = append(fine, fmt.Sprintf("%s (%d)", t.Name, t.Partitions))
	}
	if len(missing) > 0 {
		checks = append(checks, passed("kafka.topics", "%d missing: %s", len(missing), strings.Join(missing, ", ")).
			but(CheckWarn, "nothing has to be done where this user may make topics: serve makes them at its start; where it may not, docs/operations.md has the commands"))
	}
	if len(fine) > 0 {
		checks = append(checks, passed("kafka.topics", "%d as they should be (partitions): %s", len(fine), strings.Join(fine, ", ")))
	}
	return checks
}

// readInParallel are the topics whose partitions bound how many instances read
// them, publishTopics those whose records nobody else has.
var (
	readInParallel = []string{bus.TopicPointPublish, bus.TopicVoucherPublish, bus.TopicPointRetry, bus.TopicVoucherRetry}
	publishTopics  = []string{bus.TopicPointPublish, bus.TopicVoucherPublish}
)

func judgeTopic(t bus.TopicInspection, brokers int) []Check {
	if t.Err != nil {
		return []Check{passed("kafka.topics", "%s cannot be looked at: %s", t.Name, oneLine(t.Err)).
			but(CheckFail, "let this user describe, read and write it")}
	}
	var faults []Check
	if t.Leaderless > 0 {
		faults = append(faults, passed("kafka.topics", "%s has %d of %d partitions without a leader", t.Name, t.Leaderless, t.Partitions).
			but(CheckFail, "bring their brokers back: nobody can read or write them"))
	}
	if t.Partitions == 1 && slices.Contains(readInParallel, t.Topic) {
		faults = append(faults, passed("kafka.partitions", "%s has 1 partition", t.Name).
			but(CheckWarn, "add some (kafka-topics.sh --alter --partitions 12 …): one instance at a time can read it"))
	}
	if t.Replicas == 1 && brokers > 1 {
		faults = append(faults, passed("kafka.replicas", "%s is on 1 of %d brokers only", t.Name, brokers).
			but(CheckWarn, "add replicas (kafka-reassign-partitions.sh): it goes with that broker"))
	}
	if slices.Contains(publishTopics, t.Topic) {
		faults = append(faults, judgeRetention(t)...)
	}
	return faults
}

func judgeRetention(t bus.TopicInspection) []Check {
	var faults []Check
	if !t.Described {
		return []Check{passed("kafka.retention", "%s: how long records are kept could not be read", t.Name).
			but(CheckWarn, "let this user describe the settings of topics, or see that it is at least %s", config.ShortDuration(retentionLeast))}
	}
	if t.Retention >= 0 && t.Retention < retentionLeast {
		faults = append(faults, passed("kafka.retention", "%s keeps records for %s", t.Name, config.ShortDuration(t.Retention)).
			but(CheckWarn, "raise retention.ms to at least %s: a record that goes before it was read is a payout that nobody makes", config.ShortDuration(retentionLeast)))
	}
	if t.Compacted {
		faults = append(faults, passed("kafka.retention", "%s is compacted", t.Name).
			but(CheckFail, "set cleanup.policy=delete: its key is the target, so one promotion's record would make another's go unread"))
	}
	return faults
}
