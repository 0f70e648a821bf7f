package api

import (
	"math"
	"sync"
	"time"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

const (
	rateApart  = time.Second     // samples closer together say too little
	rateStill  = 3 * time.Second // nothing decided for so long: it does not go on as it did lately
	rateAgeMax = time.Minute     // samples farther apart say nothing of now
	rateTracks = 1000            // promotions whose rate is known at a time
	rateWeight = 0.4             // of the latest sample
)

// estimator learns how fast promotions go from the times they are looked at,
// so it costs nothing while nobody does.
type estimator struct {
	mu     sync.Mutex // protects tracks
	tracks map[reward.PromotionID]rateTrack
}

// rateTrack is the latest sample of a promotion.
type rateTrack struct {
	at        time.Time
	decided   int64
	perSecond float64   // 0 = not known
	moved     time.Time // when decided was last seen to grow
}

func newEstimator() *estimator {
	return &estimator{tracks: make(map[reward.PromotionID]rateTrack)}
}

// seconds returns how long a promotion will go on as it did lately, nil when
// that is not known: also when nothing was decided for a while, because nobody
// knows when it goes on.
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
	case !known || apart > rateAgeMax || decided < t.decided:
		e.makeRoomLocked(now)
		t = rateTrack{at: now, decided: decided, moved: now}
	case decided == t.decided && now.Sub(t.moved) >= rateStill:
		t.at, t.perSecond = now, 0 // what comes after a standstill is measured anew
	case apart >= rateApart:
		rate := float64(decided-t.decided) / apart.Seconds()
		if t.perSecond > 0 {
			rate = rateWeight*rate + (1-rateWeight)*t.perSecond
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

func (e *estimator) makeRoomLocked(now time.Time) {
	if len(e.tracks) < rateTracks {
		return
	}
	for id, t := range e.tracks {
		if now.Sub(t.at) > rateAgeMax {
			delete(e.tracks, id)
		}
	}
	if len(e.tracks) >= rateTracks {
		clear(e.tracks)
	}
}
