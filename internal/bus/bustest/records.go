package bustest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/largesse/largesse/internal/bus"
	"github.com/largesse/largesse/internal/lab/fixture"
)

func testTopics(t *testing.T, b *bench) {
	// Use another prefix, where only one topic exists, with other settings.
	b.prefix = "x" + b.prefix
	admin := b.admin(t)
	fixture.Must(admin.CreateTopic(t.Context(), 7, -1, nil, b.prefix+bus.TopicPointRetry))(t)
	var group sync.WaitGroup
	for range 4 {
		client := b.open(t)
		group.Go(func() {
			if err := client.EnsureTopics(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	want := map[string]int{}
	for _, name := range bus.Topics {
		want[name] = partitions
		want[name+bus.DeadLetterSuffix] = 1
	}
	want[bus.TopicStarted] = 1
	want[bus.TopicPointRetry] = 7
	got := map[string]int{}
	var names []string
	for name := range maps.Keys(want) {
		names = append(names, b.prefix+name)
	}
	details := fixture.Must(admin.ListTopics(t.Context(), names...))(t)
	for name := range want {
		got[name] = len(details[b.prefix+name].Partitions)
	}
	fixture.Equal(t, want, got)
	settings := fixture.Must(admin.DescribeTopicConfigs(t.Context(), b.prefix+bus.TopicPointPublish))(t)
	retention := ""
	for _, s := range settings[0].Configs {
		if s.Key == "retention.ms" {
			retention = s.MaybeValue()
		}
	}
	if want := strconv.FormatInt(bus.DefaultRetention.Milliseconds(), 10); retention != want {
		t.Errorf("retention.ms is %q, %s was wanted", retention, want)
	}
}

func testExternal(t *testing.T, b *bench) {
	at := time.UnixMilli(time.Now().UnixMilli())
	big := bytes.Repeat([]byte("a voucher, please; "), 500)
	var want []bus.Record
	codecs := map[string]kgo.CompressionCodec{
		"none":   kgo.NoCompression(),
		"gzip":   kgo.GzipCompression(),
		"snappy": kgo.SnappyCompression(),
		"lz4":    kgo.Lz4Compression(),
	}
	if b.dial == nil { // on fake time, the finalizer of a zstd decoder would close a channel of the bubble from outside
		codecs["zstd"] = kgo.ZstdCompression()
	}
	for name, codec := range codecs {
		var sent []*kgo.Record
		for i, r := range []bus.Record{
			{Key: []byte("key"), Value: big},
			{Value: []byte("without a key")},
			{Key: []byte("without a value")},
			{Key: []byte{}, Value: []byte{}},
			{Key: []byte{0, 0xff}, Value: []byte{0xc3, 0x28, 0}},
			{Key: []byte("headers"), Value: []byte("x"), Headers: []bus.Header{
				{Key: "traceparent", Value: []byte("00-1-2-3")}, {Key: "traceparent", Value: []byte("again")}, {Key: "null"},
			}},
		} {
			r.Topic = topic
			r.At = at
			r.Headers = append(r.Headers, bus.Header{Key: "id", Value: fmt.Append(nil, name, i)})
			want = append(want, r)
			out := &kgo.Record{Topic: b.prefix + topic, Key: r.Key, Value: r.Value, Timestamp: r.At}
			for _, h := range r.Headers {
				out.Headers = append(out.Headers, kgo.RecordHeader(h))
			}
			sent = append(sent, out)
		}
		fixture.OK(t, b.raw(t, kgo.ProducerBatchCompression(codec)).ProduceSync(t.Context(), sent...).FirstErr())
	}
	bare := &kgo.Record{Topic: b.prefix + topic, Value: []byte("without headers"), Timestamp: at}
	fixture.OK(t, b.raw(t).ProduceSync(t.Context(), bare).FirstErr())
	want = append(want, bus.Record{Topic: topic, Value: bare.Value, At: at})

	seen := newLog()
	b.listen(t, b.client, seen.handle, nil, 0)
	fixture.Until(t, "all records came", func() bool { return len(seen.all()) >= len(want) })
	byID := func(records []bus.Record) map[string]bus.Record {
		out := map[string]bus.Record{}
		for _, r := range records {
			id := ""
			if n := len(r.Headers); n > 0 {
				id = string(r.Headers[n-1].Value)
			}
			r.Partition, r.Offset = 0, 0
			out[id] = r
		}
		return out
	}
	fixture.Equal(t, byID(want), byID(seen.all()))
}

// readRaw reads n records with a plain Kafka client.
func (b *bench) readRaw(t *testing.T, name string, n int) []*kgo.Record {
	t.Helper()
	client := b.raw(t, kgo.ConsumeTopics(b.prefix+name), kgo.ConsumeStartOffset(kgo.NewOffset().AtStart()))
	ctx, cancel := context.WithTimeout(t.Context(), fixture.Patience)
	defer cancel()
	var out []*kgo.Record
	for len(out) < n {
		fetches := client.PollFetches(ctx)
		fixture.OK(t, fetches.Err0())
		out = append(out, fetches.Records()...)
	}
	return out
}

func testPublishedIntact(t *testing.T, b *bench) {
	at := time.UnixMilli(1_790_000_000_123)
	if err := b.client.Publish(t.Context(), nil); err != nil {
		t.Errorf("an empty batch: %v", err)
	}
	fixture.OK(t, b.client.Publish(t.Context(), []bus.Record{{
		Topic: topic, Key: []byte("7"), Value: []byte{0, 0xff}, Headers: []bus.Header{{Key: "h", Value: []byte("v")}}, At: at,
	}}))
	got := b.readRaw(t, topic, 1)[0]
	if string(got.Key) != "7" || !bytes.Equal(got.Value, []byte{0, 0xff}) || !got.Timestamp.Equal(at) {
		t.Errorf("key %q value %x at %s came out", got.Key, got.Value, got.Timestamp)
	}
	fixture.Equal(t, []kgo.RecordHeader{{Key: "h", Value: []byte("v")}}, got.Headers)
}

func testKeys(t *testing.T, b *bench) {
	var records []bus.Record
	for i := range 300 {
		records = append(records, bus.Record{Topic: topic, Key: []byte(strconv.Itoa(i % 30)), Value: []byte("x")})
	}
	fixture.OK(t, b.client.Publish(t.Context(), records))
	where := map[string]int32{}
	used := map[int32]bool{}
	for _, r := range b.readRaw(t, topic, len(records)) {
		if before, ok := where[string(r.Key)]; ok && before != r.Partition {
			t.Errorf("key %s is on partitions %d and %d", r.Key, before, r.Partition)
		}
		where[string(r.Key)] = r.Partition
		used[r.Partition] = true
	}
	if len(used) != partitions {
		t.Errorf("30 keys went to %d partitions, %d were wanted", len(used), partitions)
	}
}

func testLarge(t *testing.T, b *bench) {
	// Random bytes do not compress.
	value := make([]byte, 900_000)
	random := rand.NewChaCha8([32]byte{})
	fixture.Must(random.Read(value))(t)
	fixture.OK(t, b.client.Publish(t.Context(), []bus.Record{{Topic: topic, Key: []byte("1"), Value: value}}))
	seen := newLog()
	b.listen(t, b.client, seen.handle, nil, 0)
	seen.wait(t, 1)
	if !bytes.Equal(seen.all()[0].Value, value) {
		t.Error("the value came out changed")
	}
}

func testTooLarge(t *testing.T, b *bench) {
	good := bus.Record{Topic: topic, Key: []byte("1"), Value: []byte("x")}
	bad := bus.Record{Topic: topic, Key: []byte("2"), Value: make([]byte, 2_000_000)}
	err := b.client.Publish(t.Context(), []bus.Record{good, bad})
	if !errors.Is(err, kerr.MessageTooLarge) {
		t.Fatalf("a record of 2 MB: %v, %v was wanted", err, kerr.MessageTooLarge)
	}
	if got := b.readRaw(t, topic, 1)[0]; !bytes.Equal(got.Value, good.Value) {
		t.Error("the good record of the batch is not there")
	}
}

func testDeadLetter(t *testing.T, b *bench) {
	sent := bus.Record{
		Topic: topic, Key: []byte{0xff}, Value: []byte("{no json"), Headers: []bus.Header{{Key: "from", Value: []byte("upstream")}},
	}
	fixture.OK(t, b.client.Publish(t.Context(), []bus.Record{sent}))
	seen := newLog()
	b.listen(t, b.client, seen.handle, nil, 0)
	seen.wait(t, 1)
	read := seen.all()[0]
	at := time.Date(2026, 11, 21, 9, 0, 0, 5e6, time.FixedZone("KST", 9*3600))
	fixture.OK(t, b.client.Publish(t.Context(), []bus.Record{bus.DeadLetterRecord(read, "MALFORMED", "not JSON at byte 1", at)}))
	got := b.readRaw(t, topic+bus.DeadLetterSuffix, 1)[0]
	if !bytes.Equal(got.Key, sent.Key) || !bytes.Equal(got.Value, sent.Value) || !got.Timestamp.Equal(at) {
		t.Errorf("key %x value %q at %s came out", got.Key, got.Value, got.Timestamp)
	}
	want := []kgo.RecordHeader{
		{Key: "from", Value: []byte("upstream")},
		{Key: "largesse-topic", Value: []byte(topic)},
		{Key: "largesse-partition", Value: fmt.Append(nil, read.Partition)},
		{Key: "largesse-offset", Value: []byte("0")},
		{Key: "largesse-error", Value: []byte("MALFORMED")},
		{Key: "largesse-detail", Value: []byte("not JSON at byte 1")},
		{Key: "largesse-time", Value: []byte("2026-11-21T00:00:00.005Z")},
	}
	fixture.Equal(t, want, got.Headers)
}

func testTransactions(t *testing.T, b *bench) {
	other := b.raw(t, kgo.TransactionalID(b.prefix+"upstream"))
	for _, part := range []struct {
		name string
		end  kgo.TransactionEndTry
	}{{"paid", kgo.TryCommit}, {"taken back", kgo.TryAbort}} {
		fixture.OK(t, other.BeginTransaction())
		for i := range 30 {
			value := fmt.Append(nil, part.name, " ", i)
			for _, name := range []string{topic, bus.TopicStarted} {
				fixture.OK(t, other.ProduceSync(t.Context(), &kgo.Record{Topic: b.prefix + name, Key: value, Value: value}).FirstErr())
			}
		}
		fixture.OK(t, other.EndTransaction(t.Context(), part.end))
	}
	// The topic ends with the marker of a transaction, which is no record.
	shown := newLog()
	wantReady(t, b.broadcast(t, b.client, shown.handle))
	seen := newLog()
	b.listen(t, b.client, seen.handle, nil, 0)
	seen.wait(t, 30)
	// Partitions are read in order, so every aborted record was before these.
	b.publish(t, 0, 100)
	seen.wait(t, 130)
	for _, l := range []*log{shown, seen} {
		for _, r := range l.all() {
			if bytes.HasPrefix(r.Value, []byte("taken back")) {
				t.Errorf("%s was read, whose transaction was aborted", r.Value)
			}
		}
	}
	if n := len(shown.all()); n != 30 {
		t.Errorf("the broadcast was ready after %d of 30 records", n)
	}
}
