package store

import (
	"time"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
)

// TimelineStep is the length of the steps that instances write.
const TimelineStep = 10 * time.Second

// TimelineFolds are the steps of older points, each with the age from which points
// have it. Each step is a multiple of the one before.
var TimelineFolds = [...]struct{ Step, Age time.Duration }{
	{time.Minute, time.Hour}, {10 * time.Minute, 24 * time.Hour}, {time.Hour, 30 * 24 * time.Hour},
}

// PromotionPoint is what happened to a promotion within a step on one instance, for charts.
// Points may be missing: the counts of promotions and templates are the truth. Folding adds
// the points of shorter steps to those of longer ones, in any order, because all fields are
// sums. Promotion and template 0 stand for all together.
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
