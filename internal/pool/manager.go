package pool

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/queue"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/service"
)

// Spec says what should be for one promotion, as read from its row.
type Spec struct {
	Stream queue.Stream
	// Total is how many targets the promotion has or expects; it sets the
	// number of consumers, unless Consumers (above 0) does.
	Total     int64
	Consumers int
	// Work says that rows are dispatched and undecided: there must be a pool.
	Work bool
	// Paused says that nothing may be read; what is in the stream stays.
	Paused bool
	// Final says that the promotion pays nothing more. Without Work its pool
	// ends, and takes the stream along when it is empty.
	Final bool
}

// over says that nothing of the promotion is left to do.
func (s Spec) over() bool { return s.Final && !s.Work }

// Manager makes pools be what the rows say, and starts one early on a hint.
// [PromotionStreamManager, CampaignPromotionStreamManager]
type Manager struct {
	service.Base
	cfg      Config
	registry *Registry

	tidying sync.WaitGroup

	mu    sync.Mutex // protects specs; and no pool starts or stops without it
	specs map[reward.PromotionID]Spec
	ended bool
}

// NewManager makes a manager without pools.
func NewManager(cfg Config) *Manager {
	return &Manager{cfg: cfg, registry: newRegistry(), specs: make(map[reward.PromotionID]Spec)}
}

// Run listens for hints until Stop.
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

// Converge starts the pools that are missing, grows those that are too small,
// and asks those to stop whose promotion is paused, or pays nothing more (it is
// final without work, or not in specs at all). It does not wait for them.
func (m *Manager) Converge(specs []Spec) {
	wanted := make(map[reward.PromotionID]Spec, len(specs))
	for _, s := range specs {
		wanted[s.Stream.PromotionID] = s
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for id, before := range m.specs {
		s, known := wanted[id]
		if (!known || s.over()) && !before.Final && m.registry.get(id) == nil {
			m.tidy(before.Stream)
		}
	}
	m.specs = wanted
	for id, s := range wanted {
		switch p := m.registry.get(id); {
		case p != nil && (s.Paused || s.over()):
			m.end(id, p)
		case p != nil:
			m.follow(p, s)
		case s.Work && !s.Paused:
			m.startLocked(s)
		}
	}
	for id, p := range m.registry.all() {
		if _, ok := wanted[id]; !ok {
			p.final.Store(true)
			p.stop()
		}
	}
	m.divide()
}

// divide gives every pool its share of HandMost: that of its consumers among
// all, or that of one pool among all if this is more, so that a small promotion
// is not held short by a huge one, nor a huge one by many that are small. mu is
// held.
func (m *Manager) divide() {
	if m.cfg.HandMost <= 0 {
		return
	}
	pools := m.registry.all()
	consumers := 0
	for _, p := range pools {
		consumers += len(p.Consumers())
	}
	calls := m.cfg.HandMost / 2 // as many entries again may wait for their outcomes to be written
	for _, p := range pools {
		own := len(p.Consumers())
		share := max(calls*own/consumers, calls/len(pools))
		p.share.Store(int64(max((share+own-1)/own, 1)))
	}
}

// tidy destroys the empty stream of a promotion that is over: its last pool may
// have ended, idle, just after another instance had destroyed it, and made it
// anew with its last read.
func (m *Manager) tidy(s queue.Stream) {
	if m.ended {
		return
	}
	m.tidying.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), m.cfg.StopTimeout)
		defer cancel()
		if _, err := m.cfg.Queue.Destroy(ctx, s); err != nil {
			m.cfg.Log.For(obs.Registry).Warn(obs.CleanupFailed, err, "promotion_id", s.PromotionID)
		}
	})
}

// Wake starts or hurries the pool of a stream that may have got work, if its
// promotion should be worked on at all.
func (m *Manager) Wake(s queue.Stream) {
	m.mu.Lock()
	defer m.mu.Unlock()
	spec, wanted := m.specs[s.PromotionID]
	if !wanted || spec.Paused {
		return
	}
	if p := m.registry.get(s.PromotionID); p != nil {
		p.Wake()
		return
	}
	m.startLocked(spec)
}

