package bus

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/service"
)

const (
	defaultBatchMax = 1000

	retryBase  = 100 * time.Millisecond
	retryLimit = 10 * time.Second

	// The partitions of a crashed member move after sessionTimeout. A running
	// member learns of changes within a heartbeat.
	sessionTimeout    = 10 * time.Second
	heartbeatInterval = 3 * time.Second

	// commitTimeout limits a commit. Where offsets are stored with the rows,
	// commits only serve lag metrics and other tools; the next commit covers a
	// failed one.
	commitTimeout = 2 * time.Second
	leaveTimeout  = 2 * time.Second

	// healthInterval separates calls of ListenerConfig.Healthy of a member, and
	// joinInterval those before it joins.
	healthInterval = time.Second
	joinInterval   = 100 * time.Millisecond
)

// ListenerConfig configures a Listener.
type ListenerConfig struct {
	Group  string
	Topic  string
	Handle HandleFunc
	// Offsets returns the offsets to start from; nil: the group's commits.
	Offsets OffsetsFunc
	// BatchMax limits the records of a batch. Zero means 1000.
	BatchMax int
	// Healthy reports whether this instance can handle records at all. While it
	// cannot, the listener is no member of its group, so that other instances
	// get its partitions. Nil means always. Healthy must be quick.
	Healthy func() bool
	Log     obs.Log
}

// Listener consumes a topic as a member of a group. It commits records after
// Handle has returned nil. So each record is handled at least once, in order
// within its partition.
type Listener struct {
	service.Base
	client *Client
	cfg    ListenerConfig
	log    obs.Log
}

// NewListener returns a Listener. Start starts it.
func NewListener(client *Client, cfg ListenerConfig) (*Listener, error) {
	if cfg.Group == "" || cfg.Topic == "" || cfg.Handle == nil {
		return nil, errors.New("bus: a listener needs a group, a topic and a handle function")
	}
	if cfg.BatchMax == 0 {
		cfg.BatchMax = defaultBatchMax
	}
	l := &Listener{client: client, cfg: cfg, log: cfg.Log.For(obs.Listener)}
	if err := kgo.ValidateOpts(l.options(&membership{})...); err != nil {
		return nil, fmt.Errorf("bus: listener of %s: %w", cfg.Topic, err)
	}
	return l, nil
}

// Start joins the group in the background. Stop ends the context of the running
// Handle, waits for it, and leaves the group.
func (l *Listener) Start(ctx context.Context) { l.Base.Start(ctx, l.run) }

func (l *Listener) options(m *membership) []kgo.Opt {
	return append(l.client.readOptions(l.cfg.Topic),
		kgo.ConsumerGroup(l.client.full(l.cfg.Group)),
		kgo.Balancers(kgo.CooperativeStickyBalancer()),
		kgo.SessionTimeout(sessionTimeout),
		kgo.HeartbeatInterval(heartbeatInterval),
		kgo.DisableAutoCommit(),
		kgo.BlockRebalanceOnPoll(),
		kgo.AdjustFetchOffsetsFn(l.adjust),
		kgo.OnPartitionsAssigned(m.assigned),
		kgo.OnPartitionsRevoked(m.revoked),
		kgo.OnPartitionsLost(m.revoked),
	)
}

// run is a member of the group while the instance is healthy, of a new one after the topic
// was recreated.
func (l *Listener) run(ctx context.Context) {
	for l.await(ctx, true, joinInterval) {
		session, end := context.WithCancel(ctx)
		watched := make(chan struct{})
		go func() {
			defer close(watched)
			if l.await(session, false, healthInterval) {
				l.log.Warn("leaving group", errUnhealthy, "topic", l.cfg.Topic, "group", l.cfg.Group)
			}
			end()
		}()
		l.consume(session)
		end()
		<-watched
	}
}

var errUnhealthy = errors.New("this instance cannot handle records; other instances take over its partitions until it can")

// await calls Healthy once per interval until it returns want. It returns false if
// ctx ended.
func (l *Listener) await(ctx context.Context, want bool, interval time.Duration) bool {
	for ctx.Err() == nil {
		if healthy := l.cfg.Healthy == nil || l.cfg.Healthy(); healthy == want {
			return true
		}
		service.Sleep(ctx, service.Jitter(interval, 0.1))
	}
	return false
}

