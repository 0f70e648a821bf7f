package store

import (
	"errors"
	"fmt"
)

// ErrLocked means that a transaction waited too long for a row that another
// session has locked, and changed nothing.
var ErrLocked = errors.New("another session holds a lock on a row")

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
