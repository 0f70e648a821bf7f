package governor

import (
	"math/rand/v2"
	"net/http"
	"slices"
	"time"

	"github.com/largesse/largesse/internal/reward"
)

const (
	limitFirst   = 32  // first limit
	limitFloor   = 4   // lowest limit, unless MaxConcurrency is lower
	limitRestart = 8   // limit after an outage
	answersMax   = 50  // responses that end a window
	samplesMax   = 128 // latencies that a window stores

	congestedMax  = 0.10                  // larger shares of congested responses lower the limit
	saturatedFrom = 0.80                  // share of the limit that must be in use before it is raised
	slowFactor    = 2                     // median latencies above slowFactor × baseline + slowSlack are slow
	slowSlack     = 10 * time.Millisecond // see slowFactor

	cutCongested = 0.7
	cutSlow      = 0.9
	growth       = 1.1

	baselineParts = 12 // parts of a minute
	baselinePart  = 5 * time.Second
)

// limiter finds how many calls the provider can handle in flight. It judges
// windows, which last at least one median latency and min(limit, 50) responses:
//
//   - If more than a tenth of the responses are congested (429, 503 or none), it
//     multiplies the limit by 0.7.
//   - If the median latency exceeds twice the baseline plus 10 ms, it multiplies
//     the limit by 0.9. The baseline is the lowest median of the last minute. If
//     calls do not get faster although the limit was halved that way, the provider
//     itself has become slower, and the present median becomes the baseline.
//   - Otherwise, if at least 80 % of the limit were in use, it raises the limit.
//     It doubles it before the first cut, and adds 10 % after that.
//
// A 5xx other than 503 is no congestion. Only successful charges count for the
// latency, because refusals and failures are often fast.
type limiter struct {
	max, floor float64
	limit      float64
	doubling   bool

	from      time.Duration // start of the window; earlier responses do not count
	answers   int
	congested int
	peak      int // most calls in flight
	paid      int // latencies seen; samples is a uniform sample of them
	samples   [samplesMax]time.Duration
	judgeAt   time.Duration // earliest time to judge
	median    time.Duration // of the latest window that had successful charges

	baseline baseline
	slow     slowness
}

// slowness describes consecutive windows with slow calls.
type slowness struct {
	limit  float64       // limit when they began; 0: there are none
	median time.Duration // highest median since then
}

func newLimiter(most int) limiter {
	l := limiter{max: float64(most), floor: min(limitFloor, float64(most)), doubling: true}
	l.limit = min(limitFirst, l.max)
	return l
}

func (l *limiter) now() int { return int(l.limit) }

func (l *limiter) opened(open int) { l.peak = max(l.peak, open) }

func (l *limiter) restart(now time.Duration, open int) {
	l.limit, l.doubling, l.slow = min(limitRestart, l.max), true, slowness{}
	l.begin(now, open)
}

// result takes a call that has ended into account.
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
	if l.answers >= min(int(l.limit), answersMax) && now >= l.judgeAt {
		l.judge(now, open)
	}
}

// congested reports whether the outcome suggests that the provider is overloaded.
func (o Outcome) congested() bool {
	switch o.Class {
	case reward.AnswerThrottled:
		return true
	case reward.AnswerUnknown:
		return o.Status == 0 || o.Status == http.StatusRequestTimeout
	}
	return o.Status == http.StatusTooManyRequests || o.Status == http.StatusServiceUnavailable
}

// sample adds a latency to the uniform sample of the window.
func (l *limiter) sample(took time.Duration) {
	l.paid++
	if l.paid <= samplesMax {
		l.samples[l.paid-1] = took
	} else if i := rand.IntN(l.paid); i < samplesMax { //nolint:gosec // not security relevant
		l.samples[i] = took
	}
}

func (l *limiter) judge(now time.Duration, open int) {
	var median time.Duration
	if kept := l.samples[:min(l.paid, samplesMax)]; len(kept) > 0 {
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
	case float64(l.congested) > congestedMax*float64(l.answers):
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
		now += l.median // ignore calls that started before the cut
	}
	l.begin(now, open)
}

// isSlow reports whether a window's median latency is too long.
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

// baseline holds the lowest median of the last minute, for each part of it.
type baseline struct {
	lowest [baselineParts]time.Duration // 0: none
	part   int64                        // number of the latest part
}

// note adds a median, and returns the lowest one of the last minute.
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
