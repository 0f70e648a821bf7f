package pool

import (
	"maps"
	"sync"

	"github.com/largesse/largesse/internal/reward"
)

// Registry holds the pools of this instance, at most one per promotion. It is
// safe for concurrent use.
type Registry struct {
	mu    sync.Mutex // protects pools
	pools map[reward.PromotionID]*Pool
}

func newRegistry() *Registry {
	return &Registry{pools: make(map[reward.PromotionID]*Pool)}
}

// add adds a pool. It adds nothing and reports false if the promotion has a pool.
func (r *Registry) add(id reward.PromotionID, p *Pool) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.pools[id]; ok {
		return false
	}
	r.pools[id] = p
	return true
}

func (r *Registry) get(id reward.PromotionID) *Pool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.pools[id]
}

func (r *Registry) remove(id reward.PromotionID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.pools, id)
}

func (r *Registry) all() map[reward.PromotionID]*Pool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.pools)
}
