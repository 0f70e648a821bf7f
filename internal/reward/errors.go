package reward

import (
	"errors"
	"fmt"
	"time"
)

// Kind says what sort of failure an error is; the API maps each kind to one
// HTTP status in one table.
type Kind string

// The kinds.
const (
	KindMalformed   Kind = "malformed"   // cannot be parsed (400)
	KindTimeout     Kind = "timeout"     // the request did not come in time (408)
	KindInvalid     Kind = "invalid"     // parsed and wrong (422)
	KindNotFound    Kind = "not_found"   // 404
	KindConflict    Kind = "conflict"    // the state does not allow it (409)
	KindUnavailable Kind = "unavailable" // something we need is away; try again (503)
	KindInternal    Kind = "internal"    // a fault of ours (500)
)

// Error is an error with a kind and a stable code for programs. Detail is for
// people: what, where, what to do.
type Error struct {
	Kind   Kind
	Code   string // e.g. ILLEGAL_STATE
	Detail string
	Fields []FieldError
	// OpensAt, of CodeNotOpen, is when one can ask; zero = that is not known.
	OpensAt time.Time
	Err     error // cause, never shown to a client
}

// FieldError says which field of a request is wrong.
type FieldError struct {
	Field  string
	Detail string
}

func (e *Error) Error() string {
	if e.Err != nil {
		return fmt.Sprintf("%s: %s: %v", e.Code, e.Detail, e.Err)
	}
	return e.Code + ": " + e.Detail
}

func (e *Error) Unwrap() error { return e.Err }

// NewError makes an Error with a formatted detail.
func NewError(kind Kind, code, format string, args ...any) *Error {
	return &Error{Kind: kind, Code: code, Detail: fmt.Sprintf(format, args...)}
}

// KindOf finds the kind of an error; KindInternal when it has none.
func KindOf(err error) Kind {
	var e *Error
	if errors.As(err, &e) {
		return e.Kind
	}
	return KindInternal
}

// HasCode says whether err carries the code.
func HasCode(err error, code string) bool {
	var e *Error
	return errors.As(err, &e) && e.Code == code
}

// Codes that several rooms use.
const (
	CodeIllegalState   = "ILLEGAL_STATE"
	CodeNotFound       = "PROMOTION_NOT_FOUND"
	CodePayoutNotFound = "PAYOUT_NOT_FOUND"
	CodeUploadNotFound = "UPLOAD_NOT_FOUND"
	CodeExists         = "ALREADY_EXISTS"
	CodeInvalid        = "INVALID"
	CodeMalformed      = "MALFORMED"
	CodeTypeMismatch   = "TYPE_MISMATCH"
	CodeConflict       = "CONFLICT"
	// CodePoison is of payouts that too many holders in a row let go of
	// without an outcome.
	CodePoison = "POISON"
	// CodeDeadLetterNotFound, CodeReconciliationNotFound, CodeAPIKeyNotFound: no such id.
	CodeDeadLetterNotFound     = "DEAD_LETTER_NOT_FOUND"
	CodeReconciliationNotFound = "RECONCILIATION_NOT_FOUND"
	CodeAPIKeyNotFound         = "API_KEY_NOT_FOUND" //nolint:gosec // a code, not a key

	// The codes of coupons. CodeSoldOut, CodeNotOpen, CodeClosed and
	// CodeUserLimit are why nothing is issued.
	CodeTemplateNotFound = "TEMPLATE_NOT_FOUND"
	CodeCouponNotFound   = "COUPON_NOT_FOUND"
	CodeRequestUnknown   = "REQUEST_UNKNOWN"
	CodeSoldOut          = "SOLD_OUT"
	CodeNotOpen          = "NOT_OPEN"
	CodeClosed           = "CLOSED"
	CodeUserLimit        = "USER_LIMIT"
	CodeCouponUsed       = "COUPON_USED"
	CodeCouponCancelled  = "COUPON_CANCELLED"
	CodeCouponExpired    = "COUPON_EXPIRED"
	CodeUnavailable      = "UNAVAILABLE"
)
