package coupon

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/largesse/largesse/internal/gate"
	"github.com/largesse/largesse/internal/gatekeeper"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/service"
	"github.com/largesse/largesse/internal/store"
)

const (
	// updateInterval separates two updates without hints, hintedUpdateInterval two
	// updates with hints.
	updateInterval       = 250 * time.Millisecond
	hintedUpdateInterval = 10 * time.Millisecond

	// A watcher learns a new rank at most once per rankInterval. The interval grows by
	// rankInterval for each rankStep requests ahead, up to rankIntervalMax. So the
	// cost of the ranks is bounded, however fast the line moves: ten thousand watchers
	// cause about two thousand updates per second. Outcomes are sent at once.
	rankInterval    = time.Second
	rankIntervalMax = 10 * time.Second
	rankStep        = 500
)

// Notifier sends updates about requests to their watchers. In each round, it asks how
// far the line of a template has moved. It then looks up only the watchers who may
// have left the line, and those whose rank is due (see rankInterval). It is safe for
// concurrent use.
type Notifier struct {
	parts

	mu     sync.Mutex // protects groups and what is in them
	groups map[reward.TemplateID]*group
	open   sync.WaitGroup // goroutines, one per group
}

// group holds the watchers of one template. Its goroutine runs while it has any.
type group struct {
	watchers map[*Watcher]bool
	pending  map[*ticketWait]bool
	hint     service.Hint
}

type lineProgress struct {
	known      bool // false: the gate did not tell
	generation int64
	gone       int64 // requests that have left the line
	draw       reward.DrawState
}

// Watcher receives the updates of one request.
type Watcher struct {
	user    string
	since   Status      // outcomes of earlier requests are ignored
	updates chan Status // holds only the latest
	hinted  bool        // by hintUser; protected by Notifier.mu

	// The rest is for the goroutine of the group.
	last    Status
	looked  lineProgress // when the request was looked up last
	turn    int64        // the request is in line at least until looked.gone is above it
	soonest time.Time    // when it is looked up next if the gate does not tell the progress
	due     time.Time    // when it is looked up next in any case
}

// Updates delivers the status of the request when it changes: an outcome at once, and
// a rank at intervals (see rankInterval). For one ticket, the rank never rises;
// the estimated wait rises when requests are settled more slowly. A newer status
// replaces one that was not received. A status other than StatusWaiting is the last.
func (w *Watcher) Updates() <-chan Status { return w.updates }

// ticketWait waits until a request has left the gate's stream.
type ticketWait struct {
	generation, ticket int64
	done               chan error
}

func newNotifier(p parts) *Notifier {
	return &Notifier{parts: p, groups: make(map[reward.TemplateID]*group)}
}

// Watch watches the request of a user that has this status, or a later one; outcomes of
// earlier requests are not delivered. The caller must call stop.
func (n *Notifier) Watch(id reward.TemplateID, user string, since Status) (w *Watcher, stop func()) {
	w = &Watcher{user: user, since: since, updates: make(chan Status, 1)}
	g := n.join(id, func(g *group) { g.watchers[w] = true })
	return w, func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		delete(g.watchers, w)
	}
}

// waitAcknowledged waits until a request has left the gate's stream. In KAFKA mode
// this means that the broker has the request. gate.ErrNotLoaded means that the gate
// must be loaded, or has another generation.
func (n *Notifier) waitAcknowledged(ctx context.Context, id reward.TemplateID, generation, ticket int64) error {
	w := &ticketWait{generation: generation, ticket: ticket, done: make(chan error, 1)}
	g := n.join(id, func(g *group) { g.pending[w] = true })
	select {
	case err := <-w.done:
		return err
	case <-ctx.Done():
		n.mu.Lock()
		defer n.mu.Unlock()
		delete(g.pending, w)
		return context.Cause(ctx)
	}
}

// join calls add with the group of a template, which it creates if necessary.
func (n *Notifier) join(id reward.TemplateID, add func(*group)) *group {
	n.mu.Lock()
	defer n.mu.Unlock()
	g := n.groups[id]
	if g == nil {
		g = &group{watchers: make(map[*Watcher]bool), pending: make(map[*ticketWait]bool), hint: service.NewHint()}
		n.groups[id] = g
		n.open.Go(func() { n.run(id, g) })
	}
	add(g)
	g.hint.Give()
	return g
}

