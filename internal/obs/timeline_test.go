package obs

import (
	"testing"
	"time"

	"github.com/largesse/largesse/internal/reward"
)

func TestTimelineTake(t *testing.T) {
	t.Parallel()
	m := NewMetrics()
	if got := m.TimelineTake(); len(got.Promotions)+len(got.Templates) != 0 {
		t.Errorf("before anything happened: %+v", got)
	}
	m.Finished(1, reward.Succeeded, 3)
	m.Finished(1, reward.Succeeded, 4)
	m.Finished(1, reward.Failed, 2)
	m.Finished(2, reward.Retrying, 1)
	m.Finished(2, reward.Unknown, 4)
	m.Finished(2, reward.Cancelled, 9)
	m.ChargeTook(1, 4*time.Millisecond)
	m.ChargeTook(1, time.Hour)
	m.TemplateAsked(7, true, "")
	m.TemplateAsked(7, false, reward.CodeUserLimit)
	m.TemplateAsked(7, false, "")
	m.CouponsIssued(7, 5)
	m.CouponRejected(8, reward.ReasonSoldOut)
	m.CouponRejected(8, "unknown")
	got := m.TimelineTake()
	want := PromotionSums{Succeeded: 2, Failed: 1, Amount: 7, CallMillis: 4 + 3_600_000}
	want.Calls[3], want.Calls[LatencyBuckets-1] = 1, 1
	if *got.Promotions[1] != want {
		t.Errorf("promotion 1: %+v, want %+v", *got.Promotions[1], want)
	}
	want.Add(got.Promotions[2])
	if want.Retrying != 1 || want.Unknown != 1 || *got.Promotions[0] != want || len(got.Promotions) != 3 {
		t.Errorf("all: %+v, want %+v", *got.Promotions[0], want)
	}
	if want := (TemplateSums{Asked: 3, Issued: 6, Refused: 1, Reasons: [len(RefusalReasons)]int64{1: 1}}); *got.Templates[7] != want {
		t.Errorf("template 7: %+v, want %+v", *got.Templates[7], want)
	}
	if want := (TemplateSums{Asked: 3, Issued: 6, Refused: 3, Reasons: [len(RefusalReasons)]int64{1, 1}}); *got.Templates[0] != want || len(got.Templates) != 3 {
		t.Errorf("all templates: %+v, want %+v", *got.Templates[0], want)
	}
	if got := m.TimelineTake(); len(got.Promotions)+len(got.Templates) != 0 {
		t.Errorf("taken again: %+v", got)
	}
	// However many promotions there are, the sum counts all of them.
	for id := range reward.PromotionID(SeriesMax + 5) {
		m.Finished(id+1, reward.Succeeded, 1)
	}
	if got := m.TimelineTake(); len(got.Promotions) != SeriesMax+1 || got.Promotions[0].Succeeded != SeriesMax+5 {
		t.Errorf("%d promotions with %d in all", len(got.Promotions), got.Promotions[0].Succeeded)
	}
}

func TestPercentile(t *testing.T) {
	t.Parallel()
	var s PromotionSums
	if _, ok := s.Percentile(0.5); ok {
		t.Error("there is a percentile without calls")
	}
	for i := range 1000 {
		s.called(time.Duration(i+1) * time.Millisecond)
	}
	for _, tt := range []struct{ p, want float64 }{{0.5, 500}, {0.95, 950}, {0.99, 990}, {1, 1000}} {
		if got, _ := s.Percentile(tt.p); got < tt.want*0.99 || got > tt.want*1.01 {
			t.Errorf("percentile %v is %v ms, want about %v", tt.p, got, tt.want)
		}
	}
	// Merged sums have the percentiles of all calls.
	other := PromotionSums{}
	for range 9000 {
		other.called(4 * time.Millisecond)
	}
	s.Add(&other)
	if got, _ := s.Percentile(0.5); got < 3 || got > 5 {
		t.Errorf("the median of both is %v ms, want about 4", got)
	}
	slow := PromotionSums{}
	slow.called(time.Minute)
	if got, _ := slow.Percentile(0.99); got != 30_000 {
		t.Errorf("above the last bound: %v ms, want 30000", got)
	}
}
