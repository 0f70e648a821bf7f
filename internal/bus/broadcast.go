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

// catchUpInterval is the interval in which the end offsets are read again while
// catching up.
const catchUpInterval = time.Second

// BroadcastConfig configures a Broadcast.
type BroadcastConfig struct {
	Topic  string
	Handle HandleFunc
	Log    obs.Log
}

// Broadcast reads a whole topic, from its beginning, and then new records.
// Every Broadcast gets every record: it is in no group and commits nothing.
type Broadcast struct {
	service.Base
	client *Client
	cfg    BroadcastConfig
	log    obs.Log
	once   sync.Once // closes ready once
	ready  chan struct{}
}

// NewBroadcast returns a Broadcast. Start starts it.
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

// Start reads in the background. A start after Stop reads from the beginning
// again.
func (b *Broadcast) Start(ctx context.Context) { b.Base.Start(ctx, b.run) }

// Ready returns a channel that is closed when every record that the topic had
// at the first start is handled.
func (b *Broadcast) Ready() <-chan struct{} { return b.ready }

func (b *Broadcast) options() []kgo.Opt {
	// The last offset before the end may be the marker of a transaction.
	return append(b.client.readOptions(b.cfg.Topic), kgo.KeepControlRecords())
}

func (b *Broadcast) run(ctx context.Context) {
	b.log.Info("broadcast reader started", "topic", b.cfg.Topic)
	defer b.log.Info("broadcast reader stopped", "topic", b.cfg.Topic)
	for ctx.Err() == nil {
		kafka, err := kgo.NewClient(b.options()...)
		if err != nil {
			b.log.Error("creating Kafka client failed", err, "topic", b.cfg.Topic)
			return
		}
		b.read(ctx, kafka)
		kafka.Close()
	}
}

// read reads the topic from its beginning until ctx ends or the topic is recreated.
func (b *Broadcast) read(ctx context.Context, kafka *kgo.Client) {
	behind := b.ends(ctx)
	for ctx.Err() == nil {
		polling, cancel := ctx, context.CancelFunc(func() {})
		if len(behind) > 0 {
			polling, cancel = context.WithTimeout(ctx, catchUpInterval)
		} else {
			b.once.Do(func() { close(b.ready) })
		}
		records, recreated := poll(polling, kafka, defaultBatchMax, b.log)
		cancel()
		if !b.work(ctx, records) || recreated {
			return
		}
		for _, r := range records {
			if end, ok := behind[r.Partition]; ok && r.Offset >= end-1 {
				delete(behind, r.Partition)
			}
		}
		if len(records) == 0 && len(behind) > 0 && ctx.Err() == nil {
			b.dropTrimmed(ctx, behind)
		}
	}
}

// ends returns, by partition, the offsets to read up to (exclusive), for
// partitions with records. It repeats the read until it succeeds or ctx ends.
func (b *Broadcast) ends(ctx context.Context) map[int32]int64 {
	for attempt := 0; ctx.Err() == nil; attempt++ {
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
			b.log.Warn("reading end offsets failed", err, "topic", b.cfg.Topic)
		}
		service.Sleep(ctx, service.Backoff(attempt, retryBase, retryLimit))
	}
	return nil
}

// dropTrimmed removes from behind the partitions whose log was trimmed past the
// offset to read up to, which will never come.
func (b *Broadcast) dropTrimmed(ctx context.Context, behind map[int32]int64) {
	bounds, err := b.client.bounds(ctx, b.cfg.Topic)
	if err != nil {
		b.log.Warn("reading end offsets failed", err, "topic", b.cfg.Topic)
		return
	}
	for partition, end := range behind {
		if at, ok := bounds[partition]; !ok || at.start >= end {
			delete(behind, partition)
		}
	}
}

// work calls Handle with the records until it succeeds. It reports false if ctx
// ended first.
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
	report := b.log.Streak("handling records failed", "")
	for attempt := 0; ; attempt++ {
		err := b.cfg.Handle(ctx, records)
		if err == nil {
			return true
		}
		if ctx.Err() != nil {
			return false
		}
		report(err, "topic", b.cfg.Topic, "count", len(records))
		if !service.Sleep(ctx, service.Backoff(attempt, retryBase, retryLimit)) {
			return false
		}
	}
}