// follow makes a pool what its promotion asks for: as large as its size says,
// and up for as long as anything is dispatched anywhere, whoever has it.
func (m *Manager) follow(p *Pool, s Spec) {
	if s.Work {
		p.touch()
	}
	if p.grow(m.consumers(s)) {
		p.Wake()
		m.changed()
	}
}

func (m *Manager) startLocked(s Spec) {
	if m.ended {
		return
	}
	id := s.Stream.PromotionID
	p := newPool(m.cfg, s.Stream, m.consumers(s))
	if !m.registry.add(id, p) {
		m.cfg.Log.For(obs.Manager).Debug(obs.AlreadyActive, "promotion_id", id)
		return
	}
	m.divide()
	p.start(func() {
		m.registry.remove(id)
		m.changed()
	})
	m.cfg.Metrics.PoolStarted()
	m.cfg.Log.For(obs.Manager).Info(obs.Started, "promotion_id", id, "type", s.Stream.Type, "consumers", len(p.Consumers()))
	m.changed()
}

// consumers is how many consumers this instance keeps for a promotion.
func (m *Manager) consumers(s Spec) int {
	if s.Consumers > 0 {
		return s.Consumers
	}
	return ConsumerCount(s.Total, m.cfg.MinConsumers, m.cfg.MaxConsumers)
}

// Capacity is how many calls this instance may have open for a promotion.
func (m *Manager) Capacity(s Spec) int { return m.consumers(s) * m.cfg.InFlight }

func (m *Manager) changed() {
	if m.cfg.Changed != nil {
		m.cfg.Changed()
	}
}

// Start starts the pool of a promotion at once; when there is one, it does
// nothing. What Converge is told next decides how long it stays.
// [startConsumers]
func (m *Manager) Start(s Spec) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.startLocked(s)
}

// Stop ends the pool of a promotion on this instance and waits for it: what is
// in hand is finished, or left in the stream after StopTimeout. It lasts for as
// long as the rows ask for no pool: a running promotion is stopped by pausing
// or cancelling it, an instance by ending it. [stopConsumers]
func (m *Manager) Stop(id reward.PromotionID) {
	m.mu.Lock()
	p := m.registry.get(id)
	if p == nil {
		m.mu.Unlock()
		return
	}
	m.end(id, p)
	m.mu.Unlock()
	<-p.done
}

// end asks a pool to end; that of a promotion that is over and done takes the
// stream along. mu is held.
func (m *Manager) end(id reward.PromotionID, p *Pool) {
	if m.specs[id].over() {
		p.final.Store(true)
	}
	p.stop()
}

// Active says whether this instance has a pool for the promotion. [isActive]
func (m *Manager) Active(id reward.PromotionID) bool { return m.registry.get(id) != nil }

// Status is a pool as it is now.
type Status struct {
	Stream    queue.Stream
	Consumers []string // their names
	InHand    int      // entries read and not yet settled
	StartedAt time.Time
}

// Pools returns every pool of this instance, ordered by promotion id.
func (m *Manager) Pools() []Status {
	all := m.registry.all()
	out := make([]Status, 0, len(all))
	for _, id := range slices.Sorted(maps.Keys(all)) {
		out = append(out, all[id].status())
	}
	return out
}

// StopAll stops every pool and waits for them; none starts again. What is in
// hand is finished, or left in the stream after StopTimeout. [shutdownAll]
func (m *Manager) StopAll() {
	m.mu.Lock()
	m.ended = true
	pools := m.registry.all()
	for id, p := range pools {
		m.end(id, p)
	}
	m.mu.Unlock()
	for _, p := range pools {
		<-p.done
	}
	m.tidying.Wait()
	m.Base.Stop()
}
