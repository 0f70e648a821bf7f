package governor

import (
	"math/rand/v2"
	"net/http"
	"slices"
	"time"

	"github.com/largesse/largesse/internal/reward"
)

const (
	limitFirst   = 32  // at the start
	limitFloor   = 4   // never below, but for MaxConcurrency
	limitRestart = 8   // after an outage
	answersMost  = 50  // that a window needs
	samplesMost  = 128 // of latency that a window keeps

	congestedMost = 0.10 // share of answers that say it was too much
	saturatedFrom = 0.80 // share of the limit that has to be open for more
	slowFactor    = 2    // times the baseline
	slowSlack     = 10 * time.Millisecond

	cutCongested = 0.7
	cutSlow      = 0.9
	growth       = 1.1

	baselineParts = 12 // of a minute
	baselinePart  = 5 * time.Second
)

// limiter finds how many calls the provider can have open. It judges by
// windows: at least one median latency and min(limit, 50) answers long.
//
//   - More than a tenth of the answers congested (429, 503, none): × 0.7.
//   - Median latency above twice the baseline, the lowest of the last minute,
//     and 10 ms: × 0.9. When half the limit was no quicker, the provider has
//     become slower by itself, and that is the baseline.
//   - Otherwise, when the limit was made use of: × 2 until the first cut, then
//   - 10 %.
//
// A 5xx is the provider's fault and no congestion. Latency is that of paid
// answers alone: refusals and failures are often quick.
type limiter struct {
	max, floor float64
	limit      float64
	doubling   bool

	from      time.Duration // when the window began; answers before do not count
	answers   int
	congested int
	peak      int // most calls open
	paid      int // latencies seen, samples is a fair choice of them
	samples   [samplesMost]time.Duration
	judgeAt   time.Duration // not before
	median    time.Duration // of the latest window that had one

	baseline baseline
	slow     slowness
}

// slowness is where a row of cuts for latency began.
type slowness struct {
	limit  float64       // 0: no such row
	median time.Duration // the highest since
}

func newLimiter(most int) limiter {
	l := limiter{max: float64(most), floor: min(limitFloor, float64(most)), doubling: true}
	l.limit = min(limitFirst, l.max)
	return l
}

// now is the limit, at least 1.
func (l *limiter) now() int { return int(l.limit) }

// opened notes how many calls are open.
func (l *limiter) opened(open int) { l.peak = max(l.peak, open) }

// restart begins anew after an outage.
func (l *limiter) restart(now time.Duration, open int) {
	l.limit, l.doubling, l.slow = min(limitRestart, l.max), true, slowness{}
	l.begin(now, open)
}

// result learns from a call that has ended.
func (l *limiter) result(now time.Duration, open int, o Outcome) {
	if now < l.from || o.sign() == signNone {
		return
	}
	l.answers++
	if o.congested() {
		l.congested++
	}
	if o.Class == reward.AnswerPaid && o.Took > 0 {
		l.sample(o.Took)
	}
	if l.answers >= min(int(l.limit), answersMost) && now >= l.judgeAt {
		l.judge(now, open)
	}
}

// congested says that the provider had too much to do.
func (o Outcome) congested() bool {
	switch o.Class {
	case reward.AnswerThrottled:
		return true
	case reward.AnswerUnknown:
		return o.Status == 0 || o.Status == http.StatusRequestTimeout
	}
	return o.Status == http.StatusTooManyRequests || o.Status == http.StatusServiceUnavailable
}

// sample keeps each latency of the window with the same chance.
func (l *limiter) sample(took time.Duration) {
	l.paid++
	if l.paid <= samplesMost {
		l.samples[l.paid-1] = took
	} else if i := rand.IntN(l.paid); i < samplesMost { //nolint:gosec // a sample is no secret
		l.samples[i] = took
	}
}

func (l *limiter) judge(now time.Duration, open int) {
	var median time.Duration
	if kept := l.samples[:min(l.paid, samplesMost)]; len(kept) > 0 {
		slices.Sort(kept)
		median = kept[len(kept)/2]
		l.median = median
	}
	if now-l.from < l.median {
		l.judgeAt = l.from + l.median
		return
	}
	before := l.limit
	switch {
	case float64(l.congested) > congestedMost*float64(l.answers):
		l.limit *= cutCongested
		l.slow = slowness{}
	case median > 0 && l.isSlow(now, median):
		l.limit *= cutSlow
	case float64(l.peak) < saturatedFrom*float64(int(l.limit)):
	case l.doubling:
		l.limit *= 2
	default:
		l.limit = max(l.limit*growth, l.limit+1)
	}
	l.limit = min(max(l.limit, l.floor), l.max)
	if l.limit < before {
		l.doubling = false
		now += l.median // what was open before the cut says nothing about the time after it
	}
	l.begin(now, open)
}

// isSlow says whether a window's latency is too long.
func (l *limiter) isSlow(now, median time.Duration) bool {
	lowest := l.baseline.note(now, median)
	if median <= slowFactor*lowest+slowSlack {
		l.slow = slowness{}
		return false
	}
	if l.slow.limit == 0 {
		l.slow.limit = l.limit
	}
	l.slow.median = max(l.slow.median, median)
	if (l.limit <= l.slow.limit/2 || l.limit <= l.floor) && float64(median) > 0.8*float64(l.slow.median) {
		l.baseline, l.slow = baseline{}, slowness{}
		l.baseline.note(now, median)
		return false
	}
	return true
}

func (l *limiter) begin(from time.Duration, open int) {
	l.from, l.judgeAt, l.peak = from, from, open
	l.answers, l.congested, l.paid = 0, 0, 0
}

// baseline is the lowest of the last minute's medians, by parts of it.
type baseline struct {
	lowest [baselineParts]time.Duration // 0: none
	part   int64                        // the latest one's number
}

// note adds a median and returns the lowest.
func (b *baseline) note(now, median time.Duration) time.Duration {
	part := int64(now / baselinePart)
	for n := max(b.part+1, part-baselineParts+1); n <= part; n++ {
		b.lowest[n%baselineParts] = 0
	}
	b.part = part
	if at := &b.lowest[part%baselineParts]; *at == 0 || median < *at {
		*at = median
	}
	lowest := median
	for _, m := range b.lowest {
		if m > 0 {
			lowest = min(lowest, m)
		}
	}
	return lowest
}
