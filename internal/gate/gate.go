// Package gate is the interface to admission control. Each coupon template has a
// gate: it admits users while coupons are left to promise, holds the waiting line
// of admitted requests, and holds the stream of requests for the issuer. The rows are
// the source of truth. A gate may be lost entirely: it is then loaded from rows again,
// and requests that waited in it are lost, because they have no rows.
//
// NewMemory returns the in-process driver. redisgate is the driver for Redis and Valkey, and
// gatetest the test suite that both pass.
//
// A driver serves a gate only during the server run that the gate was loaded into,
// and only until a load closes it. A restart, a failover or a FLUSHALL ends a run.
// A call about a gate that is not served does nothing and returns ErrNotLoaded. The
// exceptions are Headers, Ack, Retire and the calls of a load. Only LoadSwap creates
// or reopens a gate. The marker of a loader (see LoadBegin), the data of a load in
// progress and the SYNC lock are not part of a gate.
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
	"fmt"
	"slices"
	"time"

	"github.com/largesse/largesse/internal/reward"
)

// ErrNotLoaded means that the gate must be loaded first.
var ErrNotLoaded = errors.New("the gate is not loaded")

// ErrLoadLost means that a load cannot continue: its marker has expired, another
// loader holds it, or the server has another run. The call did nothing.
var ErrLoadLost = errors.New("another loader has taken over, or the server has restarted")

// Limits of single calls.
const (
	AdmitMax     = 256  // users of Admit
	PositionsMax = 1000 // users of Positions
	LineMax      = 1000 // users, and requests, of Line
	ReadMax      = 1000 // requests of Read and Claim, however large count is
	// LoadMax limits the holdings of one LoadHoldings, and the users that one LoadTrim
	// or LoadLeft removes.
	LoadMax = 1000
	// LoadPageMax limits the users of one LoadPage, LoadMissing, LoadBack or LoadCopy. Copying a user costs
	// the server more than storing a holding.
	LoadPageMax = 250
)

// CheckSize is for drivers. It returns an error if a list is longer than the
// limit of a call.
func CheckSize(what string, size, limit int) error {
	if size > limit {
		return fmt.Errorf("gate: %d %s in one call, more than %d", size, what, limit)
	}
	return nil
}

// Verdict is the gate's decision about one user.
type Verdict int8

// The verdicts. The gate checks for them in this order, but for NoPlace before
// Admitted.
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
	// NoPlace: coupons are left to promise, but no granted place is free; it is checked
	// after SoldOut. The rows may grant more.
	NoPlace
	// NoTickets: coupons are left, but the gate's mode is SYNC, in which it gives no
	// tickets: nothing sets places aside for users in line. Only an Admit that asks for
	// tickets gets this verdict.
	NoTickets
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
	// Generation, Version and ServiceTime are those of the Header, and so are Granted,
	// Used, Grants and Waiting as they were before the call.
	Generation, Version            int64
	Granted, Used, Grants, Waiting int64
	// Paused reports whether a PauseGrants lasts: the caller must have no places granted.
	Paused      bool
	ServiceTime time.Duration
}

// Position is a user's position in line.
type Position struct {
	InLine bool // false: the others are 0
	Ticket int64
	Rank   int64
}

// PlaceResult is the result of Place.
type PlaceResult struct {
	InLine bool // false: Request is zero
	// Request is the request of the user. Its Generation is 0 if the stream has
	// lost it. In ModeKafka it is always the gate's.
	Request
	GateGeneration, Version int64
}

// LineResult is the result of Line.
type LineResult struct {
	// UpTo is the ticket up to which the page is complete.
	UpTo int64
	// InLine are the users in line by ticket, without the generations of their requests.
	InLine []Request
	// Requests are the entries of the request stream, by ticket.
	Requests []Request
	// Generation, Version, Settled and LastTicket are those of the Header after the page
	// was read.
	Generation, Version, Settled, LastTicket int64
}

