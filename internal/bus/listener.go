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

	// A dead member's partitions move after sessionTimeout; a living one hears
	// of changes within a heartbeat.
	sessionTimeout    = 10 * time.Second
	heartbeatInterval = 3 * time.Second

	// commitTimeout bounds a commit, which is for lag and other tools where
	// offsets are stored with the rows; the next commit covers a failed one.
	commitTimeout = 2 * time.Second
	leaveTimeout  = 2 * time.Second
)

// ListenerConfig says what to listen to.
type ListenerConfig struct {
	Group  string
	Topic  string
	Handle HandleFunc
	// Offsets tells where to start; nil = from the group's commits.
	Offsets OffsetsFunc
	// BatchMax bounds a batch, in records; 0 = 1000.
	BatchMax int
	Log      obs.Log
}

// Listener consumes a topic as a member of a group. Records are committed
// after Handle has returned nil, so each one is handled at least once; in order
// within its partition.
type Listener struct {
	service.Base
	client *Client
	cfg    ListenerConfig
	log    obs.Log
}

// NewListener returns a Listener that Start starts.
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

// Start joins the group in the background. Stop waits for the batch in hand,
// whose Handle sees its context end, and leaves the group.
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

func (l *Listener) run(ctx context.Context) {
	m := &membership{owned: map[int32]uint64{}}
	kafka, err := kgo.NewClient(l.options(m)...)
	if err != nil {
		l.log.Error(obs.Failed, err, "topic", l.cfg.Topic, "group", l.cfg.Group)
		return
	}
	l.log.Info(obs.Started, "topic", l.cfg.Topic, "group", l.cfg.Group)
	for ctx.Err() == nil {
		records := poll(ctx, kafka, l.cfg.BatchMax, l.log)
		l.work(ctx, kafka, m, records)
		kafka.AllowRebalance()
	}
	// The group waits for nobody who has left. When that cannot be said, it
	// finds out by itself.
	leaving, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTimeout)
	defer cancel()
	if err := kafka.LeaveGroupContext(leaving); err != nil {
		l.log.Warn(obs.Stopping, err, "topic", l.cfg.Topic, "group", l.cfg.Group)
	}
	kafka.CloseAllowingRebalance()
	l.log.Info(obs.Stopped, "topic", l.cfg.Topic, "group", l.cfg.Group)
}

// work gives a batch to Handle until it is done, or not ours any more. It is
// called while the poll that brought the batch holds up rebalances.
func (l *Listener) work(ctx context.Context, kafka *kgo.Client, m *membership, batch []*kgo.Record) {
	m.mu.Lock()
	defer m.mu.Unlock()
	polled := maps.Clone(m.owned)
	for try := 0; len(batch) > 0; try++ {
		err := l.cfg.Handle(ctx, l.records(batch))
		if err == nil {
			l.commit(ctx, kafka, batch)
			return
		}
		if ctx.Err() != nil {
			return
		}
		l.log.Warn(obs.Failed, err, "topic", l.cfg.Topic, "count", len(batch), "try", try+1)

		// Between tries the group may take partitions away; what was polled
		// from those is another member's work then, even if they come back.
		m.mu.Unlock()
		kafka.AllowRebalance()
		goOn := service.Sleep(ctx, service.Backoff(try, retryBase, retryLimit))
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
	// What was handled while being stopped is committed too.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), commitTimeout)
	defer cancel()
	if err := kafka.CommitRecords(ctx, batch...); err != nil {
		l.log.Warn(obs.Failed, err, "doing", "committing offsets", "topic", l.cfg.Topic, "group", l.cfg.Group)
	}
}

// adjust puts stored offsets over commits. It tries until the partitions are
// taken away again: to go on with another offset could mean to skip records
// that a crash left between the commit and the rows.
func (l *Listener) adjust(ctx context.Context, offsets map[string]map[int32]kgo.Offset) (map[string]map[int32]kgo.Offset, error) {
	assigned := offsets[l.client.full(l.cfg.Topic)]
	if l.cfg.Offsets == nil || len(assigned) == 0 {
		return offsets, nil
	}
	for try := 0; ; try++ {
		stored, err := l.cfg.Offsets(ctx, l.cfg.Topic)
		if err == nil {
			for partition := range assigned {
				if next, ok := stored[partition]; ok {
					assigned[partition] = kgo.NewOffset().At(next)
				}
			}
			return offsets, nil
		}
		if ctx.Err() != nil {
			return nil, fmt.Errorf("stored offsets of %s: %w", l.cfg.Topic, err)
		}
		l.log.Warn(obs.Failed, err, "doing", "reading stored offsets", "topic", l.cfg.Topic)
		if !service.Sleep(ctx, service.Backoff(try, retryBase, retryLimit)) {
			return nil, fmt.Errorf("stored offsets of %s: %w", l.cfg.Topic, err)
		}
	}
}

// membership is which partitions a member of a group has. While its mutex is
// held by who handles a batch, partitions stay: the library waits for its
// callbacks.
type membership struct {
	mu    sync.Mutex       // protects the rest
	owned map[int32]uint64 // partition → number of the assignment that gave it, from 1
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
