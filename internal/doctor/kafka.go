package doctor

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
	"github.com/largesse/largesse/internal/parts"
	"github.com/largesse/largesse/internal/service"
)

// retentionNeeded is the time that records should be retained, because no instance may
// be there to read them.
const retentionNeeded = 24 * time.Hour

func lookAtKafka(ctx context.Context, cfg config.Config) []Check {
	if len(cfg.Kafka.Brokers) == 0 {
		if skipped := skipUnusable("kafka", cfg.Data.Dir); skipped != nil {
			return skipped
		}
		if err := bus.CheckLog(parts.BrokerDir(cfg)); err != nil {
			return []Check{passed("kafka", "%s", OneLine(err)).
				but(CheckFail, "restore %s from a copy; if there is none, move it away, and records that no instance has read are lost", parts.BrokerDir(cfg))}
		}
		return []Check{lookAtListen(ctx, cfg)}
	}
	facts, err := bus.Inspect(ctx, parts.BusConfig(cfg, "doctor-"+service.InstanceID(), obs.Log{}))
	if err != nil {
		return []Check{passed("kafka", "%s", reason(ctx, err)).but(CheckFail, "%s", kafkaAdvice(err, cfg.Kafka))}
	}
	return judgeKafka(facts)
}

func kafkaAdvice(err error, c config.Kafka) string {
	_, distrust := errors.AsType[*tls.CertificateVerificationError](err)
	broken, isBroken := errors.AsType[*net.OpError](err)
	_, noTLS := errors.AsType[tls.RecordHeaderError](err)
	_, nowhere := errors.AsType[*net.DNSError](err)
	switch {
	case errors.Is(err, syscall.ECONNREFUSED), nowhere:
	case distrust:
		return "add the CA of the brokers' certificates to kafka.ca-file, and check that kafka.brokers has the host names of the certificates"
	case isBroken && broken.Op == "remote error": // crypto/tls reports an alert of the broker like this
		return "correct kafka.client-cert and kafka.client-key: the brokers reject the certificate"
	case errors.Is(err, kerr.SaslAuthenticationFailed):
		return "correct kafka.sasl-user and kafka.sasl-password-file, or change the password of that user in Kafka"
	case errors.Is(err, kerr.UnsupportedSaslMechanism):
		return "set kafka.sasl-mechanism to a mechanism of the brokers"
	case errors.Is(err, io.EOF) && c.SASLMechanism != "": // some brokers report a failed login like this
		return "correct kafka.sasl-user and kafka.sasl-password-file, and check that kafka.tls and kafka.sasl-mechanism match the listener of that port"
	case noTLS, errors.Is(err, io.EOF), c.TLS:
		return "check which listener has that port (plain, TLS or SASL), and that kafka.tls and kafka.sasl-mechanism match it"
	}
	return "check that Kafka runs and that kafka.brokers has the host:port of its brokers"
}

func judgeKafka(f bus.Inspection) []Check {
	brokers := passed("kafka", "%d of %d brokers respond, one of them within %s", f.Brokers-len(f.Silent), f.Brokers, rounded(f.RoundTrip))
	if f.Brokers == 1 {
		brokers = brokers.saying("1 broker responds within %s", rounded(f.RoundTrip))
	}
	if len(f.Silent) > 0 {
		brokers = brokers.saying("%d of %d brokers cannot be reached at their advertised address: %s", len(f.Silent), f.Brokers, strings.Join(f.Silent, ", ")).
			but(CheckFail, "check that they run, and that this machine can reach the addresses in advertised.listeners")
	}
	return append([]Check{brokers}, judgeTopics(f)...)
}

// judgeTopics returns one check for all good topics, one for all missing topics, and
// one for each problem.
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
			but(CheckWarn, "do nothing if this user may create topics, because serve creates them at its start; otherwise run the commands in docs/operations.md"))
	}
	if len(fine) > 0 {
		checks = append(checks, passed("kafka.topics", "%d are correct (partitions): %s", len(fine), strings.Join(fine, ", ")))
	}
	return checks
}

// readInParallel lists the topics whose number of partitions limits how many
// instances read them. publishTopics lists those whose records exist nowhere else.
var (
	readInParallel = []string{bus.TopicPointPublish, bus.TopicVoucherPublish, bus.TopicPointRetry, bus.TopicVoucherRetry}
	publishTopics  = []string{bus.TopicPointPublish, bus.TopicVoucherPublish}
)

func judgeTopic(t bus.TopicInspection, brokers int) []Check {
	if t.Err != nil {
		return []Check{passed("kafka.topics", "%s cannot be described: %s", t.Name, OneLine(t.Err)).
			but(CheckFail, "let this user describe, read and write it")}
	}
	var faults []Check
	if t.Leaderless > 0 {
		faults = append(faults, passed("kafka.topics", "%s has %d of %d partitions without a leader", t.Name, t.Leaderless, t.Partitions).
			but(CheckFail, "start their brokers: these partitions cannot be read or written"))
	}
	if t.Partitions == 1 && slices.Contains(readInParallel, t.Topic) {
		faults = append(faults, passed("kafka.partitions", "%s has 1 partition", t.Name).
			but(CheckWarn, "add partitions (kafka-topics.sh --alter --partitions 12 …): only one instance at a time can read it"))
	}
	if t.Replicas == 1 && brokers > 1 {
		faults = append(faults, passed("kafka.replicas", "%s is on only 1 of %d brokers", t.Name, brokers).
			but(CheckWarn, "add replicas (kafka-reassign-partitions.sh): if that broker is lost, so are its records"))
	}
	if slices.Contains(publishTopics, t.Topic) {
		faults = append(faults, judgeRetention(t)...)
	}
	return faults
}

func judgeRetention(t bus.TopicInspection) []Check {
	var faults []Check
	if !t.Described {
		return []Check{passed("kafka.retention", "the retention of %s could not be read", t.Name).
			but(CheckWarn, "let this user describe the configuration of topics, or check that retention.ms is at least %s", config.ShortDuration(retentionNeeded))}
	}
	if t.Retention >= 0 && t.Retention < retentionNeeded {
		faults = append(faults, passed("kafka.retention", "%s retains records for %s", t.Name, config.ShortDuration(t.Retention)).
			but(CheckWarn, "raise retention.ms to at least %s: a payout whose record is deleted before an instance reads it is never made", config.ShortDuration(retentionNeeded)))
	}
	if t.Compacted {
		faults = append(faults, passed("kafka.retention", "%s is compacted", t.Name).
			but(CheckFail, "set cleanup.policy=delete: the key of a record is its target, so a record of one promotion can delete one of another"))
	}
	return faults
}
