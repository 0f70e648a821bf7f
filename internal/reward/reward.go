// Package reward defines the basic types of Largesse: promotions, payouts and
// coupons, their states, their messages and the kinds of errors. It is pure: it
// does no I/O, reads no clock and imports no other package of the project.
package reward

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// MaxRetries is the default number of retries after the first call.
const MaxRetries = 5

// The limits of a promotion's fields.
const (
	PromotionNameMax        = 200 // characters
	PromotionVoucherCodeMax = 200 // characters
	PromotionMaxRetriesMax  = 20
	PromotionConsumersMax   = 256 // per instance
)

// PromotionID identifies a promotion: a positive 63-bit integer.
type PromotionID int64

// SummaryID groups payouts of a promotion for reporting. Zero means none.
type SummaryID int64

// TargetID identifies a target within a promotion: 0 to 2^63−1.
type TargetID int64

func (id PromotionID) String() string { return strconv.FormatInt(int64(id), 10) }
func (id SummaryID) String() string   { return strconv.FormatInt(int64(id), 10) }
func (id TargetID) String() string    { return strconv.FormatInt(int64(id), 10) }

// ParseTargetID parses the canonical decimal form (no sign, no leading zeros,
// no spaces), so that each target has one spelling.
func ParseTargetID(s string) (TargetID, error) { return parseID[TargetID]("target ID", s, 0) }

// ParsePromotionID parses the canonical decimal form of a positive ID.
func ParsePromotionID(s string) (PromotionID, error) {
	return parseID[PromotionID]("promotion ID", s, 1)
}

