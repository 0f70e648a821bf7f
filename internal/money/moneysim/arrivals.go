package moneysim

import (
	"slices"
	"sync"
	"time"
)

const (
	arrivalsMax   = 5_000_000 // arrivals remembered
	arrivalsChunk = 1 << 16   // arrivals per chunk
)

// arrivals holds the times of the latest charge requests, in order. It takes 8
// bytes per arrival in chunks, so a quiet simulator needs no memory and a busy
// one never copies; the oldest chunk is dropped as a whole. The zero value is
// ready to use.
type arrivals struct {
	mu     sync.Mutex        // protects the fields below
	chunks [][]time.Duration // all but the last are full
	latest time.Duration
}

// note adds an arrival at a time since the simulator started. Arrivals that
// overtook each other count as simultaneous.
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

// all returns the remembered arrivals, at most arrivalsMax.
func (a *arrivals) all() []time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := slices.Concat(a.chunks...)
	return all[max(len(all)-arrivalsMax, 0):]
}

// busiest returns the largest number of arrivals within any window of the given
// length, excluding its end.
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
