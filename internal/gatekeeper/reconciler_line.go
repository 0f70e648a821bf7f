package gatekeeper

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/largesse/largesse/internal/gate"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/service"
	"github.com/largesse/largesse/internal/store"
)

// ticketMax is above all tickets.
const ticketMax = 1 << 53

type lineFault int8

const (
	// faultExtra: nobody gave the user this ticket, or it is settled, or the user has
	// left. The user must not be in line.
	faultExtra lineFault = iota + 1
	// faultGone: the request waits in the stream, and its user is not in line.
	faultGone
	// faultLost: the ticket waits, and the stream has no request for it.
	faultLost
)

// lineDrift is a ticket about which line, request stream and rows disagree.
type lineDrift struct {
	fault lineFault
	// request has the generation that gate.Place returns. Without a user it is a ticket
	// that nobody has.
	request gate.Request
}

func (d lineDrift) report(id reward.TemplateID, repaired bool) store.Drift {
	out := store.Drift{TemplateID: id, What: "line", UserID: d.request.UserID, Repaired: repaired}
	ticket, user := d.request.Ticket, reward.Quote(d.request.UserID)
	switch {
	case d.fault == faultExtra:
		out.Redis = &ticket
		out.Detail = fmt.Sprintf("user %s is in the line of template %s with ticket %d, which no request that waits has", user, id, ticket)
	case d.fault == faultGone:
		out.Store = &ticket
		out.Detail = fmt.Sprintf("the request of user %s with ticket %d of template %s waits, but the user is not in line", user, ticket, id)
	case d.request.UserID == "":
		out.Store = &ticket
		out.Detail = fmt.Sprintf("ticket %d of template %s is not settled, and nobody in line has it", ticket, id)
	default:
		out.Store = &ticket
		out.Detail = fmt.Sprintf("user %s is in the line of template %s with ticket %d, and the gate has lost the request", user, id, ticket)
	}
	return out
}

// lineComparison compares the line of a gate with its request stream and the rows, in
// one pass, page by page, so that its memory does not grow with the line. It looks at the
// tickets that were given before the pass. What differs is looked at again; what changes
// meanwhile is left to the next comparison.
//
// Tickets are given one after the other, and a ticket leaves the line when it is settled
// or its user leaves. So in STREAM mode every ticket above the settled ones has a request
// in the stream, whose user is in line or has left by the rows. In KAFKA mode the broker
// has the requests, and the rows must not know the outcome of a request in line.
type lineComparison struct {
	*comparison
	mode       reward.IssueMode
	generation int64 // of the gate

	suspects map[int64]bool // tickets to look at again
	// known are requests of suspects that were settled or have left by the rows of a
	// version up to knownAt.
	known   map[gate.Request]bool
	knownAt int64

	drifts  []lineDrift
	version int64 // that the gate had when they were found
}

func (c *lineComparison) compare(ctx context.Context) error {
	err := c.find(ctx)
	switch {
	case errors.Is(err, errBehind):
		c.skip("the gate of template %s is behind the rows, so its line was not compared", c.id)
		return nil
	case errors.Is(err, errGateReplaced), errors.Is(err, gate.ErrNotLoaded):
		return nil // a load reads the rows
	}
	return err
}

func (c *lineComparison) find(ctx context.Context) error {
	h, err := HeaderOf(ctx, c.gate, c.id)
	if err != nil || !h.Loaded {
		return err
	}
	t, err := c.rows.TemplateGet(ctx, c.id)
	if err != nil || t.Generation != h.Generation {
		return err
	}
	c.mode, c.generation = t.Mode, h.Generation
	c.suspects, c.known = make(map[int64]bool), make(map[gate.Request]bool)
	if err := c.pass(ctx, h); err != nil || len(c.suspects) == 0 {
		return err
	}
	if t, err = c.rows.TemplateGet(ctx, c.id); err != nil {
		return err
	}
	c.knownAt = t.Version
	c.drifts, c.version, err = c.confirm(ctx)
	return err
}

func (c *lineComparison) finish(ctx context.Context) error {
	if len(c.drifts) == 0 {
		return nil
	}
	var left []lineDrift
	if c.repair {
		var err error
		if left, err = c.repairLine(ctx); err != nil {
			return err
		}
	}
	for _, d := range c.drifts {
		c.add(d.report(c.id, c.repair && !slices.Contains(left, d)))
	}
	return nil
}

// errBehind means that a gate does not reach the version of the rows.
var errBehind = errors.New("the gate stays behind the rows")

// page reads a page of the line of a gate that must have the generation of the
// comparison.
func (c *lineComparison) page(ctx context.Context, after, upTo int64) (gate.LineResult, error) {
	page, err := c.gate.Line(ctx, c.id, after, upTo)
	if err == nil && page.Generation != c.generation {
		err = errGateReplaced
	}
	return page, err
}

