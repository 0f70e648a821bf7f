package store

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/service"
)

// ErrLocked means that a transaction waited too long for a row that another
// session has locked, and changed nothing.
var ErrLocked = errors.New("another session holds a lock on a row")

// ErrBusy means that a call waited too long for other transactions, and changed
// nothing.
var ErrBusy = errors.New("the database is busy with other transactions; try again")

// ErrFull means that the disk of the database has no space for a transaction, which
// changed nothing. Reads still work.
var ErrFull = errors.New("the disk of the database is full: give it space")

// driverError is the error of a driver, which means one of the errors above.
type driverError struct {
	error
	means error
}

func (e driverError) Is(target error) bool { return target == e.means }

func (e driverError) Unwrap() error { return e.error }

// unavailable returns the error of a driver, which means another one, as CodeUnavailable.
func unavailable(err, means error) error {
	return &reward.Error{Kind: reward.KindUnavailable, Code: reward.CodeUnavailable, Detail: means.Error(), Err: driverError{err, means}}
}

// Busy returns the error of a call that waited too long as an ErrBusy, which is
// CodeUnavailable.
func Busy(err error) error { return unavailable(err, ErrBusy) }

// Unstorable returns the error for a batch with something, such as a payout, that a database
// refuses with err.
func Unstorable(err error, what string) error {
	e := reward.NewError(reward.KindInvalid, reward.CodeInvalid, "the database cannot store %s of the batch", what)
	e.Err = err
	return e
}

// Space remembers when a driver last met ErrFull, or was refused a connection or a write.
// Its zero value is ready for use. It is safe for concurrent use.
type Space struct {
	missedAt atomic.Int64 // in nanoseconds since 1970; 0: never
	refusal  atomic.Pointer[refusal]
}

type refusal struct {
	at     time.Time
	reason string
}

// ConnectionsAdvice says what to do if the database refuses connections.
const ConnectionsAdvice = "lower database.max-connections or database.read-connections, or raise max_connections of the server or the connection limit of this role or database"

// RefusedConnection records that the server has as many connections as its limits allow,
// and returns its error as CodeUnavailable.
func (s *Space) RefusedConnection(err error) error {
	return s.refused(err, "the database gives this instance no more connections ("+service.Words(err)+"), so calls wait for each other: "+ConnectionsAdvice)
}

// RefusedWrite records that the server accepts no writes, and returns its error as
// CodeUnavailable.
func (s *Space) RefusedWrite(err error) error {
	return s.refused(err, "the database accepts no writes ("+service.Words(err)+"), so nothing is saved, dispatched or charged: "+
		"name the primary in database.url, or turn default_transaction_read_only off")
}

func (s *Space) refused(err error, reason string) error {
	s.refusal.Store(&refusal{at: time.Now(), reason: reason})
	return &reward.Error{Kind: reward.KindUnavailable, Code: reward.CodeUnavailable, Detail: reason, Err: err}
}

// Refusal returns when the server last refused a connection or a write, and what that
// means; the zero time if it never did.
func (s *Space) Refusal() (at time.Time, reason string) {
	if r := s.refusal.Load(); r != nil {
		return r.at, r.reason
	}
	return time.Time{}, ""
}

// Missed records that there was no space for a transaction. It returns the error of
// the transaction as an ErrFull, which is CodeUnavailable.
func (s *Space) Missed(err error) error {
	s.missedAt.Store(time.Now().UnixNano())
	return unavailable(err, ErrFull)
}

// FullAt returns when a transaction last failed with ErrFull; the zero time if none
// did.
func (s *Space) FullAt() time.Time {
	at := s.missedAt.Load()
	if at == 0 {
		return time.Time{}
	}
	return time.Unix(0, at)
}

// ConstraintError means that a constraint of the database refused the rows of a
// transaction, which changed nothing. It refuses them again until they, or the
// counts of their promotion, are repaired.
type ConstraintError struct {
	Constraint string // its name
	Err        error
}

func (e *ConstraintError) Error() string {
	return fmt.Sprintf("the constraint %s refuses the rows: %v", e.Constraint, e.Err)
}

func (e *ConstraintError) Unwrap() error { return e.Err }
