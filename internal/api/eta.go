package api

import (
	"math"
	"sync"
	"time"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

const (
	sampleInterval    = time.Second     // minimum time between two samples
	standstillAfter   = 3 * time.Second // without progress for this long, the rate is unknown
	sampleIntervalMax = time.Minute     // maximum time between two samples
	tracksMax         = 1000            // maximum number of promotions with a known rate
	sampleWeight      = 0.4             // weight of the latest sample
)

// estimator estimates the remaining time of promotions. It samples a promotion each
// time that it is shown, so it costs nothing otherwise. It is safe for concurrent
// use.
type estimator struct {
	mu     sync.Mutex // protects tracks
	tracks map[reward.PromotionID]rateTrack
}

// rateTrack is the latest sample of a promotion.
type rateTrack struct {
	at        time.Time
	decided   int64
	perSecond float64   // 0: unknown
	moved     time.Time // when decided last grew
}

func newEstimator() *estimator {
	return &estimator{tracks: make(map[reward.PromotionID]rateTrack)}
}

// seconds returns the remaining time of a promotion at its recent rate. It returns
// nil if that is unknown, as after some seconds without progress.
func (e *estimator) seconds(v store.PromotionView, now time.Time) *int64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	if v.Status != reward.Running {
		delete(e.tracks, v.ID)
		return nil
	}
	total := v.Counts.Total()
	decided := total - v.Counts.Undecided()
	t, known := e.tracks[v.ID]
	apart := now.Sub(t.at)
	switch {
	case !known || apart > sampleIntervalMax || decided < t.decided:
		e.evictLocked(now)
		t = rateTrack{at: now, decided: decided, moved: now}
	case decided == t.decided && now.Sub(t.moved) >= standstillAfter:
		t.at, t.perSecond = now, 0 // measure again after a standstill
	case apart >= sampleInterval:
		rate := float64(decided-t.decided) / apart.Seconds()
		if t.perSecond > 0 {
			rate = sampleWeight*rate + (1-sampleWeight)*t.perSecond
		}
		moved := t.moved
		if decided > t.decided {
			moved = now
		}
		t = rateTrack{at: now, decided: decided, perSecond: rate, moved: moved}
	}
	e.tracks[v.ID] = t
	if v.ExpectedCount != nil {
		total = max(total, *v.ExpectedCount)
	}
	left := float64(total - decided)
	if t.perSecond <= 0 || left/t.perSecond > math.MaxInt32 {
		return nil
	}
	seconds := int64(math.Ceil(left / t.perSecond))
	return &seconds
}

// evictLocked makes space for another track. It removes outdated tracks, or all if
// there are none.
func (e *estimator) evictLocked(now time.Time) {
	if len(e.tracks) < tracksMax {
		return
	}
	for id, t := range e.tracks {
		if now.Sub(t.at) > sampleIntervalMax {
			delete(e.tracks, id)
		}
	}
	if len(e.tracks) >= tracksMax {
		clear(e.tracks)
	}
}
