// Package reward holds what Largesse talks about: promotions, payouts, their
// states, the messages that carry them and the kinds of error. It is pure: no
// I/O, no clock, no other room of the project.
package reward

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// MaxRetries is how many retries follow a first call when nothing else is
// set, so a payout has at most MaxRetries+1 counted answers. [MAX_RETRY_COUNT]
const MaxRetries = 5

// Bounds of a promotion's fields.
const (
	PromotionNameMax        = 200 // characters
	PromotionVoucherCodeMax = 200 // characters
	PromotionMaxRetriesMax  = 20
	PromotionConsumersMax   = 256 // per instance
)

// PromotionID names a promotion: a positive 63-bit integer, given by an
// upstream system or made here.
type PromotionID int64

// SummaryID groups payouts of a promotion for reporting; 0 means none.
type SummaryID int64

// TargetID names who is paid within a promotion: 0 … 2^63−1.
type TargetID int64

func (id PromotionID) String() string { return strconv.FormatInt(int64(id), 10) }
func (id SummaryID) String() string   { return strconv.FormatInt(int64(id), 10) }
func (id TargetID) String() string    { return strconv.FormatInt(int64(id), 10) }

// ParseTargetID reads the canonical decimal form (no sign, no leading zeros,
// no spaces), so that one target has one spelling.
func ParseTargetID(s string) (TargetID, error) {
	n, err := parseCanonical(s, 0)
	if err != nil {
		return 0, fmt.Errorf("target id %w", err)
	}
	return TargetID(n), nil
}

// ParsePromotionID reads the canonical decimal form of a positive id.
func ParsePromotionID(s string) (PromotionID, error) {
	n, err := parseCanonical(s, 1)
	if err != nil {
		return 0, fmt.Errorf("promotion id %w", err)
	}
	return PromotionID(n), nil
}

