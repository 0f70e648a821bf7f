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
	over chan struct{}   // closed when up is complete
	up   map[string]bool // by the part's name
}

// up reports for each part whether it is available. It returns after pulseTimeout at
// the latest. The caller must not change the map.
func (p *pulse) up() map[string]bool {
	p.mu.Lock()
	r := p.round
	if r != nil {
		p.mu.Unlock()
		<-r.over
		return r.up
	}
	r = &pulseRound{over: make(chan struct{})}
	p.round = r
	p.mu.Unlock()
	r.up = p.ask()
	p.mu.Lock()
	p.round = nil
	p.mu.Unlock()
	close(r.over)
	return r.up
}

func (p *pulse) ask() map[string]bool {
	ctx, cancel := context.WithTimeout(context.Background(), pulseTimeout)
	defer cancel()
	var mu sync.Mutex // protects up
	up := make(map[string]bool, len(p.parts))
	var asking sync.WaitGroup
	for name, ping := range p.parts {
		asking.Go(func() {
			answers := ping(ctx) == nil
			mu.Lock()
			defer mu.Unlock()
			up[name] = answers
		})
	}
	asking.Wait()
	return up
}
