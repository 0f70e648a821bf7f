package store

import (
	"context"
	"time"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
)

// Coupons keeps coupon templates, coupons, and requests that were refused after
// they had been accepted. What holds at every moment: Live of a template is the
// number of its coupons that are not CANCELLED, and at most TotalQuantity;
// IssuedTotal is the number of its coupons; (template, generation, ticket) is
// unique over coupons and refused requests together; a user holds at most
// PerUserLimit slots. A coupon holds a slot (1 … PerUserLimit, the lowest free
// one at its issue) until it is cancelled, and for good where the template, at
// the cancel, does not re-issue.
//
// Version goes up by exactly one in each transaction that changes what the gate
// has to know: TemplateChange, CouponSettle that settled or issued anything,
// CouponCancel, DrawDone, TemplateTouch. Coupons and refused requests keep the
// version that changed them last.
//
// Whatever names one template that is not there is CodeTemplateNotFound; lists
// and CouponRecount are then empty.
type Coupons interface {
	// TemplateCreate inserts a template; CodeExists for a known id, CodeInvalid by
	// reward.CheckTemplate or for an unknown Mode or WhenRedisAway. Of its course
	// (Generation … Ends) nothing is taken over: all is 0, Path is GATE; a draw is
	// OPEN, its List nil.
	TemplateCreate(ctx context.Context, t reward.CouponTemplate) (reward.CouponTemplate, error)
	// TemplateGet returns a template; CodeTemplateNotFound.
	TemplateGet(ctx context.Context, id reward.TemplateID) (reward.CouponTemplate, error)
	// TemplateList pages by descending id, below before when that is not 0.
	TemplateList(ctx context.Context, before reward.TemplateID, limit int) ([]reward.CouponTemplate, error)
	// TemplateActive returns, ordered by id, those that never close or close after
	// closedAfter. The list is the caller's own.
	TemplateActive(ctx context.Context, closedAfter time.Time) ([]reward.CouponTemplate, error)
	// TemplateChange changes a template, Version+1. CodeConflict when
	// TotalQuantity would be below Live, or Mode or a Draw's times are changed
	// after anything was settled or asked (there are entrants, or the draw is not
	// OPEN any more); CodeInvalid by reward.CheckTemplate.
	TemplateChange(ctx context.Context, p rules.TemplateChange) (reward.CouponTemplate, error)
	// TemplateTouch raises Version and changes nothing else.
	TemplateTouch(ctx context.Context, id reward.TemplateID) (reward.CouponTemplate, error)
	// TemplateAssign makes owner the issuer of templates, with the next epoch, and
	// returns the epochs; a template that is not there is left out.
	TemplateAssign(ctx context.Context, ids []reward.TemplateID, owner string) (map[reward.TemplateID]int64, error)
	// TemplateNewGeneration raises Generation to one above the greater of it and AtLeast,
	// and sets Path; Moved is noted when that changes. It changes nothing, and says so (false), unless the
	// generation is From; From -1 = whatever it is.
	TemplateNewGeneration(ctx context.Context, p TemplateNewGenerationParams) (reward.CouponTemplate, bool, error)
	// TemplateRecordEnds notes the end offsets of a generation, if it still is the
	// template's; it says so.
	TemplateRecordEnds(ctx context.Context, id reward.TemplateID, generation int64, ends map[int32]int64) (bool, error)

	// CouponSettle settles asks in one transaction, by the rules of SettleKind.
	CouponSettle(ctx context.Context, p CouponSettleParams) (CouponSettleResult, error)
	// CouponCancel cancels an ISSUED coupon and frees its place, Version+1.
	// CodeCouponUsed, CodeCouponExpired (also when now is ExpiresAt or later),
	// CodeCouponCancelled, CodeCouponNotFound otherwise.
	CouponCancel(ctx context.Context, id reward.CouponID, now time.Time) (CouponChange, error)
	// CouponUse uses an ISSUED coupon; errors as CouponCancel. Version stays.
	CouponUse(ctx context.Context, id reward.CouponID, now time.Time) (reward.Coupon, error)
	// CouponExpire makes ISSUED coupons whose ExpiresAt has come EXPIRED, at most
	// limit, and returns how many. They keep place and slot; Version stays. What
	// others hold just then is left for the next call.
	CouponExpire(ctx context.Context, now time.Time, limit int) (int, error)
	CouponGet(ctx context.Context, id reward.CouponID) (reward.Coupon, error)
	// CouponList pages over the coupons of a template by ticket, above AfterTicket
	// (of any generation; those with the same ticket come on one page, which they
	// may make longer than Limit), or of a user by descending id, below Before.
	// Exactly one of TemplateID and UserID is set.
	CouponList(ctx context.Context, p CouponListParams) ([]reward.Coupon, error)
	// IssueOutcomes returns the latest outcome (by ticket, then generation) of each
	// of the users at a template; users without one are left out.
	IssueOutcomes(ctx context.Context, id reward.TemplateID, users []string) (map[string]reward.IssueOutcome, error)
	// IssueHistory returns all outcomes of a user at all templates, the latest
	// first, at most limit.
	IssueHistory(ctx context.Context, user string, limit int) ([]reward.IssueOutcome, error)

	// CouponChanges reads in one snapshot what changed above a version: the
	// template, the facts of every user with a coupon changed since, and the
	// tickets settled since (of the template's generation or another), among them
	// those of coupons that were cancelled since. More than limit facts or settled:
	// More is set, and both lists are empty.
	CouponChanges(ctx context.Context, id reward.TemplateID, above int64, limit int) (CouponChanges, error)
	// CouponSnapshot reads, in one snapshot, a template and then the facts of every
	// user who has a slot, in portions of at most BatchMax, by the bytes of the user
	// id. An error of begin or facts ends it and is returned.
	CouponSnapshot(ctx context.Context, id reward.TemplateID, begin func(reward.CouponTemplate) error, facts func([]CouponHolding) error) error
	// CouponRecount counts the rows of a template, and reads what it has them kept
	// as, in one snapshot.
	CouponRecount(ctx context.Context, id reward.TemplateID) (CouponCount, error)

	// EntrantSave notes who takes part in a draw. It notes nobody (false) when by
	// the database's clock it is before Draw.From or not before OpensAt, or the
	// draw is not OPEN. A user who is noted already stays as he is.
	EntrantSave(ctx context.Context, id reward.TemplateID, users []string) (bool, error)
	// EntrantHas says which of the users are noted.
	EntrantHas(ctx context.Context, id reward.TemplateID, users []string) (map[string]bool, error)
	// EntrantList pages over entrants by the bytes of the user id, above after.
	EntrantList(ctx context.Context, id reward.TemplateID, after string, limit int) ([]string, error)
	// DrawClose moves OPEN → CLOSED once by the database's clock the template is
	// open, expecting the epoch. It returns the template as it is afterwards.
	DrawClose(ctx context.Context, id reward.TemplateID, epoch int64) (reward.CouponTemplate, error)
	// DrawDone moves CLOSED → DONE and keeps the hash of the list, Version+1,
	// expecting the epoch; it says whether it moved.
	DrawDone(ctx context.Context, id reward.TemplateID, epoch int64, list []byte) (bool, error)

	// RefusalRecord notes that from at on a template refuses everybody for reason
	// (CodeSoldOut, CodeClosed), or with reason "" that it does not any more. A
	// repeat changes nothing. What is noted last counts: an at before the latest
	// time that is noted counts as that.
	RefusalRecord(ctx context.Context, id reward.TemplateID, reason string, at time.Time) error
	// RefusalList returns the intervals of a template, the latest first.
	RefusalList(ctx context.Context, id reward.TemplateID, limit int) ([]Refusal, error)
}

