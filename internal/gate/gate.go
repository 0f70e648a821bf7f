// Package gate is the interface to admission control. Each coupon template has a
// gate: it admits users while coupons are left to promise, holds the waiting line
// of admitted requests, and holds the stream of requests for the issuer. The rows are
// the source of truth. A gate may be lost entirely: it is then loaded from rows again,
// and requests that waited in it are lost, because they have no rows.
//
// Memory is the in-process driver, redisgate the driver for Redis and Valkey, and
// gatetest the test suite that both pass.
//
// A driver serves a gate only during the server run that the gate was loaded into.
// A restart, a failover or a FLUSHALL ends a run. After that, a call about a gate
// does nothing and returns ErrNotLoaded. The exceptions are Headers, Ack, Retire,
// LoadBegin, LoadHoldings and LoadSwap. Only LoadSwap creates a gate. The marker of
// a loader (see LoadBegin), the data of a load in progress and the SYNC lock are
// not part of a gate.
//
// A driver sends each command to its server once. After an error other than
// ErrNotLoaded, the command may or may not have taken effect. The caller may repeat
// every call: unless stated otherwise, a repeat does no harm and returns what the
// first call returned. Tickets, versions and generations must stay below 2^53;
// coupon ids may use all 64 bits.
package gate

import (
	"context"
	"errors"
	"time"

	"github.com/largesse/largesse/internal/reward"
)

// ErrNotLoaded means that the gate must be loaded first.
var ErrNotLoaded = errors.New("the gate is not loaded")

// AdmitMax limits the users of one Admit.
const AdmitMax = 64

// CapTTL is how long the limit that CapTotal sets is in force.
const CapTTL = 2 * time.Second

// Verdict is the gate's decision about one user.
type Verdict int8

// The verdicts, in the order in which the gate checks for them.
const (
	// InLine: the user is in line already, with Ticket and Rank.
	InLine Verdict = iota
	// AtUserLimit: the user has PerUserLimit coupons or more that count against the
	// limit, see Holding. CouponID is the latest that is not cancelled; 0 = none.
	AtUserLimit
	NotOpen
	Closed
	SoldOut
	// Admitted: the user got the next ticket and is in line.
	Admitted
)

// Answer is the Verdict on one user with the ticket or coupon that belongs to it.
type Answer struct {
	Verdict  Verdict
	Ticket   int64
	Rank     int64 // requests ahead in line
	CouponID reward.CouponID
}

// AdmitResult is the result of Admit.
type AdmitResult struct {
	Answers []Answer // one per user, in order
	// Generation, Version and ServiceTime are those of the Header.
	Generation, Version int64
	ServiceTime         time.Duration
}

// Position is a user's position in line.
type Position struct {
	InLine bool // false: the others are 0
	Ticket int64
	Rank   int64
}

// PositionsResult is the result of Positions.
type PositionsResult struct {
	Positions   []Position // one per user, in order
	Generation  int64
	Version     int64
	ServiceTime time.Duration
}

// Header describes a gate.
type Header struct {
	// Exists reports whether there is a gate; without one, the other fields are
	// zero. Loaded is false if calls return ErrNotLoaded. It reports whether the gate
	// belongs to the present run of the server and has its request stream and group.
	Exists, Loaded      bool
	Generation, Version int64
	Settled             int64 // all tickets up to this one are settled
	LastTicket          int64 // the highest ticket given
	Total               int64 // quantity of the template
	Live                int64 // live coupons
	IssuedTotal         int64 // all coupons ever issued
	PublishedStock      int64 // the counters for other systems; -1 = missing
	PublishedCount      int64
	PublishedIssued     int64
	Waiting             int64         // requests in line
	Backlog             int64         // requests not acknowledged
	LastRequestAt       time.Time     // to the second; a load counts as a request
	ServiceTime         time.Duration // per request, for estimates of waiting times; 0 = not measured yet
}

// Stock returns the coupons left to promise. PublishedStock should be equal, as
// PublishedCount should be to Live, and PublishedIssued to IssuedTotal. While
// the limit of a CapTotal is in force, the gate may promise less than both.
func (h Header) Stock() int64 { return max(h.Total-h.Live-h.Waiting, 0) }

// Request is an entry of the request stream.
type Request struct {
	UserID     string
	Ticket     int64
	Generation int64
}

// Holding is a user's coupons as the gate knows them. The gate forgets a user with
// Held 0.
type Holding struct {
	UserID string
	// Held is the number of coupons that count against PerUserLimit: the live ones
	// and, if the template has ReissueAfterCancel false, the cancelled ones.
	Held     int
	CouponID reward.CouponID // the latest that is not cancelled; 0 = none
}

