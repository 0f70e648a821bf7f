package moneysim

import (
	"slices"
	"sync"
	"time"
)

const (
	arrivalsMax   = 5_000_000 // arrivals that are remembered
	arrivalsChunk = 1 << 16   // arrivals in one piece of memory
)

// arrivals holds when the latest charge requests came, in order. Memory comes
// in pieces, 8 bytes an arrival, so that a quiet simulator needs none and a busy
// one never copies; the oldest piece goes as a whole. The zero value is ready.
type arrivals struct {
	mu     sync.Mutex        // protects the rest
	chunks [][]time.Duration // each but the last is full
	latest time.Duration
}

// note adds an arrival; at is since the simulator's beginning. Arrivals that
// overtook each other on the way here count as simultaneous.
func (a *arrivals) note(at time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.latest = max(a.latest, at)
	last := len(a.chunks) - 1
	if last < 0 || len(a.chunks[last]) == arrivalsChunk {
		if len(a.chunks) == arrivalsMax/arrivalsChunk+2 {
			a.chunks = slices.Delete(a.chunks, 0, 1)
			last--
		}
		a.chunks = append(a.chunks, make([]time.Duration, 0, arrivalsChunk))
		last++
	}
	a.chunks[last] = append(a.chunks[last], a.latest)
}

// all returns what is remembered, at most arrivalsMax.
func (a *arrivals) all() []time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := slices.Concat(a.chunks...)
	return all[max(len(all)-arrivalsMax, 0):]
}

// busiest counts the most arrivals within any span as long as window, its end
// not included.
func (a *arrivals) busiest(window time.Duration) int {
	all := a.all()
	most, first := 0, 0
	for i, at := range all {
		for at-all[first] >= window && first < i {
			first++
		}
		most = max(most, i-first+1)
	}
	return most
}