func (c *lineComparison) pass(ctx context.Context, h gate.Header) error {
	left := leftReader{rows: c.rows, id: c.id, ticket: h.Settled, generation: math.MaxInt64}
	var page gate.LineResult
	for after, ended := int64(-ticketMax), false; !ended; after = page.UpTo {
		var err error
		if page, err = c.page(ctx, after, h.LastTicket); err != nil {
			return err
		}
		ended = page.UpTo >= h.LastTicket
		gone, err := c.outcomes(ctx, page, &left)
		if err != nil {
			return err
		}
		// The numbers of the gate are newer than the page: what is not settled by then has
		// not left the gate meanwhile.
		c.suspect(c.judge(page, lineRange{after: after, settledBefore: h.Settled, settled: page.Settled, lastBefore: h.LastTicket, gone: gone}), gone)
	}
	beyond, err := c.page(ctx, page.LastTicket, ticketMax)
	if err != nil {
		return err
	}
	c.suspect(c.judge(beyond, lineRange{after: page.LastTicket, settledBefore: h.Settled, settled: beyond.Settled, lastBefore: page.LastTicket}), nil)
	return nil
}

// suspect notes the tickets to look at again, at most driftsMax.
func (c *lineComparison) suspect(drifts []lineDrift, gone map[gate.Request]bool) {
	for _, d := range drifts {
		if len(c.suspects) >= driftsMax {
			return
		}
		c.suspects[d.request.Ticket] = true
		if gone[d.request] {
			c.known[d.request] = true
		}
	}
}

// outcomes returns those requests of a page whose users must not be in line by the rows:
// they have left or, in KAFKA mode, were settled.
func (c *lineComparison) outcomes(ctx context.Context, page gate.LineResult, left *leftReader) (map[gate.Request]bool, error) {
	if c.mode != reward.ModeKafka {
		return left.upTo(ctx, page.UpTo)
	}
	gone := make(map[gate.Request]bool)
	for users := range slices.Chunk(page.InLine, store.BatchMax) {
		line := slices.Clone(users)
		for i := range line {
			line[i].Generation = c.generation
		}
		wait, err := c.rows.CouponWaiting(ctx, c.id, c.generation, line)
		if err != nil {
			return nil, err
		}
		for i, l := range line {
			if !wait[i] {
				gone[l] = true
			}
		}
	}
	return gone, nil
}

// lineRange says how to judge a page.
type lineRange struct {
	after         int64 // the page has the tickets above
	settledBefore int64 // the gate has no ticket up to this one in line, since before the page was read
	settled       int64 // tickets up to this one are settled, or were when the page was read
	lastBefore    int64 // the last ticket before the page was read
	gone          map[gate.Request]bool
}

func (c *lineComparison) judge(page gate.LineResult, in lineRange) (drifts []lineDrift) {
	if c.mode == reward.ModeKafka {
		for _, u := range page.InLine {
			u.Generation = c.generation
			if in.gone[u] || u.Ticket > page.LastTicket {
				drifts = append(drifts, lineDrift{faultExtra, u})
			}
		}
		return drifts
	}
	requests := make(map[int64]gate.Request, len(page.Requests))
	for _, q := range page.Requests {
		requests[q.Ticket] = q
	}
	found := make(map[int64]bool, len(page.InLine)) // tickets with a user in line
	for _, u := range page.InLine {
		request, waits := requests[u.Ticket]
		u.Generation = request.Generation
		switch {
		case u.Ticket <= in.settledBefore, u.Ticket > page.LastTicket, waits && request.UserID != u.UserID, in.gone[u]:
			drifts = append(drifts, lineDrift{faultExtra, u})
		case u.Ticket <= in.settled || u.Ticket > in.lastBefore: // it changes now
		case !waits:
			drifts = append(drifts, lineDrift{faultLost, u})
		}
		if !waits || request.UserID == u.UserID {
			found[u.Ticket] = true
		}
	}
	for ticket := max(in.after, in.settled) + 1; ticket <= min(page.UpTo, in.lastBefore); ticket++ {
		request, waits := requests[ticket]
		switch {
		case found[ticket] || in.gone[request]:
		case waits:
			drifts = append(drifts, lineDrift{faultGone, request})
		default:
			drifts = append(drifts, lineDrift{faultLost, gate.Request{Ticket: ticket}})
		}
	}
	return drifts
}

