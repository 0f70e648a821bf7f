// Package store is the seam to the database, which is the truth: promotions,
// payouts, their counts, dead letters, uploads, offsets and leases. Drivers
// are in postgres and sqlite; storetest is the one suite that both pass.
//
// Every method that writes is one statement or one short transaction. Every
// change of state names the state (and the dispatch number) it expects, and
// moves the counts by the state it really found. Batches are bounded by the
// caller: at most BatchMax items. Methods are safe for concurrent use and
// return *reward.Error where the caller's request is at fault; any other error
// means that the outcome may be unknown and the call may be repeated.
//
// Times come from the caller, so that tests can move them.
package store

import (
	"context"
	"time"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
)

// BatchMax bounds every batch given to a Store.
const BatchMax = 1000

// Store is the whole seam.
type Store interface {
	Promotions
	Payouts
	Summaries
	DeadLetters
	Uploads
	Leases
	Instances
	Webhooks
	Reconciliations
	Coupons
	APIKeys
	Audits
	Idempotencies

	// Ping answers whether the database can be reached.
	Ping(ctx context.Context) error
	// Migrate brings the schema up to date; safe when several instances do it
	// at once.
	Migrate(ctx context.Context) error
	Close()
}

// Promotions keeps promotions.
type Promotions interface {
	// PromotionCreate inserts a DRAFT. A DRAFT that Kafka registered is
	// completed instead (name, amount, …), once; any other known id is
	// CodeExists, another type CodeTypeMismatch. Weight 0 becomes 1; ApprovedBy
	// is empty afterwards, also when the registered DRAFT had been approved, and
	// so is what Canary says about its course.
	PromotionCreate(ctx context.Context, p reward.Promotion) (reward.Promotion, error)
	// PromotionRegister makes sure that promotions named by Kafka exist, in
	// one transaction; see Registration. The result has, per registration, the
	// promotion as it stands after it; a type that differs from the
	// registration's changes nothing and is for the caller to notice.
	PromotionRegister(ctx context.Context, rs []Registration, now time.Time) ([]reward.Promotion, error)
	PromotionGet(ctx context.Context, id reward.PromotionID) (PromotionView, error)
	// PromotionViews returns those of ids (at most BatchMax, otherwise
	// CodeInvalid) that exist, ordered by id.
	PromotionViews(ctx context.Context, ids []reward.PromotionID) ([]PromotionView, error)
	// PromotionList pages by descending id, below Before when that is not 0.
	PromotionList(ctx context.Context, p PromotionListParams) ([]PromotionView, error)
	// PromotionActive returns what pools and keepers must look at, ordered by
	// id: RUNNING ones, CANCELLED ones with finishedAt unset, and those whose
	// stream is not marked gone (all of these with counts).
	PromotionActive(ctx context.Context) ([]PromotionView, error)
	// PromotionMove changes the status, expecting one of From; CodeIllegalState
	// otherwise. DRAFT → RUNNING sets StartedAt, to CANCELLED leaves
	// FinishedAt to PromotionComplete. Leaving PAUSED clears the reason.
	PromotionMove(ctx context.Context, p PromotionMoveParams) (reward.Promotion, error)
	// PromotionComplete moves a RUNNING promotion to COMPLETED when, under the
	// lock of its counts, ready, queued and retrying are 0, no upload lease
	// is alive at now, and expectedCount (if any) is reached or the promotion is
	// closed. A CANCELLED one gets its FinishedAt when, under the same lock,
	// ready, queued and retrying are 0 and every UNKNOWN row was looked up with
	// a look-up that began at SettleFrom + settleAfter or later and whose result
	// PayoutSettle has written: a no would have decided the row, so nothing but
	// look-ups that got no answer is open. It says whether it moved.
	PromotionComplete(ctx context.Context, id reward.PromotionID, settleAfter time.Duration, now time.Time) (bool, error)
	// PromotionStreamDestroyed marks the stream of a final (COMPLETED, CANCELLED)
	// promotion as destroyed, expecting LastDispatchedAt as the caller read it.
	PromotionStreamDestroyed(ctx context.Context, id reward.PromotionID, lastDispatchedAt time.Time) (bool, error)
	// PromotionClose says that no more targets will come, so that an announced
	// promotion may complete below its expected count.
	PromotionClose(ctx context.Context, id reward.PromotionID) (reward.Promotion, error)
	// PromotionJudge ends the canary of a promotion that is RUNNING and not yet
	// judged, under the lock of its counts and only when Dispatched rows are
	// decided (see CanaryDecided): a share of FAILED among them of at most
	// MaxFailureRate (see CanaryGood) marks it judged; more pauses it with reason
	// and marks it judged too, so that a resume goes on with the others. It
	// returns the status afterwards, and whether it did anything.
	PromotionJudge(ctx context.Context, p PromotionJudgeParams) (reward.PromotionStatus, bool, error)
	// PromotionApprove notes who has approved a promotion that is DRAFT, RUNNING
	// or PAUSED, in the place of whoever did before; CodeIllegalState when it is
	// none of these, CodeInvalid when the name cannot be stored as it is.
	PromotionApprove(ctx context.Context, id reward.PromotionID, by string) (reward.Promotion, error)
	// PromotionDue returns the DRAFTs whose StartsAt has come, ordered by it and
	// then by id, at most limit.
	PromotionDue(ctx context.Context, now time.Time, limit int) ([]PromotionView, error)
	// PromotionDelete removes a DRAFT and everything under it.
	PromotionDelete(ctx context.Context, id reward.PromotionID) error
}

