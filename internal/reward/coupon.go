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

// The limits of a coupon template's fields.
const (
	TemplateNameMax     = 200 // characters
	TemplateQuantityMax = 1_000_000_000
	TemplatePerUserMax  = 100
	// TemplateValidMax is the longest time that a coupon can be valid.
	TemplateValidMax = 100 * 365 * 24 * time.Hour
	// TemplateHoldMax is the longest time that a coupon can be held.
	TemplateHoldMax = 30 * 24 * time.Hour
)

// TemplateID identifies a coupon template: a positive 63-bit integer from an
// upstream system or from Largesse.
type TemplateID int64

// CouponID identifies a coupon: a positive 63-bit integer from Largesse.
type CouponID int64

func (id TemplateID) String() string { return strconv.FormatInt(int64(id), 10) }
func (id CouponID) String() string   { return strconv.FormatInt(int64(id), 10) }

// ParseTemplateID parses the canonical decimal form of a positive ID.
func ParseTemplateID(s string) (TemplateID, error) { return parseID[TemplateID]("template ID", s, 1) }

// ParseCouponID parses the canonical decimal form of a positive ID.
func ParseCouponID(s string) (CouponID, error) { return parseID[CouponID]("coupon ID", s, 1) }

// UnmarshalJSON accepts a canonical integer, bare or as a string.
func (id *TemplateID) UnmarshalJSON(b []byte) (err error) {
	*id, err = ParseTemplateID(unquoteID(b))
	return err
}

// IssueMode says how a template's coupons are issued.
type IssueMode string

// The modes.
const (
	// ModeStream has a waiting line and issues exactly in its order.
	ModeStream IssueMode = "STREAM"
	// ModeKafka admits a request once the broker has stored it. The order is
	// not guaranteed.
	ModeKafka IssueMode = "KAFKA"
	// ModeSync issues under a lock and responds at once.
	ModeSync IssueMode = "SYNC"
)

// RedisFallback says what a template does during a Redis outage.
type RedisFallback string

// The values of RedisFallback.
const (
	FallbackDatabase RedisFallback = "DATABASE" // issues through the database
	FallbackWait     RedisFallback = "WAIT"     // responds 503 until Redis is available again
)

// IssuePath says where the requests of a template are handled.
type IssuePath string

// The paths.
const (
	PathGate     IssuePath = "GATE"
	PathDatabase IssuePath = "DATABASE"
)

// DrawState is the state of a template's draw.
type DrawState string

// The states, in order. A template without a draw has DrawNone.
const (
	DrawNone   DrawState = ""
	DrawOpen   DrawState = "OPEN"   // accepts entrants, from its From until the template opens
	DrawClosed DrawState = "CLOSED" // accepts no more; its entrants are settled in its order
	DrawDone   DrawState = "DONE"   // every entrant is settled
)

// Draw orders the users who request a coupon before a template opens.
type Draw struct {
	State DrawState
	From  time.Time
	// Seed is secret until the state is CLOSED. Its SHA-256 is public before
	// that.
	Seed []byte
	// List is the SHA-256 of the closed list of entrants; nil before.
	List []byte
}

