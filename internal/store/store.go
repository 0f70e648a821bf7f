// Package store is the interface to the database. The database is the source of
// truth for promotions, payouts, their counts, coupons, dead letters, uploads,
// Kafka offsets and leases. The drivers are in postgres and sqlite. Package
// storetest holds the conformance suite that both pass.
//
// These rules hold for every method:
//
//   - Methods are safe for concurrent use.
//   - A method that writes runs one statement or one short transaction. It
//     changes everything that it promises, or nothing.
//   - A change of state names the state, and where it matters the dispatch
//     number, that it expects. A row that has moved on stays as it is, so a
//     repeated call does no harm. Only a confirmed charge (PayoutFinish,
//     PayoutSettle) makes a row SUCCEEDED from any state and dispatch.
//   - Every change of a payout's state moves the counts of its promotion in the
//     same transaction.
//   - A batch has at most BatchMax items. The caller cuts larger ones.
//   - An error of type *reward.Error means that the request cannot succeed as
//     it is. The comments name its code. After any other error the outcome may
//     be unknown, and the caller may repeat the call.
//   - Callers pass the time in, so that tests can move it. Methods that use the
//     clock of the database instead say so.
package store

import (
	"context"
	"math"
	"time"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
)

// BatchMax limits the number of items in a batch.
const BatchMax = 1000

// Store is everything that a driver implements.
type Store interface {
	Promotions
	Payouts
	Summaries
	DeadLetters
	Uploads
	Leases
	Instances
	Webhooks
	WebhookEndpoints
	Reconciliations
	Coupons
	APIKeys
	Audits
	Idempotencies
	Retention
	Timelines

	// Ping returns an error if the database cannot be reached.
	Ping(ctx context.Context) error
	// Clock returns the time of the database.
	Clock(ctx context.Context) (time.Time, error)
	// FullAt returns when a transaction of this process last failed with ErrFull;
	// the zero time if none did.
	FullAt() time.Time
	// Refusal returns when the server last refused this process a connection because
	// of its limits, or a write, and what that means; the zero time if it never did.
	Refusal() (at time.Time, reason string)
	// Migrate brings the schema up to date. Several instances may call it at the
	// same time.
	Migrate(ctx context.Context) error
	// MigrateBack takes the schema back to an earlier version, for programs of that
	// version. It removes what later versions added, with its rows. No instance may
	// use the schema meanwhile. A schema of that version or an earlier one stays as
	// it is.
	MigrateBack(ctx context.Context, version int64) error
	// Close closes the connections. No other method may be called afterwards.
	Close()
}

// Retention removes rows that nobody needs any more.
type Retention interface {
	// AuditForget looks at the limit oldest lines of the audit, removes those that began
	// before a time, and returns how many.
	AuditForget(ctx context.Context, before time.Time, limit int) (int, error)
	// DeadLetterForget looks at the limit oldest dead letters with a status, removes those
	// that were closed before a time, and returns how many. OPEN is CodeInvalid.
	DeadLetterForget(ctx context.Context, status reward.DeadLetterStatus, before time.Time, limit int) (int, error)
	// PromotionEnded returns at most limit promotions that ended before a time and may
	// have payouts left, ordered by FinishedAt, then ID. It begins after a promotion of
	// an earlier page; the zero value begins at the first one.
	PromotionEnded(ctx context.Context, before time.Time, after EndedPromotion, limit int) ([]EndedPromotion, error)
	// PromotionArchive archives a promotion that ended before a time, and reports whether
	// it did. It decides under the lock of the counts. No payout may be READY, QUEUED,
	// RETRYING or UNKNOWN, no upload may be open at now, and the stream must be
	// destroyed.
	//
	// An archived promotion stays archived. PayoutSave inserts no row for it and
	// PayoutRetry none retries, and the database refuses a count of open payouts. Its
	// counts stay, and SummaryCompare compares them with nothing.
	PromotionArchive(ctx context.Context, id reward.PromotionID, before, now time.Time) (bool, error)
	// PayoutForget removes payouts of an archived promotion, with their attempts. It looks
	// at one page of them.
	PayoutForget(ctx context.Context, p PayoutForgetParams) (PayoutForgotten, error)
	// TemplateEnded returns at most limit coupon templates that closed before a time and may
	// have rows left, ordered by ClosesAt, then ID. It begins after a template of an
	// earlier page; the zero value begins at the first one.
	TemplateEnded(ctx context.Context, before time.Time, after EndedTemplate, limit int) ([]EndedTemplate, error)
	// TemplateArchive archives a template that is over since before a time, and reports
	// whether it did: it has closed, its draw is DONE, no place is promised, no import of
	// codes is open, and nobody can use, cancel or confirm a coupon. No coupon was
	// issued, used, cancelled or expired later, and no request was rejected later. It raises Generation and
	// Epoch.
	//
	// It looks at the coupons first, and decides under the lock of the template, which
	// must still have the version that it had. An archived template stays archived. Its
	// counts stay.
	TemplateArchive(ctx context.Context, id reward.TemplateID, before, now time.Time) (bool, error)
	// TemplateForget removes a page of the rows of an archived template: its coupons,
	// rejected requests, entrants and imported codes, and with the last page its refusals.
	TemplateForget(ctx context.Context, p TemplateForgetParams) (TemplateForgotten, error)
}

// EndedTemplate is a coupon template that has closed and may have rows left.
type EndedTemplate struct {
	ID       reward.TemplateID
	ClosesAt time.Time
	Archived bool
}

// TemplateForgetParams selects a page of the rows of one template.
type TemplateForgetParams struct {
	TemplateID reward.TemplateID
	After      TemplateRow // TemplateForgotten.Last of the previous page
	Limit      int         // of the page
}

// TemplateRow is a position among the rows of a template. The zero value is before all
// of them.
type TemplateRow struct {
	Part  int // coupons with rejected requests, entrants, or codes
	Major int64
	Minor int64
	User  string
}