// Registration is what a Kafka record tells of a promotion. Unknown ids become
// a registered DRAFT. Started moves DRAFT → RUNNING and notes the expected
// count (the first one stays); repeats do nothing, nothing is revived.
type Registration struct {
	ID            reward.PromotionID
	Type          reward.PromotionType
	Started       bool
	ExpectedCount *int64
}

// PromotionView is a promotion with its counts.
type PromotionView struct {
	reward.Promotion
	Counts reward.Counts
}

// PromotionListParams pages over promotions.
type PromotionListParams struct {
	Before reward.PromotionID // 0 = from the newest
	Limit  int
	Status reward.PromotionStatus // "" = any
}

// PromotionMoveParams is a change of status.
type PromotionMoveParams struct {
	ID     reward.PromotionID
	From   []reward.PromotionStatus
	To     reward.PromotionStatus
	Reason string // PauseReason when To is PAUSED
	// Event, when not "", is noted for the promotion's webhook in the same
	// transaction, if it has one.
	Event string
	Now   time.Time
}

// PromotionJudgeParams judges a canary.
type PromotionJudgeParams struct {
	ID     reward.PromotionID
	Reason string // PauseReason of a bad one
	Event  string // noted for the webhook of a bad one
	Now    time.Time
}

// CanaryDecided is rules.CanaryDecided.
func (v PromotionView) CanaryDecided() bool { return rules.CanaryDecided(v.Promotion, v.Counts) }

