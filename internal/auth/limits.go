package auth

import (
	"math"
	"sync"
	"time"
)

const namesMax = 100_000

// RateLimiter limits the calls of each name. It is safe for concurrent use.
type RateLimiter struct {
	step  time.Duration // after each of which a name may call once more; 0: no limit
	burst time.Duration // steps that a name may call ahead, together
	began time.Time

	mu sync.Mutex // protects names
	// names has the time since began at which each name has its full burst again. It needs
	// no more: a name with a full burst need not be in it.
	names map[string]time.Duration
}

// NewLimits returns a RateLimiter that allows each name twice perSecond calls at once. Zero means no limit.
func NewLimits(perSecond float64) *RateLimiter {
	l := &RateLimiter{began: time.Now(), names: make(map[string]time.Duration)}
	if perSecond > 0 {
		l.step = max(time.Duration(float64(time.Second)/perSecond), 1)
		l.burst = time.Duration(max(math.Ceil(2*perSecond), 1)) * l.step
	}
	return l
}

// Allow reports whether name may call now, or else after which time.
func (l *RateLimiter) Allow(name string) (wait time.Duration, ok bool) {
	if l.step == 0 {
		return 0, true
	}
	now := time.Since(l.began)
	l.mu.Lock()
	defer l.mu.Unlock()
	full, known := l.names[name]
	if full = max(full, now) + l.step; full-now > l.burst {
		return full - now - l.burst, false
	}
	if !known && len(l.names) >= namesMax {
		l.forget(now)
	}
	l.names[name] = full
	return 0, true
}

// Exhausted reports whether name has no call left, without using one.
func (l *RateLimiter) Exhausted(name string) bool {
	if l.step == 0 {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.names[name]+l.step-time.Since(l.began) > l.burst
}

// forget drops names with a full burst, which lose nothing, or else any.
func (l *RateLimiter) forget(now time.Duration) {
	for name, full := range l.names {
		if full <= now {
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