// CouponTemplate is a limited stock of coupons.
type CouponTemplate struct {
	ID            TemplateID
	Name          string
	Metadata      Metadata
	Notes         string // what people write down about the template
	TotalQuantity int64
	// AwaitingQuantity is a quantity above TotalQuantity that replaces it if somebody
	// approves who is not among Authors: those who created or changed the template or
	// imported its codes. Zero means that nothing waits.
	AwaitingQuantity int64
	Authors          Authors
	PerUserLimit     int
	OpensAt          time.Time // zero: at once
	ClosesAt         time.Time // zero: never
	// ValidFor is how long a coupon is valid after its issue. Zero means
	// forever.
	ValidFor time.Duration
	// HoldFor is how long a new coupon is HELD for its user to confirm. Zero
	// means that coupons are ISSUED at once.
	HoldFor            time.Duration
	Mode               IssueMode
	ReissueAfterCancel bool
	WhenRedisAway      RedisFallback
	Codes              CodeStyle // never changes
	Draw               Draw
	CreatedAt          time.Time

	// Generation is the number of the gate's current load. A ticket of an
	// earlier generation is settled under this one, or not at all.
	Generation int64
	// Settled is the highest settled ticket. In STREAM mode, all lower tickets
	// are settled too.
	Settled int64
	// Version grows by one with each change that concerns the gate.
	Version int64
	// Live is the number of coupons that are not CANCELLED, at most
	// TotalQuantity.
	Live int64
	// IssuedTotal is the number of coupons ever issued.
	IssuedTotal int64
	// CodesImported is the number of imported codes, given or not. A code that returns to the
	// template counts once more, because it gets a new number, and CodesReturned counts it. Zero means that
	// codes are generated. The n-th coupon ever issued gets the n-th code.
	CodesImported, CodesReturned int64
	Path                         IssuePath
	// Epoch is the number of the latest issuer's term, and Owner is the
	// instance that runs it.
	Epoch int64
	Owner string
	// Fence is the highest token of the SYNC lock that has written.
	Fence int64
	// Base is the generation after which the present numbering of tickets
	// begins. In a gate of Base or an earlier generation, the numbers no longer
	// count: coupons were issued through the database meanwhile, or the line was
	// numbered again.
	Base int64
	// Granted is the number of all places granted to the gate, less those taken back.
	// The gate gives a ticket only for a granted place. Used counts those whose ticket
	// is settled, or whose user left the line. Grants numbers the changes of Granted.
	Granted, Used, Grants int64
	// Floor belongs to ModeKafka: a record of an earlier generation that is not
	// settled is void. The request has a ticket of a later generation.
	Floor int64
	// ArchivedAt is when the template was archived: nothing of it changes any more, and
	// its coupons are removed. Its counts stay. Zero means that it is not archived.
	ArchivedAt time.Time
}

// AwaitsApproval reports whether a higher quantity waits for somebody to approve it.
// AwaitingQuantity itself is not above TotalQuantity if an instance of an earlier
// version, which does not know it, has raised TotalQuantity.
func (t *CouponTemplate) AwaitsApproval() bool { return t.AwaitingQuantity > t.TotalQuantity }

// Promised returns the places that are set aside for the gate: nobody else gets them.
func (t *CouponTemplate) Promised() int64 { return t.Granted - t.Used }

// CodesLeft returns the number of imported codes that no coupon has. A code that its user
// may have seen is never given again. That of a coupon that was HELD until its end has
// returned.
func (t *CouponTemplate) CodesLeft() int64 { return max(t.CodesImported-t.IssuedTotal, 0) }

// LiveMax returns the number of live coupons that the template can reach:
// TotalQuantity, or fewer if the imported codes end before. Issuing a coupon
// does not change it. LiveMax less Live is the room for further coupons.
func (t *CouponTemplate) LiveMax() int64 {
	if t.CodesImported == 0 {
		return t.TotalQuantity
	}
	return min(t.TotalQuantity, t.Live+t.CodesLeft())
}

// CodesMissing returns the number of coupons of the quantity that cannot be
// issued, because no imported codes are left for them.
func (t *CouponTemplate) CodesMissing() int64 { return max(t.TotalQuantity-t.LiveMax(), 0) }

// CouponStatus is the state of a coupon.
type CouponStatus int16

// The statuses. Only CANCELLED returns a coupon to the stock. A HELD coupon
// becomes ISSUED when it is confirmed, and CANCELLED when its hold ends.
const (
	CouponIssued CouponStatus = iota
	CouponUsed
	CouponCancelled
	CouponExpired
	CouponHeld
)

var couponStatusNames = [...]string{"ISSUED", "USED", "CANCELLED", "EXPIRED", "HELD"}

// ParseCouponStatus parses a status's name in upper or lower case.
func ParseCouponStatus(s string) (CouponStatus, error) {
	for i, name := range couponStatusNames {
		if strings.EqualFold(s, name) {
			return CouponStatus(i), nil
		}
	}
	return 0, fmt.Errorf("status %s is none of %s", Quote(s), strings.Join(couponStatusNames[:], ", "))
}