// Cut is for drivers. A driver has read the tickets up to upTo, at most LineMax users
// and LineMax requests. Cut sets UpTo to where both lists are complete, and drops what is
// above.
func (r *LineResult) Cut(upTo int64) {
	r.UpTo = upTo
	if n := len(r.InLine); n == LineMax {
		last := r.InLine[n-1].Ticket
		if last > r.InLine[0].Ticket {
			last-- // further users may have the same ticket, if someone has changed the gate manually
		}
		r.UpTo = min(r.UpTo, last)
	}
	if n := len(r.Requests); n == LineMax {
		r.UpTo = min(r.UpTo, r.Requests[n-1].Ticket)
	}
	beyond := func(q Request) bool { return q.Ticket > r.UpTo }
	r.InLine, r.Requests = slices.DeleteFunc(r.InLine, beyond), slices.DeleteFunc(r.Requests, beyond)
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
	// belongs to the present run of the server, is not closed, and has its request
	// stream and group.
	Exists, Loaded      bool
	Generation, Version int64
	Settled             int64 // all tickets up to this one are settled
	LastTicket          int64 // the highest ticket given
	FirstTicket         int64 // the lowest ticket in line; 0 = the line is empty
	Total               int64 // quantity of the template
	Live                int64 // live coupons
	Granted             int64 // all places granted so far, less those taken back; a load does not reset it
	Used                int64 // granted places whose ticket is settled, or whose user left the line
	Grants              int64 // number of the latest change of Granted
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
// PublishedCount should be to Live, and PublishedIssued to IssuedTotal. Until the rows
// grant more places, the gate may promise less than Stock.
func (h Header) Stock() int64 { return max(h.Total-h.Live-h.Waiting, 0) }

// Request is an entry of the request stream. A load may keep the entries of earlier
// generations.
type Request = reward.LineTicket

// Delivery is the result of Read and Claim. Generation is that of the gate at the
// moment of the call. The requests may be settled only while the rows have it.
type Delivery struct {
	Generation int64
	Requests   []Request
}

// Holding is a user's coupons as the gate knows them. The gate forgets a user with
// Held 0.
type Holding = reward.CouponHolding

// State holds the values of the rows at Version that the gate needs for its
// decisions. Header explains the numbers.
type State struct {
	Generation, Version, Settled int64
	// Base is the generation after which the present numbering of tickets begins:
	// the tickets of a gate of this generation or an earlier one are not those of
	// the rows.
	Base                     int64
	Total, Live, IssuedTotal int64
	Granted, Used, Grants    int64
	PerUserLimit             int
	OpensAt, ClosesAt        time.Time // zero = none; compared with the server's clock
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

// ApplyParams updates a gate to State.Version. The version of the gate must be From
// or later. The gate keeps its generation.
type ApplyParams struct {
	TemplateID reward.TemplateID
	From       int64
	State      State
	Holdings   []Holding // one per user
	// Done are the requests that leave the line in ModeKafka, of any generation. A user with
	// another ticket stays. Other modes ignore Done.
	Done []Request
	// Left are requests whose users leave the line. A user with another ticket stays, and
	// so does one whose request has another generation.
	Left []Request
	// Back are requests in the stream whose users are missing in the line: they are put
	// back in line, unless they are in it or their tickets are settled. ModeKafka ignores
	// it.
	Back     []Request
	Outcomes []Outcome
	// ServiceTime is the latest measurement; 0 = none, the gate keeps its own.
	ServiceTime time.Duration
	// Repair applies everything but Outcomes even if the gate is at State.Version
	// already.
	Repair bool
}

// ApplyResult is the result of Apply.
type ApplyResult struct {
	// Behind reports whether the gate's Version is below From, so that nothing was
	// done. Otherwise the gate is at State.Version or above.
	Behind  bool
	Version int64
}

// Load names a load in the calls that belong to it.
type Load struct {
	TemplateID reward.TemplateID
	Token      string // of the loader
	Run        string // of the server, as LoadBegin returned it
}

// LoadBeginResult is the result of LoadBegin.
type LoadBeginResult struct {
	// Held reports whether the loader holds the marker. If not, another loader does:
	// wait for the gate, or for the marker to expire.
	Held bool
	// Run is the server's run, for the other calls of the load.
	Run string
	// Gate is the existing gate, loaded or not. Intact reports whether it has its
	// request stream and group.
	Gate   Header
	Intact bool
}

// LoadKind says what becomes of an existing gate's line and request stream.
type LoadKind int8

// The kinds of load.
const (
	// LoadFresh: there is no gate yet; line and stream begin empty.
	LoadFresh LoadKind = iota
	// LoadKeep: both stay as they are. LoadTrim has removed the users up to
	// State.Settled from the line, LoadLeft those who have left. The requests keep
	// their generations.
	LoadKeep
	// LoadRemake: what LoadCopy has written replaces both.
	LoadRemake
)

// SwapParams describes the gate that LoadSwap creates.
type SwapParams struct {
	Load
	Kind LoadKind
	// Old is the generation of the gate as LoadBegin described it; 0 = there was none.
	Old   int64
	State State
	// Holdings is the number of users that LoadHoldings has stored under this token,
	// without those with Held 0.
	Holdings int
	// Copied is the number of users that LoadCopy has written.
	Copied int64
}

// SwapResult is the result of LoadSwap.
type SwapResult struct {
	// Done is false if the swap was refused: the loader no longer holds the marker,
	// the server has another run, stored holdings or copied users are missing, the
	// existing gate is not closed, is not of generation Old, or is of State.Generation
	// or a later one. With LoadKeep also: users up to State.Settled are still in line, or the
	// request stream or its group is missing.
	Done bool
	// Waiting is the number of users in the new line.
	Waiting int64
}

// ShrinkResult is the result of Shrink: what the gate has afterwards.
type ShrinkResult struct{ Generation, Version, Granted, Grants int64 }

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
	// It admits users while Live plus the requests in line is below Total and, except
	// in ModeSync, Used plus the requests in line is below Granted. A repeat returns InLine with the same
	// ticket, or another verdict if the request was settled in the meantime. An
	// admitted user who occurs twice is InLine the second time.
	//
	// If admit is false, nobody gets a ticket: each user gets the verdict that they
	// would get if they were the only one.
	Admit(ctx context.Context, id reward.TemplateID, users []string, admit bool) (AdmitResult, error)
	// Place returns the request of a user in line. It is for a user who leaves: the ticket
	// alone is not enough, because a gate that has lost data may give it again.
	Place(ctx context.Context, id reward.TemplateID, user string) (PlaceResult, error)
	// Positions returns the positions of at most PositionsMax users in line.
	Positions(ctx context.Context, id reward.TemplateID, users []string) (PositionsResult, error)
	// Line returns a page of the line and of the request stream, for comparisons: all
	// with after < ticket <= upTo, at most LineMax users and LineMax requests, but those of
	// one ticket at least. The
	// line is read before the stream, and the numbers of the result after both.
	Line(ctx context.Context, id reward.TemplateID, after, upTo int64) (LineResult, error)
	// Headers describes gates, in one round trip: one per id, in order.
	Headers(ctx context.Context, ids []reward.TemplateID) ([]Header, error)

	// Read delivers new requests to a consumer, in ticket order, at most count and
	// ReadMax. It never waits. ErrNotLoaded may also mean that the group is missing.
	// Requests of a lost reply are not read again; Claim returns them.
	Read(ctx context.Context, id reward.TemplateID, consumer string, count int) (Delivery, error)
	// Claim claims delivered and unacknowledged requests of any consumer: the first
	// count with a ticket > after, in ticket order. To claim all, call it
	// again with the last ticket until it returns none.
	Claim(ctx context.Context, id reward.TemplateID, consumer string, after int64, count int) (Delivery, error)
	// Ack acknowledges and deletes the requests with these tickets of a generation.
	// It returns how many there were; a repeat finds none. It also works on a gate
	// that is not loaded. In ModeKafka it does nothing while a load has closed the
	// gate: the load gives the requests new tickets.
	Ack(ctx context.Context, id reward.TemplateID, generation int64, tickets []int64) (int, error)
	// Unacked reports for each ticket of the gate's generation whether its request is
	// still in the stream. ErrNotLoaded may also mean that the gate has another
	// generation.
	Unacked(ctx context.Context, id reward.TemplateID, generation int64, tickets []int64) ([]bool, error)

	// Apply brings the gate to a newer version of the rows. Granted is taken only if
	// Grants is above the gate's, also by a repair: a late apply must not undo a Shrink. Late and repeated applies
	// do no harm, and neither do lost ones. ErrNotLoaded may also mean that the gate is
	// of State.Base or an earlier generation: its tickets have another numbering.
	Apply(ctx context.Context, p ApplyParams) (ApplyResult, error)

	// A load is these calls, in this order. Each touches at most LoadMax elements, and
	// all but LoadBegin extend the marker. The calls between LoadBegin and LoadSwap
	// return ErrLoadLost if the loader no longer holds the marker or the server has
	// another run. After any other error, begin again.

	// LoadBegin sets the marker of a loader for LoadMarkerTTL, unless another loader
	// holds it. If it sets the marker, it deletes what an earlier load has stored, also
	// one with the same token. So a loader may begin again with its token and a newer
	// snapshot of the rows, once all its earlier calls have returned.
	LoadBegin(ctx context.Context, id reward.TemplateID, token string) (LoadBeginResult, error)
	// LoadClose closes an existing gate: it is not served until LoadSwap, so its line
	// and its requests do not grow while they are trimmed or copied.
	LoadClose(ctx context.Context, l Load) error
	// LoadHoldings stores at most LoadMax holdings for LoadSwap.
	LoadHoldings(ctx context.Context, l Load, holdings []Holding) error
	// LoadTrim removes users with a ticket up to settled from the closed line, and
	// returns how many such users are left.
	LoadTrim(ctx context.Context, l Load, settled int64) (left int64, err error)
	// LoadLeft removes at most LoadMax requests, whose users have left, from the closed
	// line. Others stay, see ApplyParams.Left.
	LoadLeft(ctx context.Context, l Load, left []Request) error
	// LoadMissing returns those of the next requests in the stream of the closed gate, with
	// tickets above after, whose users are not in line. It looks at no more than LoadPageMax
	// requests. last is the last ticket that it looked at; after = there are no more.
	LoadMissing(ctx context.Context, l Load, after int64) (missing []Request, last int64, err error)
	// LoadBack puts at most LoadPageMax users back in the closed line, whose requests are in
	// the stream. A user in line stays there.
	LoadBack(ctx context.Context, l Load, back []Request) error
	// LoadPage returns the users of the closed line from a rank on, at most LoadPageMax,
	// with their requests as Place does.
	LoadPage(ctx context.Context, l Load, from int64) ([]Request, error)
	// LoadCopy writes at most LoadPageMax users to the new line and the new request
	// stream, with tickets from first on. Each call continues the previous one.
	LoadCopy(ctx context.Context, l Load, generation, first int64, users []string) error
	// LoadSwap creates or reopens the gate in one step, whose duration does not depend
	// on the number of users. The gate keeps the service time. With LoadKeep, the next ticket follows the highest one that the gate
	// has given, otherwise it is State.Settled, plus the number of copied users, plus 1. The marker is removed.
	// A repeat of a successful call is refused, because the generation exists.
	LoadSwap(ctx context.Context, p SwapParams) (SwapResult, error)

	// Shrink lowers Granted to the places that are used or in line, so that the gate
	// promises no more until the rows grant it more. It never raises Granted. The caller
	// then takes the places back in the rows. If it does not, the next grant tells the
	// gate its places again.
	Shrink(ctx context.Context, id reward.TemplateID) (ShrinkResult, error)
	// PauseGrants makes Admit report Paused for a duration from now on, so that no grant
	// overtakes what the caller of Shrink does next. 0 ends an earlier pause. A load may
	// end it, too.
	PauseGrants(ctx context.Context, id reward.TemplateID, pause time.Duration) error
	// Retire removes a gate, loaded or not, that has an empty line, no unacknowledged
	// requests, and has had no request for the duration idle. It reports whether there is no
	// gate now.
	Retire(ctx context.Context, id reward.TemplateID, idle time.Duration) (bool, error)
	// Remove removes everything that is stored for a template, whatever it is, also a
	// load in progress and the lock. It is for archived templates, whose rows refuse every
	// request.
	Remove(ctx context.Context, id reward.TemplateID) error
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
	// Ping returns an error if the server is unavailable: it does not respond, or it
	// refuses what every gate needs.
	Ping(ctx context.Context) error
	// Try returns an error if the server would refuse what the gate of a template needs,
	// for example because another program has stored something under a key of it. It
	// changes nothing, and there need not be a gate.
	Try(ctx context.Context, id reward.TemplateID) error
	Close()
}