// TemplateForgotten is what TemplateForget did with a page.
type TemplateForgotten struct {
	Removed int
	// Last is the last row of the page. Nil means that the page is the last one.
	Last *TemplateRow
}

// EndedPromotion is a promotion that has ended and may have payouts left.
type EndedPromotion struct {
	ID         reward.PromotionID
	FinishedAt time.Time
	Archived   bool
}

// PayoutForgetParams selects a page of payouts of one promotion.
type PayoutForgetParams struct {
	PromotionID reward.PromotionID
	After       *reward.TargetID // the last target of the previous page; nil for the first page
	Limit       int              // of the page
	// Before is the time before which a payout must have changed last. A payout that
	// changed later, that is not final, or that is looked up once more stays.
	Before time.Time
}

// PayoutForgotten is what PayoutForget did with a page.
type PayoutForgotten struct {
	Removed int
	// Last is the last target of the page. Nil means that the page is the last one.
	Last *reward.TargetID
}

// Promotions stores promotions. Unless it says otherwise, a method that changes
// a promotion returns CodeNotFound if that promotion does not exist.
type Promotions interface {
	// PromotionCreate inserts a DRAFT promotion and returns it as stored.
	//
	// A DRAFT that Kafka registered is completed with the fields of p (name,
	// amount and so on), but only once. A known ID of another type is
	// CodeTypeMismatch. Any other known ID is CodeExists.
	//
	// Weight 0 becomes 1. Version is ignored: a new promotion has 1, and a
	// completion counts as a change. CreatedBy becomes an author (PromotionAuthors).
	// Nothing is approved afterwards, even if the registered DRAFT was. The progress
	// fields of p.Canary are ignored.
	PromotionCreate(ctx context.Context, p reward.Promotion) (reward.Promotion, error)
	// PromotionRegister makes sure that the promotions named by Kafka records
	// exist. Registration says what changes. No DRAFT starts that is
	// rejected or, with approvalAbove, rules.StartsEarly at now.
	//
	// It returns one promotion per registration, in order, as it is afterwards. A
	// registration of another type changes nothing and is no error: the caller
	// compares the types.
	PromotionRegister(ctx context.Context, rs []Registration, approvalAbove reward.Limits, now time.Time) ([]reward.Promotion, error)
	// PromotionGet returns a promotion with its counts, or CodeNotFound.
	PromotionGet(ctx context.Context, id reward.PromotionID) (PromotionView, error)
	// PromotionViews returns the promotions among ids that exist, ordered by ID.
	// More than BatchMax ids are CodeInvalid.
	PromotionViews(ctx context.Context, ids []reward.PromotionID) ([]PromotionView, error)
	// PromotionChange changes the settings of a promotion by
	// rules.PromotionChange, whose Apply says which errors it returns. It returns
	// the promotion afterwards. What limits it by the counts holds under their lock.
	PromotionChange(ctx context.Context, c rules.PromotionChange) (PromotionView, error)
	// PromotionList returns a page of promotions. A text that no promotion can have
	// is CodeInvalid.
	PromotionList(ctx context.Context, p PromotionListParams) ([]PromotionView, error)
	// PromotionActive returns the promotions that still need work, ordered by ID:
	// RUNNING ones, CANCELLED ones without FinishedAt, and those whose stream is
	// not marked as destroyed.
	PromotionActive(ctx context.Context) ([]PromotionView, error)
	// PromotionChanges returns what has changed in the list of PromotionActive since
	// an earlier call; since is the mark which that call returned. It costs as much as
	// there is to return. It returns the whole list if since is empty, or if the
	// server has restarted or was replaced after that call.
	//
	// Every change that is committed before the call begins, and that the earlier
	// call did not return, is in the result. The order in which transactions began
	// does not matter. A promotion may be returned although it is as before.
	PromotionChanges(ctx context.Context, since string) (PromotionChanges, error)
	// PromotionMove changes the status and returns the promotion afterwards. A
	// status that is not in From is CodeIllegalState, and nothing changes.
	//
	// DRAFT → RUNNING sets StartedAt. Leaving PAUSED clears the reason. A move to
	// CANCELLED does not set FinishedAt: PromotionComplete does.
	PromotionMove(ctx context.Context, p PromotionMoveParams) (reward.Promotion, error)
	// PromotionComplete ends a promotion that has nothing left to do, and reports
	// whether it did. It decides under the lock of the promotion's counts.
	//
	// No payout may be READY, QUEUED or RETRYING. In addition:
	//
	//   - A RUNNING promotion becomes COMPLETED if no upload has a lease that is
	//     valid at now. Its expected count (if any) must be reached, or it must be
	//     closed.
	//   - A CANCELLED promotion gets its FinishedAt if PayoutSettle has written,
	//     for every payout that is still UNKNOWN, a result whose BeganAt is
	//     SettleFrom + settleAfter or later. Such a result was inconclusive: any
	//     other would have ended UNKNOWN.
	PromotionComplete(ctx context.Context, id reward.PromotionID, settleAfter time.Duration, now time.Time) (bool, error)
	// PromotionStreamDestroyed marks the stream of a COMPLETED or CANCELLED
	// promotion as destroyed, and reports whether it did. It expects the
	// LastDispatchedAt that the caller has read, so that a stream with newer
	// entries is not marked. A missing promotion is no error.
	PromotionStreamDestroyed(ctx context.Context, id reward.PromotionID, lastDispatchedAt time.Time) (bool, error)
	// PromotionClose records that no more targets will come. The promotion may
	// then complete below its expected count.
	PromotionClose(ctx context.Context, id reward.PromotionID) (reward.Promotion, error)
	// PromotionJudge ends the canary of a RUNNING promotion. It returns the status
	// afterwards and reports whether it changed anything.
	//
	// It does nothing unless the canary is decided (rules.CanaryDecided) and not
	// yet judged. It decides under the lock of the promotion's counts. A good
	// canary (rules.CanaryGood) is marked as judged. A bad one is marked as judged
	// too, and pauses the promotion with Reason. Resuming the promotion then pays
	// the other targets.
	PromotionJudge(ctx context.Context, p PromotionJudgeParams) (reward.PromotionStatus, bool, error)
	// PromotionApprove approves all targets that a DRAFT, RUNNING or PAUSED promotion
	// has, replaces an earlier approval and ends a rejection. It decides under the
	// lock of the counts. Another status is CodeIllegalState, and a promotion that is
	// not as the caller has seen it is CodePreconditionFailed. A name that the database
	// cannot store is CodeInvalid.
	PromotionApprove(ctx context.Context, p PromotionApproveParams) (PromotionView, error)
	// PromotionReject withdraws an approval and records who rejected the promotion,
	// and why. A RUNNING promotion becomes PAUSED. Only a DRAFT, RUNNING or PAUSED one
	// can be rejected; another status is CodeIllegalState.
	PromotionReject(ctx context.Context, p PromotionRejectParams) (reward.Promotion, error)
	// PromotionAwaitApproval pauses a RUNNING promotion that needs an approval
	// (rules.ApprovalNeeded) and has no approved target left to dispatch, and reports
	// whether it did.
	PromotionAwaitApproval(ctx context.Context, p PromotionAwaitApprovalParams) (bool, error)
	// PromotionGrant grants a promotion its worth from the amount per day of its authors,
	// and reports whether it has it then. That is so if the worth and the grants of the last
	// rules.GrantsDay to other promotions in its currency, with one of the same authors, are
	// at most PerDay. Names are compared without the case of their ASCII letters. A
	// promotion without an author needs no grant.
	PromotionGrant(ctx context.Context, p PromotionGrantParams) (granted bool, err error)
	// PromotionAuthorAdd records who changes a promotion or adds targets to it, before
	// they do so. It ends a rejection, and increases the revision. An unknown promotion
	// is no error: it may be created later.
	PromotionAuthorAdd(ctx context.Context, id reward.PromotionID, author string) error
	// PromotionAuthors returns everybody who created or changed a promotion with this
	// ID, or added targets to it, also before it was deleted and created again.
	PromotionAuthors(ctx context.Context, id reward.PromotionID) ([]string, error)
	// PromotionDue returns at most limit DRAFTs whose StartsAt is not after now,
	// ordered by StartsAt, then ID.
	PromotionDue(ctx context.Context, now time.Time, limit int) ([]PromotionView, error)
	// PromotionDelete removes a DRAFT and all its rows. Another status is
	// CodeIllegalState.
	PromotionDelete(ctx context.Context, id reward.PromotionID) error
}