// consume joins the group, handles records until ctx ends or the topic is recreated, and
// leaves the group.
func (l *Listener) consume(ctx context.Context) {
	m := &membership{owned: map[int32]uint64{}}
	kafka, err := kgo.NewClient(l.options(m)...)
	if err != nil {
		l.log.Error("creating Kafka client failed", err, "topic", l.cfg.Topic, "group", l.cfg.Group)
		service.Sleep(ctx, retryLimit)
		return
	}
	l.log.Info("consumer joined group", "topic", l.cfg.Topic, "group", l.cfg.Group)
	for recreated := false; ctx.Err() == nil && !recreated; {
		var records []*kgo.Record
		records, recreated = poll(ctx, kafka, l.cfg.BatchMax, l.log)
		l.work(ctx, kafka, m, records)
		kafka.AllowRebalance()
	}
	// Leave, so that the group moves the partitions at once. If that fails, the
	// group notices after sessionTimeout.
	leaving, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTimeout)
	defer cancel()
	if err := kafka.LeaveGroupContext(leaving); err != nil {
		l.log.Warn("leaving group failed", err, "topic", l.cfg.Topic, "group", l.cfg.Group)
	}
	kafka.CloseAllowingRebalance()
	l.log.Info("consumer left group", "topic", l.cfg.Topic, "group", l.cfg.Group)
}

// work calls Handle with a batch until it succeeds, or until other members own
// the batch. The poll that returned the batch blocks rebalances until then.
func (l *Listener) work(ctx context.Context, kafka *kgo.Client, m *membership, batch []*kgo.Record) {
	m.mu.Lock()
	defer m.mu.Unlock()
	polled := maps.Clone(m.owned)
	report := l.log.Streak("handling records failed", "")
	for attempt := 0; len(batch) > 0; attempt++ {
		err := l.cfg.Handle(ctx, l.records(batch))
		if err == nil {
			l.commit(ctx, kafka, batch)
			return
		}
		if ctx.Err() != nil {
			return
		}
		report(err, "topic", l.cfg.Topic, "count", len(batch))

		// Between attempts, the group may move partitions. The records of a moved
		// partition are then another member's work, even if it comes back.
		m.mu.Unlock()
		kafka.AllowRebalance()
		goOn := service.Sleep(ctx, service.Backoff(attempt, retryBase, retryLimit))
		m.mu.Lock()
		if !goOn {
			return
		}
		batch = slices.DeleteFunc(batch, func(r *kgo.Record) bool { return m.owned[r.Partition] != polled[r.Partition] })
	}
}

func (l *Listener) records(batch []*kgo.Record) []Record {
	out := make([]Record, len(batch))
	for i, r := range batch {
		out[i] = l.client.fromKafka(r)
	}
	return out
}

func (l *Listener) commit(ctx context.Context, kafka *kgo.Client, batch []*kgo.Record) {
	// Also commit what was handled during a stop.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), commitTimeout)
	defer cancel()
	if err := kafka.CommitRecords(ctx, batch...); err != nil {
		l.log.Warn("committing offsets failed", err, "topic", l.cfg.Topic, "group", l.cfg.Group)
	}
}

// adjust replaces commits by stored offsets. It repeats the read until the
// partitions are revoked: from another offset, it might skip records that a
// crash left between the commit and the rows.
func (l *Listener) adjust(ctx context.Context, offsets map[string]map[int32]kgo.Offset) (map[string]map[int32]kgo.Offset, error) {
	assigned := offsets[l.client.full(l.cfg.Topic)]
	if l.cfg.Offsets == nil || len(assigned) == 0 {
		return offsets, nil
	}
	for attempt := 0; ; attempt++ {
		stored, err := l.cfg.Offsets(ctx, l.cfg.Topic)
		if err == nil {
			for partition := range assigned {
				if next, ok := stored[partition]; ok {
					assigned[partition] = kgo.NewOffset().At(next)
				}
			}
			return offsets, nil
		}
		if ctx.Err() == nil {
			l.log.Warn("reading stored offsets failed", err, "topic", l.cfg.Topic)
		}
		if !service.Sleep(ctx, service.Backoff(attempt, retryBase, retryLimit)) {
			return nil, fmt.Errorf("stored offsets of %s: %w", l.cfg.Topic, err)
		}
	}
}

// membership is the set of partitions that a group member owns. The library
// waits for the callbacks below, so no partition moves while a batch is handled
// under the mutex.
type membership struct {
	mu    sync.Mutex       // protects the fields below
	owned map[int32]uint64 // partition → number of its assignment, from 1
	last  uint64
}

func (m *membership) assigned(_ context.Context, _ *kgo.Client, topics map[string][]int32) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.last++
	for _, partitions := range topics {
		for _, p := range partitions {
			m.owned[p] = m.last
		}
	}
}

func (m *membership) revoked(_ context.Context, _ *kgo.Client, topics map[string][]int32) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, partitions := range topics {
		for _, p := range partitions {
			delete(m.owned, p)
		}
	}
}
