// Package bustest is the suite of package bus. It runs against the embedded
// broker and against Apache Kafka.
package bustest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/largesse/largesse/internal/bus"
)

const (
	// deadline is far above the duration of any test.
	deadline = 60 * time.Second
	// stopLimit limits every Stop.
	stopLimit = 5 * time.Second

	partitions = 3
	group      = bus.GroupPoint
	topic      = bus.TopicPointPublish
)

// Exercise runs the suite against the brokers. Tests use their own topics and
// groups, so that any number of runs may share a broker.
func Exercise(t *testing.T, brokers []string) {
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
		"RecordsOfOtherClientsAreReadIntact":        testForeign,
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
			test(t, newBench(t, brokers))
		})
	}
}

// bench is the part of the broker that one test uses.
type bench struct {
	brokers []string
	prefix  string
	client  *bus.Client
	pub     bus.Publisher
}

func newBench(t *testing.T, brokers []string) *bench {
	t.Helper()
	b := &bench{brokers: brokers, prefix: "t" + strconv.FormatUint(rand.Uint64(), 36) + "."}
	b.client = b.open(t)
	b.pub = bus.NewPublisher(b.client)
	if err := b.client.EnsureTopics(t.Context()); err != nil {
		t.Fatal(err)
	}
	return b
}

// open opens another client, like another instance.
func (b *bench) open(t *testing.T) *bus.Client {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	client, err := bus.Open(ctx, bus.Config{
		Brokers: b.brokers, TopicPrefix: b.prefix, ClientID: t.Name(), Partitions: partitions, Retention: bus.DefaultRetention,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client
}

// raw opens a plain Kafka client.
func (b *bench) raw(t *testing.T, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	client, err := kgo.NewClient(append(opts, kgo.SeedBrokers(b.brokers...), kgo.DisableClientMetrics())...)
	if err != nil {
		t.Fatal(err)
	}
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
	if err := b.pub.Publish(t.Context(), records); err != nil {
		t.Fatal(err)
	}
}

// listen starts a listener of the group on the client.
func (b *bench) listen(t *testing.T, client *bus.Client, handle bus.HandleFunc, offsets bus.OffsetsFunc, batchMax int) *bus.Listener {
	t.Helper()
	l, err := bus.NewListener(client, bus.ListenerConfig{
		Group: group, Topic: topic, Handle: handle, Offsets: offsets, BatchMax: batchMax,
	})
	if err != nil {
		t.Fatal(err)
	}
	l.Start(t.Context())
	t.Cleanup(l.Stop)
	return l
}

// waitNoLag waits until the group has committed every record.
func (b *bench) waitNoLag(t *testing.T) {
	t.Helper()
	eventually(t, "the lag is 0", func() bool { return b.lag(t) == 0 })
}

func (b *bench) lag(t *testing.T) int64 {
	t.Helper()
	lags, err := b.client.Lag(t.Context(), group, topic)
	if err != nil {
		t.Fatal(err)
	}
	return lags[topic]
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
	eventually(t, fmt.Sprintf("%d different records were handled", n), func() bool { return l.distinct() >= n })
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

func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	limit := time.NewTimer(deadline)
	defer limit.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-limit.C:
			t.Fatalf("waited %s in vain until %s", deadline, what)
		}
	}
}

// wantStops fails unless stop returns in time.
func wantStops(t *testing.T, stop func()) {
	t.Helper()
	began := time.Now()
	stop()
	if took := time.Since(began); took > stopLimit {
		t.Errorf("Stop took %s, at most %s was wanted", took, stopLimit)
	}
}