// Registration is what a Kafka record says about a promotion. An unknown ID
// becomes a DRAFT that is marked as registered. A repeat changes nothing.
type Registration struct {
	ID   reward.PromotionID
	Type reward.PromotionType
	// Started moves a DRAFT that may start to RUNNING, and stores ExpectedCount. Another
	// promotion keeps its status.
	Started bool
	// ExpectedCount is the announced number of targets; nil means unknown. The
	// first count that is stored stays.
	ExpectedCount *int64
}

// PromotionView is a promotion with its counts.
type PromotionView struct {
	reward.Promotion
	Counts reward.Counts
}

// PromotionChanges is the result of the method of that name.
type PromotionChanges struct {
	// Whole reports whether Active is the whole list.
	Whole bool
	// Active are the active promotions that have changed, ordered by ID.
	Active []PromotionView
	// Inactive are promotions that have changed and are not active. It is empty if
	// Whole is set.
	Inactive []reward.PromotionID
	// Mark is the since of the next call. Callers do not interpret it.
	Mark string
}

// PromotionListParams selects a page of promotions. A zero filter means any.
type PromotionListParams struct {
	Limit     int
	Status    reward.PromotionStatus
	CreatedBy string
	// Search selects promotions whose name, ID or metadata contain it, whatever the
	// case of the letters.
	Search        string
	CreatedAfter  time.Time // at this time or later
	CreatedBefore time.Time // before this time
	Sort          PromotionSort
	// Last is the last promotion of the previous page. ID 0 starts at the first
	// page. Name and CreatedAt are needed if Sort orders by them.
	Last PromotionPosition
	// AwaitingApproval selects promotions for which rules.AwaitsApproval holds with
	// ApprovalAbove, the setting approval.above.
	AwaitingApproval bool
	ApprovalAbove    reward.Limits
}

// PromotionPosition is the place of a promotion in every order.
type PromotionPosition struct {
	ID        reward.PromotionID
	Name      string
	CreatedAt time.Time
}

// PromotionSort is an order of promotions. Those that are equal by it are ordered
// by their ID, in the same direction.
type PromotionSort string

// The orders. A minus means descending. Names are compared by their bytes.
const (
	SortIDDown      PromotionSort = "-id"
	SortID          PromotionSort = "id"
	SortCreatedDown PromotionSort = "-createdAt"
	SortCreated     PromotionSort = "createdAt"
	SortNameDown    PromotionSort = "-name"
	SortName        PromotionSort = "name"
)

// PromotionMoveParams is a change of status.
type PromotionMoveParams struct {
	ID   reward.PromotionID
	From []reward.PromotionStatus // the statuses that allow the change
	To   reward.PromotionStatus
	// By and Reason become PausedBy and PauseReason if To is PAUSED.
	By, Reason string
	// Event is recorded for the promotion's webhook in the same transaction, if
	// the promotion has one. Empty records nothing.
	Event string
	// ApprovalAbove is the setting approval.above, for a promotion that becomes RUNNING;
	// see rules.MayRun.
	ApprovalAbove reward.Limits
	// ApprovalPerDay is the setting approval.above-per-day, for a promotion that becomes
	// RUNNING; see rules.NeedsGrants.
	ApprovalPerDay reward.Limits
	Now            time.Time
}