// hint gives the group of a template a hint, if there is one.
func (n *Notifier) hint(id reward.TemplateID) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if g := n.groups[id]; g != nil {
		g.hint.Give()
	}
}

// hintUser is hint after a user has left the line. The progress of the line does not
// tell who left it, so the user's watchers on this instance are looked up in any case.
// Those on other instances learn of it when their rank is due.
func (n *Notifier) hintUser(id reward.TemplateID, user string) {
	n.mu.Lock()
	if g := n.groups[id]; g != nil {
		for w := range g.watchers {
			w.hinted = w.hinted || w.user == user
		}
	}
	n.mu.Unlock()
	n.hint(id)
}

// run updates the watchers of a group until it has none.
func (n *Notifier) run(id reward.TemplateID, g *group) {
	for {
		n.mu.Lock()
		if len(g.watchers)+len(g.pending) == 0 {
			delete(n.groups, id)
			n.mu.Unlock()
			return
		}
		watching := len(g.watchers) > 0
		pending := make([]*ticketWait, 0, len(g.pending))
		for w := range g.pending {
			pending = append(pending, w)
		}
		n.mu.Unlock()
		ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
		if watching {
			n.update(ctx, id, g)
		}
		n.confirm(ctx, id, g, pending)
		cancel()
		time.Sleep(hintedUpdateInterval) // so that several hints cause one round
		select {
		case <-g.hint:
		case <-time.After(updateInterval):
		}
	}
}

// update sends the present statuses to those watchers who may have an outcome, or
// whose rank is due. After a failure the next round tries again.
func (n *Notifier) update(ctx context.Context, id reward.TemplateID, g *group) {
	t, err := n.templates.Get(ctx, id)
	if err != nil {
		return
	}
	line := n.progress(ctx, t)
	now := time.Now()
	var due []*Watcher
	n.mu.Lock()
	for w := range g.watchers {
		if w.hinted || w.isDue(line, now) {
			due = append(due, w)
			w.hinted = false
		}
	}
	n.mu.Unlock()
	for chunk := range slices.Chunk(due, store.BatchMax) {
		users := make([]string, len(chunk))
		for i, w := range chunk {
			users[i] = w.user
			w.looked, w.turn = line, 0
			w.soonest = now.Add(rankInterval)
			w.due = w.soonest
		}
		list, err := n.statuses(ctx, t, users)
		if errors.Is(err, gate.ErrNotLoaded) && n.loader.Ensure(ctx, id) == nil {
			list, err = n.statuses(ctx, t, users)
		}
		if list == nil && err != nil {
			return
		}
		for i, w := range chunk {
			switch {
			case list[i].Kind == "", list[i].Kind != StatusWaiting && !list[i].settles(w.since):
				continue
			case list[i].Kind == StatusWaiting:
				w.since = list[i] // a load may have given the user another ticket
				w.turn = line.gone + list[i].Rank
				w.due = now.Add(rankPause(t, list[i], now))
			}
			list[i].RequestID = reward.RequestID(id, w.user)
			if w.update(list[i]) {
				n.mu.Lock()
				delete(g.watchers, w)
				n.mu.Unlock()
			}
		}
	}
}

func (n *Notifier) progress(ctx context.Context, t *reward.CouponTemplate) lineProgress {
	p := lineProgress{draw: t.Draw.State}
	if gatekeeper.InDraw(t) {
		return p // there is no line before a draw
	}
	ctx, cancel := context.WithTimeout(ctx, gatekeeper.GateTimeout)
	defer cancel()
	if h, err := gatekeeper.HeaderOf(ctx, n.gate, t.ID); err == nil && h.Loaded {
		p.known, p.generation, p.gone = true, h.Generation, h.LastTicket-h.Waiting
	}
	return p
}

// isDue reports whether a watcher's request must be looked up. A request with rank 5
// cannot leave the line before five others have left. So as long as the progress is
// known, most requests need no look.
func (w *Watcher) isDue(line lineProgress, now time.Time) bool {
	switch {
	case !now.Before(w.due), line.draw != w.looked.draw:
		return true
	case !line.known || !w.looked.known:
		return !now.Before(w.soonest)
	default:
		return line.generation != w.looked.generation || line.gone > w.turn
	}
}