// Payouts keeps payouts.
type Payouts interface {
	// PayoutSave inserts a batch and everything that must become true with it,
	// in one transaction: rows, counts, partition offsets (which never go
	// back), dead letters (a repeat of source, partition and offset is
	// dropped). Per promotion: CANCELLED → rows are CANCELLED; RUNNING with
	// room (MaxLen − queued, and see Allowance) → QUEUED with dispatch 1, from
	// the front of the batch; else READY. A COMPLETED
	// promotion that gains rows is RUNNING again. Rows may belong to several
	// promotions, which must exist. The same target twice in one batch: the
	// first one counts.
	PayoutSave(ctx context.Context, p PayoutSaveParams) (PayoutSaveResult, error)

	// PayoutDispatch moves due payouts of one RUNNING promotion to QUEUED,
	// dispatch+1, at most Limit and no more than the room (MaxLen − queued, and
	// see Allowance), and returns them as they stand after it; the promotion's
	// LastDispatchedAt and StreamGone change with them. Rows held by others
	// are passed over.
	//
	// Allowance: where rows become QUEUED, and in that transaction, two bounds
	// hold. Budget: the amounts of SUCCEEDED, QUEUED, RETRYING and UNKNOWN, of READY
	// rows that may have been called, and of the rows that become QUEUED (those
	// before are counted already) are at most MaxAmount; in the order of the batch (Refs: of their targets),
	// none after the first that would pass it. Where a late yes has passed it
	// already nothing is dispatched, RETRYING rows neither. Canary: until it is
	// judged at most Targets rows are ever dispatched for the first time; READY
	// rows that were dispatched before are not held up by it.
	PayoutDispatch(ctx context.Context, p PayoutDispatchParams) ([]reward.Payout, error)
	// PayoutReturn returns QUEUED rows to READY, expecting their dispatch,
	// and counts a handover when HandedOver.
	// In a CANCELLED promotion a flagged row, or any row when MaybeCalled,
	// becomes UNKNOWN and others CANCELLED. It returns how many moved.
	PayoutReturn(ctx context.Context, p PayoutReturnParams) (int, error)
	// PayoutSweep returns QUEUED rows of one promotion that were dispatched
	// before Before to READY (CANCELLED promotions: UNKNOWN), flagged as maybe
	// called; at most BatchMax. It returns how many moved.
	PayoutSweep(ctx context.Context, p PayoutSweepParams) (int, error)
	// PayoutGetMany reads what a consumer has to check; payouts that do not
	// exist are left out. Order is not promised.
	PayoutGetMany(ctx context.Context, ids []PayoutID) ([]reward.Payout, error)
	// PayoutFinish writes outcomes, in one transaction, by the rules of
	// Outcome. Outcomes whose row has moved on change nothing but the attempt
	// rows; those that change the row set its Handovers to 0. The result has one
	// state per outcome: the row's state afterwards.
	PayoutFinish(ctx context.Context, p PayoutFinishParams) ([]FinishResult, error)
	// PayoutClaimLookups returns at most Limit payouts, of any promotion, that are
	// UNKNOWN, or decided by a no and to be looked up once more (see
	// PayoutSettleParams.AgainAfter), and whose DueAt has come; it sets their
	// DueAt to Until, so that nobody else takes them meanwhile.
	PayoutClaimLookups(ctx context.Context, p PayoutClaimLookupsParams) ([]reward.Payout, error)
	// PayoutSettle writes what look-ups told, in one transaction, by the rules
	// of Lookup.
	PayoutSettle(ctx context.Context, p PayoutSettleParams) error
	// PayoutCancelStep carries a CANCELLED promotion one step on: of at most
	// BatchMax rows READY without the flag become CANCELLED; READY with it and
	// RETRYING become UNKNOWN. It returns how many moved.
	PayoutCancelStep(ctx context.Context, p PayoutCancelStepParams) (int, error)

	// PayoutRetry returns FAILED rows of one promotion, at most BatchMax, with
	// Code as their ErrorCode when that is not "" and among Targets when that is
	// not nil, to READY with no attempts counted; dispatch, flag, first dispatch
	// and key stay. A COMPLETED promotion is RUNNING again; CodeIllegalState in a
	// CANCELLED or DRAFT one. It returns how many moved. Call it again until it is
	// 0. They go in the order of their targets and are due at Now; ErrorCode and
	// ErrorMessage stay until the next outcome; a promotion of which nothing moved
	// stays COMPLETED.
	PayoutRetry(ctx context.Context, p PayoutRetryParams) (int, error)
	// PayoutResolve settles one UNKNOWN row as somebody says, also in a CANCELLED
	// promotion, and keeps who (Code) and why (Message) as an attempt of class
	// RESOLVED, which is not counted; CodeIllegalState when the row is in another
	// state, CodePayoutNotFound when there is none. What the provider said last
	// stays with a row that becomes FAILED. It returns the row.
	PayoutResolve(ctx context.Context, p PayoutResolveParams) (reward.Payout, error)

	PayoutGet(ctx context.Context, id PayoutID) (reward.Payout, []reward.Attempt, error)
	// PayoutList pages by target id, above After.
	PayoutList(ctx context.Context, p PayoutListParams) ([]reward.Payout, error)
	// PayoutHistory returns the payouts of a user in all promotions, by descending
	// promotion id and then by target id, at most limit, all as of one moment.
	// Those without a user id are nobody's.
	PayoutHistory(ctx context.Context, user string, limit int) ([]UserPayout, error)
	// OffsetsGet returns the next offsets stored for a log, by partition.
	OffsetsGet(ctx context.Context, log string) (map[int32]int64, error)
}

// PayoutID names a payout.
type PayoutID struct {
	PromotionID reward.PromotionID
	TargetID    reward.TargetID
}

// Offset is the next offset to read of a partition of a log.
type Offset struct {
	// Topic names the log: a topic, and whatever tells it from another topic
	// of that name.
	Topic     string
	Partition int32
	Next      int64
}

// NewPayout is a payout to insert.
type NewPayout struct {
	PromotionID reward.PromotionID
	TargetID    reward.TargetID
	SummaryID   reward.SummaryID
	UserID      string
	Amount      reward.Amount
	VoucherCode string
}

// PayoutSaveParams is a batch to save.
type PayoutSaveParams struct {
	Rows        []NewPayout
	Offsets     []Offset
	DeadLetters []reward.DeadLetter
	// MaxLen bounds QUEUED rows per promotion; 0: every row becomes READY.
	MaxLen int
	Now    time.Time
}