// PromotionJudgeParams says how to judge a canary.
type PromotionJudgeParams struct {
	ID     reward.PromotionID
	Reason string // becomes PauseReason if the canary is bad
	Event  string // recorded for the webhook if the canary is bad
	Now    time.Time
}

// PromotionApproveParams is an approval.
type PromotionApproveParams struct {
	ID reward.PromotionID
	By string // who approves
	// Revision is the revision that the caller has read together with the authors.
	Revision int64
	// Seen is what the caller has looked at; nil if only the revision counts.
	Seen *PromotionWorth
}

// PromotionWorth is the number and the amount of all targets of a promotion.
type PromotionWorth struct {
	Count  int64
	Amount reward.Amount
}

// PromotionRejectParams is a refusal to approve a promotion.
type PromotionRejectParams struct {
	ID     reward.PromotionID
	By     string
	Reason string
	// PauseReason is the reason for which a RUNNING or PAUSED promotion is PAUSED.
	PauseReason string
	Now         time.Time
}

// PromotionGrantParams names a promotion that asks for a grant.
type PromotionGrantParams struct {
	ID     reward.PromotionID
	PerDay reward.Limits // the setting approval.above-per-day; zero means no limit
	Now    time.Time
}

// PromotionAwaitApprovalParams names a promotion that may wait for an approval.
type PromotionAwaitApprovalParams struct {
	ID            reward.PromotionID
	ApprovalAbove reward.Limits // the setting approval.above
	Reason        string        // becomes PauseReason
	Event         string        // recorded for the webhook, as in PromotionMoveParams
	Now           time.Time
}

// CanaryDecided reports whether the canary can be judged.
func (v PromotionView) CanaryDecided() bool { return rules.CanaryDecided(v.Promotion, v.Counts) }

// Payouts stores payouts. Package rules defines what each change does to a
// single row. A row is flagged if its MaybeCalled is set: a charge may have
// left, so a refusal alone does not prove that nothing was paid.
type Payouts interface {
	// PayoutSave inserts a batch of payouts in one transaction, together with
	// their counts, partition offsets and dead letters. The promotions must exist.
	// A batch may name several promotions.
	//
	// New rows of a CANCELLED promotion are CANCELLED. Those of a RUNNING
	// promotion become QUEUED with dispatch 1, from the front of the batch, as
	// long as MaxLen and rules.Allowance have capacity. All others are READY.
	// A COMPLETED promotion that gains rows becomes RUNNING again.
	//
	// If a batch names a target twice, the first one counts. Offsets never move
	// back. If the outcome of any row is Conflict or Archived, the offsets are not stored:
	// the caller stores them together with the dead letters of these rows. A dead
	// letter with a known source, partition, offset and log is dropped.
	PayoutSave(ctx context.Context, p PayoutSaveParams) (PayoutSaveResult, error)

	// PayoutDispatch moves due payouts of one RUNNING promotion to QUEUED, each
	// with the next dispatch number. It returns them as they are afterwards. It
	// also updates the promotion's LastDispatchedAt and StreamDestroyed.
	//
	// It moves at most Limit rows, and at most MaxLen minus the rows that are
	// QUEUED. rules.Allowance adds three bounds, approval, budget and canary, which
	// hold at the commit of every transaction that queues rows. Rows that another
	// transaction has locked are skipped.
	//
	// Rows are taken by DueAt, then target ID, or only by target ID if Refs is
	// set. In PostgreSQL, after 10,000 dispatches of a promotion, a row that is saved
	// later with an earlier DueAt may be taken up to 10 s late. No row after the first
	// one that exceeds the budget is taken. If a late confirmation has already
	// exceeded it, no row is dispatched, not even a RETRYING one.
	PayoutDispatch(ctx context.Context, p PayoutDispatchParams) ([]reward.Payout, error)
	// PayoutReturn moves QUEUED rows back to READY and returns how many it moved.
	// It expects the dispatch numbers of Refs. In a CANCELLED promotion a row
	// becomes UNKNOWN if it was flagged before or p.MaybeCalled flags it, otherwise
	// CANCELLED.
	PayoutReturn(ctx context.Context, p PayoutReturnParams) (int, error)
	// PayoutSweep returns rows of one promotion that no stream has any more. It
	// takes QUEUED rows dispatched before Before, at most BatchMax, and returns
	// how many it moved. They become READY, or UNKNOWN in a CANCELLED promotion.
	// All are flagged afterwards.
	PayoutSweep(ctx context.Context, p PayoutSweepParams) (int, error)
	// PayoutGetMany returns the payouts among ids that exist, in no fixed order.
	PayoutGetMany(ctx context.Context, ids []PayoutID) ([]reward.Payout, error)
	// PayoutFinish writes the outcomes of dispatches, by rules.Finish, with their
	// counts. It returns one result per outcome, in order. After an error, some of
	// the outcomes may be written; to write them again changes nothing. Several promotions
	// share a batch, so PayoutFinish and PayoutReturn do not wait long for a locked
	// row; see ErrLocked and ConstraintError.
	//
	// An outcome whose row has moved on changes nothing unless it is
	// rules.OutcomePaid, but its attempts are recorded. An outcome that changes its
	// row sets FailedDeliveries to 0.
	PayoutFinish(ctx context.Context, p PayoutFinishParams) ([]FinishResult, error)
	// PayoutClaimLookups returns at most Limit payouts of any promotion whose
	// lookup is due at Now. These are UNKNOWN payouts, and those that a lookup has
	// decided and another one must confirm (PayoutSettleParams.AgainAfter). It
	// sets their DueAt to Until, so that no other caller claims them before then.
	PayoutClaimLookups(ctx context.Context, p PayoutClaimLookupsParams) ([]reward.Payout, error)
	// PayoutSettle writes the results of lookups, by rules.Settle. It returns those that
	// prove a second charge. After an error, some of them may be written; to write them again
	// changes nothing.
	PayoutSettle(ctx context.Context, p PayoutSettleParams) ([]SecondCharge, error)
	// PayoutCancelStep takes the READY and RETRYING rows of a CANCELLED promotion
	// out of the work, at most BatchMax, and returns how many it moved. READY rows
	// become CANCELLED, or UNKNOWN if they are flagged. RETRYING rows become
	// UNKNOWN. Call it until it returns 0. QUEUED rows leave their state by
	// PayoutFinish, PayoutReturn or PayoutSweep.
	PayoutCancelStep(ctx context.Context, p PayoutCancelStepParams) (int, error)

	// PayoutRetry moves FAILED rows of one promotion back to READY, at most
	// BatchMax in the order of their targets. It returns how many it moved. Call
	// it until it returns 0.
	//
	// The rows are due at Now and have no counted attempts. Dispatch number, flag,
	// first dispatch and idempotency key stay. ErrorCode and ErrorMessage stay
	// until the next outcome. A COMPLETED promotion becomes RUNNING again if any
	// row moved. A DRAFT or CANCELLED promotion is CodeIllegalState, an archived one
	// CodeArchived.
	PayoutRetry(ctx context.Context, p PayoutRetryParams) (int, error)
	// PayoutResolve settles one UNKNOWN row as an operator decided, and returns
	// it. This works in a CANCELLED promotion too. A row in another state is
	// CodeIllegalState, a missing one CodePayoutNotFound.
	//
	// The decision is recorded as an attempt of class RESOLVED, which is not
	// counted. Its Code is the operator and its Message the note. A row that
	// becomes FAILED keeps the provider's last error.
	PayoutResolve(ctx context.Context, p PayoutResolveParams) (reward.Payout, error)

	// PayoutGet returns a payout and its attempts, oldest first, or
	// CodePayoutNotFound.
	PayoutGet(ctx context.Context, id PayoutID) (reward.Payout, []reward.Attempt, error)
	// PayoutList returns a page of payouts by ascending target ID.
	PayoutList(ctx context.Context, p PayoutListParams) ([]reward.Payout, error)
	// PayoutHistory returns at most limit payouts of a user in all promotions, by
	// descending promotion ID, then target ID. All are read in one snapshot.
	// Payouts without a user ID belong to no user.
	PayoutHistory(ctx context.Context, user string, limit int) ([]UserPayout, error)
	// PayoutUnknown returns a page of the UNKNOWN payouts of all promotions, ordered by
	// the time at which they became UNKNOWN, then by promotion and target.
	PayoutUnknown(ctx context.Context, p PayoutUnknownParams) ([]reward.Payout, error)
	// PayoutOldest returns since when the oldest READY and UNKNOWN payouts wait, and since
	// when READY ones wait without any dispatch. It looks for READY ones in the first
	// OldestPromotionsMax RUNNING promotions that have any.
	PayoutOldest(ctx context.Context) (OldestPayouts, error)
	// PayoutErrors counts the FAILED, RETRYING and UNKNOWN payouts of a promotion by
	// their error code, most payouts first. It counts the first PayoutErrorsMax codes
	// in alphabetical order.
	PayoutErrors(ctx context.Context, id reward.PromotionID) ([]PayoutError, error)
	// OffsetsGet returns the next offsets stored for a log, by partition. It is
	// empty for an unknown log.
	OffsetsGet(ctx context.Context, log string) (map[int32]int64, error)
}