// confirm looks at the suspects again. It returns what is wrong with them, and a version
// that the gate had before.
func (c *lineComparison) confirm(ctx context.Context) ([]lineDrift, int64, error) {
	h, err := c.caughtUp(ctx)
	if err != nil {
		return nil, 0, err
	}
	var drifts []lineDrift
	for ticket := range c.suspects {
		// The gate first: it shows a change only after the rows.
		page, err := c.page(ctx, ticket-1, ticket)
		if err != nil {
			return nil, 0, err
		}
		in := lineRange{after: ticket - 1, settledBefore: h.Settled, lastBefore: h.LastTicket, gone: c.known}
		if c.mode != reward.ModeKafka {
			t, err := c.rows.TemplateGet(ctx, c.id)
			if err != nil {
				return nil, 0, err
			}
			left := leftReader{rows: c.rows, id: c.id, ticket: ticket - 1, generation: math.MaxInt64}
			gone, err := left.upTo(ctx, ticket)
			if err != nil {
				return nil, 0, err
			}
			page.InLine = slices.DeleteFunc(page.InLine, func(u gate.Request) bool {
				// The user left after the gate was asked, or just before.
				return slices.ContainsFunc(page.Requests, func(q gate.Request) bool { return q.UserID == u.UserID && gone[q] && !c.known[q] })
			})
			in.settled, in.gone = t.Settled, gone
		}
		drifts = append(drifts, c.judge(page, in)...)
	}
	slices.SortFunc(drifts, func(a, b lineDrift) int { return int(a.request.Ticket - b.request.Ticket) })
	return drifts, h.Version, nil
}

// caughtUp waits until the gate has all outcomes that are known, and returns its header.
func (c *lineComparison) caughtUp(ctx context.Context) (gate.Header, error) {
	for range compareTriesMax {
		h, err := HeaderOf(ctx, c.gate, c.id)
		switch {
		case err != nil:
			return h, err
		case !h.Loaded || h.Generation != c.generation:
			return h, errGateReplaced
		case h.Version >= c.knownAt:
			return h, nil
		}
		if !service.Sleep(ctx, compareInterval) {
			return h, context.Cause(ctx)
		}
	}
	return gate.Header{}, errBehind
}

// repairLine brings the line into order, and returns the drifts that are left. Users who must
// not be in line are removed, and those whose request waits get their place back. If
// requests are lost, the gate is loaded again, which writes the requests of all in line
// again.
func (c *lineComparison) repairLine(ctx context.Context) (left []lineDrift, err error) {
	done, err := c.repairTickets(ctx)
	if err != nil || !done {
		return c.drifts, err
	}
	if slices.ContainsFunc(c.drifts, func(d lineDrift) bool { return d.fault == faultLost }) {
		if err := c.loader.Remake(ctx, c.id, c.generation); err != nil {
			return c.drifts, Ignore(err, ErrNotNow)
		}
	}
	switch left, _, err = c.confirm(ctx); {
	case errors.Is(err, errBehind):
		return c.drifts, nil
	case errors.Is(err, errGateReplaced), errors.Is(err, gate.ErrNotLoaded):
		return nil, nil // a load has brought the line into order
	}
	return left, err
}

// repairTickets removes users from the line and puts others back. It reports whether it
// did: not if the gate kept changing.
func (c *lineComparison) repairTickets(ctx context.Context) (bool, error) {
	return c.overwrite(ctx, c.version, func(changes *store.CouponChanges, p *gate.ApplyParams) {
		settled := make(map[gate.Request]bool, len(changes.Settled))
		for _, s := range changes.Settled {
			settled[gate.Request{UserID: s.UserID, Ticket: s.Ticket, Generation: s.Generation}] = true
		}
		for _, d := range c.drifts {
			switch {
			case d.fault == faultExtra:
				p.Done = append(p.Done, d.request)
				p.Left = append(p.Left, d.request)
			case d.fault == faultGone && !settled[d.request]:
				p.Back = append(p.Back, d.request)
			}
		}
	})
}

// leftReader reads requests that left the line, in the order of their tickets.
type leftReader struct {
	rows               Store
	id                 reward.TemplateID
	ticket, generation int64 // of the last request that was read
	ahead              []gate.Request
	ended              bool
}

// upTo returns the next requests, with tickets up to one.
func (l *leftReader) upTo(ctx context.Context, ticket int64) (map[gate.Request]bool, error) {
	left := make(map[gate.Request]bool)
	for {
		for len(l.ahead) > 0 && l.ahead[0].Ticket <= ticket {
			left[l.ahead[0]] = true
			l.ahead = l.ahead[1:]
		}
		if len(l.ahead) > 0 || l.ended {
			return left, nil
		}
		page, err := l.rows.CouponLeft(ctx, l.id, l.ticket, l.generation, gate.LoadMax)
		if err != nil {
			return nil, err
		}
		if l.ended = len(page) < gate.LoadMax; len(page) > 0 {
			last := page[len(page)-1]
			l.ahead, l.ticket, l.generation = page, last.Ticket, last.Generation
		}
	}
}
