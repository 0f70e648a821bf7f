package client

import (
	"context"
	"io"
	"net/http"
	"time"
)

// PromotionReport is what a promotion did.
type PromotionReport struct {
	At         time.Time `json:"at"`
	Promotion  Promotion `json:"promotion"`
	Amounts    Amounts   `json:"amounts"`
	RunSeconds *int64    `json:"runSeconds,omitempty" doc:"From its start to its end, or until now"` // nil before the start
	// Counting reports whether Days and Peak may lack what has just been counted.
	Counting bool          `json:"counting" doc:"days and peak follow the counts by some seconds: until a minute after a pause or the end"`
	Errors   []ReportError `json:"errors" nullable:"false" doc:"Without a code: what no other entry counts"`
	Zone     string        `json:"zone" doc:"Of days"`
	Days     []ReportDay   `json:"days" nullable:"false"`
	// Undated is what was paid in no known day: a lookup or a person found it out, or an
	// instance could not record it.
	Undated       ReportSum      `json:"undated" doc:"Paid, but in none of days: found out by a lookup or a person, or not recorded"`
	MeanPerSecond *float64       `json:"meanPerSecond,omitempty" doc:"Paid and failed payouts, over runSeconds"`
	Peak          *ReportPeak    `json:"peak,omitempty"`                                     // nil: nothing is recorded, or too little
	P50Millis     *float64       `json:"p50Millis,omitempty" doc:"Of calls to the provider"` // nil as Peak
	P95Millis     *float64       `json:"p95Millis,omitempty"`
	P99Millis     *float64       `json:"p99Millis,omitempty"`
	Actions       []ReportAction `json:"actions" nullable:"false" doc:"Oldest first; of more than 1000, the latest"`
}

// ReportError counts the payouts with an error code, with their amount.
type ReportError struct {
	PromotionError
	Amount *int64 `json:"amount,omitempty" doc:"Of the counted payouts; absent if they are too many to read. May exceed 2^53"`
}

// Amounts holds the amount of the payouts in each state.
type Amounts struct {
	Ready     int64 `json:"ready" doc:"May exceed 2^53"`
	Queued    int64 `json:"queued" doc:"May exceed 2^53"`
	Retrying  int64 `json:"retrying" doc:"May exceed 2^53"`
	Unknown   int64 `json:"unknown" doc:"May exceed 2^53"`
	Succeeded int64 `json:"succeeded" doc:"May exceed 2^53"`
	Failed    int64 `json:"failed" doc:"May exceed 2^53"`
	Cancelled int64 `json:"cancelled" doc:"May exceed 2^53"`
}

// ReportSum is a number of payouts and their amount.
type ReportSum struct {
	Count  int64 `json:"count"`
	Amount int64 `json:"amount" doc:"May exceed 2^53"`
}

// ReportDay is what happened to the payouts of a promotion in a day.
type ReportDay struct {
	Date      string `json:"date" example:"2026-11-29"`
	Succeeded int64  `json:"succeeded"`
	Amount    int64  `json:"amount" doc:"Of succeeded; may exceed 2^53"`
	Failed    int64  `json:"failed" doc:"Including those that were retried later"`
}

// ReportPeak is the step of the timeline with the most payouts or coupons per second, as far
// as it is within the time that is reported.
type ReportPeak struct {
	At          time.Time `json:"at"`
	StepSeconds int64     `json:"stepSeconds"`
	Count       int64     `json:"count"`
	PerSecond   float64   `json:"perSecond"`
}

// ReportAction is what somebody did, or what Largesse did by itself.
type ReportAction struct {
	At       time.Time      `json:"at"`
	Actor    string         `json:"actor" doc:"Empty: Largesse, or not recorded"`
	Action   string         `json:"action" doc:"Operation ID; complete-promotion; settle-promotion: nothing is open after a cancellation" example:"start-promotion"`
	Reason   string         `json:"reason,omitempty" doc:"In their words"`
	FileName string         `json:"fileName,omitempty" doc:"Of upload-targets"`
	Count    *int64         `json:"count,omitempty" doc:"Of coupons: issued within a minute, or named to cancel"`
	Changes  map[string]any `json:"changes,omitempty" doc:"Of change-promotion: the fields and their new values, null if removed"`
}

