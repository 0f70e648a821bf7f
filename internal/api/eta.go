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
	sampleIntervalMax = time.Minute     // maximum time between two samples
	standstillAfter   = 3 * time.Second // without progress for this long, the rate is unknown
	// rateWindow is the time over which the rate is measured. recentWindow is a part of
	// it that shows that progress has nearly stopped.
	rateWindow   = 10 * time.Second
	recentWindow = 3 * time.Second
	// A rate that was measured for less than rateWindow counts only after rateWindowMin
	// and shareMin of the targets, and if it has not grown by more than growthMax: when
	// a promotion starts, its rate grows for some seconds.
	rateWindowMin = 3 * time.Second
	shareMin      = 0.01
	growthMax     = 1.5
	// tailFactor is how much slower progress must be for recentWindow to count alone.
	tailFactor = 4
	tracksMax  = 1000 // maximum number of promotions, or of templates, with a known rate
)

// estimator estimates the remaining time of promotions. It samples a promotion each
// time that it is shown, so it costs nothing otherwise. It is safe for concurrent
// use.
type estimator struct {
	mu     sync.Mutex // protects tracks
	tracks rateTracks[reward.PromotionID]
}

// rateTracks are the tracks of promotions or templates, at most tracksMax.
type rateTracks[ID comparable] map[ID]rateTrack

// rateTrack has the samples of a promotion or template, oldest first: those of rateWindow, and one
// before them.
type rateTrack struct {
	samples []rateSample
	moved   time.Time // when decided last grew
}

// rateSample is the number of final payouts, or of coupons ever issued, at a time.
type rateSample struct {
	at      time.Time
	decided int64
}

func newEstimator() *estimator {
	return &estimator{tracks: make(rateTracks[reward.PromotionID])}
}

// seconds returns the remaining time of a promotion at its recent rate. It returns
// nil if that is unknown: at the start, while the rate still grows, and as soon as
// payouts take longer than the estimate, as those of a crashed instance do.
func (e *estimator) seconds(v store.PromotionView, now time.Time) *int64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	if v.Status != reward.Running {
		delete(e.tracks, v.ID)
		return nil
	}
	total := v.Counts.Total()
	decided := total - v.Counts.Undecided()
	t := e.tracks.add(v.ID, rateSample{now, decided})
	if v.ExpectedCount != nil {
		total = max(total, *v.ExpectedCount)
	}
	rate := t.rate(now, total)
	left := float64(total-decided) / rate
	if rate <= 0 || left > math.MaxInt32 || now.Sub(t.moved).Seconds() > max(sampleInterval.Seconds(), 2*left) {
		return nil
	}
	return new(int64(math.Ceil(left)))
}

// add adds a sample. It begins again after a long time without samples, after a
// standstill, and if final payouts became open again.
func (t *rateTrack) add(s rateSample) {
	n := len(t.samples)
	if n == 0 || s.at.Sub(t.samples[n-1].at) > sampleIntervalMax || s.decided < t.samples[n-1].decided {
		t.samples, t.moved = []rateSample{s}, s.at
		return
	}
	if s.decided > t.samples[n-1].decided {
		if s.at.Sub(t.moved) >= standstillAfter && t.samples[n-1].decided == t.samples[max(0, n-2)].decided {
			t.samples = t.samples[n-1:]
			n = 1
		}
		t.moved = s.at
	} else if s.at.Sub(t.moved) >= standstillAfter {
		t.samples = []rateSample{s}
		return
	}
	// The latest sample is replaced until it is far enough from the one before.
	if n >= 2 && t.samples[n-1].at.Sub(t.samples[n-2].at) < sampleInterval {
		t.samples = t.samples[:n-1]
	}
	t.samples = append(t.samples, s)
	for len(t.samples) > 2 && s.at.Sub(t.samples[1].at) >= rateWindow {
		t.samples = t.samples[1:]
	}
}

// rate returns the final payouts per second, or 0 if it is unknown.
func (t *rateTrack) rate(now time.Time, total int64) float64 {
	first, last := t.samples[0], t.samples[len(t.samples)-1]
	window := last.at.Sub(first.at)
	if window < rateWindowMin {
		return 0
	}
	whole := perSecond(first, last)
	if window < rateWindow {
		middle := t.before(first.at.Add(window / 2))
		if float64(last.decided-first.decided) < shareMin*float64(total) || perSecond(middle, last) > growthMax*perSecond(first, middle) {
			return 0
		}
	}
	if recent := perSecond(t.before(now.Add(-recentWindow)), last); recent*tailFactor < whole {
		return recent
	}
	return whole
}

// before returns the latest sample that is not after a time, or the first one.
func (t *rateTrack) before(at time.Time) rateSample {
	found := t.samples[0]
	for _, s := range t.samples {
		if !s.at.After(at) {
			found = s
		}
	}
	return found
}

func perSecond(from, to rateSample) float64 {
	if !to.at.After(from.at) {
		return 0
	}
	return float64(to.decided-from.decided) / to.at.Sub(from.at).Seconds()
}

// add adds a sample to the track with an ID, and returns the track.
func (r rateTracks[ID]) add(id ID, s rateSample) rateTrack {
	t, known := r[id]
	if !known {
		r.evict(s.at)
	}
	t.add(s)
	r[id] = t
	return t
}

// evict makes space for another track. It removes outdated tracks, or all if there
// are none.
func (r rateTracks[ID]) evict(now time.Time) {
	if len(r) < tracksMax {
		return
	}
	for id, t := range r {
		if now.Sub(t.samples[len(t.samples)-1].at) > sampleIntervalMax {
			delete(r, id)
		}
	}
	if len(r) >= tracksMax {
		clear(r)
	}
}
