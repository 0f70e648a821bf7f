package store

import (
	"time"

	"github.com/largesse/largesse/internal/reward"
)

// PayoutUnknownParams selects a page of UNKNOWN payouts of all promotions.
type PayoutUnknownParams struct {
	After UnknownPlace // only payouts behind this one; zero starts at the oldest
	Limit int
	// OlderThan selects payouts that became UNKNOWN so long ago, by the clock of the
	// database. Zero means all.
	OlderThan time.Duration
	// UserID selects the payouts of one user, among the UserPayoutsMax of the
	// latest promotions. Empty means all.
	UserID string
}

// UserPayoutsMax limits the payouts of a user among which PayoutUnknown looks.
const UserPayoutsMax = 10_000

// UnknownPlace is the place of a payout in the order of PayoutUnknown.
type UnknownPlace struct {
	Since time.Time // when it became UNKNOWN: its UpdatedAt
	PayoutID
}

// PlaceOfUnknown returns the place of a payout.
func PlaceOfUnknown(p reward.Payout) UnknownPlace {
	return UnknownPlace{Since: p.UpdatedAt, PayoutID: PayoutID{PromotionID: p.PromotionID, TargetID: p.TargetID}}
}

// OldestPromotionsMax limits the promotions among which PayoutOldest looks for READY
// payouts.
const OldestPromotionsMax = 1000

// OldestPayouts says since when payouts wait. A time is zero if none does.
type OldestPayouts struct {
	// ReadySince is when the oldest READY payout of a RUNNING promotion became READY.
	ReadySince time.Time
	// UnknownSince is when the oldest UNKNOWN payout of any promotion became UNKNOWN.
	UnknownSince time.Time
	// StalledSince is since when a RUNNING promotion with READY payouts has dispatched
	// none: the earliest of these promotions counts. A promotion does not count while it may
	// wait for the outcomes of its canary, of what its budget covers, or of what is approved.
	StalledSince time.Time
}

// Limits of PayoutErrors.
const (
	PayoutErrorsMax     = 1000      // codes
	PayoutErrorCountMax = 1_000_000 // payouts of a code in one state; more are not counted
	PayoutErrorExamples = 100       // codes with a message and a class
	PayoutErrorSumMax   = 20_000    // payouts whose amounts PayoutErrorAmounts adds up
)

// PayoutError counts the payouts of a promotion with one error code. Each count is
// at most PayoutErrorCountMax.
type PayoutError struct {
	Code                      string
	Failed, Retrying, Unknown int64
	// TargetID is an example: the first FAILED payout, or else the first UNKNOWN or
	// RETRYING one. Message is its ErrorMessage, and Class that of its latest attempt
	// with this code, or empty. Only the first PayoutErrorExamples codes have both.
	TargetID       reward.TargetID
	Message, Class string
}

// Payouts returns the sum of the counts.
func (e PayoutError) Payouts() int64 { return e.Failed + e.Retrying + e.Unknown }
