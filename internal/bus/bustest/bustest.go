// Package bustest is the suite of package bus. It runs against the embedded
// broker and against Apache Kafka.
package bustest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/largesse/largesse/internal/bus"
	"github.com/largesse/largesse/internal/lab/fixture"
)

const (
	// stopLimit limits every Stop on fake time.
	stopLimit = 5 * time.Second

	partitions = 3
	group      = bus.GroupPoint
	topic      = bus.TopicPointPublish
)

// Exercise runs the suite against brokers. Tests use their own topics and groups, so that
// any number of runs may share a broker.
func Exercise(t *testing.T, brokers []string) {
	exercise(t, func(t *testing.T, test func(*testing.T, *bench)) { test(t, &bench{brokers: brokers}) })
}

// ExerciseEmbedded runs the suite against embedded brokers, on fake time.
func ExerciseEmbedded(t *testing.T) {
	fixture.FakesKafka(t)
	exercise(t, func(t *testing.T, test func(*testing.T, *bench)) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			network := &kfake.VirtualNetwork{}
			broker := fixture.Must(bus.StartBroker(t.Context(), bus.BrokerConfig{
				Dir: t.TempDir(), Listen: "127.0.0.1:9092", ListenOn: network.Listen, Dial: network.DialContext,
			}))(t)
			t.Cleanup(broker.Close)
			test(t, &bench{brokers: []string{broker.Addr()}, dial: network.DialContext})
		})
	})
}

// exercise runs every test of the suite with brokers that run provides.
func exercise(t *testing.T, run func(t *testing.T, test func(*testing.T, *bench))) {
	t.Helper()
	for name, test := range map[string]func(*testing.T, *bench){
		"TopicsAreMadeOnceAndLeftAlone":             testTopics,
		"RestartsOfAListenerLoseNothing":            testRestart,
		"AFailedBatchComesAgainAndIsNotCommitted":   testRetry,
		"TwoListenersShareAndTakeOver":              testShare,
		"AFailingListenerLetsPartitionsGo":          testFailingShare,
		"AnUnhealthyListenerLeavesAndComesBack":     testUnhealthy,
		"StoredOffsetsWin":                          testStoredOffsets,
		"OffsetsBeyondTheLogMeanItsBeginning":       testOffsetsBeyond,
		"NothingIsReadBeforeStoredOffsetsAreKnown":  testOffsetsFail,
		"StopEndsWhateverFails":                     testStopWhileFailing,
		"ABroadcastReachesLateJoiners":              testBroadcast,
		"ABroadcastFollowsNewPartitions":            testBroadcastPartitions,
		"ABroadcastOfAnEmptyTopicIsReady":           testBroadcastEmpty,
		"RecordsOfOtherClientsAreReadIntact":        testExternal,
		"WhatIsPublishedIsReadIntactByOtherClients": testPublishedIntact,
		"OneKeyStaysOnOnePartition":                 testKeys,
		"AbortedTransactionsAreNotRead":             testTransactions,
		"ATopicThatIsRecreatedIsUsed":               testRecreated,
		"ALargeRecordPasses":                        testLarge,
		"ARecordTooLargeIsAnError":                  testTooLarge,
		"DeadLettersKeepTheBytes":                   testDeadLetter,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run(t, func(t *testing.T, b *bench) {
				b.prepare(t)
				test(t, b)
			})
		})
	}
}

// bench is the part of the broker that one test uses.
type bench struct {
	brokers []string
	dial    func(ctx context.Context, network, address string) (net.Conn, error) // nil = TCP
	prefix  string
	client  *bus.Client
}

// prepare creates topics with a prefix of the test's own.
func (b *bench) prepare(t *testing.T) {
	t.Helper()
	b.prefix = fixture.Name() + "."
	b.client = b.open(t)
	fixture.OK(t, b.client.EnsureTopics(t.Context()))
}

