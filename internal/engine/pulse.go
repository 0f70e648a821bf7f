package engine

import (
	"context"
	"sync"
	"time"
)

// pulseWait bounds how long a part may take to count as there.
const pulseWait = time.Second

// pulse asks the parts of an instance whether they answer: all at once, and one
// round at a time. Whoever asks while a round is under way gets its answer.
type pulse struct {
	parts map[string]func(ctx context.Context) error // by the part's name

	mu    sync.Mutex  // protects round
	round *pulseRound // under way; nil: none
}

// pulseRound is one question to all parts.
type pulseRound struct {
	over chan struct{}   // closed when up is whole
	up   map[string]bool // by the part's name
}

// up says of each part whether it answers, after pulseWait at the latest. The
// answer must not be changed.
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
	ctx, cancel := context.WithTimeout(context.Background(), pulseWait)
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
