package pool

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/queue"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/service"
)

// Spec is the desired state of one promotion's pool, as read from its row.
type Spec struct {
	Stream queue.Stream
	// Total is the number of targets that the promotion has or expects. It sets
	// the number of consumers, unless Consumers is above zero.
	Total     int64
	Consumers int
	// Work reports whether there are QUEUED payouts, or entries to acknowledge whose
	// payouts are no longer QUEUED. Unless Paused is set, a pool must run then.
	Work bool
	// Paused reports whether the promotion is paused: no pool may run, and unread
	// entries stay in the stream.
	Paused bool
	// Final reports whether the promotion is COMPLETED or CANCELLED. If there is
	// no Work either, its pool ends, and destroys the stream if it is empty.
	Final bool
}

// over reports whether the pool has nothing left to do.
func (s Spec) over() bool { return s.Final && !s.Work }

// Manager starts and stops pools so that they match the specs of the promotions. A hint
// makes it start a pool sooner. Its methods are safe for concurrent use.
type Manager struct {
	service.Base
	cfg Config
	log obs.Log

	mu    sync.Mutex // protects the fields below; pools start and stop under it
	pools map[reward.PromotionID]*Pool
	specs map[reward.PromotionID]Spec
	busy  map[reward.PromotionID]bool // the specs with Work that are not Paused
	ended bool
}

// NewManager returns a Manager without pools.
func NewManager(cfg Config) *Manager {
	cfg.away = cfg.Log.For(obs.Poller).Streak("work queue unavailable", "work queue available again")
	return &Manager{
		cfg: cfg, log: cfg.Log.For(obs.Manager),
		pools: make(map[reward.PromotionID]*Pool), specs: make(map[reward.PromotionID]Spec), busy: make(map[reward.PromotionID]bool),
	}
}

// Run handles hints in the background until StopAll.
func (m *Manager) Run(ctx context.Context) {
	m.Base.Start(ctx, func(ctx context.Context) {
		wakes := m.cfg.Queue.Wakes()
		for {
			select {
			case s, ok := <-wakes:
				if !ok {
					return
				}
				m.Wake(s)
			case <-ctx.Done():
				return
			}
		}
	})
}

