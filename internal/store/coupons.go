package store

import (
	"time"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
)

// DrawEntered is a draw that a user entered.
type DrawEntered struct {
	TemplateID reward.TemplateID
	OpensAt    time.Time
}

// TemplateNewGenerationParams says how to raise a generation.
type TemplateNewGenerationParams struct {
	ID      reward.TemplateID
	From    int64 // the expected generation; -1 means any
	AtLeast int64 // the new generation is above this
	Path    reward.IssuePath
	// NewNumbering makes the numbers of all tickets so far invalid.
	NewNumbering bool
}

// TemplateGrantParams says what the gate knows, and how many places it asks for: those
// that users lack, and more for users who come next; see rules.Grant.
type TemplateGrantParams struct {
	ID                          reward.TemplateID
	Generation, Grants, Granted int64 // of the gate
	Lacking, More               int64
}

// CouponSettleParams is a batch of at most BatchMax requests of one template.
// rules.SettleKind says which of the fields Epoch to Fence a kind uses, and what
// it expects of them.
type CouponSettleParams struct {
	TemplateID reward.TemplateID
	Kind       rules.SettleKind
	Epoch      int64
	Generation int64
	Path       reward.IssuePath
	Fence      int64
	Requests   []rules.CouponRequest
	// Offsets are stored in the same transaction, whatever the outcomes of the
	// requests are, unless one is RequestNeverGiven. A refused batch does not store
	// them.
	Offsets []Offset
	Now     time.Time // IssuedAt of the coupons
	// Known is the template as the caller has read it last; nil means not at all. With it, a
	// batch of users who get their first coupon needs no read.
	Known *reward.CouponTemplate
}

// CodesMax is the greatest number of codes in one CodesStage.
const CodesMax = 5000

// CodesStageParams are codes of an import.
type CodesStageParams struct {
	TemplateID reward.TemplateID
	ImportID   int64
	Staged     int64 // number of codes that the import has already
	Codes      []string
	Now        time.Time
}

// TakenCode is the first code of a batch that is in use.
type TakenCode struct {
	At int // position in the batch; -1 means that all codes are free
	// Template reports that the code was imported to the template before. Otherwise
	// it appears earlier in the same import.
	Template bool
}

// RequestResult is the outcome of one request.
type RequestResult struct {
	Outcome rules.RequestOutcome
	// Coupon is the issued coupon. In SettleDirect, for a user beyond a limit of 1,
	// it is the coupon that they have; its ID is 0 if that one is cancelled.
	Coupon reward.Coupon
	Reason string // why the request was rejected; empty otherwise
}

// CouponSettleResult is the result of CouponSettle.
type CouponSettleResult struct {
	Refused rules.SettleRefusal
	Results []RequestResult // one per request, in order; nil if Refused is set
	CouponChange
}

// CouponChange is what a transaction changed for the gate.
type CouponChange struct {
	// From and To are the versions before and after. They are equal if nothing
	// changed.
	From, To int64
	Template reward.CouponTemplate // as it is afterwards
	Holdings []CouponHolding       // of the users whose coupons changed
}

// CouponCancelParams says which coupons of a template somebody cancels.
type CouponCancelParams struct {
	TemplateID reward.TemplateID
	IDs        []reward.CouponID // at most BatchMax; one that repeats counts once
	By         string
	Now        time.Time
}

// CouponCancelResult is the result of CouponCancel. Each ID is in one of its lists.
type CouponCancelResult struct {
	CouponChange
	Cancelled []reward.Coupon // as they are afterwards
	// Refused says why the others stay as they are: CodeCouponUsed, CodeCouponCancelled,
	// CodeCouponExpired, or CodeCouponNotFound for one that the template does not have.
	Refused map[reward.CouponID]error
}

// CouponHolding is what the gate must know about a user.
type CouponHolding = reward.CouponHolding

// CouponChanges is what changed above a version.
type CouponChanges struct {
	Template reward.CouponTemplate
	Holdings []CouponHolding
	Settled  []SettledRequest
	// More reports that there were too many changes. Holdings and Settled are then
	// empty.
	More bool
}

// SettledRequest identifies a settled request by its generation and ticket.
type SettledRequest struct {
	UserID     string
	Generation int64
	Ticket     int64
	Left       bool // the user left the line
}

// LineTicket is a user in the line of a gate with their ticket, and the generation of
// their request.
type LineTicket = reward.LineTicket

// CouponLeaveParams says which request leaves the line.
type CouponLeaveParams struct {
	TemplateID reward.TemplateID
	rules.Leave
	Now time.Time
}

// CouponLeaveResult is the result of CouponLeave. From and To of the change are equal
// unless Outcome is LeaveDone.
type CouponLeaveResult struct {
	Outcome rules.LeaveOutcome
	CouponChange
}

// CouponCount compares the coupons of a template with its stored counts.
type CouponCount struct {
	// Live, IssuedTotal and Slots are counted from the coupons.
	Live, IssuedTotal, Slots int64
	// KeptLive and KeptIssuedTotal are the counts stored in the template.
	KeptLive, KeptIssuedTotal int64
}

// CouponListParams selects a page of coupons: of a template, by ticket, or of a user at all
// templates, by ID, the newest first.
type CouponListParams struct {
	TemplateID reward.TemplateID // 0: of a user
	UserID     string            // with TemplateID, empty means any
	Before     reward.CouponID   // without TemplateID: only IDs below; 0 starts at the newest
	Limit      int

	// With TemplateID:
	Status *reward.CouponStatus // nil: any
	Code   string               // empty: any
	Newest bool                 // by descending ticket
	After  CouponPlace          // only coupons that follow this place; zero: from the first
}

// CouponPlace is the place of a coupon in the order of tickets. After Redis lost its data,
// coupons of different generations may have the same ticket.
type CouponPlace struct{ Ticket, Generation int64 }

// Limits of CouponCounts.
const (
	CouponCountMax = 1_000_000 // coupons in one status, and rejections; more are not counted
	EndedHoldsMax  = 100_000   // cancelled coupons among which ended holds, and those who cancelled, are counted
	CancellersMax  = 20        // of CancelledBy
)

// CouponCounts counts the coupons of a template by status, and the admitted requests that got
// none.
type CouponCounts struct {
	// Archived reports that the template is archived, so that its coupons are removed. The
	// other fields but Live and Cancelled are zero then.
	Archived        bool
	Live, Cancelled int64
	// Used, Expired and Held coupons are among Live. Each is at most CouponCountMax.
	Used, Expired, Held int64
	// EndedHolds counts the holds that nobody confirmed among the first EndedHoldsMax of
	// Cancelled.
	EndedHolds int64
	// CancelledBy counts the same coupons by the person who cancelled them, most first, at
	// most CancellersMax.
	CancelledBy []Canceller
	Rejected    []RejectionCount // by reason; together at most CouponCountMax
}

// Canceller counts the coupons of a template that somebody cancelled.
type Canceller struct {
	Name  string
	Count int64
}

// RejectionCount counts admitted requests that ended without a coupon for one reason, such as
// reward.ReasonUserLimit.
type RejectionCount struct {
	Reason string
	Count  int64
}

// Refusal is an interval in which a template refused every request.
type Refusal struct {
	Reason string
	Since  time.Time
	Until  time.Time // zero means that it has not ended
}