// SaveOutcome says what became of a row to insert.
type SaveOutcome int8

// The outcomes of a save.
const (
	Accepted  SaveOutcome = iota
	Duplicate             // known, and the same
	Conflict              // known with another amount, user or code; nothing changed
)

// PayoutSaveResult has an outcome per row, in order, and the rows that were
// inserted as QUEUED (from RETURNING, never from the batch).
type PayoutSaveResult struct {
	Outcomes []SaveOutcome
	Queued   []reward.Payout
}

// PayoutDispatchParams says what to dispatch.
type PayoutDispatchParams struct {
	PromotionID reward.PromotionID
	// From is Ready (oldest first) or Retrying (only those due at Now).
	From reward.State
	// Refs narrows it to these dispatches (each names the RETRYING row's
	// current number); nil = whatever is due.
	Refs   []reward.Ref
	Limit  int
	MaxLen int
	Now    time.Time
}

// PayoutReturnParams names QUEUED rows to return to READY.
type PayoutReturnParams struct {
	Refs []reward.Ref
	// MaybeCalled flags them: somebody else may have called. False only when
	// the queue refused to take them.
	MaybeCalled bool
	// HandedOver says that a holder let go of the entries without a word (it
	// died, hung, or failed on them): the rows' Handovers go up by one, as far
	// as FailedDeliveriesMax.
	DeliveryFailed bool
	Lease          time.Duration // SettleFrom = Now + Lease where UNKNOWN is entered
	Now            time.Time
}

// PayoutSweepParams names the QUEUED rows that no queue holds.
type PayoutSweepParams struct {
	PromotionID reward.PromotionID
	Before      time.Time
	Lease       time.Duration
	Now         time.Time
}

// PayoutFinishParams is a batch of outcomes, of one or more promotions; several
// of one payout take effect in order.
type PayoutFinishParams struct {
	Outcomes []rules.Outcome
	Lease    time.Duration
	Now      time.Time
}

// FinishResult is the row after an outcome.
type FinishResult struct {
	State    reward.State
	Attempts int32
	DueAt    time.Time
	// Changed is false when the row had moved on and the outcome did nothing.
	Changed bool
}

// PayoutClaimLookupsParams takes UNKNOWN rows to look up.
type PayoutClaimLookupsParams struct {
	Limit int
	Until time.Time
	Now   time.Time
}

// PayoutSettleParams is a batch of look-up results.
type PayoutSettleParams struct {
	Lookups     []rules.Lookup
	SettleAfter time.Duration
	// AgainAfter is when a row that a no has just decided is looked up once
	// more: its DueAt becomes Now + AgainAfter. Found then: SUCCEEDED, as always;
	// NotFound: that is the end of it, and the row stays as it is; neither: again
	// at NextAt, which is the row's only change. Look-ups of another dispatch,
	// and those that began before the row was decided (UpdatedAt), change
	// nothing. It is off when the row leaves its state. 0 = not at all.
	AgainAfter time.Duration
	Now        time.Time
}

// PayoutCancelStepParams carries a cancel on.
type PayoutCancelStepParams struct {
	PromotionID reward.PromotionID
	Lease       time.Duration
	Now         time.Time
}

// PayoutListParams pages over the payouts of a promotion.
type PayoutListParams struct {
	PromotionID reward.PromotionID
	After       *reward.TargetID // nil = from the start
	Limit       int
	State       *reward.State
	Code        string // ErrorCode; "" = any
}

// UserAnswersMax bounds the answers in each UserPayout.
const UserAnswersMax = 50

// UserPayout is a payout with the latest answers that were kept for it.
type UserPayout struct {
	reward.Payout
	Answers []reward.Attempt // oldest first, at most UserAnswersMax
}

// WithAnswers gives each payout its answers.
func WithAnswers(list []reward.Payout, answers map[PayoutID][]reward.Attempt) []UserPayout {
	out := make([]UserPayout, len(list))
	for i, p := range list {
		out[i] = UserPayout{Payout: p, Answers: answers[PayoutID{PromotionID: p.PromotionID, TargetID: p.TargetID}]}
	}
	return out
}

// PayoutRetryParams names FAILED rows to pay after all.
type PayoutRetryParams struct {
	PromotionID reward.PromotionID
	Code        string // "" = any
	// Targets narrows it to these, at most BatchMax; nil = any.
	Targets []reward.TargetID
	Now     time.Time
}