// Converge replaces all specs; see Follow.
func (m *Manager) Converge(specs []Spec) {
	wanted := make(map[reward.PromotionID]bool, len(specs))
	for _, s := range specs {
		wanted[s.Stream.PromotionID] = true
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var gone []reward.PromotionID
	for id := range m.specs {
		if !wanted[id] {
			gone = append(gone, id)
		}
	}
	m.followLocked(specs, gone)
}

// Follow replaces the specs that have changed, and removes those that are gone. Then it
// starts missing pools, adds consumers to pools that are too small, and stops the pools
// of promotions that are paused, final without work, or gone. It does not wait for pools.
// Its cost does not depend on the number of promotions without work.
func (m *Manager) Follow(changed []Spec, gone []reward.PromotionID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.followLocked(changed, gone)
}

func (m *Manager) followLocked(changed []Spec, gone []reward.PromotionID) {
	for _, id := range gone {
		delete(m.specs, id)
		delete(m.busy, id)
	}
	for _, s := range changed {
		id := s.Stream.PromotionID
		m.specs[id] = s
		delete(m.busy, id)
		if s.Work && !s.Paused {
			m.busy[id] = true
		}
	}
	for id, p := range m.pools {
		switch s, wanted := m.specs[id]; {
		case !wanted, s.over():
			p.stop(endCompleted, true)
		case s.Paused:
			p.stop(endPaused, false)
		default:
			m.apply(p, s)
		}
	}
	for id := range m.busy {
		if m.pools[id] == nil {
			m.startLocked(m.specs[id])
		}
	}
	m.divide()
}

// divide sets how many calls each consumer may have in flight. The pools divide half of
// PendingMax in proportion to their consumers, and equally; each gets the larger of its
// two parts. So a promotion with many consumers leaves capacity to those with few, and
// many small promotions leave capacity to a large one. The caller holds mu.
func (m *Manager) divide() {
	if m.cfg.PendingMax <= 0 {
		return
	}
	consumers := 0
	for _, p := range m.pools {
		consumers += len(p.Consumers())
	}
	calls := m.cfg.PendingMax / 2 // half, because entries whose outcomes are being written need room too
	for _, p := range m.pools {
		own := len(p.Consumers())
		share := max(calls*own/consumers, calls/len(m.pools))
		p.share.Store(int64(max((share+own-1)/own, 1)))
	}
}

// Wake says that a stream may have unread entries: its pool starts, or polls sooner. A
// message about an entry that is acknowledged by now must not start a pool, so Wake
// ignores streams without a spec or whose promotion is paused or final without work.
func (m *Manager) Wake(s queue.Stream) {
	m.mu.Lock()
	defer m.mu.Unlock()
	spec, wanted := m.specs[s.PromotionID]
	if !wanted {
		m.cfg.Log.For(obs.Registry).Debug("promotion not found", "promotion_id", s.PromotionID)
	}
	if !wanted || spec.Paused || spec.over() {
		return
	}
	if p := m.pools[s.PromotionID]; p != nil {
		p.Wake()
		return
	}
	m.startLocked(spec)
}

// apply applies a spec to a pool. With Work, the pool does not count as idle, and reads
// again if it was asked to end and has not ended yet.
func (m *Manager) apply(p *Pool, s Spec) {
	if s.Work {
		p.touch()
		if !m.ended && p.resume() {
			m.log.Info("pool resumed", "promotion_id", s.Stream.PromotionID)
		}
	}
	if p.grow(m.consumers(s)) {
		p.Wake()
		m.cfg.Changed()
	}
}

// startLocked starts the pool of a promotion that has none.
func (m *Manager) startLocked(s Spec) {
	if m.ended {
		return
	}
	id := s.Stream.PromotionID
	p := newPool(m.cfg, s.Stream, m.consumers(s))
	m.pools[id] = p
	m.divide()
	p.start(func() {
		m.mu.Lock()
		delete(m.pools, id)
		m.mu.Unlock()
		m.cfg.Changed()
	})
	m.cfg.Metrics.PoolStarted()
	m.log.Info("pool started", "promotion_id", id, "type", s.Stream.Type, "consumers", len(p.Consumers()))
	m.cfg.Changed()
}

// consumers returns how many consumers this instance runs for a promotion.
func (m *Manager) consumers(s Spec) int {
	if s.Consumers > 0 {
		return s.Consumers
	}
	return ConsumerCount(s.Total, m.cfg.MinConsumers, m.cfg.MaxConsumers)
}

// Capacity returns how many calls this instance may have in flight for a
// promotion.
func (m *Manager) Capacity(s Spec) int { return m.consumers(s) * m.cfg.InFlight }

// Active reports whether this instance has a pool for the promotion.
func (m *Manager) Active(id reward.PromotionID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.pools[id] != nil
}

// Status is the current state of a pool.
type Status struct {
	Stream    queue.Stream
	Consumers []string // names
	Pending   int      // pending entries: delivered and not acknowledged
	StartedAt time.Time
}

// Pools returns the state of every pool of this instance, ordered by promotion
// ID.
func (m *Manager) Pools() []Status {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := make([]Status, 0, len(m.pools))
	for _, id := range slices.Sorted(maps.Keys(m.pools)) {
		out = append(out, m.pools[id].status())
	}
	return out
}

// StopAll stops every pool and waits until they have ended. No pool starts again. Entries
// that are not acknowledged within StopTimeout stay in the stream.
func (m *Manager) StopAll() {
	m.mu.Lock()
	m.ended = true
	for id, p := range m.pools {
		p.stop(endStopped, m.specs[id].over())
	}
	pools := slices.Collect(maps.Values(m.pools))
	m.mu.Unlock()
	for _, p := range pools {
		<-p.done
	}
	m.Base.Stop()
}

// ConsumerCount returns how many consumers one instance runs for a promotion with
// total targets: at least lowest and at most highest.
func ConsumerCount(total int64, lowest, highest int) int {
	n := 32
	switch {
	case total <= 100:
		n = 1
	case total <= 1_000:
		n = 2
	case total <= 10_000:
		n = 4
	case total <= 100_000:
		n = 8
	case total <= 500_000:
		n = 16
	}
	return min(max(n, lowest), highest)
}

// consumerName returns the name of a consumer: {hostname}-{pid}-{index}.
func consumerName(instance string, index int) string { return fmt.Sprintf("%s-%d", instance, index) }

// InstanceOf returns the instance that a consumer's name contains, or "" if the
// name has another form.
func InstanceOf(consumer string) string {
	i := strings.LastIndexByte(consumer, '-')
	if i < 0 {
		return ""
	}
	return consumer[:i]
}
