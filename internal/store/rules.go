package store

import "github.com/largesse/largesse/internal/rules"

// What the rules own, under the names that it has here.
type (
	Outcome              = rules.Outcome
	OutcomeKind          = rules.OutcomeKind
	Lookup               = rules.Lookup
	CouponRequest        = rules.CouponRequest
	RequestOutcome       = rules.RequestOutcome
	SettleKind           = rules.SettleKind
	SettleRefusal        = rules.SettleRefusal
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
