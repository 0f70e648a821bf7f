package bus

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// deliveryTimeout limits the delivery of a batch, whatever its context allows.
// The Kafka library's own limit counts from a record's timestamp, which may be
// any time.
const deliveryTimeout = 30 * time.Second

var errDelivery = errors.New("no acknowledgement within 30 s")

// Publisher publishes records. It is safe for concurrent use.
type Publisher interface {
	// Publish publishes a batch, and returns when the brokers have stored it. An
	// error names what failed: those records may or may not be stored, the others
	// are. After an error because the topic was deleted and created again, the next
	// Publish uses the new one. If ctx ends, or after 30 s, Publish returns and nothing is known about
	// the batch. Keys and values must not change afterwards. Publish ignores the
	// Partition and Offset of the records; a zero At becomes the current time.
	Publish(ctx context.Context, records []Record) error
}

// publishOptions are those of the producer: all in-sync replicas
// acknowledge, and the library publishes idempotently by default. A record's
// key decides its partition, as with other Kafka clients.
var publishOptions = []kgo.Opt{
	kgo.RequiredAcks(kgo.AllISRAcks()),
	kgo.ProducerLinger(time.Millisecond),
	// Without this option, a record in flight would outlive its context
	// while the broker is silent. A record reported as failed may therefore
	// exist, as Publish documents.
	kgo.AllowIdempotentProduceCancellation(),
}

// Publish implements Publisher.
func (c *Client) Publish(ctx context.Context, records []Record) error {
	if len(records) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, deliveryTimeout, errDelivery)
	defer cancel()
	b := &publishing{failed: map[failure]countedError{}, recreated: map[string]bool{}, left: len(records), done: make(chan struct{})}
	for _, rec := range records {
		c.kafka.Produce(ctx, c.toKafka(rec), func(r *kgo.Record, err error) { b.finish(rec.Topic, r.Topic, err) })
	}
	select {
	case <-b.done:
		c.forget(ctx, b.recreated)
		return b.err()
	case <-ctx.Done():
		return fmt.Errorf("publish %d records: %w", len(records), context.Cause(ctx))
	}
}

// forget lets the client look for topics again that were deleted and created again:
// otherwise it would publish nothing to them any more. The library ignores ctx.
func (c *Client) forget(ctx context.Context, topics map[string]bool) {
	if len(topics) == 0 {
		return
	}
	forgotten := make(chan struct{})
	go func() {
		defer close(forgotten)
		c.kafka.PurgeTopicsFromProducing(slices.Collect(maps.Keys(topics))...)
	}()
	select {
	case <-forgotten:
	case <-ctx.Done():
	}
}

// publishing collects the results of one batch. Results still arrive after its
// caller has returned.
type publishing struct {
	mu        sync.Mutex // protects the fields below
	failed    map[failure]countedError
	recreated map[string]bool // topics, with the prefix, that were deleted and created again
	left      int
	done      chan struct{} // closed when left is 0
}

// failure identifies an error that many records of a topic may have.
type failure struct{ topic, text string }

type countedError struct {
	err     error // the first one
	records int
}

func (b *publishing) finish(topic, full string, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if errors.Is(err, kerr.UnknownTopicID) {
		b.recreated[full] = true
	}
	if err != nil {
		key := failure{topic, err.Error()}
		first := b.failed[key]
		b.failed[key] = countedError{cmp.Or(first.err, err), first.records + 1}
	}
	if b.left--; b.left == 0 {
		close(b.done)
	}
}

func (b *publishing) err() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	var all []error
	for f, e := range b.failed {
		all = append(all, fmt.Errorf("publish %d records to %s: %w", e.records, f.topic, e.err))
	}
	return errors.Join(all...)
}