// PayoutID identifies a payout.
type PayoutID struct {
	PromotionID reward.PromotionID
	TargetID    reward.TargetID
}

// Offset is the next offset to read from a partition of a log.
type Offset struct {
	// Topic identifies the log, as the parameter of OffsetsGet does. It holds the
	// topic name and what distinguishes this topic from another one of that name.
	Topic     string
	Partition int32
	Next      int64
}

// NewPayout is a payout to insert.
type NewPayout struct {
	PromotionID reward.PromotionID
	TargetID    reward.TargetID
	SummaryID   reward.SummaryID // 0 means none
	UserID      string           // may be empty
	Amount      reward.Amount
	VoucherCode string // empty unless the promotion pays vouchers
	// Trace becomes the Trace of the row, at most TraceMax bytes. A known row keeps its
	// own.
	Trace string
}

// TraceMax limits NewPayout.Trace, in bytes.
const TraceMax = 64

// PayoutSaveParams is a batch to save.
type PayoutSaveParams struct {
	Rows        []NewPayout
	Offsets     []Offset
	DeadLetters []reward.DeadLetter
	// MaxLen limits the QUEUED rows of each promotion. With 0, no new row becomes
	// QUEUED.
	MaxLen int
	// ApprovalAbove is the setting approval.above; see rules.ApprovalNeeded. New rows
	// are not approved.
	ApprovalAbove reward.Limits
	Now           time.Time
}

// SaveOutcome says how the insert of a row ended.
type SaveOutcome int8

// The outcomes of an insert.
const (
	Accepted  SaveOutcome = iota // inserted
	Duplicate                    // known with the same content
	Conflict                     // known with another amount, user or code; nothing changed
	Archived                     // not known, and the promotion is archived; nothing changed
)

// PayoutSaveResult is the result of PayoutSave.
type PayoutSaveResult struct {
	Outcomes []SaveOutcome // one per row, in order
	// Queued are the rows that were inserted as QUEUED, as the database returned
	// them.
	Queued []reward.Payout
}

// PayoutDispatchParams selects the rows to dispatch.
type PayoutDispatchParams struct {
	PromotionID reward.PromotionID
	// From is Ready (oldest first) or Retrying (only rows due at Now). Any other
	// state is CodeInvalid.
	From reward.State
	// Refs limits the call to these rows, which must still have the dispatch
	// number of their Ref. Nil means all rows that are due.
	Refs   []reward.Ref
	Limit  int
	MaxLen int // limits the QUEUED rows of the promotion
	// ApprovalAbove is the setting approval.above; see rules.ApprovalNeeded.
	ApprovalAbove reward.Limits
	Now           time.Time
}

