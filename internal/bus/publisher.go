package bus

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// deliveryTimeout bounds how long a batch is tried when its caller would wait
// longer. The library's own bound counts from a record's timestamp, which may
// be any time.
const deliveryTimeout = 30 * time.Second

var errDelivery = errors.New("no acknowledgement within 30 s")

// Publisher writes records. It is safe for concurrent use.
type Publisher interface {
	// Publish writes a batch and returns when the brokers have it. An error
	// names what failed; those records may or may not have been written, the
	// others were. Publish returns when ctx ends, or after 30 s, and then
	// nothing is known of the batch. Keys and values must not change afterwards.
	// Partition and Offset of the records are not used; a zero At becomes now.
	Publish(ctx context.Context, records []Record) error
}

// publisher publishes through a client.
type publisher struct {
	client *Client
}

// NewPublisher returns a Publisher on the client's connection.
func NewPublisher(client *Client) Publisher { return &publisher{client: client} }

// publishOptions: acknowledged by all in-sync replicas and idempotent, which
// the library does by itself. The partition follows from the key, as with
// other Kafka clients.
func publishOptions() []kgo.Opt {
	return []kgo.Opt{
		kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.ProducerLinger(time.Millisecond),
		// Without it a record in flight would outlive its context for as long as
		// the broker is silent. The price is that a record reported as failed may
		// be there, and Publish says so anyway.
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
	b := &publishing{errs: map[string]error{}, counts: map[string]int{}, left: len(records), done: make(chan struct{})}
	for _, rec := range records {
		topic := rec.Topic
		p.client.kafka.Produce(ctx, p.client.toKafka(rec), func(_ *kgo.Record, err error) { b.finish(topic, err) })
	}
	select {
	case <-b.done:
		return b.err()
	case <-ctx.Done():
		return fmt.Errorf("publish %d records: %w", len(records), context.Cause(ctx))
	}
}

// publishing collects the ends of one batch's records. A batch whose caller
// has left is still written to.
type publishing struct {
	mu     sync.Mutex       // protects all below
	errs   map[string]error // by topic and text: a thousand records fail alike
	counts map[string]int
	left   int
	done   chan struct{} // closed when left is 0
}

func (b *publishing) finish(topic string, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
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