func (s CouponStatus) String() string {
	if s < 0 || int(s) >= len(couponStatusNames) {
		return fmt.Sprintf("CouponStatus(%d)", int16(s))
	}
	return couponStatusNames[s]
}

// Coupon is one coupon of one user.
type Coupon struct {
	ID         CouponID
	Code       string
	TemplateID TemplateID
	UserID     string
	Generation int64
	Ticket     int64
	Status     CouponStatus
	IssuedAt   time.Time
	UsedAt     time.Time // zero: not used
	// CancelledAt is zero if the coupon is not cancelled. CancelReason is empty if a caller
	// cancelled it; CancelledBy is then their name, unless an earlier version did it.
	CancelledAt               time.Time
	CancelReason, CancelledBy string
	ExpiresAt                 time.Time // zero: never
	// HeldUntil is when the hold ends or ended, by the clock of the database.
	// It is zero if the coupon was never held, and once it is confirmed.
	HeldUntil time.Time
}

// ReasonHoldExpired is the CancelReason of a coupon that was not confirmed in
// time.
const ReasonHoldExpired = "HOLD_EXPIRED"

// The reasons for a rejection.
const (
	ReasonSoldOut   = "SOLD_OUT"
	ReasonUserLimit = "USER_LIMIT"
	ReasonNotDrawn  = "NOT_DRAWN"
	ReasonError     = "ERROR" // issuing failed repeatedly
	// ReasonLeft is for requests whose users have left the waiting line. Such a
	// request is no rejection for the user, but is stored as one.
	ReasonLeft = "LEFT"
	// ReasonPromised is for requests that a template on PathDatabase cannot serve:
	// the places left are promised to users in line at the gate. It is not stored.
	ReasonPromised = "PROMISED"
)

// IssueOutcome is how a request ended: with Coupon, or rejected for Reason if
// Coupon.ID is zero. ReasonLeft means that the user left the waiting line.
type IssueOutcome struct {
	TemplateID TemplateID
	UserID     string
	Generation int64
	Ticket     int64
	Coupon     Coupon
	Reason     string
	At         time.Time
}

// Issued reports whether there is a coupon.
func (o *IssueOutcome) Issued() bool { return o.Coupon.ID != 0 }

// Left reports whether the user left the waiting line.
func (o *IssueOutcome) Left() bool { return !o.Issued() && o.Reason == ReasonLeft }

// RequestID identifies the latest request of a user for a template:
// {templateId}:{userId}.
func RequestID(t TemplateID, user string) string { return t.String() + ":" + user }

// ParseRequestID splits a request ID at its first colon.
func ParseRequestID(s string) (TemplateID, string, error) {
	id, user, found := strings.Cut(s, ":")
	if !found {
		return 0, "", fmt.Errorf("request ID %s is not of the form {templateId}:{userId}", Quote(s))
	}
	t, err := ParseTemplateID(id)
	if err != nil {
		return 0, "", err
	}
	return t, user, CheckUserID(user)
}

// CheckUserID returns an error for text that cannot be a user ID. CheckNewUserID says which
// IDs come in.
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

// NewCouponCode returns an unguessable code: 26 letters and digits with 130
// random bits.
func NewCouponCode() string { return rand.Text() }

// CouponIssueEvent requests one coupon that the gate has promised. It is the
// value of a record of the coupon-issue topic.
type CouponIssueEvent struct {
	TemplateID TemplateID `json:"templateId"`
	UserID     string     `json:"userId"`
	Ticket     int64      `json:"ticket"`
	Generation int64      `json:"generation"`
	RequestID  string     `json:"requestId"`
}

