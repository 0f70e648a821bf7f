package bus

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/service"
)

// catchUpPause is how often the ends are looked at again while catching up.
const catchUpPause = time.Second

// BroadcastConfig says what to read.
type BroadcastConfig struct {
	Topic  string
	Handle HandleFunc
	Log    obs.Log
}

// Broadcast reads a topic whole, from its beginning, and goes on with what is
// new. Every Broadcast gets every record: there is no group, and nothing is
// committed.
type Broadcast struct {
	service.Base
	client *Client
	cfg    BroadcastConfig
	log    obs.Log
	once   sync.Once // guards the closing of ready
	ready  chan struct{}
}

// NewBroadcast returns a Broadcast that Start starts.
func NewBroadcast(client *Client, cfg BroadcastConfig) (*Broadcast, error) {
	if cfg.Topic == "" || cfg.Handle == nil {
		return nil, errors.New("bus: a broadcast needs a topic and a handle function")
	}
	b := &Broadcast{client: client, cfg: cfg, log: cfg.Log.For(obs.Listener), ready: make(chan struct{})}
	if err := kgo.ValidateOpts(b.options()...); err != nil {
		return nil, fmt.Errorf("bus: broadcast of %s: %w", cfg.Topic, err)
	}
	return b, nil
}

// Start reads in the background; started again after Stop it reads from the
// beginning again.
func (b *Broadcast) Start(ctx context.Context) { b.Base.Start(ctx, b.run) }

// Ready is closed once everything that the topic held at the first start has
// been handled.
func (b *Broadcast) Ready() <-chan struct{} { return b.ready }

func (b *Broadcast) options() []kgo.Opt {
	// The last offset before the end may be the mark of a transaction.
	return append(b.client.readOptions(b.cfg.Topic), kgo.KeepControlRecords())
}

func (b *Broadcast) run(ctx context.Context) {
	kafka, err := kgo.NewClient(b.options()...)
	if err != nil {
		b.log.Error(obs.Failed, err, "topic", b.cfg.Topic)
		return
	}
	defer kafka.Close()
	b.log.Info(obs.Started, "topic", b.cfg.Topic)
	defer b.log.Info(obs.Stopped, "topic", b.cfg.Topic)

	behind := b.ends(ctx)
	for ctx.Err() == nil && len(behind) > 0 {
		polling, cancel := context.WithTimeout(ctx, catchUpPause)
		records := poll(polling, kafka, defaultBatchMax, b.log)
		cancel()
		if !b.work(ctx, records) {
			return
		}
		for _, r := range records {
			if end, ok := behind[r.Partition]; ok && r.Offset >= end-1 {
				delete(behind, r.Partition)
			}
		}
		if len(records) == 0 && ctx.Err() == nil {
			b.dropTrimmed(ctx, behind)
		}
	}
	if ctx.Err() != nil {
		return
	}
	b.once.Do(func() { close(b.ready) })
	for ctx.Err() == nil {
		if !b.work(ctx, poll(ctx, kafka, defaultBatchMax, b.log)) {
			return
		}
	}
}

// ends returns, by partition, the offsets to read up to (exclusive), of the
// partitions that hold anything. It tries until it is told or ctx ends.
func (b *Broadcast) ends(ctx context.Context) map[int32]int64 {
	for try := 0; ctx.Err() == nil; try++ {
		bounds, err := b.client.bounds(ctx, b.cfg.Topic)
		if err == nil {
			ends := map[int32]int64{}
			for partition, at := range bounds {
				if at.start < at.end {
					ends[partition] = at.end
				}
			}
			return ends
		}
		if ctx.Err() == nil {
			b.log.Warn(obs.Failed, err, "topic", b.cfg.Topic)
		}
		service.Sleep(ctx, service.Backoff(try, retryBase, retryLimit))
	}
	return nil
}

// dropTrimmed takes out of behind the partitions whose log has been trimmed
// past the offset that is waited for, which will never come.
func (b *Broadcast) dropTrimmed(ctx context.Context, behind map[int32]int64) {
	bounds, err := b.client.bounds(ctx, b.cfg.Topic)
	if err != nil {
		b.log.Warn(obs.Failed, err, "topic", b.cfg.Topic)
		return
	}
	for partition, end := range behind {
		if at, ok := bounds[partition]; !ok || at.start >= end {
			delete(behind, partition)
		}
	}
}

// work gives the records to Handle until it has taken them; false when ctx
// ended before.
func (b *Broadcast) work(ctx context.Context, polled []*kgo.Record) bool {
	records := make([]Record, 0, len(polled))
	for _, r := range polled {
		if !r.Attrs.IsControl() {
			records = append(records, b.client.fromKafka(r))
		}
	}
	if len(records) == 0 {
		return ctx.Err() == nil
	}
	for try := 0; ; try++ {
		err := b.cfg.Handle(ctx, records)
		if err == nil {
			return true
		}
		if ctx.Err() != nil {
			return false
		}
		b.log.Warn(obs.Failed, err, "topic", b.cfg.Topic, "count", len(records), "try", try+1)
		if !service.Sleep(ctx, service.Backoff(try, retryBase, retryLimit)) {
			return false
		}
	}
}
