package api

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/store"
)

func TestTimeline(t *testing.T) {
	t.Parallel()
	b := setup(t)
	s := b.store
	b.create(t, `{"id":1,"name":"p","type":"POINT","amount":10}`)
	begin := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	point := func(second int, succeeded int64) store.PromotionPoint {
		p := store.PromotionPoint{PromotionID: 1, At: begin.Add(time.Duration(second) * time.Second), Step: store.TimelineStep, Waiting: 100, Samples: 1}
		p.PromotionSums = obs.PromotionSums{Succeeded: succeeded, CallMillis: 20_000}
		p.Calls[0] = succeeded
		return p
	}
	for instance, points := range map[string][]store.PromotionPoint{
		"a": {point(0, 5), point(20, 0)}, "b": {point(0, 7)},
	} {
		fixture.OK(t, s.TimelineWrite(t.Context(), instance, points, nil))
	}
	const path = "/v1/promotions/1/timeline?from=2026-11-23T12:00:00Z&to=2026-11-23T12:00:"
	null := `"succeeded":null,"failed":null,"retrying":null,"unknown":null,"inFlight":null,"waiting":null,"p50Millis":null,"p95Millis":null,"p99Millis":null}`
	want := `{"stepSeconds":10,"points":[` +
		`{"at":"2026-11-23T12:00:00Z","succeeded":12,"failed":0,"retrying":0,"unknown":0,"inFlight":4,"waiting":100,"p50Millis":0.5,"p95Millis":0.9,"p99Millis":1},` +
		`{"at":"2026-11-23T12:00:10Z",` + null + `,` +
		`{"at":"2026-11-23T12:00:20Z","succeeded":0,"failed":0,"retrying":0,"unknown":0,"inFlight":2,"waiting":100,"p50Millis":null,"p95Millis":null,"p99Millis":null},` +
		`{"at":"2026-11-23T12:00:30Z",` + null + `]}`
	fixture.Equal(t, want, strings.TrimSpace(b.json(t, "GET", path+"31Z", "").body))
	// Fewer points have longer steps, and so have points that were folded.
	if got := b.json(t, "GET", path+"40Z&points=2", "").body; !strings.HasPrefix(got, `{"stepSeconds":20,"points":[{"at":"2026-11-23T12:00:00Z","succeeded":12,`) {
		t.Errorf("two points: %s", got)
	}
	fixture.Must(s.TimelineFold(t.Context(), store.TimelineFoldParams{From: store.TimelineStep, To: time.Minute, Before: begin.Add(time.Hour), Limit: 9}))(t)
	if got := b.json(t, "GET", path+"40Z", "").body; !strings.HasPrefix(got, `{"stepSeconds":60,"points":[{"at":"2026-11-23T12:00:00Z","succeeded":12,"failed":0,"retrying":0,"unknown":0,"inFlight":1,`) {
		t.Errorf("folded: %s", got)
	}
	if a := b.json(t, "GET", "/v1/promotions/1/timeline", ""); a.status != http.StatusOK {
		t.Errorf("without a span: %s", a.body)
	}
	for query, status := range map[string]int{
		"from=2026-11-23T12:00:00Z&to=2026-11-23T12:00:00Z": 422, "points=1": 422, "points=1001": 422, "from=1969-12-31T23:59:59Z": 422, "to=2200-01-01T00:00:00Z": 422,
	} {
		if a := b.json(t, "GET", "/v1/promotions/1/timeline?"+query, ""); a.status != status {
			t.Errorf("%s: %d %s", query, a.status, a.body)
		}
	}
	b.json(t, "GET", "/v1/promotions/9/timeline", "").wantProblem(t, http.StatusNotFound, "PROMOTION_NOT_FOUND")
	b.json(t, "GET", "/v1/coupon-templates/9/timeline", "").wantProblem(t, http.StatusNotFound, "TEMPLATE_NOT_FOUND")
}

func TestTemplatePoints(t *testing.T) {
	t.Parallel()
	begin := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	rows := []store.TemplatePoint{{At: begin.Add(10 * time.Second), TemplateSums: obs.TemplateSums{Asked: 5, Issued: 3, Refused: 2}, Waiting: 25, Samples: 2}}
	got := templatePoints(rows, store.TimelineSpan{From: begin, To: begin.Add(30 * time.Second), Step: 10 * time.Second})
	if len(got) != 3 || got[0].Asked != nil || *got[1].Asked != 5 || *got[1].Issued != 3 || *got[1].Refused != 2 || *got[1].Waiting != 13 || got[2].Waiting != nil {
		t.Errorf("points %+v", got)
	}
}

// TestTimelineSteps: a span has at most the points that were asked for.
func TestTimelineSteps(t *testing.T) {
	t.Parallel()
	begin := time.Date(2026, 11, 23, 23, 59, 59, 0, time.UTC)
	for _, length := range []time.Duration{time.Second, 49 * time.Minute, time.Hour, 26 * time.Hour, 40 * 24 * time.Hour, 170 * 365 * 24 * time.Hour} {
		for _, points := range []int{2, 3, 300, 1000} {
			for _, least := range []time.Duration{0, time.Minute, time.Hour} {
				s := span{begin, begin.Add(length)}
				step := s.step(points, least)
				a := s.aligned(step)
				if n := int64(a.To.Sub(a.From) / step); n > int64(points) || step < least || a.From.After(s.from) || a.To.Before(s.to) || a.To.Sub(a.From)%step != 0 {
					t.Errorf("%v in %d points of at least %v: %d of %v", length, points, least, n, step)
				}
			}
		}
	}
}