// ParseCouponIssueEvent parses the value of a coupon-issue record. It accepts
// couponId for templateId and username for userId, which other systems use. A
// record without a generation is no promise of a gate, whatever its ticket: it
// is a new request.
func ParseCouponIssueEvent(value []byte) (CouponIssueEvent, error) {
	var m struct {
		CouponIssueEvent
		TemplateID *TemplateID `json:"templateId"`
		CouponID   *TemplateID `json:"couponId"`
		Username   string      `json:"username"`
	}
	if err := decode(value, &m, true); err != nil {
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
	check := CheckUserID
	if out.Generation == 0 {
		check = CheckNewUserID
	}
	if err := check(out.UserID); err != nil {
		return CouponIssueEvent{}, err
	}
	if out.Ticket < 0 || out.Generation < 0 || out.Ticket == 0 && out.Generation > 0 {
		return CouponIssueEvent{}, fmt.Errorf("ticket %d and generation %d are not a gate's: set both above 0, or omit the generation", out.Ticket, out.Generation)
	}
	out.RequestID = RequestID(out.TemplateID, out.UserID)
	return out, nil
}

// JSON returns the event as a record's value.
func (e *CouponIssueEvent) JSON() []byte {
	b, err := json.Marshal(e)
	if err != nil { // numbers and strings always encode
		panic(err)
	}
	return b
}

// CheckTemplate returns the fields of a template that are invalid.
func CheckTemplate(t *CouponTemplate) []FieldError {
	var errs []FieldError
	wrong := func(field, format string, args ...any) {
		errs = append(errs, FieldError{Field: field, Detail: fmt.Sprintf(format, args...)})
	}
	switch n := len([]rune(t.Name)); {
	case IsBlank(t.Name):
		wrong("name", "is missing")
	case n > TemplateNameMax:
		wrong("name", "has %d characters, more than %d", n, TemplateNameMax)
	default:
		if err := CheckLabel(t.Name); err != nil {
			wrong("name", "%v", err)
		}
	}
	errs = append(errs, CheckMetadata(t.Metadata)...)
	errs = append(errs, CheckNotes(t.Notes)...)
	if t.TotalQuantity < 1 || t.TotalQuantity > TemplateQuantityMax {
		wrong("totalQuantity", "%d is not from 1 to %d", t.TotalQuantity, TemplateQuantityMax)
	}
	if t.PerUserLimit < 1 || t.PerUserLimit > TemplatePerUserMax {
		wrong("perUserLimit", "%d is not from 1 to %d", t.PerUserLimit, TemplatePerUserMax)
	}
	if t.ValidFor < 0 || t.ValidFor > TemplateValidMax || t.ValidFor%time.Second != 0 {
		wrong("validForSeconds", "is not from 1 to %d (absent: for ever)", int64(math.Floor(TemplateValidMax.Seconds())))
	}
	switch {
	case t.HoldFor < 0 || t.HoldFor > TemplateHoldMax || t.HoldFor%time.Second != 0:
		wrong("holdSeconds", "is not from 1 to %d (absent: coupons are not held)", int64(TemplateHoldMax.Seconds()))
	case t.ValidFor > 0 && t.HoldFor > t.ValidFor:
		wrong("holdSeconds", "is above validForSeconds: a coupon would expire while it is held")
	}
	errs = append(errs, checkCodes(&t.Codes, t.TotalQuantity)...)
	if !t.OpensAt.IsZero() && !t.ClosesAt.IsZero() && !t.ClosesAt.After(t.OpensAt) {
		wrong("closesAt", "is not after opensAt")
	}
	if t.Draw.State != DrawNone && (t.OpensAt.IsZero() || !t.Draw.From.Before(t.OpensAt)) {
		wrong("draw", "from has to be before opensAt, which has to be set")
	}
	return errs
}

// CouponHolding is what a gate must know about the coupons of a user.
type CouponHolding struct {
	UserID string
	// Held is the number of coupons that count against PerUserLimit: the live ones
	// and, if the template has ReissueAfterCancel false, the cancelled ones.
	Held     int
	CouponID CouponID // the latest that is not cancelled; 0 = none
}

// LineTicket is the request of a user in line: its ticket, and the generation of the gate
// that admitted or copied it.
type LineTicket struct {
	UserID     string
	Ticket     int64
	Generation int64
}