// PayoutReturnParams names the QUEUED rows to return to READY.
type PayoutReturnParams struct {
	Refs []reward.Ref
	// MaybeCalled flags the rows, because a consumer may have called the provider.
	// It is false only if the queue did not accept the entries.
	MaybeCalled bool
	// DeliveryFailed reports that a consumer ended without an outcome: it crashed,
	// hung or failed. It adds 1 to the rows' FailedDeliveries, up to
	// rules.FailedDeliveriesMax.
	DeliveryFailed bool
	// Lease is added to Now to give the SettleFrom of rows that become UNKNOWN.
	Lease time.Duration
	Now   time.Time
}

// PayoutSweepParams selects the QUEUED rows that no stream has.
type PayoutSweepParams struct {
	PromotionID reward.PromotionID
	Before      time.Time     // the rows were dispatched before this time
	Lease       time.Duration // as in PayoutReturnParams
	Now         time.Time
}

// PayoutFinishParams is a batch of outcomes of one or more promotions. Several
// outcomes of one payout take effect in order.
type PayoutFinishParams struct {
	Outcomes []rules.Outcome
	Lease    time.Duration // as in PayoutReturnParams
	Now      time.Time
}

// FinishResult is the row after an outcome.
type FinishResult struct {
	State    reward.State
	Attempts int32 // counted attempts
	DueAt    time.Time
	// Changed is false if the row had moved on, so the outcome did not change it.
	Changed bool
	// Recorded is the transaction key in the row if the outcome proves a second
	// charge (rules.SecondCharge). Otherwise it is empty.
	Recorded string
}

// SecondChargeNumber is the number of an attempt that records a second charge. The
// number of any other attempt is its position in its outcome.
const SecondChargeNumber = math.MaxInt16

// AttemptNumber returns the number of an attempt at a position of its outcome.
func AttemptNumber(position int, a reward.Attempt) int16 {
	if a.Code == reward.CodeSecondCharge && a.Class == reward.AnswerPaid {
		return SecondChargeNumber
	}
	return int16(position) //nolint:gosec // few attempts per outcome
}

// SecondCharge is a confirmation of a payout that was confirmed with another
// transaction key before.
type SecondCharge struct {
	reward.Ref
	Recorded       string // the transaction key in the row
	TransactionKey string // the other one, which an attempt records
}

// PayoutClaimLookupsParams says how many lookups to claim, and for how long.
type PayoutClaimLookupsParams struct {
	Limit int
	Until time.Time // no other caller claims the rows before this time
	Now   time.Time
}

// PayoutSettleParams is a batch of lookup results.
type PayoutSettleParams struct {
	Lookups []rules.Lookup
	// SettleAfter and AgainAfter are those of rules.Terms.
	SettleAfter time.Duration
	AgainAfter  time.Duration
	Now         time.Time
}

// PayoutCancelStepParams names the CANCELLED promotion.
type PayoutCancelStepParams struct {
	PromotionID reward.PromotionID
	Lease       time.Duration // as in PayoutReturnParams
	Now         time.Time
}

// PayoutListParams selects a page of payouts of a promotion.
type PayoutListParams struct {
	PromotionID reward.PromotionID
	After       *reward.TargetID // only target IDs above; nil starts at the first
	Limit       int
	State       *reward.State // nil means any
	Code        string        // ErrorCode; empty means any
}

// UserAnswersMax limits the attempts in each UserPayout (its Answers).
const UserAnswersMax = 50

// UserPayout is a payout with its latest recorded attempts.
type UserPayout struct {
	reward.Payout
	Answers []reward.Attempt // the attempts: oldest first, at most UserAnswersMax
}

// WithAnswers returns the payouts of list in the same order, each with its
// attempts.
func WithAnswers(list []reward.Payout, attempts map[PayoutID][]reward.Attempt) []UserPayout {
	out := make([]UserPayout, len(list))
	for i, p := range list {
		out[i] = UserPayout{Payout: p, Answers: attempts[PayoutID{PromotionID: p.PromotionID, TargetID: p.TargetID}]}
	}
	return out
}

// PayoutRetryParams selects the FAILED rows to retry.
type PayoutRetryParams struct {
	PromotionID reward.PromotionID
	Code        string            // only rows with this ErrorCode; empty means any
	Targets     []reward.TargetID // only these, at most BatchMax; nil means any
	Now         time.Time
}

// PayoutResolveParams is an operator's decision about an UNKNOWN row.
type PayoutResolveParams struct {
	PayoutID
	// Paid makes the row SUCCEEDED with TransactionKey. Otherwise it becomes
	// FAILED.
	Paid           bool
	TransactionKey string
	Note, By       string // why, and who decided
	Now            time.Time
}

// Resolution returns the part of the parameters that rules.Resolve needs.
func (p *PayoutResolveParams) Resolution() rules.Resolution {
	return rules.Resolution{Paid: p.Paid, TransactionKey: p.TransactionKey, Note: p.Note, By: p.By}
}

// Summaries reads, checks and repairs the counts of promotions. A summary is the
// counts of a promotion's payouts that share a SummaryID above 0.
type Summaries interface {
	// SummaryList returns at most limit summaries of a promotion, ordered by ID.
	SummaryList(ctx context.Context, id reward.PromotionID, limit int) ([]reward.Summary, error)
	// SummaryRecount returns the counts that the rows of a promotion add up to. It
	// changes nothing.
	SummaryRecount(ctx context.Context, id reward.PromotionID) (reward.Counts, error)
	// SummaryCompare returns the stored counts of a promotion and those that its
	// rows add up to, from one snapshot.
	//
	// With repair it then corrects the stored counts that differ, including those
	// of each summary. It adds the difference to them, because every other change
	// moves rows and counts alike. So it holds no lock while it reads the rows. An
	// ended promotion that has payouts left continues: a COMPLETED one becomes RUNNING
	// again, in the same transaction. Before it returns, it compares again. If
	// other programs keep changing the counts, it fails after a few tries.
	SummaryCompare(ctx context.Context, id reward.PromotionID, repair bool) (Comparison, error)
	// SharedKeys returns what payouts of a promotion have the transaction key of another
	// one. It reads all rows of the promotion.
	SharedKeys(ctx context.Context, id reward.PromotionID) (SharedKeys, error)
}