// rankPause returns how long a watcher with a status waits for the next rank. The
// pauses of watchers differ, so that those who came together do not stay together.
func rankPause(t *reward.CouponTemplate, s Status, now time.Time) time.Duration {
	pause := rankInterval * time.Duration(1+s.Rank/rankStep)
	if s.Ticket == 0 {
		pause = max(t.OpensAt.Sub(now), rankInterval) // the draw comes first
	}
	pause = min(pause, rankIntervalMax)
	return pause + rand.N(pause/5) //nolint:gosec // no secret
}

// update sends a status if it differs from the previous one. It reports whether
// this is the last update.
func (w *Watcher) update(s Status) (last bool) {
	if s.Kind == StatusWaiting && w.last.Kind == StatusWaiting && s.Ticket == w.last.Ticket {
		s.Rank = min(s.Rank, w.last.Rank)
	}
	if s == w.last {
		return false
	}
	w.last = s
	select {
	case <-w.updates:
	default:
	}
	w.updates <- s
	return s.Kind != StatusWaiting
}

// confirm ends the waits for requests that have left the gate's stream.
func (n *Notifier) confirm(ctx context.Context, id reward.TemplateID, g *group, pending []*ticketWait) {
	byGeneration := make(map[int64][]*ticketWait)
	for _, w := range pending {
		byGeneration[w.generation] = append(byGeneration[w.generation], w)
	}
	for generation, list := range byGeneration {
		tickets := make([]int64, len(list))
		for i, w := range list {
			tickets[i] = w.ticket
		}
		open, err := n.gate.Unacked(ctx, id, generation, tickets)
		if err != nil && !errors.Is(err, gate.ErrNotLoaded) {
			continue
		}
		n.mu.Lock()
		for i, w := range list {
			if err != nil || !open[i] {
				delete(g.pending, w)
				w.done <- err
			}
		}
		n.mu.Unlock()
	}
}

// statuses returns the statuses of users' latest requests, in order. An empty kind
// means that no request is known. It reads the waiting line before the rows, because
// a request that has left the line has a stored outcome.
//
// If the line cannot be read, statuses returns an error, and with it the statuses of
// those users who have the only coupon that they may have. It leaves out all other
// outcomes, because these users may have requested again and wait in line.
func (n *Notifier) statuses(ctx context.Context, t *reward.CouponTemplate, users []string) ([]Status, error) {
	out := make([]Status, len(users))
	drawn := !gatekeeper.InDraw(t)
	var missing []string
	var lineErr error
	if drawn {
		call, cancel := context.WithTimeout(ctx, gatekeeper.GateTimeout)
		positions, err := n.gate.Positions(call, t.ID, users)
		cancel()
		if err != nil {
			if !errors.Is(err, gate.ErrNotLoaded) || !isGone(ctx, n.gate, t) {
				lineErr = err // stored outcomes can still be reported
			}
			positions = gate.PositionsResult{Positions: make([]gate.Position, len(users))}
		}
		for i, p := range positions.Positions {
			if p.InLine {
				out[i] = Status{
					Kind: StatusWaiting, Ticket: p.Ticket, Rank: p.Rank, Wait: waitOf(p.Rank, positions.ServiceTime), Generation: positions.Generation,
				}
			} else {
				missing = append(missing, users[i])
			}
		}
	} else {
		missing = users
	}
	if len(missing) == 0 {
		return out, nil
	}
	outcomes, err := n.rows.IssueOutcomes(ctx, t.ID, missing)
	if err != nil {
		return nil, err
	}
	var entered map[string]bool
	if drawn {
		err = addNotDrawn(ctx, n.rows, t, missing, outcomes)
	} else {
		entered, err = n.rows.EntrantHas(ctx, t.ID, missing)
	}
	if err != nil {
		return nil, err
	}
	for i, user := range users {
		if out[i].Kind != "" {
			continue
		}
		o, found := outcomes[user]
		switch {
		case found && (lineErr == nil || t.PerUserLimit == 1 && o.Issued() && o.Coupon.Status != reward.CouponCancelled):
			out[i] = StatusOf(o)
		case entered[user]:
			out[i] = Status{Kind: StatusWaiting, Wait: drawWait(t)}
		}
	}
	return out, lineErr
}