// TemplateReport is what a coupon template did.
type TemplateReport struct {
	At       time.Time `json:"at"`
	Template Template  `json:"template"`
	// Cancelled counts the coupons that were cancelled, also by the end of their hold.
	Cancelled int64         `json:"cancelled"`
	Coupons   *CouponCounts `json:"coupons,omitempty"` // nil: archived, so its coupons are removed
	// Asked and Refused count requests as far as the timeline has them.
	Asked          int64           `json:"asked" doc:"As far as recorded"`
	Refused        int64           `json:"refused" doc:"As far as recorded"`
	RefusedReasons []Rejections    `json:"refusedReasons" nullable:"false" doc:"Of refused, most first; the rest has no recorded reason"`
	Rejections     []Rejections    `json:"rejections" nullable:"false" doc:"Admitted requests that got no coupon, most first; counted up to 1000000"`
	Refusals       []RefusalPeriod `json:"refusals" nullable:"false" doc:"Latest first, at most 1000"`
	SoldOutSeconds *int64          `json:"soldOutSeconds,omitempty" doc:"From the opening until it was first sold out"`
	FirstMinutes   []TemplateStep  `json:"firstMinutes" nullable:"false" doc:"The ten minutes from the first recorded request, by the minute; old ones in longer steps"`
	Peak           *ReportPeak     `json:"peak,omitempty"`        // of issued coupons; nil: none is recorded
	WaitingPeak    *WaitingPeak    `json:"waitingPeak,omitempty"` // nil: nobody waited when it was recorded
	Zone           string          `json:"zone" doc:"Of days"`
	Days           []TemplateDay   `json:"days" nullable:"false"`
	UndatedIssued  int64           `json:"undatedIssued" doc:"Coupons in none of days"`
	Actions        []ReportAction  `json:"actions" nullable:"false" doc:"Oldest first; of more than 1000, the latest"`
}

// CouponCounts holds the coupons of a template by status. Each is counted up to a million.
type CouponCounts struct {
	Unused  *int64 `json:"unused,omitempty" doc:"ISSUED; absent if another number is 1000000"` // valid, and not used
	Used    int64  `json:"used" doc:"At most 1000000"`
	Expired int64  `json:"expired" doc:"At most 1000000"`
	Held    int64  `json:"held" doc:"At most 1000000"` // not confirmed yet
	// HoldsExpired are cancelled coupons that nobody confirmed.
	HoldsExpired *int64 `json:"holdsExpired,omitempty" doc:"Of cancelled; absent if these are more than 100000"`
	// CancelledBy names the people who cancelled most.
	CancelledBy []Canceller `json:"cancelledBy" nullable:"false" doc:"By person, most first, at most 20; empty if more than 100000 are cancelled"`
}

// Canceller counts the coupons that somebody cancelled.
type Canceller struct {
	Name  string `json:"name"`
	Count int64  `json:"count"`
}

// Rejections counts requests that ended without a coupon.
type Rejections struct {
	Reason string `json:"reason" example:"USER_LIMIT"`
	Count  int64  `json:"count"`
}

// TemplateStep is what happened to a template from a time on.
type TemplateStep struct {
	At          time.Time `json:"at"`
	StepSeconds int64     `json:"stepSeconds"`
	Asked       int64     `json:"asked"`
	Issued      int64     `json:"issued"`
	Refused     int64     `json:"refused"`
}

// RefusalPeriod is a time in which a template refused every request.
type RefusalPeriod struct {
	Reason string     `json:"reason" enum:"SOLD_OUT,CLOSED"`
	Since  time.Time  `json:"since"`
	Until  *time.Time `json:"until,omitempty"` // nil: it lasts
}

// WaitingPeak is the step of the timeline with the most people in line.
type WaitingPeak struct {
	At      time.Time `json:"at"`
	Waiting float64   `json:"waiting" doc:"Average of the step"`
}

// TemplateDay is what happened to a template in a day.
type TemplateDay struct {
	Date    string `json:"date" example:"2026-11-29"`
	Asked   int64  `json:"asked"`
	Issued  int64  `json:"issued"`
	Refused int64  `json:"refused"`
}

// PromotionReport returns what a promotion did. The zone, such as Asia/Seoul, is that of
// the days; empty means UTC.
func (c *Client) PromotionReport(ctx context.Context, id, zone string) (PromotionReport, error) {
	return call[PromotionReport](ctx, c, reportOf("promotions", id, ReportFile{Zone: zone}))
}

// TemplateReport is PromotionReport for a coupon template.
func (c *Client) TemplateReport(ctx context.Context, id, zone string) (TemplateReport, error) {
	return call[TemplateReport](ctx, c, reportOf("coupon-templates", id, ReportFile{Zone: zone}))
}

// ReportFile says how a report is written.
type ReportFile struct {
	Format   string // csv, xlsx or json
	Zone     string // of the days, such as Asia/Seoul; empty: UTC
	Language string // of csv and xlsx: en or ko; empty: en
}

// WritePromotionReport writes the report of a promotion to w. After an error, w may hold a
// part of it.
func (c *Client) WritePromotionReport(ctx context.Context, id string, file ReportFile, w io.Writer) error {
	return c.copyTo(ctx, reportOf("promotions", id, file), reportTypes[file.Format], w)
}

// WriteTemplateReport is WritePromotionReport for a coupon template.
func (c *Client) WriteTemplateReport(ctx context.Context, id string, file ReportFile, w io.Writer) error {
	return c.copyTo(ctx, reportOf("coupon-templates", id, file), reportTypes[file.Format], w)
}

var reportTypes = map[string]string{
	"csv": "text/csv", "xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet", "json": "application/json",
}

func reportOf(kind, id string, f ReportFile) request {
	return request{method: http.MethodGet, path: []string{"v1", kind, id, "report"}, query: filled(map[string]string{"format": f.Format, "zone": f.Zone, "language": f.Language})}
}