// open opens another client, like another instance.
func (b *bench) open(t *testing.T) *bus.Client {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), fixture.Patience)
	defer cancel()
	client := fixture.Must(bus.Open(ctx, bus.Config{
		Brokers: b.brokers, Dial: b.dial, TopicPrefix: b.prefix, ClientID: t.Name(), Partitions: partitions, Retention: bus.DefaultRetention,
	}))(t)
	t.Cleanup(client.Close)
	return client
}

// raw opens a plain Kafka client.
func (b *bench) raw(t *testing.T, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	opts = append(opts, kgo.SeedBrokers(b.brokers...), kgo.DisableClientMetrics())
	if b.dial != nil {
		opts = append(opts, kgo.Dialer(b.dial))
	}
	client := fixture.Must(kgo.NewClient(opts...))(t)
	t.Cleanup(client.Close)
	return client
}

func (b *bench) admin(t *testing.T) *kadm.Client {
	t.Helper()
	return kadm.NewClient(b.raw(t))
}

// publish publishes n records with the values from to from+n-1 and different
// keys.
func (b *bench) publish(t *testing.T, from, n int) {
	t.Helper()
	var records []bus.Record
	for i := from; i < from+n; i++ {
		records = append(records, bus.Record{Topic: topic, Key: []byte(strconv.Itoa(i)), Value: []byte(strconv.Itoa(i))})
	}
	fixture.OK(t, b.client.Publish(t.Context(), records))
}

// listen starts a listener of the group on the client.
func (b *bench) listen(t *testing.T, client *bus.Client, handle bus.HandleFunc, offsets bus.OffsetsFunc, batchMax int) *bus.Listener {
	t.Helper()
	l := fixture.Must(bus.NewListener(client, bus.ListenerConfig{
		Group: group, Topic: topic, Handle: handle, Offsets: offsets, BatchMax: batchMax,
	}))(t)
	l.Start(t.Context())
	t.Cleanup(l.Stop)
	return l
}

// waitNoLag waits until the group has committed every record.
func (b *bench) waitNoLag(t *testing.T) {
	t.Helper()
	fixture.Until(t, "the lag is 0", func() bool { return b.lag(t) == 0 })
}

func (b *bench) lag(t *testing.T) int64 {
	t.Helper()
	return fixture.Must(b.client.Lag(t.Context(), group, topic))(t)
}

// log records what a handle function got.
type log struct {
	mu      sync.Mutex // protects the fields below
	records []bus.Record
	values  map[string]int // value → number of records
}

func newLog() *log { return &log{values: map[string]int{}} }

func (l *log) handle(_ context.Context, records []bus.Record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.records = append(l.records, records...)
	for _, r := range records {
		l.values[string(r.Value)]++
	}
	return nil
}

// and handles records for both logs.
func (l *log) and(other *log) bus.HandleFunc {
	return func(ctx context.Context, records []bus.Record) error {
		return errors.Join(l.handle(ctx, records), other.handle(ctx, records))
	}
}

func (l *log) all() []bus.Record {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.records)
}

// distinct returns the number of different values.
func (l *log) distinct() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.values)
}

// wait waits until there are n different values.
func (l *log) wait(t *testing.T, n int) {
	t.Helper()
	fixture.Until(t, fmt.Sprintf("%d different records were handled", n), func() bool { return l.distinct() >= n })
}

// wantOrdered fails unless the offsets rise within each partition.
func wantOrdered(t *testing.T, records []bus.Record) {
	t.Helper()
	last := map[int32]int64{}
	for _, r := range records {
		if before, ok := last[r.Partition]; ok && r.Offset <= before {
			t.Fatalf("partition %d: offset %d came after %d", r.Partition, r.Offset, before)
		}
		last[r.Partition] = r.Offset
	}
}

// wantStops fails unless stop returns: at a real broker at all, and on fake time within
// stopLimit.
func (b *bench) wantStops(t *testing.T, stop func()) {
	t.Helper()
	began := time.Now()
	stop()
	if took := time.Since(began); b.dial != nil && took > stopLimit {
		t.Errorf("Stop took %s, at most %s was wanted", took, stopLimit)
	}
}