// PayoutResolveParams settles an UNKNOWN row.
type PayoutResolveParams struct {
	PayoutID
	Paid           bool // SUCCEEDED with TransactionKey; else FAILED
	TransactionKey string
	Note, By       string
	Now            time.Time
}

// Resolution returns the part of the parameters that rules.Resolve needs.
func (p *PayoutResolveParams) Resolution() rules.Resolution {
	return rules.Resolution{Paid: p.Paid, TransactionKey: p.TransactionKey, Note: p.Note, By: p.By}
}

// Summaries reads the counts per promotionSummaryId.
type Summaries interface {
	// SummaryList returns the summaries of a promotion with an id above 0,
	// ordered by id, at most limit.
	SummaryList(ctx context.Context, id reward.PromotionID, limit int) ([]reward.Summary, error)
	// SummaryRecount recomputes the counts of a promotion from its rows, for
	// checks; it changes nothing.
	SummaryRecount(ctx context.Context, id reward.PromotionID) (reward.Counts, error)
	// SummaryCompare reads, in one snapshot, the counts that are kept and those
	// that the rows add up to. With repair, and under the lock of the counts, what
	// differs is set to what the rows say, per summary too.
	SummaryCompare(ctx context.Context, id reward.PromotionID, repair bool) (kept, rows reward.Counts, err error)
}

// DeadLetters keeps what could not be read or processed.
type DeadLetters interface {
	// DeadLetterAdd keeps them as OPEN; a repeat of source, partition and offset
	// is dropped.
	DeadLetterAdd(ctx context.Context, ls []reward.DeadLetter) error
	// DeadLetterGet returns one; CodeDeadLetterNotFound.
	DeadLetterGet(ctx context.Context, id int64) (reward.DeadLetter, error)
	// DeadLetterList pages by descending id.
	DeadLetterList(ctx context.Context, p DeadLetterListParams) ([]reward.DeadLetter, error)
	// DeadLetterClose moves those of ids (at most BatchMax, otherwise
	// CodeInvalid) that are OPEN to REPLAYED or DISCARDED (CodeInvalid for
	// another status) and returns their ids in ascending order, each once.
	DeadLetterClose(ctx context.Context, ids []int64, to reward.DeadLetterStatus, by string, now time.Time) ([]int64, error)
}

// DeadLetterListParams pages over dead letters; "" = any.
type DeadLetterListParams struct {
	Before int64 // 0 = from the newest
	Limit  int
	Source string
	Reason string
	Status reward.DeadLetterStatus
}

// Uploads keeps track of target uploads: an open one holds up the completion
// of its promotion for as long as its lease lives.
type Uploads interface {
	UploadOpen(ctx context.Context, u Upload) error
	// UploadExtend moves the lease of an open upload.
	UploadExtend(ctx context.Context, id int64, leasedUntil time.Time) error
	// UploadAddErrors keeps rejected lines for the report.
	UploadAddErrors(ctx context.Context, id int64, errs []LineError) error
	UploadClose(ctx context.Context, u Upload, now time.Time) error
	UploadGet(ctx context.Context, promotion reward.PromotionID, id int64) (Upload, error)
	// UploadErrors pages by line, above after.
	UploadErrors(ctx context.Context, id int64, after int64, limit int) ([]LineError, error)
}

// Upload is one file of targets.
type Upload struct {
	ID          int64
	PromotionID reward.PromotionID
	LeasedUntil time.Time
	CreatedAt   time.Time
	FinishedAt  time.Time // zero while open
	Accepted    int64
	Duplicates  int64
	Conflicts   int64
	Rejected    int64
	Amount      reward.Amount
}

// LineError says why a line of an upload was not accepted.
type LineError struct {
	Line   int64 // from 1, the header included
	Code   string
	Detail string
}

// Leases lets one owner at a time hold a name: an instance's own name, or the
// sole possession that in-process parts need.
type Leases interface {
	// LeaseTake takes a free, lapsed or own lease until Now+TTL. When another
	// holds it, OK is false and the holder is named. CodeInvalid when Among cannot
	// begin a name.
	LeaseTake(ctx context.Context, p LeaseTakeParams) (Lease, error)
	// LeaseRelease gives up what owner holds.
	LeaseRelease(ctx context.Context, name, owner string) error
}

// LeaseTakeParams asks for a lease. Expiry is judged by the database's clock.
type LeaseTakeParams struct {
	Name  string
	Owner string
	TTL   time.Duration
	// Among is how the names of the leases begin whose holders the answer lists;
	// empty = it lists none.
	Among string
}