// SharedKeys are the payouts of a promotion whose transaction key another one has, too,
// except those that a person has settled: one transfer may have paid several.
type SharedKeys struct {
	Payouts, Keys int64
	// Key is one of the keys, and First and Last are two targets that have it.
	Key         string
	First, Last reward.TargetID
}

// DeadLetters stores messages that could not be read or processed.
type DeadLetters interface {
	// DeadLetterAdd stores dead letters as OPEN. One with a known source, partition,
	// offset and log is dropped.
	DeadLetterAdd(ctx context.Context, ls []reward.DeadLetter) error
	// DeadLetterGet returns one dead letter, or CodeDeadLetterNotFound.
	DeadLetterGet(ctx context.Context, id int64) (reward.DeadLetter, error)
	// DeadLetterList returns a page of dead letters by descending ID.
	DeadLetterList(ctx context.Context, p DeadLetterListParams) ([]reward.DeadLetter, error)
	// DeadLetterClose moves the OPEN dead letters among ids to REPLAYED or
	// DISCARDED. It returns the IDs that it moved in ascending order, each once.
	// Another status, or more than BatchMax ids, are CodeInvalid.
	DeadLetterClose(ctx context.Context, ids []int64, to reward.DeadLetterStatus, by string, now time.Time) ([]int64, error)
}

// DeadLetterListParams selects a page of dead letters. An empty text means any.
type DeadLetterListParams struct {
	Before int64 // only IDs below; 0 starts at the newest
	Limit  int
	Source string
	Reason string
	Status reward.DeadLetterStatus
	// BytesMax limits what is read of each key and value; 0 = all that is kept.
	BytesMax int
}

// Uploads stores uploads of targets. An open upload keeps its promotion from
// completing until its lease expires by the clock of the database (see Clock).
// A method that changes an upload returns CodeUploadNotFound if it does not exist.
type Uploads interface {
	// UploadOpen inserts an upload, and records its CreatedBy as an author of the
	// promotion, as PromotionAuthorAdd does. While the upload is open, a repeat with the same
	// promotion and CreatedAt changes nothing. Any other known ID is CodeExists. A
	// missing promotion is CodeNotFound.
	UploadOpen(ctx context.Context, u Upload) error
	// UploadExtend moves the end of the lease of an open upload. A closed upload is
	// CodeIllegalState.
	UploadExtend(ctx context.Context, id int64, leasedUntil time.Time) error
	// UploadAddErrors stores rejected lines for the report. The first error of a
	// line counts.
	UploadAddErrors(ctx context.Context, id int64, errs []LineError) error
	// UploadClose closes an upload and stores its totals. A repeat with the same
	// totals changes nothing. Other totals are CodeIllegalState.
	UploadClose(ctx context.Context, u Upload, now time.Time) error
	// UploadGet returns an upload of a promotion, or CodeUploadNotFound.
	UploadGet(ctx context.Context, promotion reward.PromotionID, id int64) (Upload, error)
	// UploadList returns at most limit uploads of a promotion by descending ID. Only
	// IDs below before count; 0 starts at the newest.
	UploadList(ctx context.Context, promotion reward.PromotionID, before int64, limit int) ([]Upload, error)
	// UploadErrors returns at most limit rejected lines with a number above after,
	// by line.
	UploadErrors(ctx context.Context, id int64, after int64, limit int) ([]LineError, error)
}

// Upload is one file of targets.
type Upload struct {
	ID          int64
	PromotionID reward.PromotionID
	LeasedUntil time.Time
	CreatedAt   time.Time
	CreatedBy   string    // who sent it; "" means that nobody recorded it
	FinishedAt  time.Time // zero while open
	// Bytes is the length of the text that was read, and Interrupted reports whether it
	// ended early. Both are stored by UploadClose.
	Bytes       int64
	Interrupted bool
	// Running reports whether the upload is open and its lease valid. Only UploadList
	// sets it.
	Running bool
	// Accepted, Duplicates, Conflicts and Rejected count lines.
	Accepted   int64
	Duplicates int64
	Conflicts  int64
	Rejected   int64
	Amount     reward.Amount // total of the accepted lines
}

// LineError says why a line of an upload was rejected.
type LineError struct {
	Line   int64 // counted from 1, including the header
	Code   string
	Detail string
}

// Leases gives a name to one owner at a time. An instance leases its own name,
// and in-process parts lease the names of what they must own alone. The clock
// of the database decides when a lease expires.
type Leases interface {
	// LeaseTake takes a lease that is free, expired or already held by Owner. The
	// lease then lasts for TTL from now. If another owner holds it, OK is false
	// and the result names that owner. An Among that cannot begin a name is
	// CodeInvalid.
	LeaseTake(ctx context.Context, p LeaseTakeParams) (Lease, error)
	// LeaseRelease releases the lease if owner holds it. Otherwise it does nothing.
	LeaseRelease(ctx context.Context, name, owner string) error
}

// LeaseTakeParams asks for a lease.
type LeaseTakeParams struct {
	Name  string
	Owner string
	TTL   time.Duration
	// Among is a prefix of lease names. The result lists the owners of all valid
	// leases whose name begins with it. Empty lists none.
	Among string
}

// Lease is the result of LeaseTake.
type Lease struct {
	OK    bool
	Owner string // the current owner
	Until time.Time
	// Holders are the owners of the leases that LeaseTakeParams.Among selects, each
	// once, ordered by their bytes.
	Holders []string
}

// InstanceRetention is how long an instance is listed after its last heartbeat.
const InstanceRetention = 24 * time.Hour

