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
	// TemplateCreate inserts a template and returns it as stored. A known ID is
	// CodeExists. A template that reward.CheckTemplate refuses is CodeInvalid, and
	// so is an unknown Mode or WhenRedisAway.
	//
	// The progress fields of t (from Generation on) are ignored: all are 0, and
	// Path is GATE. A draw is OPEN and has no List.
	TemplateCreate(ctx context.Context, t reward.CouponTemplate) (reward.CouponTemplate, error)
	// TemplateGet returns a template.
	TemplateGet(ctx context.Context, id reward.TemplateID) (reward.CouponTemplate, error)
	// TemplateList returns at most limit templates by descending ID. Only IDs below
	// before count; 0 starts at the newest.
	TemplateList(ctx context.Context, before reward.TemplateID, limit int) ([]reward.CouponTemplate, error)
	// TemplateActive returns the templates that never close or close after
	// closedAfter, ordered by ID. The caller owns the list.
	TemplateActive(ctx context.Context, closedAfter time.Time) ([]reward.CouponTemplate, error)
	// TemplateChange changes the settings of a template and returns it.
	//
	// A TotalQuantity that rules.LacksCodes forbids is CodeCodesExhausted. One below
	// Live and the promised places is CodeConflict. So is another Mode while places are
	// promised. So is another Mode, or another opening time of a draw, once the template
	// was used: a request was settled or left the line, a user entered the draw, or the
	// draw is no longer OPEN. A result that
	// reward.CheckTemplate refuses is CodeInvalid.
	TemplateChange(ctx context.Context, p rules.TemplateChange) (reward.CouponTemplate, error)
	// TemplateTouch raises Version and changes nothing else.
	TemplateTouch(ctx context.Context, id reward.TemplateID) (reward.CouponTemplate, error)
	// TemplateAssign makes owner the issuer of templates. Each gets the next epoch,
	// which is returned. Templates that do not exist or are archived are left out.
	TemplateAssign(ctx context.Context, ids []reward.TemplateID, owner string) (map[reward.TemplateID]int64, error)
	// TemplateNewGeneration raises Generation to the greater of Generation and
	// AtLeast, plus 1, and sets Path. NewNumbering also sets Base to one less than
	// the new generation. It returns the template and reports whether it changed it.
	// It changes nothing if the generation is not From.
	TemplateNewGeneration(ctx context.Context, p TemplateNewGenerationParams) (reward.CouponTemplate, bool, error)
	// TemplateGrant grants places to the gate, see rules.Grant. It returns the template
	// and reports whether it changed it.
	TemplateGrant(ctx context.Context, p TemplateGrantParams) (reward.CouponTemplate, bool, error)
	// TemplateShrink takes back places that the gate has not given, see rules.Shrink.
	// It returns the template and reports whether it changed it.
	TemplateShrink(ctx context.Context, id reward.TemplateID, s rules.Shrunk) (reward.CouponTemplate, bool, error)
	// TemplateReleasePlaces takes back all places that are set aside, see
	// rules.ReleasePlaces. It returns the template and reports whether it changed it.
	TemplateReleasePlaces(ctx context.Context, id reward.TemplateID) (reward.CouponTemplate, bool, error)
	// TemplateSetFloor sets Floor to a generation, and reports whether it did. It
	// changes nothing if the template has another generation by now.
	TemplateSetFloor(ctx context.Context, id reward.TemplateID, generation int64) (bool, error)

	// CouponSettle settles coupon requests in one transaction, by rules.SettleKind.
	// CouponSettleParams.Check lists what is CodeInvalid. A coupon ID that is in
	// use, or a code that is in use at the template, is CodeConflict. After an
	// error nothing has changed.
	CouponSettle(ctx context.Context, p CouponSettleParams) (CouponSettleResult, error)
	// CouponLeave takes a request out of the waiting line, by rules.Leave. It stores the
	// request with ReasonLeft, and raises Version.
	CouponLeave(ctx context.Context, p CouponLeaveParams) (CouponLeaveResult, error)
	// CouponLeft returns at most limit requests with ReasonLeft, ordered by ticket, then
	// generation. Only those after the given ticket and generation count.
	CouponLeft(ctx context.Context, id reward.TemplateID, ticket, generation int64, limit int) ([]LineTicket, error)
	// CouponCancel cancels an ISSUED or HELD coupon and lowers Live of its
	// template.
	//
	// Otherwise it returns CodeCouponUsed, CodeCouponCancelled, CodeCouponExpired
	// or CodeCouponNotFound. A coupon counts as expired from ExpiresAt on, even if
	// its status is still ISSUED.
	CouponCancel(ctx context.Context, id reward.CouponID, now time.Time) (CouponChange, error)
	// CouponUse marks an ISSUED coupon as USED. Its errors are those of
	// CouponCancel, and CodeCouponHeld.
	CouponUse(ctx context.Context, id reward.CouponID, now time.Time) (reward.Coupon, error)
	// CouponConfirm makes a HELD coupon ISSUED, if the clock of the database is
	// before HeldUntil, and reports whether it did. An ISSUED coupon stays as it
	// is. Otherwise it returns the error of rules.CheckConfirm, or
	// CodeCouponNotFound.
	CouponConfirm(ctx context.Context, id reward.CouponID) (reward.Coupon, bool, error)
	// HoldsEnded returns at most limit templates with a HELD coupon whose
	// HeldUntil is not after the clock of the database, ordered by ID from after
	// on, which is excluded.
	HoldsEnded(ctx context.Context, after reward.TemplateID, limit int) ([]reward.TemplateID, error)
	// CouponEndHolds cancels at most limit HELD coupons of a template whose HeldUntil
	// is not after the clock of the database, the oldest first, with the reason
	// ReasonHoldExpired. It lowers Live by as many, and returns the change and the
	// number. Two calls at once never cancel the same coupon.
	CouponEndHolds(ctx context.Context, id reward.TemplateID, limit int) (CouponChange, int, error)
	// CouponExpire marks at most limit ISSUED coupons as EXPIRED and returns how
	// many. Their ExpiresAt is not after now. They still count in Live and keep
	// their slot. Coupons that another transaction has locked are skipped.
	CouponExpire(ctx context.Context, now time.Time, limit int) (int, error)
	// CouponGet returns a coupon, or CodeCouponNotFound.
	CouponGet(ctx context.Context, id reward.CouponID) (reward.Coupon, error)
	// CouponsByCode returns at most limit coupons that have a code, by template.
	// A code belongs to one coupon of a template; other templates may have it too.
	CouponsByCode(ctx context.Context, code string, limit int) ([]reward.Coupon, error)
	// CouponList returns a page of the coupons of a template, by ascending ticket,
	// or of a user, by descending ID. Unless exactly one of TemplateID and UserID
	// is set, it returns CodeInvalid.
	//
	// Coupons of a template with the same ticket, from different generations, are
	// on one page. They may make the page longer than Limit.
	CouponList(ctx context.Context, p CouponListParams) ([]reward.Coupon, error)
	// IssueOutcomes returns the latest outcome of each user at a template. The
	// latest is the one of the highest generation, then with the highest ticket: after
	// Redis lost its data, a lower ticket may be the later one. Users without an
	// outcome are left out.
	IssueOutcomes(ctx context.Context, id reward.TemplateID, users []string) (map[string]reward.IssueOutcome, error)
	// ExpiredHolds returns those users who have let at least holds holds of a template
	// end without a confirmation, the latest within the time that a hold lasts. The
	// value is the rest of that time, by the clock of the database.
	ExpiredHolds(ctx context.Context, id reward.TemplateID, users []string, holds int) (map[string]time.Duration, error)
	// IssueHistory returns at most limit outcomes of a user at all templates, the
	// latest first.
	IssueHistory(ctx context.Context, user string, limit int) ([]reward.IssueOutcome, error)

	// CouponChanges returns what changed above a version, from one snapshot: the
	// template, the holding of every user whose coupons changed, and the tickets
	// that were settled or whose coupon was cancelled. The tickets may be of any
	// generation. If there are more than limit, More is set and both lists are
	// empty.
	CouponChanges(ctx context.Context, id reward.TemplateID, above int64, limit int) (CouponChanges, error)
	// CouponSnapshot reads a template and the holdings of all users with a slot,
	// from one snapshot. It calls begin once, and then facts with at most BatchMax
	// holdings at a time, ordered by the bytes of the user ID. It stops at an error
	// of begin or facts and returns it.
	CouponSnapshot(ctx context.Context, id reward.TemplateID, begin func(reward.CouponTemplate) error, facts func([]CouponHolding) error) error
	// CouponWaiting reports which users in the line of a gate still wait, in order.
	// generation is the gate's, and there are at most BatchMax users. A user no longer
	// waits if their ticket was settled under this generation or an earlier one, or if
	// exactly their request, with its generation, left the line. They
	// do not wait either if a request of theirs was settled or left under a later
	// generation, with any ticket: that answered them.
	CouponWaiting(ctx context.Context, id reward.TemplateID, generation int64, line []LineTicket) ([]bool, error)
	// CouponRecount counts the coupons of a template and reads its stored counts,
	// from one snapshot. Those of an archived template, whose coupons may be removed, are
	// the stored ones.
	CouponRecount(ctx context.Context, id reward.TemplateID) (CouponCount, error)

	// CodesBegin opens an import of codes to a template. It ends an import of the
	// template that is still open, because its sender may have crashed. importID is a
	// new number.
	CodesBegin(ctx context.Context, id reward.TemplateID, importID int64, now time.Time) error
	// CodesStage adds codes to an open import, which has so many codes already. It
	// adds all of them or, if one is taken, none, and returns the position of the first
	// that is taken, or -1. The codes differ from each other, and are at most
	// CodesMax. It returns rules.ImportEnded if the import is not open or has another
	// number of codes. Codes of an open import are never given.
	CodesStage(ctx context.Context, p CodesStageParams) (TakenCode, error)
	// CodesPublish gives the codes of an open import, as many as codes says, to its
	// template, after those that the template has. The error is that of
	// rules.CheckImport or rules.ImportEnded; nothing has then changed. above is the setting
	// approval.codes-above, see rules.LimitImport.
	CodesPublish(ctx context.Context, id reward.TemplateID, importID, codes, above int64) (CouponChange, error)
	// CodesDiscard ends an import, if it is open.
	CodesDiscard(ctx context.Context, importID int64) error
	// CodesSweep ends open imports that nobody has touched since before, and removes at
	// most limit codes of an import that ended without being published and was last
	// touched before. It returns the number of rows that it removed.
	CodesSweep(ctx context.Context, before time.Time, limit int) (int, error)

	// EntrantSave records users as entrants of a draw. takes reports whether it
	// did, added has the users who were not recorded before. It records no
	// user unless the draw is OPEN and the clock of the database is between
	// Draw.From (included) and OpensAt (excluded).
	EntrantSave(ctx context.Context, id reward.TemplateID, users []string) (added map[string]bool, takes bool, err error)
	// EntrantHas reports which of the users are recorded.
	EntrantHas(ctx context.Context, id reward.TemplateID, users []string) (map[string]bool, error)
	// EntrantList returns at most limit entrants with a user ID above after,
	// ordered by the bytes of the user ID.
	EntrantList(ctx context.Context, id reward.TemplateID, after string, limit int) ([]string, error)
	// DrawsEntered returns at most limit draws that are DONE and that the user
	// entered, the latest opening first.
	DrawsEntered(ctx context.Context, user string, limit int) ([]DrawEntered, error)
	// DrawClose moves a draw from OPEN to CLOSED and returns the template as it is
	// afterwards. It changes nothing if the template has another epoch, or if its
	// OpensAt is in the future by the clock of the database.
	DrawClose(ctx context.Context, id reward.TemplateID, epoch int64) (reward.CouponTemplate, error)
	// DrawDone moves a draw from CLOSED to DONE, stores the hash of its list, and
	// reports whether it did. It changes nothing if the template has another epoch.
	DrawDone(ctx context.Context, id reward.TemplateID, epoch int64, list []byte) (bool, error)

	// RefusalRecord records that a template refuses every request from at on, for
	// reason (CodeSoldOut or CodeClosed). An empty reason ends that interval. A
	// repeat changes nothing. An at before the latest recorded time counts as that
	// time.
	RefusalRecord(ctx context.Context, id reward.TemplateID, reason string, at time.Time) error
	// RefusalList returns at most limit intervals of a template, the latest first.
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
