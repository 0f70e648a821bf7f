// Package gate is the seam to admission: per coupon template a gate that lets
// askers in as long as there is room, a waiting line of those let in, and the
// stream of their requests for whoever issues. It promises and is not the
// truth: all of it may be lost, and is loaded again from rows. Memory is the
// in-process driver; redisgate is the one on Redis or Valkey; gatetest is the
// suite that both pass.
//
// A gate is served only while it was loaded into the very run of the server that
// executes the call (a restart, a failover or a FLUSHALL ends that); otherwise
// nothing is read or written and the error is ErrNotLoaded, but for Headers, Ack,
// Retire and the calls of a loader. No call but LoadSwap makes a gate; the
// marker of a loader, what he lays beside and the SYNC lock are no part of it.
//
// Calls are never repeated by a driver: an error other than ErrNotLoaded means
// that the outcome is unknown, and every call may be repeated by its caller: a
// repeat does no harm and answers what the first one did, unless it says
// otherwise. Tickets, versions and generations stay below 2^53; coupon ids are
// exact whatever they are. [CouponIssueCoordinator]
package gate

import (
	"context"
	"errors"
	"time"

	"github.com/largesse/largesse/internal/reward"
)

// ErrNotLoaded says that the gate has to be loaded first.
var ErrNotLoaded = errors.New("the gate is not loaded")

// AskersMax bounds the askers of one call.
const AdmitMax = 64

// LowerLasts is how long a Lower holds.
const CapTTL = 2 * time.Second

// Verdict is what the gate says to an asker.
type Verdict int8

// The verdicts, in the order in which they are looked for.
const (
	// Waits: he is in line already; Ticket and Rank are his.
	InLine Verdict = iota
	// Has: he holds as many coupons as he may (PerUserLimit). CouponID is the
	// latest that is not cancelled; 0 = none.
	AtUserLimit
	NotOpen
	Closed
	SoldOut
	// Admitted: he has got the next ticket, and is in line.
	Admitted
)

// Answer is the verdict on one asker.
type Answer struct {
	Verdict  Verdict
	Ticket   int64
	Rank     int64 // people in front who wait
	CouponID reward.CouponID
}

// Asking is the answer to a batch.
type AdmitResult struct {
	Answers []Answer // one per asker, in order
	// Generation and Version are the gate's; Service is Header.Service.
	Generation, Version int64
	ServiceTime         time.Duration
}

// Place is where somebody is in line.
type Position struct {
	InLine bool // false = he is not in line
	Ticket int64
	Rank   int64
}

// Placing is the answer to Places.
type PositionsResult struct {
	Positions   []Position
	Generation  int64
	Version     int64
	ServiceTime time.Duration
}

// Header is what a gate knows of its template and of itself.
type Header struct {
	// Exists says that there is a gate, Loaded that it may be served: its run is
	// the server's, and the request stream and its group are there. The others
	// are 0 without a gate.
	Exists, Loaded               bool
	Generation, Version, Settled int64
	LastTicket                   int64 // the highest ticket given out
	Total, Live, IssuedTotal     int64
	PublishedStock               int64         // the counter that others read; -1 = it is missing
	Waiting                      int64         // people in line
	Backlog                      int64         // requests that nobody has acknowledged
	LastRequestAt                time.Time     // to the second; a load counts as an ask
	ServiceTime                  time.Duration // per person, for the waiting time; 0 = not measured yet
}

// Stock is what is left to promise, and KeptStock should be the same. While a
// Lower holds, less may be promised than they say.
func (h Header) Stock() int64 { return max(h.Total-h.Live-h.Waiting, 0) }

// Request is an entry of the request stream.
type Request struct {
	UserID     string
	Ticket     int64
	Generation int64
}

// Fact is what the gate knows of a user: how many slots he holds, and his
// latest coupon that is not cancelled (0 = none). Held 0 is forgotten.
type Holding struct {
	UserID   string
	Held     int
	CouponID reward.CouponID
}