// Lease is how an attempt to take a lease ended.
type Lease struct {
	OK    bool
	Owner string // who holds it now
	Until time.Time
	// Holders are those who then hold a lease of LeaseTakeParams.Among, each once,
	// in the order of their bytes.
	Holders []string
}

// InstanceRetention is how long an instance is remembered after its latest beat.
const InstanceRetention = 24 * time.Hour

// Instances lets instances tell each other, and people, what they do.
type Instances interface {
	// InstanceHeartbeat writes what an instance does and that it is alive until ttl
	// from now, and forgets those that were last seen InstanceRetention ago.
	// CodeInvalid when a text cannot be stored as it is.
	InstanceHeartbeat(ctx context.Context, i Instance, ttl time.Duration) error
	// InstanceRemove forgets an instance that ended in order.
	InstanceRemove(ctx context.Context, name string) error
	// InstanceList returns every instance seen within InstanceRetention, ordered by
	// the bytes of its name.
	InstanceList(ctx context.Context) ([]Instance, error)
}

// Instance is what a running process of Largesse tells of itself.
type Instance struct {
	Name      string // prefix of its consumers' names, followed by "-" and an index
	Version   string
	Roles     []string
	StartedAt time.Time
	Pools     []InstancePool // ordered by promotion id
	// SeenAt is the latest beat, AliveUntil when it is taken for dead, both by
	// the database's clock; Alive compares them with that clock at the read.
	// InstanceHeartbeat ignores all three.
	SeenAt     time.Time
	AliveUntil time.Time
	Alive      bool
}

// InstancePool is the pool of one promotion on one instance.
type InstancePool struct {
	PromotionID reward.PromotionID   `json:"promotionId"`
	Type        reward.PromotionType `json:"type"`
	Consumers   int                  `json:"consumers"`
	Pending     int                  `json:"inHand"` // entries read and not yet settled
	StartedAt   time.Time            `json:"startedAt"`
}

// Webhooks keeps what promotions' webhooks have to be told, until they have
// heard it. A delivery is noted in the transaction of what it tells:
// PromotionComplete notes EventFinished, and see PromotionMoveParams.Event and
// PromotionJudgeParams.Event.
type Webhooks interface {
	// WebhookClaim returns at most limit deliveries that are due and not done,
	// the oldest first (by At, then ID), and keeps others from taking them until
	// until. A new one is due at once.
	WebhookClaim(ctx context.Context, limit int, until, now time.Time) ([]WebhookDelivery, error)
	// WebhookDone ends a delivery that was heard, or (given up) never will be;
	// status is the HTTP status, 0 = there was no answer. An unknown id, or one
	// that is done, changes nothing, here and in WebhookRetried.
	WebhookDone(ctx context.Context, id int64, status int, detail string, now time.Time) error
	// WebhookRetried notes a try that failed; the next one is at nextAt.
	WebhookReschedule(ctx context.Context, id int64, status int, detail string, nextAt time.Time) error
}

// The events.
const (
	EventFinished = "promotion.finished" // COMPLETED, or CANCELLED with nothing open
	EventCanary   = "promotion.paused.canary"
	EventBreach   = "promotion.paused.breach"
)

// WebhookDelivery is one thing to tell one webhook.
type WebhookDelivery struct {
	ID             int64
	PromotionID    reward.PromotionID
	Event          string
	URL            string // the promotion's, as it was
	FailedAttempts int    // failed ones so far
	At             time.Time
}

// Reconciliations keeps the reports of reconciliations, and the restore mark.
type Reconciliations interface {
	// ReconciliationSave writes a report, whole, under its id, in the place of
	// an earlier one. Its bytes come back as they were.
	ReconciliationSave(ctx context.Context, r Reconciliation) error
	// ReconciliationGet returns a report; CodeReconciliationNotFound.
	ReconciliationGet(ctx context.Context, id int64) (Reconciliation, error)
	// RestoreMarkSet notes that the database was restored from a backup: money
	// may have moved that its rows do not know of. An earlier time than the one
	// that is noted changes nothing.
	RestoreMarkSet(ctx context.Context, at time.Time) error
	// RestoreMark returns when that was last noted; zero = never.
	RestoreMark(ctx context.Context) (time.Time, error)
}

// Reconciliation is a report, as JSON.
type Reconciliation struct {
	ID     int64
	Report []byte
	At     time.Time
}
