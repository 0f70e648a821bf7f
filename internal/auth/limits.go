package auth

import (
	"math"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// limitsMost bounds the names that are remembered.
const limitsMost = 100_000

// Limits bounds how often each name may do something, on this instance.
type Limits struct {
	perSecond rate.Limit
	burst     int

	mu    sync.Mutex // protects names
	names map[string]*rate.Limiter
}

// NewLimits allows each name so much a second, and twice that at once after a
// rest; 0 = everything.
func NewLimits(perSecond float64) *Limits {
	return &Limits{
		perSecond: rate.Limit(perSecond), burst: max(int(math.Ceil(2*perSecond)), 1),
		names: make(map[string]*rate.Limiter),
	}
}

// Allow says whether name may, and otherwise after what time it may again.
func (l *Limits) Allow(name string) (wait time.Duration, ok bool) {
	if l.perSecond <= 0 {
		return 0, true
	}
	now := time.Now()
	r := l.of(name, now).ReserveN(now, 1)
	if wait = r.DelayFrom(now); wait > 0 {
		r.CancelAt(now)
		return wait, false
	}
	return 0, true
}

// Spent says whether name has nothing left, without taking anything.
func (l *Limits) Spent(name string) bool {
	if l.perSecond <= 0 {
		return false
	}
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	known, ok := l.names[name]
	return ok && known.TokensAt(now) < 1
}

func (l *Limits) of(name string, now time.Time) *rate.Limiter {
	l.mu.Lock()
	defer l.mu.Unlock()
	if known, ok := l.names[name]; ok {
		return known
	}
	if len(l.names) >= limitsMost {
		l.forget(now)
	}
	made := rate.NewLimiter(l.perSecond, l.burst)
	l.names[name] = made
	return made
}

// forget drops the names that have rested, which a new start does not favour;
// when all are busy, any of them go.
func (l *Limits) forget(now time.Time) {
	for name, known := range l.names {
		if known.TokensAt(now) >= float64(l.burst) {
			delete(l.names, name)
		}
	}
	for name := range l.names {
		if len(l.names) < limitsMost*9/10 {
			return
		}
		delete(l.names, name)
	}
}