// State is what the gate judges by, as the rows have it at Version.
type State struct {
	Generation, Version, Settled int64
	Total, Live, IssuedTotal     int64
	PerUserLimit                 int
	OpensAt, ClosesAt            time.Time // zero = none; judged by the server's clock
	// Mode ModeKafka: members leave the line one by one (Apply's Settled list),
	// not up to Settled.
	Mode reward.IssueMode
}

// Outcome is an entry of the outcome stream.
type Outcome struct {
	UserID   string
	Ticket   int64
	CouponID reward.CouponID // 0 = not issued
	Reason   string
}

// Settled is a ticket that leaves the line.
type SettledTicket struct {
	UserID string
	Ticket int64
}

// ApplyParams brings a gate from version From (or any between From and the
// state's) to State.Version. Its generation stays what it is.
type ApplyParams struct {
	TemplateID reward.TemplateID
	From       int64
	State      State
	Holdings   []Holding // one per user
	// Done are the tickets that leave the line in ModeKafka, each only if the
	// user's ticket is that one; ignored otherwise.
	Done     []SettledTicket
	Outcomes []Outcome
	// Service is the newest measurement; 0 = none. While anybody waits the
	// gate's falls and never rises; otherwise it becomes this.
	ServiceTime time.Duration
	// Repair writes State, Facts and Done also when the gate is at that version
	// already; Outcomes are of a higher one only.
	Repair bool
}

// ApplyResult is how an apply ended.
type ApplyResult struct {
	// Behind: the gate is behind From, nothing was done; Version is the gate's.
	// Otherwise the gate is at State.Version or above.
	Behind  bool
	Version int64
}

// LoadBegun is what a loader finds when it begins.
type LoadBeginResult struct {
	// Held: the marker is this loader's. Otherwise somebody else loads: wait for
	// the gate, or for the marker to lapse.
	Held bool
	// Run is the server's run, to be given to LoadSwap.
	Run string
	// Gate is the gate that stands, loaded or not.
	Gate Header
}

// SwapParams makes the gate.
type SwapParams struct {
	TemplateID reward.TemplateID
	Token, Run string
	State      State
	// Facts is how many users LoadFacts has laid beside under this token in all,
	// those with Held 0 not counted.
	Holdings int
	// KeepAbove is the ticket above which the old line is taken over, but for
	// ModeKafka. Normally it is State.Settled; it is lower when coupons were issued
	// past the gate meanwhile (the database path), whose tickets nobody in line
	// had.
	KeepAbove int64
}

// SwapResult is how a swap ended.
type SwapResult struct {
	// Done is false when it was refused: the marker is not the loader's any
	// more, the server is another run, the facts beside are not complete, or a
	// gate of this generation or a newer one stands.
	Done bool
	// Waiting is how many of the old line were taken over.
	Waiting int64
}

// WakeKind is what a hint is about.
type HintKind int8

// The kinds.
const (
	HintRequests HintKind = iota // the request stream of a template has got its first entry
	HintOutcomes                 // a template's outcomes, or who waits, have changed
)

// Wake is a hint.
type Hint struct {
	TemplateID reward.TemplateID
	Kind       HintKind
}

