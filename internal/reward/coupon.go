package reward

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Bounds of a coupon template's fields.
const (
	TemplateNameMax     = 200 // characters
	TemplateQuantityMax = 1_000_000_000
	TemplatePerUserMax  = 100
	// TemplateValidMax is the longest a coupon can be valid.
	TemplateValidMax = 100 * 365 * 24 * time.Hour
)

// TemplateID names a coupon template: a positive 63-bit integer, given by an
// upstream system or made here.
type TemplateID int64

// CouponID names a coupon: a positive 63-bit integer, made here.
type CouponID int64

func (id TemplateID) String() string { return strconv.FormatInt(int64(id), 10) }
func (id CouponID) String() string   { return strconv.FormatInt(int64(id), 10) }

// ParseTemplateID reads the canonical decimal form of a positive id.
func ParseTemplateID(s string) (TemplateID, error) {
	n, err := parseCanonical(s, 1)
	if err != nil {
		return 0, fmt.Errorf("template id %w", err)
	}
	return TemplateID(n), nil
}

// ParseCouponID reads the canonical decimal form of a positive id.
func ParseCouponID(s string) (CouponID, error) {
	n, err := parseCanonical(s, 1)
	if err != nil {
		return 0, fmt.Errorf("coupon id %w", err)
	}
	return CouponID(n), nil
}

// UnmarshalJSON accepts a canonical whole number, bare or as a string.
func (id *TemplateID) UnmarshalJSON(b []byte) error {
	n, err := ParseTemplateID(unquoteID(b))
	*id = n
	return err
}

// IssueMode is how a template's coupons are issued.
type IssueMode string

// The modes.
const (
	// ModeStream has a waiting line and issues exactly in its order.
	ModeStream IssueMode = "STREAM"
	// ModeKafka accepts what the broker has; order is not promised.
	ModeKafka IssueMode = "KAFKA"
	// ModeSync issues under a lock and answers at once.
	ModeSync IssueMode = "SYNC"
)

// ParseIssueMode reads a mode in either case.
func ParseIssueMode(s string) (IssueMode, error) {
	switch m := IssueMode(strings.ToUpper(s)); m {
	case ModeStream, ModeKafka, ModeSync:
		return m, nil
	}
	return "", fmt.Errorf("mode %s is none of STREAM, KAFKA, SYNC", Quote(s))
}

// RedisAway is what a template does while Redis is away.
type RedisAway string

// What there is to do.
const (
	AwayDatabase RedisAway = "DATABASE" // issues through rows
	AwayWait     RedisAway = "WAIT"     // answers 503 until it is back
)

// IssuePath is the way that askers of a template go.
type IssuePath string

// The ways.
const (
	PathGate     IssuePath = "GATE"
	PathDatabase IssuePath = "DATABASE"
)

// DrawState is where the draw of a template stands.
type DrawState string

// The states, in order. A template without a draw has DrawNone.
const (
	DrawNone   DrawState = ""
	DrawOpen   DrawState = "OPEN"   // takes entrants from its From until the template opens
	DrawClosed DrawState = "CLOSED" // takes no more; entrants are being decided in its order
	DrawDone   DrawState = "DONE"   // every entrant is decided
)

// Draw orders those who ask before a template opens.
type Draw struct {
	State DrawState
	From  time.Time
	// Seed is secret until the state is CLOSED; its SHA-256 is public before.
	Seed []byte
	// List is the SHA-256 of the closed list of entrants; nil before.
	List []byte
}

