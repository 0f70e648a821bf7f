package api

import (
	"context"
	"math"
	"net/http"
	"time"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/web"
)

// timelineInput selects a part of a timeline.
type timelineInput struct {
	ID     string    `path:"id"`
	From   time.Time `query:"from" doc:"Absent: its start"`
	To     time.Time `query:"to" doc:"Absent: now, or its end"`
	Points int       `query:"points" minimum:"2" maximum:"1000" default:"300"`
}

// Timeline is a series of points of equal steps.
type timelineOutput[P any] struct {
	Body struct {
		StepSeconds int64 `json:"stepSeconds"`
		Points      []P   `json:"points" nullable:"false"`
	}
}

func (a *API) addTimelines() {
	call(a, operation{
		id: "get-promotion-timeline", method: http.MethodGet, path: "/v1/promotions/{id}/timeline", tag: "promotions", roles: readers,
		summary: "Get a promotion timeline",
		errors:  []string{reward.CodeNotFound},
	}, a.promotionTimeline)
	call(a, operation{
		id: "get-template-timeline", method: http.MethodGet, path: "/v1/coupon-templates/{id}/timeline", tag: "coupon templates", roles: readers,
		summary: "Get a template timeline",
		errors:  []string{reward.CodeTemplateNotFound},
	}, a.templateTimeline)
}

func (a *API) promotionTimeline(ctx context.Context, in *timelineInput) (*timelineOutput[client.PromotionPoint], error) {
	id, err := promotionID(in.ID)
	if err != nil {
		return nil, err
	}
	v, err := a.cfg.Promotions.Get(ctx, id)
	if err != nil {
		return nil, err
	}
	begin := v.CreatedAt
	if !v.StartedAt.IsZero() {
		begin = v.StartedAt
	}
	span, err := in.span(begin, v.FinishedAt, time.Now())
	if err != nil {
		return nil, err
	}
	points, step, err := readTimeline(span, in.Points, func(s store.TimelineSpan) ([]store.PromotionPoint, time.Duration, error) {
		rows, err := a.cfg.Rows.PromotionTimeline(ctx, id, s)
		return rows, longest(rows, func(p store.PromotionPoint) time.Duration { return p.Step }), err
	})
	if err != nil {
		return nil, err
	}
	out := &timelineOutput[client.PromotionPoint]{}
	out.Body.StepSeconds = int64(step / time.Second)
	out.Body.Points = promotionPoints(points, span.aligned(step))
	return out, nil
}

// promotionPoints returns one point per step.
func promotionPoints(rows []store.PromotionPoint, s store.TimelineSpan) []client.PromotionPoint {
	return spread(rows, s, func(p store.PromotionPoint) time.Time { return p.At }, func(at time.Time, p *store.PromotionPoint) client.PromotionPoint {
		out := client.PromotionPoint{At: at}
		if p == nil {
			return out
		}
		out.Succeeded, out.Failed, out.Retrying, out.Unknown = &p.Succeeded, &p.Failed, &p.Retrying, &p.Unknown
		out.InFlight = rounded(float64(p.CallMillis) / float64(s.Step.Milliseconds()))
		out.Waiting = average(p.Waiting, p.Samples)
		for share, into := range map[float64]**float64{0.5: &out.P50Millis, 0.95: &out.P95Millis, 0.99: &out.P99Millis} {
			if millis, ok := p.Percentile(share); ok {
				*into = rounded(millis)
			}
		}
		return out
	})
}

func (a *API) templateTimeline(ctx context.Context, in *timelineInput) (*timelineOutput[client.TemplatePoint], error) {
	id, err := templateID("id", in.ID)
	if err != nil {
		return nil, err
	}
	v, err := a.cfg.Templates.Get(ctx, id)
	if err != nil {
		return nil, err
	}
	span, err := in.span(v.CreatedAt, v.ClosesAt, time.Now())
	if err != nil {
		return nil, err
	}
	points, step, err := readTimeline(span, in.Points, func(s store.TimelineSpan) ([]store.TemplatePoint, time.Duration, error) {
		rows, err := a.cfg.Rows.TemplateTimeline(ctx, id, s)
		return rows, longest(rows, func(p store.TemplatePoint) time.Duration { return p.Step }), err
	})
	if err != nil {
		return nil, err
	}
	out := &timelineOutput[client.TemplatePoint]{}
	out.Body.StepSeconds = int64(step / time.Second)
	out.Body.Points = templatePoints(points, span.aligned(step))
	return out, nil
}

