package pool

import "github.com/largesse/largesse/internal/reward"

// Start starts the pool of a promotion at once, unless it has one. The next
// Converge decides how long it stays.
func (m *Manager) Start(s Spec) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.pools[s.Stream.PromotionID] == nil {
		m.startLocked(s)
	}
}

// Stop stops the pool of a promotion and waits for it. Pending entries are
// finished, or left in the stream after StopTimeout. Converge starts a pool
// again if the specs ask for one.
func (m *Manager) Stop(id reward.PromotionID) {
	m.mu.Lock()
	p := m.pools[id]
	if p == nil {
		m.mu.Unlock()
		return
	}
	p.stop(endStopped, m.specs[id].over())
	m.mu.Unlock()
	<-p.done
}