// Gate is the seam. All methods are safe for concurrent use.
type Gate interface {
	// Ask judges at most AskersMax askers, in order, in one step. See Verdict;
	// room is Total, or the cap of a Lower if that is less, − Live − people in
	// line. admit false only looks: whoever would be Admitted, judged as if alone,
	// has no ticket. The same user twice in a batch: the second Waits.
	Admit(ctx context.Context, id reward.TemplateID, users []string, admit bool) (AdmitResult, error)
	// Places tells where users are in line; at most PlacesMax.
	Positions(ctx context.Context, id reward.TemplateID, users []string) (PositionsResult, error)
	// Headers reads gates, in one round trip; one per id, in order.
	Headers(ctx context.Context, ids []reward.TemplateID) ([]Header, error)

	// Read gives new requests to a consumer, in the order of tickets, at most
	// count and ReadMax; it never waits. ErrNotLoaded also when the group is
	// missing. What a lost reply gave is not read again: Claim gives it.
	Read(ctx context.Context, id reward.TemplateID, consumer string, count int) ([]Request, error)
	// Claim takes over everything that is read and not acknowledged, whoever has
	// it, in the order of tickets, at most count with a ticket above after (call again
	// with the last ticket until it gives none).
	Claim(ctx context.Context, id reward.TemplateID, consumer string, after int64, count int) ([]Request, error)
	// Ack acknowledges and deletes requests by their tickets, as far as they are
	// of the generation, and returns how many there were; a repeat finds none. It
	// works on a gate that is not loaded, too, as long as its generation is that
	// one.
	Ack(ctx context.Context, id reward.TemplateID, generation int64, tickets []int64) (int, error)
	// Unacked says which of the tickets of a generation are still in the request
	// stream. ErrNotLoaded also when the gate's generation is another.
	Unacked(ctx context.Context, id reward.TemplateID, generation int64, tickets []int64) ([]bool, error)

	// Apply brings the gate up to what the rows say; late, repeated or lost it
	// does no harm.
	Apply(ctx context.Context, p ApplyParams) (ApplyResult, error)

	// LoadBegin sets the marker, for MarkerLasts, unless somebody else's stands,
	// and drops what was laid beside, under the same token, too: a loader may try
	// again with a newer snapshot of the rows under one token, once all that he
	// called before has been answered.
	LoadBegin(ctx context.Context, id reward.TemplateID, token string) (LoadBeginResult, error)
	// LoadFacts lays facts beside, and users of the old line (with their old
	// ticket) that are settled and will not be taken over; at most LoadMax of
	// each. It keeps the marker, and does nothing without it.
	LoadHoldings(ctx context.Context, id reward.TemplateID, token string, facts []Holding, gone []SettledTicket) error
	// LoadSwap takes the old line over in the moment it makes the new gate: those with
	// a ticket above KeepAbove (in ModeKafka: all but those gone) keep their order
	// and are numbered on from State.Settled+1; each is in the request stream under
	// the new generation. Left out is whoever holds PerUserLimit slots or more by
	// the facts of the new gate: he got a coupon by another way, and his request
	// would only be refused. Service is taken over; a Lower is not. The marker is
	// gone afterwards. A repeat whose first call was done is refused, as that
	// generation stands.
	LoadSwap(ctx context.Context, p SwapParams) (SwapResult, error)

	// Lower caps what Ask promises, ahead of the rows, if Live and those in line
	// fit; it says whether they do, and otherwise does nothing. The cap holds for
	// LowerLasts by the server's clock, whatever is applied meanwhile, and then
	// counts no more: whoever lowers the rows does so in that time, or calls again.
	// The latest Lower counts, also with a higher total. Header.Total and the
	// counter of stock stay as they are, so for that time the counter may say more
	// than is promised.
	CapTotal(ctx context.Context, id reward.TemplateID, total int64) (bool, error)
	// Retire removes a gate, loaded or not, that nobody has asked for idle, with
	// nobody in line and no request unacknowledged; it says whether there is none
	// now.
	Retire(ctx context.Context, id reward.TemplateID, idle time.Duration) (bool, error)
	// Holders pages through the facts, for checks: cursor "" begins, a returned
	// "" ends; a fact that stands throughout is returned at least once. The
	// version is the gate's at that moment. A cursor from before a load begins
	// anew.
	Holdings(ctx context.Context, id reward.TemplateID, cursor string) (facts []Holding, next string, version int64, err error)

	// Lock takes the SYNC lock for lease and returns its token, above that of every
	// holder before, also of those that were forgotten; ok is false when somebody
	// has it, which after a lost reply may be the caller himself.
	Lock(ctx context.Context, id reward.TemplateID, lease time.Duration) (token int64, ok bool, err error)
	// Unlock gives the lock up, if it is still that token's.
	Unlock(ctx context.Context, id reward.TemplateID, token int64) error

	// Wakes delivers hints, which can be lost and can be superfluous. The
	// channel is closed by Close.
	Hints() <-chan Hint
	// Ping answers whether the server can be reached.
	Ping(ctx context.Context) error
	Close()
}