// CouponTemplate is a limited stock of coupons. [CouponTemplate, CouponPolicy]
type CouponTemplate struct {
	ID            TemplateID
	Name          string
	TotalQuantity int64
	PerUserLimit  int
	OpensAt       time.Time // zero = at once
	ClosesAt      time.Time // zero = never
	// ValidFor is how long a coupon is valid from its issue; 0 = for ever.
	ValidFor           time.Duration
	Mode               IssueMode
	ReissueAfterCancel bool
	WhenRedisAway      RedisAway
	Draw               Draw
	CreatedAt          time.Time

	// Generation is of the gate: what was promised under an earlier one is
	// settled under the present one or not at all.
	Generation int64
	// Settled is the highest ticket settled; in STREAM all below it are too.
	Settled int64
	// Version goes up by one with each change that the gate has to know of.
	Version int64
	// Live is how many coupons are not CANCELLED; at most TotalQuantity.
	Live int64
	// IssuedTotal is how many were ever issued.
	IssuedTotal int64
	Path        IssuePath
	// Epoch is the number of the latest lease of its issuer, Owner who has it.
	Epoch int64
	Owner string
	// Fence is the highest token of the SYNC lock that has written.
	Fence int64
	// EndsGeneration is the latest generation whose Ends are known: the end
	// offsets of the coupon-issue topic, by partition, after it was raised. A
	// record of an earlier generation at or behind them is void.
	EndsGeneration int64
	Ends           map[int32]int64
	// Moved is the latest way from the gate to PathDatabase.
	Moved Moved
}

// Moved tells which tickets were issued past the gate: those from Settled+1 to
// Until. The line of a gate of Generation has other people under these numbers.
type Moved struct {
	// Generation and Settled are those of the template when it left the gate,
	// Until its Settled when it came back.
	Generation, Settled, Until int64
}

// CouponStatus is where a coupon stands.
type CouponStatus int16

// The statuses. Only CANCELLED frees a place.
const (
	CouponIssued CouponStatus = iota
	CouponUsed
	CouponCancelled
	CouponExpired
)

var couponStatusNames = [...]string{"ISSUED", "USED", "CANCELLED", "EXPIRED"}

func (s CouponStatus) String() string {
	if s < 0 || int(s) >= len(couponStatusNames) {
		return fmt.Sprintf("CouponStatus(%d)", int16(s))
	}
	return couponStatusNames[s]
}

// Coupon is one coupon of one user. [Coupon, CouponIssue]
type Coupon struct {
	ID         CouponID
	Code       string
	TemplateID TemplateID
	UserID     string
	Generation int64
	Ticket     int64
	Status     CouponStatus
	IssuedAt   time.Time
	UsedAt     time.Time // zero = not used
	// CancelledAt is zero when it was not cancelled.
	CancelledAt time.Time
	ExpiresAt   time.Time // zero = never
}

// Reasons for a request that ended without a coupon.
const (
	ReasonSoldOut   = "SOLD_OUT"
	ReasonUserLimit = "USER_LIMIT"
	ReasonNotDrawn  = "NOT_DRAWN"
	ReasonError     = "ERROR" // it failed whenever it was tried
)

// IssueOutcome is how a request ended: with Coupon, or (Coupon.ID 0) rejected
// for Reason.
type IssueOutcome struct {
	TemplateID TemplateID
	UserID     string
	Generation int64
	Ticket     int64
	Coupon     Coupon
	Reason     string
	At         time.Time
}

// Issued says whether there is a coupon.
func (o *IssueOutcome) Issued() bool { return o.Coupon.ID != 0 }

// RequestID names the request of a user at a template, {templateId}:{userId};
// it means the latest one.
func RequestID(t TemplateID, user string) string { return t.String() + ":" + user }

// ParseRequestID splits a request id at its first colon.
func ParseRequestID(s string) (TemplateID, string, error) {
	id, user, found := strings.Cut(s, ":")
	if !found {
		return 0, "", fmt.Errorf("request id %s is no {templateId}:{userId}", Quote(s))
	}
	t, err := ParseTemplateID(id)
	if err != nil {
		return 0, "", err
	}
	return t, user, CheckUserID(user)
}

// CheckUserID holds what every user id must satisfy.
func CheckUserID(user string) error {
	switch {
	case user == "":
		return fmt.Errorf("userId is missing")
	case len(user) > UserIDMax:
		return fmt.Errorf("userId is longer than %d bytes", UserIDMax)
	}
	if err := CheckText(user); err != nil {
		return fmt.Errorf("userId %w", err)
	}
	return nil
}

