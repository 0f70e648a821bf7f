package bustest

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/bus"
	"github.com/largesse/largesse/internal/lab/fixture"
)

func (b *bench) broadcast(t *testing.T, client *bus.Client, handle bus.HandleFunc) *bus.Broadcast {
	t.Helper()
	c := fixture.Must(bus.NewBroadcast(client, bus.BroadcastConfig{Topic: bus.TopicStarted, Handle: handle}))(t)
	c.Start(t.Context())
	t.Cleanup(c.Stop)
	return c
}

func (b *bench) publishStarted(t *testing.T, values ...string) {
	t.Helper()
	var records []bus.Record
	for _, v := range values {
		records = append(records, bus.Record{Topic: bus.TopicStarted, Key: []byte(v), Value: []byte(v)})
	}
	fixture.OK(t, b.client.Publish(t.Context(), records))
}

func wantReady(t *testing.T, c *bus.Broadcast) {
	t.Helper()
	select {
	case <-c.Ready():
	case <-time.After(fixture.Patience):
		t.Fatalf("the broadcast is not ready after %s", fixture.Patience)
	}
}

func testBroadcast(t *testing.T, b *bench) {
	const early = 50
	var values []string
	for i := range early {
		values = append(values, fmt.Sprint("early ", i))
	}
	b.publishStarted(t, values...)
	var logs []*log
	for range 2 {
		seen := newLog()
		var tries atomic.Int32
		c := b.broadcast(t, b.open(t), func(ctx context.Context, records []bus.Record) error {
			if tries.Add(1) <= 2 {
				return errRefused
			}
			return seen.handle(ctx, records)
		})
		wantReady(t, c)
		if n := seen.distinct(); n != early {
			t.Errorf("ready after %d of %d records", n, early)
		}
		logs = append(logs, seen)
	}
	b.publishStarted(t, "late")
	for _, seen := range logs {
		seen.wait(t, early+1)
		wantOrdered(t, seen.all())
	}
}

func testBroadcastEmpty(t *testing.T, b *bench) {
	seen := newLog()
	c := b.broadcast(t, b.client, seen.handle)
	wantReady(t, c)
	b.publishStarted(t, "one")
	seen.wait(t, 1)
	// After another start, it reads from the beginning again.
	b.wantStops(t, c.Stop)
	c.Start(t.Context())
	fixture.Until(t, "the record came twice", func() bool { return len(seen.all()) == 2 })
}

func testBroadcastPartitions(t *testing.T, b *bench) {
	seen := newLog()
	c := b.broadcast(t, b.client, seen.handle)
	wantReady(t, c)
	admin := b.admin(t)
	made := fixture.Must(admin.UpdatePartitions(t.Context(), 4, b.prefix+bus.TopicStarted))(t)
	fixture.OK(t, made.Error())
	// A new client knows the new partitions from the start, once the broker does.
	fixture.Until(t, "the broker knows the new partitions", func() bool {
		topics, err := admin.ListTopics(t.Context(), b.prefix+bus.TopicStarted)
		return err == nil && len(topics[b.prefix+bus.TopicStarted].Partitions) == 4
	})
	pub := b.open(t)
	total := 0
	fixture.Until(t, "records of every partition came", func() bool {
		if total < 200 {
			total++
			v := fmt.Sprint(total)
			fixture.OK(t, pub.Publish(t.Context(), []bus.Record{{Topic: bus.TopicStarted, Key: []byte(v), Value: []byte(v)}}))
		}
		parts := map[int32]bool{}
		for _, r := range seen.all() {
			parts[r.Partition] = true
		}
		return len(parts) == 4
	})
	seen.wait(t, total)
}
