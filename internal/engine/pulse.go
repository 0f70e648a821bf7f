package engine

import (
	"context"
	"sync"
	"time"
)

// pulseTimeout limits the time in which a part must respond to count as available.
const pulseTimeout = time.Second

// pulse checks whether the parts of an instance are available. It checks all parts
// concurrently, one round at a time. Callers during a round share its result. A
// pulse is safe for concurrent use.
type pulse struct {
	parts map[string]func(ctx context.Context) error // by the part's name

	mu    sync.Mutex  // protects round
	round *pulseRound // in progress; nil: none
}

// pulseRound is one check of all parts.
type pulseRound struct {
	over  chan struct{}    // closed when fails is complete
	fails map[string]error // why each part is unavailable, by its name
}

// up reports for each part whether it is available, as check does.
func (p *pulse) up() map[string]bool {
	fails := p.check()
	up := make(map[string]bool, len(p.parts))
	for part := range p.parts {
		up[part] = fails[part] == nil
	}
	return up
}

// check returns why parts are unavailable, by their names. It returns after pulseTimeout
// at the latest. The caller must not change the map.
func (p *pulse) check() map[string]error {
	p.mu.Lock()
	r := p.round
	if r != nil {
		p.mu.Unlock()
		<-r.over
		return r.fails
	}
	r = &pulseRound{over: make(chan struct{})}
	p.round = r
	p.mu.Unlock()
	r.fails = p.ask()
	p.mu.Lock()
	p.round = nil
	p.mu.Unlock()
	close(r.over)
	return r.fails
}

func (p *pulse) ask() map[string]error {
	ctx, cancel := context.WithTimeout(context.Background(), pulseTimeout)
	defer cancel()
	var mu sync.Mutex // protects fails
	fails := make(map[string]error)
	var asking sync.WaitGroup
	for name, ping := range p.parts {
		asking.Go(func() {
			if err := ping(ctx); err != nil {
				mu.Lock()
				defer mu.Unlock()
				fails[name] = err
			}
		})
	}
	asking.Wait()
	return fails
}
