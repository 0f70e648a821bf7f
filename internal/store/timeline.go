package store

import (
	"context"
	"time"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
)

// Timelines stores what instances did within steps of time, for charts. The counts of
// promotions and templates are the truth, timelines are a picture of it: points may
// be missing.
//
// A point has the sums of one instance within a step. Folding adds the points of
// shorter steps to those of longer ones. Since all fields are sums, the order of
// folding does not matter. Promotion and template 0 stand for all together.
type Timelines interface {
	// TimelineWrite stores points of one instance. A point that is there already
	// stays as it is, so a repeated call changes nothing.
	TimelineWrite(ctx context.Context, instance string, p []PromotionPoint, t []TemplatePoint) error
	// TimelineFold replaces at most limit points of a step that begin before a time
	// by points of a longer step, the oldest first. It returns how many points it
	// replaced, of promotions and of templates.
	TimelineFold(ctx context.Context, p TimelineFoldParams) (int, error)
	// PromotionTimeline returns the points of a promotion in steps of a given length,
	// each the sum of all instances, by time. Steps without points are left out.
	PromotionTimeline(ctx context.Context, id reward.PromotionID, s TimelineSpan) ([]PromotionPoint, error)
	// TemplateTimeline is PromotionTimeline for a coupon template.
	TemplateTimeline(ctx context.Context, id reward.TemplateID, s TimelineSpan) ([]TemplatePoint, error)
}

// TimelineStep is the length of the steps that instances write.
const TimelineStep = 10 * time.Second

// TimelineFolds are the steps of older points, each with the age from which points
// have it. Each step is a multiple of the one before.
var TimelineFolds = [...]struct{ Step, Age time.Duration }{
	{time.Minute, time.Hour}, {10 * time.Minute, 24 * time.Hour}, {time.Hour, 30 * 24 * time.Hour},
}

// PromotionPoint is what happened to a promotion within a step.
type PromotionPoint struct {
	PromotionID reward.PromotionID
	At          time.Time     // begin of the step: a multiple of Step since 1970
	Step        time.Duration // of points that are read: the longest step of the summed points
	obs.PromotionSums
	// Waiting is the sum of Samples numbers of payouts that waited: READY, QUEUED or
	// RETRYING.
	Waiting, Samples int64
}

// TemplatePoint is what happened to a coupon template within a step.
type TemplatePoint struct {
	TemplateID reward.TemplateID
	At         time.Time
	Step       time.Duration
	obs.TemplateSums
	Waiting, Samples int64 // as in PromotionPoint: numbers of users in line
}

// TimelineFoldParams selects points to fold.
type TimelineFoldParams struct {
	From, To time.Duration // the steps before and after
	Before   time.Time
	Limit    int
}

// TimelineSpan selects points to read.
type TimelineSpan struct {
	From, To time.Time // To is not included
	Step     time.Duration
}
