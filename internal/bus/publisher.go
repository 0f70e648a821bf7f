package bus

import (
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

// publisher publishes through a client.
type publisher struct {
	client *Client
}

// NewPublisher returns a Publisher that uses the client's connection.
func NewPublisher(client *Client) Publisher { return &publisher{client: client} }

// publishOptions returns the options of the producer: all in-sync replicas
// acknowledge, and the library publishes idempotently by default. A record's
// key decides its partition, as with other Kafka clients.
func publishOptions() []kgo.Opt {
	return []kgo.Opt{
		kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.ProducerLinger(time.Millisecond),
		// Without this option, a record in flight would outlive its context
		// while the broker is silent. A record reported as failed may therefore
		// exist, as Publish documents.
		kgo.AllowIdempotentProduceCancellation(),
	}
}

// Publish implements Publisher.
func (p *publisher) Publish(ctx context.Context, records []Record) error {
	if len(records) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, deliveryTimeout, errDelivery)
	defer cancel()
	b := &publishing{errs: map[string]error{}, counts: map[string]int{}, recreated: map[string]bool{}, left: len(records), done: make(chan struct{})}
	for _, rec := range records {
		topic := rec.Topic
		p.client.kafka.Produce(ctx, p.client.toKafka(rec), func(r *kgo.Record, err error) { b.finish(topic, r.Topic, err) })
	}
	select {
	case <-b.done:
		p.forget(ctx, b.recreated)
		return b.err()
	case <-ctx.Done():
		return fmt.Errorf("publish %d records: %w", len(records), context.Cause(ctx))
	}
}

// forget lets the client look for topics again that were deleted and created again:
// otherwise it would publish nothing to them any more. The library ignores ctx.
func (p *publisher) forget(ctx context.Context, topics map[string]bool) {
	if len(topics) == 0 {
		return
	}
	forgotten := make(chan struct{})
	go func() {
		defer close(forgotten)
		p.client.kafka.PurgeTopicsFromProducing(slices.Collect(maps.Keys(topics))...)
	}()
	select {
	case <-forgotten:
	case <-ctx.Done():
	}
}

// publishing collects the results of one batch. Results still arrive after its
// caller has returned.
type publishing struct {
	mu        sync.Mutex       // protects the fields below
	errs      map[string]error // by topic and text, because many records fail with the same error
	counts    map[string]int
	recreated map[string]bool // topics, with the prefix, that were deleted and created again
	left      int
	done      chan struct{} // closed when left is 0
}

func (b *publishing) finish(topic, full string, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if errors.Is(err, kerr.UnknownTopicID) {
		b.recreated[full] = true
	}
	if err != nil {
		key := topic + ": " + err.Error()
		b.counts[key]++
		b.errs[key] = fmt.Errorf("publish %d records to %s: %w", b.counts[key], topic, err)
	}
	b.left--
	if b.left == 0 {
		close(b.done)
	}
}

func (b *publishing) err() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	var all []error
	for _, err := range b.errs {
		all = append(all, err)
	}
	return errors.Join(all...)
}