func parseCanonical(s string, lowest int64) (int64, error) {
	if s == "" {
		return 0, fmt.Errorf("is missing")
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < lowest || strconv.FormatInt(n, 10) != s {
		return 0, fmt.Errorf("%s is not a whole number from %d to %d in its shortest form", Quote(s), lowest, int64(math.MaxInt64))
	}
	return n, nil
}

// Quote shows hostile text in an error: quoted, and cut after 64 bytes.
func Quote(s string) string {
	const most = 64
	if len(s) > most {
		return strconv.Quote(s[:most]) + "…"
	}
	return strconv.Quote(s)
}

// Amount is money in minor units (or points).
type Amount int64

// PromotionType says what a promotion gives.
type PromotionType string

// The types. An id belongs to one of them for good.
const (
	Point   PromotionType = "POINT"
	Voucher PromotionType = "VOUCHER"
)

// PromotionTypes lists every type.
var PromotionTypes = []PromotionType{Point, Voucher}

// ParsePromotionType reads a type in either case.
func ParsePromotionType(s string) (PromotionType, error) {
	switch t := PromotionType(strings.ToUpper(s)); t {
	case Point, Voucher:
		return t, nil
	}
	return "", fmt.Errorf("promotion type %s is neither POINT nor VOUCHER", Quote(s))
}

// PromotionStatus is where a promotion stands.
type PromotionStatus string

// The statuses. COMPLETED goes back to RUNNING when work arrives.
const (
	Draft              PromotionStatus = "DRAFT"
	Running            PromotionStatus = "RUNNING"
	Paused             PromotionStatus = "PAUSED"
	Completed          PromotionStatus = "COMPLETED"
	PromotionCancelled PromotionStatus = "CANCELLED"
)

// State is where a payout stands.
//
//	READY → QUEUED → SUCCEEDED | FAILED | RETRYING | UNKNOWN | CANCELLED
//	RETRYING → QUEUED; QUEUED → READY when a dispatch is taken back
//
// SUCCEEDED absorbs: a provider's yes overwrites every other state.
type State int16

// The states, in the order counts are kept; the first four are open.
const (
	Ready     State = iota // waits in the database
	Queued                 // dispatched: in the stream or in somebody's hand
	Retrying               // waits for its next call
	Unknown                // looked up at the provider until it is known
	Succeeded              // the provider paid
	Failed                 // known not paid
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

// JSONName returns the state's name as the keys of JSON objects write it, in
// lower case.
func (s State) JSONName() string { return strings.ToLower(s.String()) }

// Final says that nothing of ours will change the state again, but for a late
// yes of the provider or an operator.
func (s State) Final() bool { return s == Succeeded || s == Failed || s == Cancelled }

// ParseState reads a state's name in either case.
func ParseState(s string) (State, error) {
	for i, name := range stateNames {
		if strings.EqualFold(s, name) {
			return State(i), nil
		}
	}
	return 0, fmt.Errorf("state %s is none of %s", Quote(s), strings.Join(stateNames[:], ", "))
}

// Promotion is a campaign that pays its targets.
type Promotion struct {
	ID     PromotionID
	Name   string
	Type   PromotionType
	Status PromotionStatus
	// Amount is what a target gets whose record names none; 0 = must be named.
	Amount      Amount
	VoucherCode string // default for targets of a VOUCHER promotion
	Currency    string
	MaxRetries  int // retries after the first call
	// ConsumersPerInstance is how many consumers an instance keeps for it; 0 =
	// by its size.
	ConsumersPerInstance int
	// RatePerSecond bounds the calls of all instances for it; 0 = no bound of
	// its own.
	RatePerSecond int
	// Weight is its share of the calls beside others: twice the weight, twice
	// the calls. From 1.
	Weight int
	// MaxAmount is the budget: what is paid, and what may have been, never
	// passes it; 0 = none.
	MaxAmount Amount
	// Canary, when Targets is above 0, pays so many first and judges them.
	Canary Canary
	// StartsAt starts a DRAFT by itself; zero = by hand.
	StartsAt time.Time
	// WebhookURL is told when it is finished or was paused by Largesse; "" =
	// nobody.
	WebhookURL string
	// CreatedBy and ApprovedBy say who; "" = nobody (yet).
	CreatedBy, ApprovedBy string
	// Registered says that Kafka made this DRAFT and nobody has completed it
	// over the API yet.
	Registered bool
	// ExpectedCount is what the started event announced; nil when there was
	// none (files).
	ExpectedCount *int64
	// Closed says that no more targets will come.
	Closed      bool
	PauseReason string
	CreatedAt   time.Time
	StartedAt   time.Time // zero until it starts
	FinishedAt  time.Time // zero while open
	// LastDispatchedAt and StreamGone decide when the stream may be destroyed
	// (design §2, Cleanup).
	LastDispatchedAt time.Time
	StreamGone       bool
}

// Canary is the first payouts of a promotion, whose outcomes decide whether the
// others follow.
type Canary struct {
	Targets        int64   // how many; 0 = no canary
	MaxFailureRate float64 // share of FAILED among them above which it pauses, 0 to 1
	// Dispatched counts the payouts that were ever dispatched while it had not
	// been judged; 0 without a canary.
	Dispatched int64
	// Judged says that the others may follow: the canary was good, or somebody
	// has resumed the promotion after a bad one.
	Judged bool
}

// Counts holds how many payouts of a promotion stand in each state, and what
// they are worth. The counts always add up to the targets known.
type Counts struct {
	Payouts [StateCount]int64
	Amounts [StateCount]Amount
	// Attempts is how many provider answers were counted.
	Attempts int64
}

// Total is the number of targets known.
func (c *Counts) Total() int64 {
	var n int64
	for _, v := range c.Payouts {
		n += v
	}
	return n
}

// AmountTotal is what all targets known are worth.
func (c *Counts) AmountTotal() Amount {
	var n Amount
	for _, v := range c.Amounts {
		n += v
	}
	return n
}

// Undecided is how many payouts still hold up the promotion's completion:
// READY, QUEUED and RETRYING. UNKNOWN does not.
func (c *Counts) Undecided() int64 {
	return c.Payouts[Ready] + c.Payouts[Queued] + c.Payouts[Retrying]
}

// Summary is the counts of one promotionSummaryId; ID 0 is the whole
// promotion. [promotionSummaryId totals]
type Summary struct {
	PromotionID PromotionID
	ID          SummaryID
	Counts
}

// Payout is one target's row. What will be sent to the provider is frozen in
// it before the first call. [Point/Voucher ResultEntity]
type Payout struct {
	PromotionID PromotionID
	TargetID    TargetID
	SummaryID   SummaryID
	UserID      string
	Amount      Amount
	VoucherCode string
	State       State
	// Dispatch is the number of the latest dispatch; it fences late writers.
	Dispatch int32
	// Attempts counts provider answers only.
	Attempts int32
	// MaybeCalled says that an earlier dispatch may have reached the provider
	// and left no final answer.
	MaybeCalled bool
	// Handovers counts, since the latest outcome, the holders that let go of
	// the payout without one: they died, hung, or failed on it.
	Handovers int32
	// DueAt is the time the open state turns on: READY since, QUEUED
	// (dispatched) since, RETRYING until, UNKNOWN: next look-up.
	DueAt             time.Time
	FirstDispatchedAt time.Time // zero before the first dispatch
	SettleFrom        time.Time // zero unless UNKNOWN was entered; design §2
	TransactionKey    string    // the provider's, once SUCCEEDED
	ErrorCode         string
	ErrorMessage      string
	UpdatedAt         time.Time
}

// Ref names one dispatch of one payout; the far side of every hand-over
// compares it.
type Ref struct {
	PromotionID PromotionID
	TargetID    TargetID
	Dispatch    int32
}

// Ref names the payout's latest dispatch.
func (p *Payout) Ref() Ref {
	return Ref{PromotionID: p.PromotionID, TargetID: p.TargetID, Dispatch: p.Dispatch}
}

// IdempotencyKey is the provider key of a payout: fixed, for every call ever
// made for it.
func IdempotencyKey(p PromotionID, t TargetID) string {
	return p.String() + ":" + t.String()
}

// AnswerClass is what a provider's answer, or the lack of one, means.
type AnswerClass string

// The classes of contract §6.
const (
	AnswerPaid      AnswerClass = "PAID"      // charged, now or before
	AnswerRefused   AnswerClass = "REFUSED"   // final: not charged by this call
	AnswerFailed    AnswerClass = "FAILED"    // 5xx: open-ended, retried
	AnswerUnknown   AnswerClass = "UNKNOWN"   // time-out, break after sending: looked up
	AnswerThrottled AnswerClass = "THROTTLED" // 429, 503: no attempt counted
	AnswerMisset    AnswerClass = "MISSET"    // our settings are wrong: the promotion pauses
	AnswerUnsent    AnswerClass = "UNSENT"    // nothing left this process

	// AnswerResolved is no answer: a person has settled an UNKNOWN payout.
	AnswerResolved AnswerClass = "RESOLVED"
)

// Attempt is one answer other than a first-time success, kept for ever.
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
	// Source is where it came from: a topic, or a stream key.
	Source    string
	Partition int32  // 0 for streams
	Offset    string // Kafka offset or stream entry id
	Key       []byte
	Value     []byte
	Reason    string // code, e.g. MALFORMED, TYPE_MISMATCH
	Detail    string
	At        time.Time
	Status    DeadLetterStatus
	SettledAt time.Time // zero while OPEN
	SettledBy string
}

// DeadLetterStatus is what has become of a dead letter.
type DeadLetterStatus string

// The statuses. Nothing goes back to OPEN: a replayed message that fails again
// is another dead letter.
const (
	DeadLetterOpen      DeadLetterStatus = "OPEN"
	DeadLetterReplayed  DeadLetterStatus = "REPLAYED"
	DeadLetterDiscarded DeadLetterStatus = "DISCARDED"
)