// NewCouponCode makes a code that nobody can guess: 26 letters and digits with
// 130 random bits.
func NewCouponCode() string { return rand.Text() }

// CouponIssueEvent asks for one coupon that the gate has promised: the value of
// a record of the coupon-issue topic. [CouponIssueEvent]
type CouponIssueEvent struct {
	TemplateID TemplateID `json:"templateId"`
	UserID     string     `json:"userId"`
	Ticket     int64      `json:"ticket"`
	Generation int64      `json:"generation"`
	RequestID  string     `json:"requestId"`
}

// ParseCouponIssueEvent reads the value of a coupon-issue record. Of other
// systems it understands couponId for templateId and username for userId; what
// has no generation is no promise of a gate, whatever its ticket, and asks for a
// place like anybody else.
func ParseCouponIssueEvent(value []byte) (CouponIssueEvent, error) {
	var m struct {
		CouponIssueEvent
		TemplateID *TemplateID `json:"templateId"`
		CouponID   *TemplateID `json:"couponId"`
		Username   string      `json:"username"`
	}
	if err := decode(value, &m); err != nil {
		return CouponIssueEvent{}, err
	}
	out := m.CouponIssueEvent
	switch {
	case m.TemplateID != nil:
		out.TemplateID = *m.TemplateID
	case m.CouponID != nil:
		out.TemplateID = *m.CouponID
	default:
		return CouponIssueEvent{}, fmt.Errorf("templateId is missing")
	}
	if out.UserID == "" {
		out.UserID = m.Username
	}
	if err := CheckUserID(out.UserID); err != nil {
		return CouponIssueEvent{}, err
	}
	if out.Ticket < 0 || out.Generation < 0 || out.Ticket == 0 && out.Generation > 0 {
		return CouponIssueEvent{}, fmt.Errorf("ticket %d and generation %d are no promise of a gate: both are above 0, or there is no generation", out.Ticket, out.Generation)
	}
	out.RequestID = RequestID(out.TemplateID, out.UserID)
	return out, nil
}

// JSON is the event as a record's value.
func (e *CouponIssueEvent) JSON() []byte {
	b, err := json.Marshal(e)
	if err != nil { // numbers and strings always have a JSON form
		panic(err)
	}
	return b
}

// CheckTemplate holds what every template must satisfy, and names the fields
// that are wrong.
func CheckTemplate(t *CouponTemplate) []FieldError {
	var errs []FieldError
	wrong := func(field, format string, args ...any) {
		errs = append(errs, FieldError{Field: field, Detail: fmt.Sprintf(format, args...)})
	}
	switch n := len([]rune(t.Name)); {
	case strings.TrimSpace(t.Name) == "":
		wrong("name", "is missing")
	case n > TemplateNameMax:
		wrong("name", "has %d characters, more than %d", n, TemplateNameMax)
	default:
		if err := CheckText(t.Name); err != nil {
			wrong("name", "%v", err)
		}
	}
	if t.TotalQuantity < 1 || t.TotalQuantity > TemplateQuantityMax {
		wrong("totalQuantity", "%d is not from 1 to %d", t.TotalQuantity, TemplateQuantityMax)
	}
	if t.PerUserLimit < 1 || t.PerUserLimit > TemplatePerUserMax {
		wrong("perUserLimit", "%d is not from 1 to %d", t.PerUserLimit, TemplatePerUserMax)
	}
	if t.ValidFor < 0 || t.ValidFor > TemplateValidMax || t.ValidFor%time.Second != 0 {
		wrong("validForSeconds", "is not from 1 to %d (absent: for ever)", int64(math.Floor(TemplateValidMax.Seconds())))
	}
	if !t.OpensAt.IsZero() && !t.ClosesAt.IsZero() && !t.ClosesAt.After(t.OpensAt) {
		wrong("closesAt", "is not after opensAt")
	}
	if t.Draw.State != DrawNone && (t.OpensAt.IsZero() || !t.Draw.From.Before(t.OpensAt)) {
		wrong("draw", "from has to be before opensAt, which has to be set")
	}
	return errs
}