// State holds the values of the rows at Version that the gate needs for its
// decisions. Header explains the numbers.
type State struct {
	Generation, Version, Settled int64
	Total, Live, IssuedTotal     int64
	PerUserLimit                 int
	OpensAt, ClosesAt            time.Time // zero = none; compared with the server's clock
	// Mode decides how requests leave the line: in ModeKafka one by one, by
	// ApplyParams.Done; otherwise all with a ticket up to Settled.
	Mode reward.IssueMode
}

// Outcome is an entry of the outcome stream.
type Outcome struct {
	UserID   string
	Ticket   int64
	CouponID reward.CouponID // 0 = not issued
	Reason   string
}

// SettledTicket is a settled ticket of a user.
type SettledTicket struct {
	UserID string
	Ticket int64
}

// ApplyParams updates a gate to State.Version. The version of the gate must be From
// or later. The gate keeps its generation.
type ApplyParams struct {
	TemplateID reward.TemplateID
	From       int64
	State      State
	Holdings   []Holding // one per user
	// Done are the tickets that leave the line in ModeKafka. A user with another
	// ticket stays. Other modes ignore Done.
	Done     []SettledTicket
	Outcomes []Outcome
	// ServiceTime is the latest measurement; 0 = none, the gate keeps its own.
	ServiceTime time.Duration
	// Repair writes State, Holdings and Done even if the gate is at State.Version
	// already. Outcomes are written only if it is below.
	Repair bool
}

// ApplyResult is the result of Apply.
type ApplyResult struct {
	// Behind reports whether the gate's Version is below From, so that nothing was
	// done. Otherwise the gate is at State.Version or above.
	Behind  bool
	Version int64
}

// LoadBeginResult is the result of LoadBegin.
type LoadBeginResult struct {
	// Held reports whether the loader holds the marker. If not, another loader does:
	// wait for the gate, or for the marker to expire.
	Held bool
	// Run is the server's run, for LoadSwap.
	Run string
	// Gate is the existing gate, loaded or not.
	Gate Header
}

// SwapParams describes the gate that LoadSwap creates.
type SwapParams struct {
	TemplateID reward.TemplateID
	Token, Run string
	State      State
	// Holdings is the number of users that LoadHoldings has stored under this token,
	// without those with Held 0.
	Holdings int
	// KeepAbove is the ticket above which the old line is kept; ModeKafka ignores it.
	// Normally it is State.Settled. It is lower after an outage in which coupons were
	// issued through the database. For example, the old line has tickets 11 to 20,
	// and the database gave tickets 11 to 15 to other users: Settled is 15, but
	// KeepAbove stays 10, because the users with the old tickets 11 to 15 still wait.
	KeepAbove int64
}

// SwapResult is the result of LoadSwap.
type SwapResult struct {
	// Done is false if the swap was refused: the loader no longer holds the marker,
	// the server has another run, stored holdings are missing, or a gate of this
	// generation or a later one exists.
	Done bool
	// Waiting is the number of requests kept from the old line.
	Waiting int64
}

// HoldingsOfResult is the result of HoldingsOf.
type HoldingsOfResult struct {
	Holdings            []Holding // one per user, in order
	Generation, Version int64
	Holders             int64 // all users with a holding
}

// LockParams describes a caller of Lock.
type LockParams struct {
	Lease time.Duration
	// Nonce identifies the caller; each take of the lock has its own. It contains no
	// space.
	Nonce string
	// Floor is the highest token that the rows know. The server may have lost its
	// tokens, and its clock may have been ahead when it gave them.
	Floor int64
}

// HintKind says what a hint is about.
type HintKind int8

// The kinds of hints.
const (
	HintRequests HintKind = iota // the empty request stream of a template got an entry
	HintOutcomes                 // a template's outcomes, or its line, have changed; in ModeKafka also: requests were acknowledged
)

// Hint is a signal that may be lost or superfluous.
type Hint struct {
	TemplateID reward.TemplateID
	Kind       HintKind
}

