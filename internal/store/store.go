// Package store has the parameters and results of the database, which is the source of
// truth for promotions, payouts, their counts, coupons, dead letters, uploads, Kafka
// offsets and leases. Package rows has the methods; the drivers are in postgres and
// sqlite. Package storetest holds the conformance suite that both pass.
package store

import (
	"math"
	"time"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
)

// BatchMax limits the number of items in a batch.
const BatchMax = 1000

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
	// page. Name, CreatedAt and StartsAt are needed if Sort orders by them.
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
	StartsAt  time.Time
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
	// SortStarts has only DRAFTs with a StartsAt, the soonest first.
	SortStarts PromotionSort = "startsAt"
)

// PromotionMoveParams is a change of status.
type PromotionMoveParams struct {
	ID   reward.PromotionID
	From []reward.PromotionStatus // the statuses that allow the change
	To   reward.PromotionStatus
	// By and Reason become PausedBy and PauseReason if To is PAUSED. By becomes
	// CancelledBy if To is CANCELLED.
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
	rules.Row
	Answers []reward.Attempt // the attempts: oldest first, at most UserAnswersMax
}

// WithAnswers returns the payouts of list in the same order, each with its
// attempts.
func WithAnswers(list []rules.Row, attempts map[PayoutID][]reward.Attempt) []UserPayout {
	out := make([]UserPayout, len(list))
	for i, p := range list {
		out[i] = UserPayout{Row: p, Answers: attempts[PayoutID{PromotionID: p.PromotionID, TargetID: p.TargetID}]}
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

// SharedKeys are the payouts of a promotion whose transaction key another one has, too,
// except those that a person has settled: one transfer may have paid several.
type SharedKeys struct {
	Payouts, Keys int64
	// Key is one of the keys, and First and Last are two targets that have it.
	Key         string
	First, Last reward.TargetID
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

// Upload is one file of targets. While it is open, it keeps its promotion from completing
// until its lease expires by the clock of the database.
type Upload struct {
	ID          int64
	PromotionID reward.PromotionID
	LeasedUntil time.Time
	CreatedAt   time.Time
	CreatedBy   string    // who sent it; "" means that nobody recorded it
	FileName    string    // may be empty
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
	// Header has the names of the file's columns. UploadClose stores it. None if they are
	// too long, or not known.
	Header []string
}

// LineError says why a line of an upload was rejected.
type LineError struct {
	Line   int64 // counted from 1, including the header
	Code   string
	Detail string
	Cells  []string // of the file; none if they are too long, or not known
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

// Lease is the result of LeaseTake. A lease gives a name to one owner at a time: an
// instance leases its own name, and parts of it the names of what they must own alone.
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

// Instance is what a running process of Largesse reports about itself. Its times come
// from the clock of the database.
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

// The events of webhooks.
const (
	EventFinished = "promotion.finished" // COMPLETED, or CANCELLED with FinishedAt
	EventCanary   = "promotion.paused.canary"
	EventBreach   = "promotion.paused.breach"
	EventApproval = "promotion.paused.approval" // for endpoints only
)

// WebhookDelivery is one event to deliver to the webhook of a promotion. It is recorded in
// the same transaction as its cause.
type WebhookDelivery struct {
	ID             int64
	PromotionID    reward.PromotionID
	Event          string
	URL            string // the promotion's URL when the event was recorded
	FailedAttempts int
	At             time.Time // when the event was recorded
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
