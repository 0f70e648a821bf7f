package store

import "github.com/largesse/largesse/internal/rules"

// The types that internal/rules owns keep their names in this package.
type (
	// Outcome is rules.Outcome.
	Outcome = rules.Outcome
	// OutcomeKind is rules.OutcomeKind.
	OutcomeKind = rules.OutcomeKind
	// Lookup is rules.Lookup.
	Lookup = rules.Lookup
	// CouponRequest is rules.CouponRequest.
	CouponRequest = rules.CouponRequest
	// RequestOutcome is rules.RequestOutcome.
	RequestOutcome = rules.RequestOutcome
	// SettleKind is rules.SettleKind.
	SettleKind = rules.SettleKind
	// SettleRefusal is rules.SettleRefusal.
	SettleRefusal = rules.SettleRefusal
	// TemplateChangeParams is rules.TemplateChange.
	TemplateChangeParams = rules.TemplateChange
)

// The constants of these types, see rules.
const (
	OutcomePaid      = rules.OutcomePaid
	OutcomeRefused   = rules.OutcomeRefused
	OutcomeFailed    = rules.OutcomeFailed
	OutcomeNoAnswer  = rules.OutcomeNoAnswer
	OutcomeNoLookup  = rules.OutcomeNoLookup
	OutcomeCancelled = rules.OutcomeCancelled

	SettleInOrder = rules.SettleInOrder
	SettleListed  = rules.SettleListed
	SettleDirect  = rules.SettleDirect

	NotRefused        = rules.NotRefused
	RefusedEpoch      = rules.RefusedEpoch
	RefusedGeneration = rules.RefusedGeneration
	RefusedEnds       = rules.RefusedEnds
	RefusedPath       = rules.RefusedPath
	RefusedFence      = rules.RefusedFence

	RequestIssued         = rules.RequestIssued
	RequestRejected       = rules.RequestRejected
	RequestAlreadySettled = rules.RequestAlreadySettled
	RequestAfterGap       = rules.RequestGap
	RequestNotOpen        = rules.RequestNotOpen
	RequestClosed         = rules.RequestClosed
)

// Resolution is the part of the params that the rules look at.
func (p *PayoutResolveParams) Resolution() rules.Resolution {
	return rules.Resolution{Paid: p.Paid, TransactionKey: p.TransactionKey, Note: p.Note, By: p.By}
}