// TemplateNewGenerationParams raises a generation.
type TemplateNewGenerationParams struct {
	ID            reward.TemplateID
	From, AtLeast int64
	Path          reward.IssuePath
}

// CouponSettleParams is a batch of asks of one template, at most BatchMax.
type CouponSettleParams struct {
	TemplateID     reward.TemplateID
	Kind           rules.SettleKind
	Epoch          int64
	Generation     int64
	EndsGeneration int64
	Path           reward.IssuePath
	Fence          int64
	Requests       []rules.CouponRequest
	// Offsets are kept in the same transaction, whatever becomes of the asks;
	// not when the whole is refused.
	Offsets []Offset
	Now     time.Time // IssuedAt
}

// RequestResult is the outcome of an ask.
type RequestResult struct {
	Outcome rules.RequestOutcome
	// Coupon is what was issued; for a user beyond a limit of 1, in SettleDirect,
	// the coupon that he has (ID 0 when that is cancelled).
	Coupon reward.Coupon
	Reason string // of a rejection
}

// CouponSettleResult is what a settle did: one result per ask, in the order of
// the asks.
type CouponSettleResult struct {
	Refused rules.SettleRefusal
	Results []RequestResult // nil when refused
	CouponChange
}

// CouponChange is what a transaction changed of a template: the versions it
// covers, (From, To], which are equal when it changed nothing; the template
// after it; the facts of the users whose coupons changed.
type CouponChange struct {
	From, To int64
	Template reward.CouponTemplate
	Holdings []CouponHolding
	Coupon   reward.Coupon // of CouponCancel
}

// CouponHolding is what the gate has to know of a user: how many slots he holds,
// and his latest coupon (by id) that is not cancelled; 0 = none.
type CouponHolding struct {
	UserID   string
	Held     int
	CouponID reward.CouponID
}

// CouponChanges is what changed above a version.
type CouponChanges struct {
	Template reward.CouponTemplate
	Holdings []CouponHolding
	Settled  []SettledRequest
	More     bool
}

// SettledRequest is a ticket that was settled.
type SettledRequest struct {
	UserID     string
	Generation int64
	Ticket     int64
}

// CouponCount is what the rows of a template add up to, and what the template
// has them kept as.
type CouponCount struct {
	Live, IssuedTotal, Slots  int64
	KeptLive, KeptIssuedTotal int64
}

// CouponListParams pages over coupons.
type CouponListParams struct {
	TemplateID  reward.TemplateID
	AfterTicket int64
	UserID      string
	Before      reward.CouponID // 0 = from the newest
	Limit       int
}

// Refusal is an interval in which a template refused everybody.
type Refusal struct {
	Reason string
	Since  time.Time
	Until  time.Time // zero = to this day
}
