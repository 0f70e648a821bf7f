package store

import (
	"context"
	"time"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
)

// Coupons stores coupon templates, coupons, rejected requests and draws.
//
// These invariants hold at every commit:
//
//   - Live of a template is the number of its coupons that are not CANCELLED. Live
//     and the promised places (Granted less Used) are at most TotalQuantity.
//   - IssuedTotal of a template is the number of all its coupons. If the template
//     has imported codes, IssuedTotal and the promised places are at most
//     CodesImported, and the n-th coupon ever issued has the n-th code.
//   - Template, generation and ticket are unique over coupons and rejected
//     requests together.
//   - An archived template never changes, and no coupon of it is inserted. Its rows may
//     be gone; the first four properties then hold for the coupons that it had.
//   - A user has at most PerUserLimit slots at a template. A coupon gets the
//     lowest free slot, counted from 1, when it is issued. Cancelling the coupon
//     frees the slot if the template then re-issues after a cancel. Otherwise the
//     slot stays taken.
//
// Version of a template grows by exactly 1 in each transaction that changes what
// the gate must know: TemplateChange, TemplateTouch, TemplateGrant, TemplateShrink, TemplateReleasePlaces,
// CouponLeave, CouponCancel, DrawDone, CouponEndHolds that cancelled a coupon,
// CodesPublish, and each CouponSettle that settled a request. Coupons and rejected
// requests store the version of their last change.
//
// A method that takes one template returns CodeTemplateNotFound if it does not
// exist. Lists are then empty, and CouponRecount returns zeros. A method that would
// change an archived template, CodesBegin and RefusalRecord return CodeArchived, but CouponSettle
// refuses the batch with RefusedArchived.
type Coupons interface {
	TemplateCreate(ctx context.Context, t reward.CouponTemplate) (reward.CouponTemplate, error)
	TemplateGet(ctx context.Context, id reward.TemplateID) (reward.CouponTemplate, error)
	TemplateList(ctx context.Context, before reward.TemplateID, limit int) ([]reward.CouponTemplate, error)
	TemplateActive(ctx context.Context, closedAfter time.Time) ([]reward.CouponTemplate, error)
	TemplateChange(ctx context.Context, p rules.TemplateChange) (reward.CouponTemplate, error)
	TemplateTouch(ctx context.Context, id reward.TemplateID) (reward.CouponTemplate, error)
	TemplateAssign(ctx context.Context, ids []reward.TemplateID, owner string) (map[reward.TemplateID]int64, error)
	TemplateNewGeneration(ctx context.Context, p TemplateNewGenerationParams) (reward.CouponTemplate, bool, error)
	TemplateGrant(ctx context.Context, p TemplateGrantParams) (reward.CouponTemplate, bool, error)
	TemplateShrink(ctx context.Context, id reward.TemplateID, s rules.Shrunk) (reward.CouponTemplate, bool, error)
	TemplateReleasePlaces(ctx context.Context, id reward.TemplateID) (reward.CouponTemplate, bool, error)
	TemplateSetFloor(ctx context.Context, id reward.TemplateID, generation int64) (bool, error)

	CouponSettle(ctx context.Context, p CouponSettleParams) (CouponSettleResult, error)
	CouponLeave(ctx context.Context, p CouponLeaveParams) (CouponLeaveResult, error)
	CouponLeft(ctx context.Context, id reward.TemplateID, ticket, generation int64, limit int) ([]LineTicket, error)
	CouponCancel(ctx context.Context, id reward.CouponID, now time.Time) (CouponChange, error)
	CouponUse(ctx context.Context, id reward.CouponID, now time.Time) (reward.Coupon, error)
	CouponConfirm(ctx context.Context, id reward.CouponID) (reward.Coupon, bool, error)
	HoldsEnded(ctx context.Context, after reward.TemplateID, limit int) ([]reward.TemplateID, error)
	CouponEndHolds(ctx context.Context, id reward.TemplateID, limit int) (CouponChange, int, error)
	CouponExpire(ctx context.Context, now time.Time, limit int) (int, error)
	CouponGet(ctx context.Context, id reward.CouponID) (reward.Coupon, error)
	CouponsByCode(ctx context.Context, code string, limit int) ([]reward.Coupon, error)
	CouponList(ctx context.Context, p CouponListParams) ([]reward.Coupon, error)
	IssueOutcomes(ctx context.Context, id reward.TemplateID, users []string) (map[string]reward.IssueOutcome, error)
	ExpiredHolds(ctx context.Context, id reward.TemplateID, users []string, holds int) (map[string]time.Duration, error)
	IssueHistory(ctx context.Context, user string, limit int) ([]reward.IssueOutcome, error)

	CouponChanges(ctx context.Context, id reward.TemplateID, above int64, limit int) (CouponChanges, error)
	CouponSnapshot(ctx context.Context, id reward.TemplateID, begin func(reward.CouponTemplate) error, facts func([]CouponHolding) error) error
	CouponWaiting(ctx context.Context, id reward.TemplateID, generation int64, line []LineTicket) ([]bool, error)
	CouponRecount(ctx context.Context, id reward.TemplateID) (CouponCount, error)

	CodesBegin(ctx context.Context, id reward.TemplateID, importID int64, now time.Time) error
	CodesStage(ctx context.Context, p CodesStageParams) (TakenCode, error)
	CodesPublish(ctx context.Context, id reward.TemplateID, importID, codes, above int64) (CouponChange, error)
	CodesDiscard(ctx context.Context, importID int64) error
	CodesSweep(ctx context.Context, before time.Time, limit int) (int, error)

	EntrantSave(ctx context.Context, id reward.TemplateID, users []string) (added map[string]bool, takes bool, err error)
	EntrantHas(ctx context.Context, id reward.TemplateID, users []string) (map[string]bool, error)
	EntrantList(ctx context.Context, id reward.TemplateID, after string, limit int) ([]string, error)
	DrawsEntered(ctx context.Context, user string, limit int) ([]DrawEntered, error)
	DrawClose(ctx context.Context, id reward.TemplateID, epoch int64) (reward.CouponTemplate, error)
	DrawDone(ctx context.Context, id reward.TemplateID, epoch int64, list []byte) (bool, error)

	RefusalRecord(ctx context.Context, id reward.TemplateID, reason string, at time.Time) error
	RefusalList(ctx context.Context, id reward.TemplateID, limit int) ([]Refusal, error)
}

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
	Coupon   reward.Coupon         // the cancelled one; set by CouponCancel only
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

// CouponListParams selects a page of coupons, of a template or of a user.
type CouponListParams struct {
	TemplateID  reward.TemplateID // 0 means none
	AfterTicket int64             // with TemplateID: only tickets above
	UserID      string            // empty means none
	Before      reward.CouponID   // with UserID: only IDs below; 0 starts at the newest
	Limit       int
}

// Refusal is an interval in which a template refused every request.
type Refusal struct {
	Reason string
	Since  time.Time
	Until  time.Time // zero means that it has not ended
}
