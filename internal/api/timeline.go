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

// TimelineQuery selects a part of a timeline.
type TimelineQuery struct {
	From   time.Time `query:"from" doc:"Absent: its start"`
	To     time.Time `query:"to" doc:"Absent: now, or its end"`
	Points int       `query:"points" minimum:"2" maximum:"1000" default:"300"`
}

type promotionTimelineInput struct {
	PromotionPath
	TimelineQuery
}

type templateTimelineInput struct {
	TemplatePath
	TimelineQuery
}

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

func (a *API) promotionTimeline(ctx context.Context, in *promotionTimelineInput) (*timelineOutput[client.PromotionPoint], error) {
	v, err := a.cfg.Rows.PromotionGet(ctx, in.id)
	if err != nil {
		return nil, err
	}
	begin := v.CreatedAt
	if !v.StartedAt.IsZero() {
		begin = v.StartedAt
	}
	read := func(s store.TimelineSpan) ([]store.PromotionPoint, error) {
		return a.cfg.Rows.PromotionTimeline(ctx, in.id, s)
	}
	return readTimeline(in.TimelineQuery, begin, v.FinishedAt, read, func(p store.PromotionPoint) time.Duration { return p.Step }, promotionPoints)
}

func (a *API) templateTimeline(ctx context.Context, in *templateTimelineInput) (*timelineOutput[client.TemplatePoint], error) {
	v, err := a.cfg.Templates.Get(ctx, in.id)
	if err != nil {
		return nil, err
	}
	read := func(s store.TimelineSpan) ([]store.TemplatePoint, error) {
		return a.cfg.Rows.TemplateTimeline(ctx, in.id, s)
	}
	return readTimeline(in.TimelineQuery, v.CreatedAt, v.ClosesAt, read, func(p store.TemplatePoint) time.Duration { return p.Step }, templatePoints)
}

// readTimeline answers with the points of what began and ended at a time; end is zero if it
// continues. Their steps are not shorter than those of the stored rows.
func readTimeline[R, P any](
	in TimelineQuery, begin, end time.Time, read func(store.TimelineSpan) ([]R, error), stepOf func(R) time.Duration, show func([]R, store.TimelineSpan) []P,
) (*timelineOutput[P], error) {
	span, err := in.span(begin, end, time.Now())
	if err != nil {
		return nil, err
	}
	for step := span.step(in.Points, 0); ; {
		rows, err := read(span.aligned(step))
		if err != nil {
			return nil, err
		}
		var stored time.Duration
		for _, r := range rows {
			stored = max(stored, stepOf(r))
		}
		if stored <= step {
			out := &timelineOutput[P]{}
			out.Body.StepSeconds, out.Body.Points = int64(step/time.Second), show(rows, span.aligned(step))
			return out, nil
		}
		step = span.step(in.Points, stored)
	}
}

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

func templatePoints(rows []store.TemplatePoint, s store.TimelineSpan) []client.TemplatePoint {
	return spread(rows, s, func(p store.TemplatePoint) time.Time { return p.At }, func(at time.Time, p *store.TemplatePoint) client.TemplatePoint {
		if p == nil {
			return client.TemplatePoint{At: at}
		}
		return client.TemplatePoint{At: at, Asked: &p.Asked, Issued: &p.Issued, Refused: &p.Refused, Waiting: average(p.Waiting, p.Samples)}
	})
}

type span struct{ from, to time.Time }

// span returns the requested time. end is that of what it is about, or zero if it continues.
func (in TimelineQuery) span(begin, end, now time.Time) (span, error) {
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

func average(sum, samples int64) *int64 {
	if samples == 0 {
		return nil
	}
	return new(int64(math.Round(float64(sum) / float64(samples))))
}

// rounded returns v with one decimal.
func rounded(v float64) *float64 {
	return new(math.Round(v*10) / 10)
}