// Gate is implemented by drivers. All methods are safe for concurrent use.
type Gate interface {
	// Admit decides about at most AdmitMax users, in order, in one step; see Verdict.
	// It admits users while Live plus the requests in line is below Total, or below
	// the limit of CapTotal if that is lower. A repeat returns InLine with the same
	// ticket, or another verdict if the request was settled in the meantime. An
	// admitted user who occurs twice is InLine the second time.
	//
	// If admit is false, nobody gets a ticket: each user gets the verdict that they
	// would get if they were the only one.
	Admit(ctx context.Context, id reward.TemplateID, users []string, admit bool) (AdmitResult, error)
	// Positions returns the positions of at most PositionsMax users in line.
	Positions(ctx context.Context, id reward.TemplateID, users []string) (PositionsResult, error)
	// Headers describes gates, in one round trip: one per id, in order.
	Headers(ctx context.Context, ids []reward.TemplateID) ([]Header, error)

	// Read delivers new requests to a consumer, in ticket order, at most count and
	// ReadMax. It never waits. ErrNotLoaded may also mean that the group is missing.
	// Requests of a lost reply are not read again; Claim returns them.
	Read(ctx context.Context, id reward.TemplateID, consumer string, count int) ([]Request, error)
	// Claim claims delivered and unacknowledged requests of any consumer: the first
	// count with tickets above after, in ticket order. To claim all, call it
	// again with the last ticket until it returns none.
	Claim(ctx context.Context, id reward.TemplateID, consumer string, after int64, count int) ([]Request, error)
	// Ack acknowledges and deletes the requests with these tickets of a generation.
	// It returns how many there were; a repeat finds none. It also works on a gate
	// that is not loaded, if the gate has that generation.
	Ack(ctx context.Context, id reward.TemplateID, generation int64, tickets []int64) (int, error)
	// Unacked reports for each ticket of a generation whether its request is still in
	// the stream. ErrNotLoaded may also mean that the gate has another generation.
	Unacked(ctx context.Context, id reward.TemplateID, generation int64, tickets []int64) ([]bool, error)

	// Apply brings the gate to a newer version of the rows. Late and repeated applies
	// do no harm, and neither do lost ones.
	Apply(ctx context.Context, p ApplyParams) (ApplyResult, error)

	// LoadBegin sets the marker of a loader for LoadMarkerTTL, unless another loader
	// holds it. If it sets the marker, it deletes what an earlier load has stored, also
	// one with the same token. So a loader may begin again with its token and a newer
	// snapshot of the rows, once all its earlier calls have returned.
	LoadBegin(ctx context.Context, id reward.TemplateID, token string) (LoadBeginResult, error)
	// LoadHoldings stores holdings for LoadSwap, and users of the old line (with their
	// old tickets) who are settled and must not be kept: at most LoadMax of each. It
	// extends the marker, and does nothing if the loader does not hold it.
	LoadHoldings(ctx context.Context, id reward.TemplateID, token string, holdings []Holding, settled []SettledTicket) error
	// LoadSwap creates the new gate and moves the old line to it in one step. Users
	// with a ticket above KeepAbove (in ModeKafka, all except the settled ones) keep
	// their order and get tickets from State.Settled+1 on. Each has a request in the
	// stream under the new generation. LoadSwap leaves out users who have reached
	// PerUserLimit according to the new holdings: they got a coupon through the
	// database, or the limit is lower now, and their request would be rejected.
	//
	// The new gate keeps the service time, but not the limit of CapTotal. The marker is
	// removed. A repeat of a successful call is refused, because the generation exists.
	LoadSwap(ctx context.Context, p SwapParams) (SwapResult, error)

	// CapTotal limits Live plus the requests in line to total for CapTTL. It is for
	// lowering the quantity: limit the gate first, then change the row within CapTTL,
	// or call CapTotal again. CapTotal does nothing and returns false if Live plus the
	// requests in line already exceed total. An Apply does not end the limit, but the
	// next CapTotal replaces it, also by a higher one. Header.Total and PublishedStock
	// do not change, so they may exceed what the gate promises.
	CapTotal(ctx context.Context, id reward.TemplateID, total int64) (bool, error)
	// Retire removes a gate, loaded or not, that has an empty line, no unacknowledged
	// requests, and has had no request for the duration idle. It reports whether there is no
	// gate now.
	Retire(ctx context.Context, id reward.TemplateID, idle time.Duration) (bool, error)
	// Holdings returns a page of the holdings, for comparisons. The first cursor is
	// ""; a next of "" means the last page. A holding that exists throughout is
	// returned at least once. version is the gate's version at the moment of the call.
	// A cursor from before a load starts over.
	Holdings(ctx context.Context, id reward.TemplateID, cursor string) (holdings []Holding, next string, version int64, err error)

	// HoldingsOf returns the holdings of at most LoadMax users, in order; a user without
	// one has Held 0. The gate had Generation, Version and Holders just before the
	// holdings were read.
	HoldingsOf(ctx context.Context, id reward.TemplateID, users []string) (HoldingsOfResult, error)

	// Lock takes the SYNC lock and returns its fencing token. The token is higher than
	// all earlier ones that the server knows, and than p.Floor. ok is false if another
	// caller holds the lock. A repeat with the nonce of the holder extends the lease
	// and returns the same token, so a caller whose reply was lost calls it again.
	Lock(ctx context.Context, id reward.TemplateID, p LockParams) (token int64, ok bool, err error)
	// Unlock releases the lock if it still has this token.
	Unlock(ctx context.Context, id reward.TemplateID, token int64) error

	// Hints delivers hints. Close closes the channel.
	Hints() <-chan Hint
	// Ping reports whether the server responds.
	Ping(ctx context.Context) error
	Close()
}