func templatePoints(rows []store.TemplatePoint, s store.TimelineSpan) []client.TemplatePoint {
	return spread(rows, s, func(p store.TemplatePoint) time.Time { return p.At }, func(at time.Time, p *store.TemplatePoint) client.TemplatePoint {
		if p == nil {
			return client.TemplatePoint{At: at}
		}
		return client.TemplatePoint{At: at, Asked: &p.Asked, Issued: &p.Issued, Refused: &p.Refused, Waiting: average(p.Waiting, p.Samples)}
	})
}

// span is the time that a caller wants to see.
type span struct{ from, to time.Time }

// span returns the requested time. begin and end are those of what it is about; end
// is zero if it continues.
func (in *timelineInput) span(begin, end, now time.Time) (span, error) {
	s := span{in.From, in.To}
	if s.to.IsZero() {
		s.to = now
		if !end.IsZero() && end.Before(now) {
			s.to = end.Add(time.Minute)
		}
	}
	if s.from.IsZero() {
		s.from = begin
		if !begin.Before(s.to) && in.To.IsZero() {
			s.from = s.to.Add(-time.Minute) // a clock differs
		}
	}
	// Longer spans overflow the length of a step.
	if s.from.Year() < 1970 || s.to.Year() > 2199 {
		return s, web.Invalid("from", "and to must be between the years 1970 and 2199")
	}
	if !s.from.Before(s.to) {
		return s, web.Invalid("to", "must be after from")
	}
	return s, nil
}

// aligned returns the whole steps that cover the span.
func (s span) aligned(step time.Duration) store.TimelineSpan {
	from, to := floor(s.from, step), floor(s.to, step)
	if to.Before(s.to) {
		to = to.Add(step)
	}
	return store.TimelineSpan{From: from, To: to, Step: step}
}

// floor returns the latest multiple of step since 1970 that is not after t.
func floor(t time.Time, step time.Duration) time.Time {
	n := int64(step / time.Second)
	return time.Unix(t.Unix()-t.Unix()%n, 0).UTC()
}

// niceSteps are the steps of timelines up to a day. Longer ones have whole days.
var niceSteps = [...]time.Duration{
	10 * time.Second, 20 * time.Second, 30 * time.Second, time.Minute, 2 * time.Minute, 5 * time.Minute, 10 * time.Minute, 20 * time.Minute, 30 * time.Minute,
	time.Hour, 2 * time.Hour, 3 * time.Hour, 6 * time.Hour, 12 * time.Hour,
}

// step returns the shortest step, at least least, with which a span has at most
// points points.
func (s span) step(points int, least time.Duration) time.Duration {
	fits := func(step time.Duration) bool {
		a := s.aligned(step)
		return step >= least && a.To.Unix()-a.From.Unix() <= int64(points)*int64(step/time.Second)
	}
	for _, step := range niceSteps {
		if fits(step) {
			return step
		}
	}
	const day = 24 * time.Hour
	step := day * time.Duration(max(1, (s.to.Unix()-s.from.Unix())/int64(day/time.Second)/int64(points)))
	for !fits(step) {
		step += day
	}
	return step
}

// readTimeline reads the points of a span, with steps that are not shorter than those
// of the stored points.
func readTimeline[P any](s span, points int, read func(store.TimelineSpan) ([]P, time.Duration, error)) ([]P, time.Duration, error) {
	step := s.step(points, 0)
	for {
		rows, stored, err := read(s.aligned(step))
		if err != nil || stored <= step {
			return rows, step, err
		}
		step = s.step(points, stored)
	}
}

func longest[P any](rows []P, step func(P) time.Duration) (most time.Duration) {
	for _, r := range rows {
		most = max(most, step(r))
	}
	return most
}

// spread returns one point per step of a span. The rows are in order.
func spread[R, P any](rows []R, s store.TimelineSpan, at func(R) time.Time, show func(at time.Time, row *R) P) []P {
	points := make([]P, 0, (s.To.Unix()-s.From.Unix())/int64(s.Step/time.Second))
	for begin := s.From; begin.Before(s.To); begin = begin.Add(s.Step) {
		if len(rows) > 0 && at(rows[0]).Equal(begin) {
			points = append(points, show(begin, &rows[0]))
			rows = rows[1:]
		} else {
			points = append(points, show(begin, nil))
		}
	}
	return points
}

// average returns the average of samples, or nil without any.
func average(sum, samples int64) *int64 {
	if samples == 0 {
		return nil
	}
	n := int64(math.Round(float64(sum) / float64(samples)))
	return &n
}

// rounded returns v with one decimal.
func rounded(v float64) *float64 {
	v = math.Round(v*10) / 10
	return &v
}

// timelines is the part of the store with the points.
type timelines interface {
	PromotionTimeline(ctx context.Context, id reward.PromotionID, s store.TimelineSpan) ([]store.PromotionPoint, error)
	TemplateTimeline(ctx context.Context, id reward.TemplateID, s store.TimelineSpan) ([]store.TemplatePoint, error)
}
