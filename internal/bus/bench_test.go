package bus_test

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/largesse/largesse/internal/bus"
)

// benchTopics starts an embedded broker with synced writes, and its topics.
func benchTopics(b *testing.B) *bus.Client {
	b.Helper()
	broker, err := bus.StartBroker(b.Context(), bus.BrokerConfig{Dir: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(broker.Close)
	client, err := bus.Open(b.Context(), bus.Config{Brokers: []string{broker.Addr()}, Partitions: 6})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(client.Close)
	if err := client.EnsureTopics(b.Context()); err != nil {
		b.Fatal(err)
	}
	return client
}

func BenchmarkPublish(b *testing.B) {
	pub := bus.NewPublisher(benchTopics(b))
	batch := numbered(0, 1000)
	for b.Loop() {
		if err := pub.Publish(b.Context(), batch); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(len(batch)*b.N)/b.Elapsed().Seconds(), "records/s")
}

func BenchmarkListen(b *testing.B) {
	client := benchTopics(b)
	pub := bus.NewPublisher(client)
	for i := range b.N {
		if err := pub.Publish(b.Context(), numbered(i*1000, 1000)); err != nil {
			b.Fatal(err)
		}
	}
	total := int64(b.N) * 1000
	var got atomic.Int64
	done := make(chan struct{})
	l, err := bus.NewListener(client, bus.ListenerConfig{
		Group: bus.GroupPoint, Topic: bus.TopicPointPublish,
		Handle: func(_ context.Context, records []bus.Record) error {
			if got.Add(int64(len(records))) == total {
				close(done)
			}
			return nil
		},
	})
	if err != nil {
		b.Fatal(err)
	}
	b.ResetTimer()
	l.Start(b.Context())
	<-done
	b.StopTimer()
	l.Stop()
	b.ReportMetric(float64(total)/b.Elapsed().Seconds(), "records/s")
}
