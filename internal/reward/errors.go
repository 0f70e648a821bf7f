package reward

import (
	"errors"
	"fmt"
	"time"
)

// Kind is the kind of an error. The API maps each to one HTTP status.
type Kind string

// The kinds.
const (
	KindMalformed Kind = "malformed" // cannot be parsed (400)
	KindTimeout   Kind = "timeout"   // the request did not arrive in time (408)
	KindInvalid   Kind = "invalid"   // well formed, but invalid (422)
	KindNotFound  Kind = "not_found" // 404
	KindConflict  Kind = "conflict"  // the state does not allow it (409)
	// KindPrecondition means that If-Match names another version (412).
	KindPrecondition Kind = "precondition"
	KindUnavailable  Kind = "unavailable" // a required service is unavailable; try again (503)
	KindInternal     Kind = "internal"    // a fault of Largesse (500)
)

// Error is an error with a kind and a stable code for programs. Detail is for
// humans: what failed, where, and the remedy.
type Error struct {
	Kind   Kind
	Code   string // e.g. ILLEGAL_STATE
	Detail string
	Fields []FieldError
	// OpensAt is when the template opens, for CodeNotOpen; zero if unknown.
	OpensAt time.Time
	Err     error // cause; never sent to a client
}

// FieldError is an invalid field of a request.
type FieldError struct {
	Field  string
	Detail string
}

// InvalidFields returns the CodeInvalid error of a thing with invalid fields. Its detail says
// what is wrong with the first one.
func InvalidFields(what string, wrong []FieldError) *Error {
	more := ""
	if len(wrong) > 1 {
		more = fmt.Sprintf(" (and %d more)", len(wrong)-1)
	}
	return &Error{
		Kind: KindInvalid, Code: CodeInvalid, Fields: wrong,
		Detail: fmt.Sprintf("%s is invalid: %s %s%s", what, wrong[0].Field, wrong[0].Detail, more),
	}
}

func (e *Error) Error() string {
	if e.Err != nil {
		return fmt.Sprintf("%s: %s: %v", e.Code, e.Detail, e.Err)
	}
	return e.Code + ": " + e.Detail
}

func (e *Error) Unwrap() error { return e.Err }

// NewError returns an Error with a formatted detail.
func NewError(kind Kind, code, format string, args ...any) *Error {
	return &Error{Kind: kind, Code: code, Detail: fmt.Sprintf(format, args...)}
}

// With names the invalid fields of the error.
func (e *Error) With(fields ...FieldError) *Error {
	e.Fields = fields
	return e
}

// ErrUnreachable means that the connection to a server such as the database could not be
// opened or broke. What the call asked for may have happened.
var ErrUnreachable = errors.New("the server cannot be reached")

// KindOf returns the kind of an error, or KindInternal if it has none.
func KindOf(err error) Kind {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Kind
	}
	return KindInternal
}

// HasCode reports whether err has the code.
func HasCode(err error, code string) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.Code == code
}

// The codes that several packages use.
const (
	CodeIllegalState   = "ILLEGAL_STATE"
	CodeSamePerson     = "SAME_PERSON"
	CodeNotFound       = "PROMOTION_NOT_FOUND"
	CodePayoutNotFound = "PAYOUT_NOT_FOUND"
	CodeUploadNotFound = "UPLOAD_NOT_FOUND"
	CodeExists         = "ALREADY_EXISTS"
	CodeInvalid        = "INVALID"
	CodeMalformed      = "MALFORMED"
	CodeTypeMismatch   = "TYPE_MISMATCH"
	CodeArchived       = "ARCHIVED"
	CodeNeverGiven     = "NEVER_GIVEN" // a record of a coupon request has a ticket that no gate gave
	CodeConflict       = "CONFLICT"
	// CodeAmountOverflow means that the amounts of a promotion would exceed 63 bits.
	CodeAmountOverflow = "AMOUNT_OVERFLOW"
	// CodeImmutable means that a field cannot change, or not in this state.
	CodeImmutable          = "IMMUTABLE"
	CodePreconditionFailed = "PRECONDITION_FAILED"
	// CodePoison means that too many deliveries in a row had no outcome.
	CodePoison = "POISON"
	// CodeSecondCharge means that the provider has charged a payout twice.
	CodeSecondCharge = "SECOND_CHARGE"
	// CodeDeadLetterNotFound, CodeReconciliationNotFound and CodeAPIKeyNotFound: unknown ID.
	CodeDeadLetterNotFound     = "DEAD_LETTER_NOT_FOUND"
	CodeReconciliationNotFound = "RECONCILIATION_NOT_FOUND"
	CodeAPIKeyNotFound         = "API_KEY_NOT_FOUND" //nolint:gosec // a code, not a key
	// CodeKeyNameTaken means that an API key that is in use has the name of a new one.
	CodeKeyNameTaken = "API_KEY_NAME_TAKEN"

	// CodeEndpointNotFound and CodeDeliveryNotFound: unknown ID of a webhook endpoint, or
	// of one of its deliveries. CodeEndpointDisabled means that nothing is sent to it, and
	// CodeTooManyEndpoints that no more can be created.
	CodeEndpointNotFound = "ENDPOINT_NOT_FOUND"
	CodeDeliveryNotFound = "DELIVERY_NOT_FOUND"
	CodeEndpointDisabled = "ENDPOINT_DISABLED"
	CodeTooManyEndpoints = "TOO_MANY_ENDPOINTS"

	// The codes of coupons. CodeSoldOut, CodeNotOpen, CodeClosed and
	// CodeUserLimit are why nothing is issued.
	CodeTemplateNotFound = "TEMPLATE_NOT_FOUND"
	CodeCouponNotFound   = "COUPON_NOT_FOUND"
	CodeRequestEnded     = "REQUEST_ENDED"
	CodeRequestUnknown   = "REQUEST_UNKNOWN"
	CodeSoldOut          = "SOLD_OUT"
	CodeNotOpen          = "NOT_OPEN"
	CodeClosed           = "CLOSED"
	CodeUserLimit        = "USER_LIMIT"
	CodeHoldLapsed       = "HOLD_LAPSED" // the user let holds end without a confirmation
	CodeCouponUsed       = "COUPON_USED"
	CodeCouponCancelled  = "COUPON_CANCELLED"
	CodeCouponExpired    = "COUPON_EXPIRED"
	// CodeCouponHeld means that the coupon must be confirmed first, and
	// CodeHoldExpired that it was not confirmed in time.
	CodeCouponHeld  = "COUPON_HELD"
	CodeHoldExpired = "HOLD_EXPIRED"
	// CodeCodesExhausted means that there are fewer imported codes than coupons to
	// issue, and CodeBadCodes that a file of codes was refused.
	CodeCodesExhausted = "CODES_EXHAUSTED"
	CodeBadCodes       = "BAD_CODES"
	CodeUnavailable    = "UNAVAILABLE"
)