func parseID[ID ~int64](what, s string, lowest int64) (ID, error) {
	if s == "" {
		return 0, fmt.Errorf("%s is missing", what)
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < lowest || strconv.FormatInt(n, 10) != s {
		return 0, fmt.Errorf("%s %s is not a whole number from %d to %d without leading zeros", what, Quote(s), lowest, int64(math.MaxInt64))
	}
	return ID(n), nil
}

// Quote makes external text safe for an error: quoted, and cut after 64 bytes.
func Quote(s string) string {
	const most = 64
	if len(s) > most {
		return strconv.Quote(s[:most]) + "…"
	}
	return strconv.Quote(s)
}

// Amount is an amount of money in minor units, or of points.
type Amount int64

// PromotionType says what a promotion gives.
type PromotionType string

// The types. An ID belongs to one type permanently.
const (
	Point   PromotionType = "POINT"
	Voucher PromotionType = "VOUCHER"
)

// ParsePromotionType parses a type in upper or lower case.
func ParsePromotionType(s string) (PromotionType, error) {
	switch t := PromotionType(strings.ToUpper(s)); t {
	case Point, Voucher:
		return t, nil
	}
	return "", fmt.Errorf("promotion type %s is neither POINT nor VOUCHER", Quote(s))
}

// PromotionStatus is the state of a promotion.
type PromotionStatus string

// The statuses. A COMPLETED promotion returns to RUNNING when it gets work.
const (
	Draft              PromotionStatus = "DRAFT"
	Running            PromotionStatus = "RUNNING"
	Paused             PromotionStatus = "PAUSED"
	Completed          PromotionStatus = "COMPLETED"
	PromotionCancelled PromotionStatus = "CANCELLED"
)

// Final reports whether the status is COMPLETED or CANCELLED.
func (s PromotionStatus) Final() bool { return s == Completed || s == PromotionCancelled }

// State is the state of a payout.
//
// READY → QUEUED → SUCCEEDED | FAILED | RETRYING | UNKNOWN | CANCELLED
// RETRYING → QUEUED; QUEUED → READY when a dispatch is returned
//
// SUCCEEDED is absorbing: a confirmation from the provider overwrites every
// other state.
type State int16

// The states, in the order of Counts. The first four are open.
const (
	Ready     State = iota // waits in the database
	Queued                 // dispatched: in the stream or pending at a consumer
	Retrying               // waits for its next call
	Unknown                // looked up until the outcome is known
	Succeeded              // the provider paid
	Failed                 // known to be unpaid
	Cancelled              // not paid, because its promotion was cancelled
	StateCount
)

var stateNames = [StateCount]string{"READY", "QUEUED", "RETRYING", "UNKNOWN", "SUCCEEDED", "FAILED", "CANCELLED"}

func (s State) String() string {
	if s < 0 || s >= StateCount {
		return fmt.Sprintf("State(%d)", int16(s))
	}
	return stateNames[s]
}

// JSONName returns the state's name in lower case, as keys of JSON objects.
func (s State) JSONName() string { return strings.ToLower(s.String()) }

// Final reports whether Largesse no longer changes the state. Only a late
// confirmation from the provider or an operator does.
func (s State) Final() bool { return s == Succeeded || s == Failed || s == Cancelled }

// ParseState parses a state's name in upper or lower case.
func ParseState(s string) (State, error) {
	for i, name := range stateNames {
		if strings.EqualFold(s, name) {
			return State(i), nil
		}
	}
	return 0, fmt.Errorf("state %s is none of %s", Quote(s), strings.Join(stateNames[:], ", "))
}

// Promotion is one run that pays its targets.
type Promotion struct {
	ID     PromotionID
	Name   string
	Type   PromotionType
	Status PromotionStatus
	// Amount is the amount of a target whose record has none. Zero means that
	// each record must have one.
	Amount      Amount
	VoucherCode string // default for targets of a VOUCHER promotion
	Currency    string
	MaxRetries  int // retries after the first call
	// ConsumersPerInstance; zero means that the number of targets decides.
	ConsumersPerInstance int
	// RatePerSecond limits the calls of all instances; zero means no limit.
	RatePerSecond int
	// Weight is the share of the calls relative to other promotions, at least 1.
	Weight int
	// MaxAmount limits what is paid or may have been paid; zero means no budget.
	MaxAmount Amount
	// Canary pays some targets first, if its Targets is above zero.
	Canary Canary
	// StartsAt is when a DRAFT starts automatically; zero means manually.
	StartsAt time.Time
	// EndsAt is when the promotion stops paying: from then on no payout is dispatched or
	// charged, and one that has payouts left is paused. Zero means never.
	EndsAt time.Time
	// WebhookURL gets a notification when the promotion finishes or Largesse
	// pauses it; "" means none.
	WebhookURL string
	// Metadata is read for single promotions and for pages of the API. It is empty
	// in the lists of running promotions, which are read often.
	Metadata Metadata
	// Notes are what people write down about the promotion. They are read like Metadata.
	Notes string
	// Version counts the changes of the settings, from 1.
	Version int64
	// CreatedBy and ApprovedBy name persons; "" means none so far.
	CreatedBy, ApprovedBy string
	// Approval says which targets were approved.
	Approval Approval
	// RejectedBy refused to approve the promotion for RejectReason. Both are empty
	// if nobody did, or if the promotion has changed since.
	RejectedBy, RejectReason string
	// Revision counts the changes that an approval is about: new fields, new
	// authors, approvals and rejections.
	Revision int64
	// AskedRevision is the Revision at which webhook endpoints heard that the promotion waits
	// for an approval; 0 means that they never did.
	AskedRevision int64
	// Registered reports whether a Kafka record created this DRAFT and no API
	// call has completed it.
	Registered bool
	// ExpectedCount is the number of targets in the started event; nil without one.
	ExpectedCount *int64
	// Closed reports whether no more targets will come.
	Closed bool
	// PausedBy is the person who paused a PAUSED promotion; "" if Largesse did.
	PausedBy, PauseReason string
	PausedAt              time.Time // zero unless PAUSED
	// CancelledBy is the person who cancelled a CANCELLED promotion.
	CancelledBy string
	CancelledAt time.Time // zero unless CANCELLED
	CreatedAt   time.Time
	StartedAt   time.Time // zero before the start
	FinishedAt  time.Time // zero while open
	// ArchivedAt is when the promotion was archived: it takes no targets any more, and
	// its payouts are removed. Its counts stay. Zero means that it is not archived.
	ArchivedAt time.Time
	// LastDispatchedAt and StreamDestroyed decide when the stream may be destroyed:
	// only when the last dispatch is older than the dispatch horizon
	// (money.timeout plus the lease).
	LastDispatchedAt time.Time
	StreamDestroyed  bool
}

// Approval says which targets of a promotion were approved. Targets are saved in
// rounds. An approval covers all targets that exist, and begins the next round. So
// a target that is saved later is not approved, whatever its ID.
type Approval struct {
	Round  int32 // of targets that are saved now
	Rounds int32 // targets of rounds below it are approved; 0 means none
	// Unvalued is above the latest round that has a target without an amount; 0 means
	// that there is none.
	Unvalued int32
	Amount   Amount // of the approved targets
	Count    int64  // of the approved targets
	// Granted is the worth up to which approval.above-per-day asks for no approval; nil
	// before the promotion starts, and while only Kafka records have filled it.
	Granted *Amount
}

// Covers reports whether a target of a round is approved.
func (a Approval) Covers(round int32) bool { return round < a.Rounds }

// Canary is the first payouts. Their outcomes decide whether the others follow.
type Canary struct {
	Targets        int64   // number of payouts; 0: no canary
	MaxFailureRate float64 // share of FAILED among them above which it pauses, 0 to 1
	// Dispatched counts the payouts that were dispatched before the judgement.
	Dispatched int64
	// Judged reports whether the other payouts may follow: the canary
	// succeeded, or an operator resumed the promotion after a failed one.
	Judged bool
}

// Counts holds the number of a promotion's payouts in each state, and their
// amounts. The numbers always add up to the known targets.
type Counts struct {
	Payouts [StateCount]int64
	Amounts [StateCount]Amount
	// Attempts is the number of counted provider responses.
	Attempts int64
}

// Total returns the number of known targets.
func (c *Counts) Total() int64 {
	var n int64
	for _, v := range c.Payouts {
		n += v
	}
	return n
}

// AmountTotal returns the amount of all known targets.
func (c *Counts) AmountTotal() Amount {
	var n Amount
	for _, v := range c.Amounts {
		n += v
	}
	return n
}

// Undecided returns the number of payouts that block the promotion's
// completion: READY, QUEUED and RETRYING. UNKNOWN does not block it.
func (c *Counts) Undecided() int64 {
	return c.Payouts[Ready] + c.Payouts[Queued] + c.Payouts[Retrying]
}

// Summary is the counts of one promotionSummaryId; ID 0 is the whole promotion.
type Summary struct {
	PromotionID PromotionID
	ID          SummaryID
	Counts
}

// Payout is the row of one target. Its charge is fixed before the first call.
type Payout struct {
	PromotionID PromotionID
	TargetID    TargetID
	SummaryID   SummaryID
	UserID      string
	Amount      Amount
	VoucherCode string
	State       State
	// Dispatch is the number of the latest dispatch. It fences late writers.
	Dispatch int32
	// Attempts counts the outcomes "paid", "refused" and "failed" (5xx) of the
	// dispatches. A retry of a FAILED payout sets it to 0.
	Attempts int32
	// MaybeCalled reports whether an earlier dispatch may have reached the
	// provider without a final response.
	MaybeCalled bool
	// FailedDeliveries counts the failed deliveries since the latest outcome.
	FailedDeliveries int32
	// DueAt depends on the open state: READY and QUEUED: since when; RETRYING:
	// time of the next call; UNKNOWN: time of the next lookup.
	DueAt             time.Time
	FirstDispatchedAt time.Time // zero before the first dispatch
	// SettleFrom is one lease after the payout last became UNKNOWN; zero if it
	// never did. No earlier dispatch sends a charge after it. A lookup proves
	// "not charged" only if it begins money.settle-after later.
	SettleFrom     time.Time
	TransactionKey string // the provider's, if SUCCEEDED
	ErrorCode      string
	ErrorMessage   string
	UpdatedAt      time.Time
	// Trace names a span of a sampled trace, as the header traceparent does, or is "".
	Trace string
}

// Ref identifies one dispatch of one payout. Every change compares it.
type Ref struct {
	PromotionID PromotionID
	TargetID    TargetID
	Dispatch    int32
}

// Ref names the payout's latest dispatch.
func (p *Payout) Ref() Ref {
	return Ref{PromotionID: p.PromotionID, TargetID: p.TargetID, Dispatch: p.Dispatch}
}

// IdempotencyKey returns the provider's key of a payout, the same for every call.
func IdempotencyKey(p PromotionID, t TargetID) string {
	return p.String() + ":" + t.String()
}

// AnswerClass classifies a provider's response, or the lack of one.
type AnswerClass string

// The classes.
const (
	AnswerPaid          AnswerClass = "PAID"      // charged, now or earlier
	AnswerRefused       AnswerClass = "REFUSED"   // final: this call charged nothing
	AnswerFailed        AnswerClass = "FAILED"    // 5xx: counts an attempt, retried
	AnswerUnknown       AnswerClass = "UNKNOWN"   // timeout, or connection lost after sending: looked up
	AnswerThrottled     AnswerClass = "THROTTLED" // 429, 503: counts no attempt
	AnswerMisconfigured AnswerClass = "MISSET"    // wrong settings: the promotion pauses
	AnswerNotSent       AnswerClass = "UNSENT"    // nothing was sent

	// AnswerResolved is no response: an operator has settled an UNKNOWN payout.
	AnswerResolved AnswerClass = "RESOLVED"
)

// Attempt records a charge that was refused, failed or had no response, a
// throttled call that the consumer does not repeat, or how a person resolved the
// payout. A charge that is answered "paid" leaves none. An Attempt is stored
// permanently.
type Attempt struct {
	Dispatch int32
	At       time.Time
	Class    AnswerClass
	Code     string
	Message  string
}

// DeadLetter is a message that could not be read or processed, with its bytes.
type DeadLetter struct {
	ID int64
	// Source is the origin: a topic, or the key of a stream.
	Source    string
	Partition int32  // 0 for streams
	Offset    string // Kafka offset, or ID of a stream entry
	// Log identifies the log that Offset is in: a topic that was deleted and
	// created again has another one. It is empty for streams.
	Log string
	Key []byte
	// Value is the beginning of the value, or all of it: see DeadLetterKeptMax. A list may
	// read less.
	Value []byte
	// ValueLength is the length of the whole value in bytes. It is set by reads.
	ValueLength int64
	Reason      string // code, e.g. MALFORMED, TYPE_MISMATCH
	Detail      string
	At          time.Time
	Status      DeadLetterStatus
	SettledAt   time.Time // zero while OPEN
	SettledBy   string
}

// DeadLetterKeptMax is how much is kept of the value of a dead letter, in bytes. No message
// is longer, so a longer value was never one.
const DeadLetterKeptMax = MessageMax

// DeadLetterStatus is the state of a dead letter.
type DeadLetterStatus string

// The statuses. No dead letter becomes OPEN again: a replayed message that
// fails again is another dead letter.
const (
	DeadLetterOpen      DeadLetterStatus = "OPEN"
	DeadLetterReplayed  DeadLetterStatus = "REPLAYED"
	DeadLetterDiscarded DeadLetterStatus = "DISCARDED"
)
