package obs

import (
	"slices"
	"sync"
	"time"

	"github.com/largesse/largesse/internal/reward"
)

// LatencyBounds are the upper ends of the buckets of PromotionSums.Calls. The last
// bucket has no upper end. Rows are stored with these buckets: never change them.
var LatencyBounds = [...]time.Duration{
	1 * time.Millisecond, 2 * time.Millisecond, 3 * time.Millisecond, 5 * time.Millisecond, 7 * time.Millisecond,
	10 * time.Millisecond, 15 * time.Millisecond, 20 * time.Millisecond, 30 * time.Millisecond, 50 * time.Millisecond, 70 * time.Millisecond,
	100 * time.Millisecond, 150 * time.Millisecond, 200 * time.Millisecond, 300 * time.Millisecond, 500 * time.Millisecond, 700 * time.Millisecond,
	1000 * time.Millisecond, 1500 * time.Millisecond, 2 * time.Second, 3 * time.Second, 5 * time.Second, 7 * time.Second,
	10 * time.Second, 15 * time.Second, 20 * time.Second, 30 * time.Second,
}

// LatencyBuckets is the number of buckets.
const LatencyBuckets = len(LatencyBounds) + 1

// PromotionSums counts what one instance did for a promotion within some time.
type PromotionSums struct {
	// These count outcomes of charges by the state of the payout after them.
	Succeeded, Failed, Retrying, Unknown int64
	Amount                               reward.Amount         // of the succeeded ones
	CallMillis                           int64                 // sum of the durations of calls to the provider
	Calls                                [LatencyBuckets]int64 // number of those calls, by duration
}

// Add adds b to the sums.
func (a *PromotionSums) Add(b *PromotionSums) {
	a.Succeeded += b.Succeeded
	a.Failed += b.Failed
	a.Retrying += b.Retrying
	a.Unknown += b.Unknown
	a.Amount += b.Amount
	a.CallMillis += b.CallMillis
	for i := range a.Calls {
		a.Calls[i] += b.Calls[i]
	}
}

// Percentile returns the duration in milliseconds that a share p of the calls did
// not exceed, from 0 to 1. Within a bucket it interpolates. It returns false if
// there were no calls.
func (a *PromotionSums) Percentile(p float64) (millis float64, ok bool) {
	var total int64
	for _, n := range a.Calls {
		total += n
	}
	if total == 0 {
		return 0, false
	}
	rank := p * float64(total)
	low := 0.0
	for i, n := range a.Calls {
		if i == len(LatencyBounds) {
			break
		}
		high := float64(LatencyBounds[i]) / float64(time.Millisecond)
		if n > 0 && rank <= float64(n) {
			return low + (high-low)*max(rank, 0)/float64(n), true
		}
		rank -= float64(n)
		low = high
	}
	return low, true
}

// RefusalReasons are the codes by which TemplateSums.Reasons counts. Each has a column of the
// rows: append only, with a migration.
var RefusalReasons = [...]string{
	reward.CodeSoldOut, reward.CodeUserLimit, reward.CodeNotOpen, reward.CodeClosed, reward.CodeHoldLapsed,
	reward.ReasonNotDrawn, reward.ReasonError, reward.CodeArchived, reward.CodeUnavailable,
}

// TemplateSums counts what one instance did for a coupon template within some time.
type TemplateSums struct {
	Asked   int64                      // answered coupon requests
	Issued  int64                      // coupons
	Refused int64                      // refused requests, and admitted ones without a coupon
	Reasons [len(RefusalReasons)]int64 // of Refused, except those with another code
}

// Add adds b to the sums.
func (a *TemplateSums) Add(b *TemplateSums) {
	a.Asked += b.Asked
	a.Issued += b.Issued
	a.Refused += b.Refused
	for i := range a.Reasons {
		a.Reasons[i] += b.Reasons[i]
	}
}

func (a *TemplateSums) refused(code string) {
	a.Refused++
	if i := slices.Index(RefusalReasons[:], code); i >= 0 {
		a.Reasons[i]++
	}
}

// SeriesMax limits the promotions, and the templates, that an instance counts
// within a step of the timeline. The first ones count.
const SeriesMax = 2000

// sums holds the sums of promotions or of templates since they were last taken.
type sums[ID ~int64, S any] struct {
	mu  sync.Mutex // protects what follows
	all S          // over everything
	by  map[ID]*S
}

func (t *sums[ID, S]) add(id ID, add func(s *S)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	add(&t.all)
	s := t.by[id]
	if s == nil {
		if len(t.by) == SeriesMax {
			return
		}
		if t.by == nil {
			t.by = make(map[ID]*S)
		}
		s = new(S)
		t.by[id] = s
	}
	add(s)
}

// take returns the sums, with the ones over everything under the ID 0, and begins new ones.
func (t *sums[ID, S]) take() map[ID]*S {
	t.mu.Lock()
	defer t.mu.Unlock()
	taken, all := t.by, t.all
	if len(taken) > 0 {
		taken[0] = &all
	}
	var none S
	t.by, t.all = nil, none
	return taken
}

func (a *PromotionSums) called(took time.Duration) {
	bucket, _ := slices.BinarySearch(LatencyBounds[:], took)
	a.Calls[bucket]++
	a.CallMillis += took.Milliseconds()
}

// TimelineSums are the sums of an instance since the last time they were taken.
// PromotionID and TemplateID 0 have the sums over everything; they are there only
// if anything happened.
type TimelineSums struct {
	Promotions map[reward.PromotionID]*PromotionSums
	Templates  map[reward.TemplateID]*TemplateSums
}

// TimelineTake returns the sums since the last call, and begins new ones.
func (m *Metrics) TimelineTake() TimelineSums {
	if m.off() {
		return TimelineSums{}
	}
	return TimelineSums{Promotions: m.promotions.take(), Templates: m.templates.take()}
}

// TimelineDropped counts points that could not be stored.
func (m *Metrics) TimelineDropped(points int) { m.add(pointsDropped, points) }