// Instances lists the running instances, for each other and for operators. Its
// times come from the clock of the database.
type Instances interface {
	// InstanceHeartbeat stores what an instance does and that it is alive for ttl
	// from now, and returns how many instances are alive, including this one. It
	// also removes instances that were last seen InstanceRetention ago or earlier. A text that
	// the database cannot store is CodeInvalid.
	InstanceHeartbeat(ctx context.Context, i Instance, ttl time.Duration) (alive int, err error)
	// InstanceRemove removes an instance that stops normally. A missing one is no
	// error.
	InstanceRemove(ctx context.Context, name string) error
	// InstanceList returns every instance seen within InstanceRetention, ordered
	// by the bytes of its name.
	InstanceList(ctx context.Context) ([]Instance, error)
	// InstanceOtherApprovals returns the names of the instances that are alive and whose
	// Approvals differ, ordered by their bytes. It leaves out instances of a version that
	// stores none.
	InstanceOtherApprovals(ctx context.Context, approvals string) ([]string, error)
	// InstanceReportDead returns the names of the instances that died and were not
	// returned before, to this or another caller, ordered by their bytes. An instance
	// that is alive again can be returned again.
	InstanceReportDead(ctx context.Context) ([]string, error)
	// InstanceAlive returns the names of the instances that are alive, ordered by
	// their bytes. It reads nothing else, so it stays cheap with many pools.
	InstanceAlive(ctx context.Context) ([]string, error)
}

// Instance is what a running process of Largesse reports about itself.
type Instance struct {
	Name      string // its consumers are named Name, "-" and an index
	Version   string
	Roles     []string
	StartedAt time.Time
	Pools     []InstancePool // ordered by promotion ID
	Troubles  []obs.Trouble  // what degrades it, ordered by part
	// Governor limits its calls to the provider. Nil means that the instance makes none,
	// or is of a version that reports none.
	Governor *InstanceGovernor
	// Approvals are the instance's settings of approvals, as text. Only InstanceHeartbeat
	// reads it.
	Approvals string
	// SeenAt is the last heartbeat. At AliveUntil the instance counts as dead.
	// Alive compares AliveUntil with the clock of the database at the read.
	// InstanceHeartbeat ignores all three.
	SeenAt     time.Time
	AliveUntil time.Time
	Alive      bool
}

// InstanceGovernor is the state of the governor of one instance.
type InstanceGovernor struct {
	Limit         int       `json:"limit"`    // maximum calls in flight
	InFlight      int       `json:"inFlight"` // calls in flight
	Waiting       int       `json:"waiting"`  // calls that wait
	BreakerOpen   bool      `json:"breakerOpen"`
	RatesUnshared bool      `json:"ratesUnshared"`
	BlockedUntil  time.Time `json:"blockedUntil,omitzero"` // end of a Retry-After, by the clock of the instance; zero: none
}

// InstancePool is the pool of one promotion on one instance.
type InstancePool struct {
	PromotionID reward.PromotionID   `json:"promotionId"`
	Type        reward.PromotionType `json:"type"`
	Consumers   int                  `json:"consumers"`
	Pending     int                  `json:"inHand"` // pending entries; the API calls them inHand
	StartedAt   time.Time            `json:"startedAt"`
}

// Webhooks stores deliveries to the webhooks of promotions until they end. A
// delivery is recorded in the same transaction as its cause: PromotionComplete
// records EventFinished, PromotionMove and PromotionJudge the Event of their
// parameters.
type Webhooks interface {
	// WebhookClaim returns at most limit open deliveries that are due at now,
	// ordered by At, then ID. No other caller can claim them before until. A new
	// delivery is due at once.
	WebhookClaim(ctx context.Context, limit int, until, now time.Time) ([]WebhookDelivery, error)
	// WebhookDone ends a delivery that succeeded or was abandoned. Status is the
	// HTTP status; 0 means no response. An unknown or ended delivery stays as it
	// is.
	WebhookDone(ctx context.Context, id int64, status int, detail string, now time.Time) error
	// WebhookReschedule counts a failed attempt. The delivery is due again at
	// nextAt. An unknown or ended delivery stays as it is.
	WebhookReschedule(ctx context.Context, id int64, status int, detail string, nextAt time.Time) error
}

// The events of webhooks.
const (
	EventFinished = "promotion.finished" // COMPLETED, or CANCELLED with FinishedAt
	EventCanary   = "promotion.paused.canary"
	EventBreach   = "promotion.paused.breach"
	EventApproval = "promotion.paused.approval" // for endpoints only
)

// WebhookDelivery is one event to deliver to one webhook.
type WebhookDelivery struct {
	ID             int64
	PromotionID    reward.PromotionID
	Event          string
	URL            string // the promotion's URL when the event was recorded
	FailedAttempts int
	At             time.Time // when the event was recorded
}

// Reconciliations stores the reports of reconciliations and the restore mark.
type Reconciliations interface {
	// ReconciliationSave stores a report under its ID and replaces an earlier one.
	// Its bytes are returned unchanged.
	ReconciliationSave(ctx context.Context, r Reconciliation) error
	// ReconciliationGet returns a report, or CodeReconciliationNotFound.
	ReconciliationGet(ctx context.Context, id int64) (Reconciliation, error)
	// ReconciliationList returns at most limit reports without their texts, by
	// descending ID. The first has an ID below before, unless before is 0.
	ReconciliationList(ctx context.Context, before int64, limit int) ([]Reconciliation, error)
	// RestoreMarkSet records that the database was restored from a backup. Charges
	// may then exist that its rows do not show. A time before the recorded one
	// changes nothing.
	RestoreMarkSet(ctx context.Context, at time.Time) error
	// RestoreMark returns the time that RestoreMarkSet recorded; zero means never.
	RestoreMark(ctx context.Context) (time.Time, error)
}

// Reconciliation is a report as JSON.
type Reconciliation struct {
	ID     int64
	Report []byte
	At     time.Time
	// Checked counts what was compared, Drifts the differences, and Repaired those
	// that were repaired. All are -1 in the report of a version that did not store
	// them.
	Checked, Drifts, Repaired int64
}
