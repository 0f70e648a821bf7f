package auth

import (
	"math"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

const namesMax = 100_000

// RateLimiter limits the calls of each name. It is safe for concurrent use.
type RateLimiter struct {
	perSecond rate.Limit
	burst     int

	mu    sync.Mutex // protects names
	names map[string]*rate.Limiter
}

// NewLimits returns a RateLimiter that allows each name twice perSecond calls at once. Zero means no limit.
func NewLimits(perSecond float64) *RateLimiter {
	return &RateLimiter{
		perSecond: rate.Limit(perSecond), burst: max(int(math.Ceil(2*perSecond)), 1),
		names: make(map[string]*rate.Limiter),
	}
}

// Allow reports whether name may call now, or else after which time.
func (l *RateLimiter) Allow(name string) (wait time.Duration, ok bool) {
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

// Exhausted reports whether name has no call left, without using one.
func (l *RateLimiter) Exhausted(name string) bool {
	if l.perSecond <= 0 {
		return false
	}
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	known, ok := l.names[name]
	return ok && known.TokensAt(now) < 1
}

func (l *RateLimiter) of(name string, now time.Time) *rate.Limiter {
	l.mu.Lock()
	defer l.mu.Unlock()
	if known, ok := l.names[name]; ok {
		return known
	}
	if len(l.names) >= namesMax {
		l.forget(now)
	}
	made := rate.NewLimiter(l.perSecond, l.burst)
	l.names[name] = made
	return made
}

// forget drops names with a full burst, which lose nothing, or else any.
func (l *RateLimiter) forget(now time.Time) {
	for name, known := range l.names {
		if known.TokensAt(now) >= float64(l.burst) {
			delete(l.names, name)
		}
	}
	for name := range l.names {
		if len(l.names) < namesMax*9/10 {
			return
		}
		delete(l.names, name)
	}
}
