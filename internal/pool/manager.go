package pool

import (
	"context"
	"sync"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/queue"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/service"
)

// Spec says what should be for one promotion, as read from its row.
type Spec struct {
	Stream queue.Stream
	// Total is how many targets the promotion has or expects; it sets the
	// number of consumers.
	Total int64
	// Work says that rows are dispatched and undecided: there must be a pool.
	Work bool
	// Paused says that nothing may be read; what is in the stream stays.
	Paused bool
	// Final says that the promotion pays nothing more. Without Work its pool
	// ends, and takes the stream along when it is empty.
	Final bool
}

// Manager makes pools be what the rows say, and starts one early on a hint.
// [PromotionStreamManager, CampaignPromotionStreamManager]
type Manager struct {
	service.Base
	cfg      Config
	registry *Registry

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
	m.specs = wanted
	for id, s := range wanted {
		switch p := m.registry.get(id); {
		case p != nil && s.Paused:
			p.stop()
		case p != nil && s.Final && !s.Work:
			p.final.Store(true)
			p.stop()
		case p != nil:
			m.resize(p, s)
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

func (m *Manager) resize(p *Pool, s Spec) {
	if p.grow(ConsumerCount(s.Total, m.cfg.MinConsumers, m.cfg.MaxConsumers)) {
		p.Wake()
	}
}

func (m *Manager) startLocked(s Spec) {
	if m.ended {
		return
	}
	id := s.Stream.PromotionID
	p := newPool(m.cfg, s.Stream, ConsumerCount(s.Total, m.cfg.MinConsumers, m.cfg.MaxConsumers))
	if !m.registry.add(id, p) {
		m.cfg.Log.For(obs.Manager).Debug(obs.AlreadyActive, "promotion_id", id)
		return
	}
	p.start(func() { m.registry.remove(id) })
	m.cfg.Log.For(obs.Manager).Info(obs.Started, "promotion_id", id, "type", s.Stream.Type, "consumers", len(p.Consumers()))
}

// Active says whether this instance has a pool for the promotion. [isActive]
func (m *Manager) Active(id reward.PromotionID) bool { return m.registry.get(id) != nil }

// List returns the consumer names of every pool.
func (m *Manager) List() map[reward.PromotionID][]string {
	out := make(map[reward.PromotionID][]string)
	for id, p := range m.registry.all() {
		out[id] = p.Consumers()
	}
	return out
}

// StopAll stops every pool and waits for them; none starts again. What is in
// hand is finished, or left in the stream after StopTimeout. [shutdownAll]
func (m *Manager) StopAll() {
	m.mu.Lock()
	m.ended = true
	pools := m.registry.all()
	m.mu.Unlock()
	for _, p := range pools {
		p.stop()
	}
	for _, p := range pools {
		<-p.done
	}
	m.Base.Stop()
}
