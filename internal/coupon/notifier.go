package coupon

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/largesse/largesse/internal/gate"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

const (
	// tellEvery is how often those who watch are looked after without a hint,
	// tellPause how often at most with hints.
	updateInterval    = 250 * time.Millisecond
	updateIntervalMin = 10 * time.Millisecond
)

// Notifier tells those who watch how their requests come on: all of an
// instance's watchers of one template with one call per round.
type Notifier struct {
	rows      store.Store
	gate      gate.Gate
	templates *TemplateCache
	// load makes sure that a gate is loaded: without it the line is not known.
	load func(ctx context.Context, id reward.TemplateID) error

	mu     sync.Mutex // protects groups and what is in them
	groups map[reward.TemplateID]*group
	open   sync.WaitGroup
}

// group is the watchers of one template; its goroutine lives while there are
// any.
type group struct {
	watchers map[*Watcher]bool
	pending  map[*ticketWait]bool
	hints    chan struct{}
}

// Watcher gets the news of one request. [notification]
type Watcher struct {
	user    string
	ticket  int64       // what is settled below it is old
	updates chan Status // holds the latest only
	last    Status
}

// News delivers where the request stands, each time that it has changed: the
// rank never rises, and neither does the wait. What nobody took in time is
// replaced by what is newer. After Issued or Rejected nothing more comes.
func (w *Watcher) Updates() <-chan Status { return w.updates }

// ticketWait waits for a request to leave the gate's stream.
type ticketWait struct {
	generation, ticket int64
	done               chan error
}

func newNotifier(rows store.Store, g gate.Gate, t *TemplateCache) *Notifier {
	return &Notifier{rows: rows, gate: g, templates: t, groups: make(map[reward.TemplateID]*group)}
}

// Watch begins to watch the request of a user that has a ticket, or has it later;
// stop ends it. Outcomes of earlier tickets are not told.
func (n *Notifier) Watch(id reward.TemplateID, user string, ticket int64) (w *Watcher, stop func()) {
	w = &Watcher{user: user, ticket: ticket, updates: make(chan Status, 1)}
	g := n.join(id, func(g *group) { g.watchers[w] = true })
	return w, func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		delete(g.watchers, w)
	}
}

// acknowledged waits until a request is gone from the gate's stream, which is
// when the broker has it. ErrNotLoaded says that the gate is another one now.
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

// join adds somebody to the group of a template, which it makes when needed.
func (n *Notifier) join(id reward.TemplateID, add func(*group)) *group {
	n.mu.Lock()
	defer n.mu.Unlock()
	g := n.groups[id]
	if g == nil {
		g = &group{watchers: make(map[*Watcher]bool), pending: make(map[*ticketWait]bool), hints: make(chan struct{}, 1)}
		n.groups[id] = g
		n.open.Go(func() { n.run(id, g) })
	}
	add(g)
	g.hint()
	return g
}

func (g *group) hint() {
	select {
	case g.hints <- struct{}{}:
	default:
	}
}

// hint makes the group of a template look.
func (n *Notifier) hint(id reward.TemplateID) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if g := n.groups[id]; g != nil {
		g.hint()
	}
}

// run tells until nobody watches.
func (n *Notifier) run(id reward.TemplateID, g *group) {
	for {
		n.mu.Lock()
		if len(g.watchers)+len(g.pending) == 0 {
			delete(n.groups, id)
			n.mu.Unlock()
			return
		}
		watchers := make([]*Watcher, 0, len(g.watchers))
		for w := range g.watchers {
			watchers = append(watchers, w)
		}
		pending := make([]*ticketWait, 0, len(g.pending))
		for w := range g.pending {
			pending = append(pending, w)
		}
		n.mu.Unlock()
		ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
		n.update(ctx, id, g, watchers)
		n.confirm(ctx, id, g, pending)
		cancel()
		time.Sleep(updateIntervalMin) // so that hints come together
		timer := time.NewTimer(updateInterval)
		select {
		case <-g.hints:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// tell tells watchers. A failure is nothing to tell: the next round tries again.
func (n *Notifier) update(ctx context.Context, id reward.TemplateID, g *group, watchers []*Watcher) {
	t, err := n.templates.get(ctx, id)
	if err != nil {
		return
	}
	for chunk := range slices.Chunk(watchers, store.BatchMax) {
		users := make([]string, len(chunk))
		for i, w := range chunk {
			users[i] = w.user
		}
		list, err := n.statuses(ctx, t, users)
		if errors.Is(err, gate.ErrNotLoaded) && n.load(ctx, id) == nil {
			list, err = n.statuses(ctx, t, users)
		}
		if list == nil && err != nil {
			return
		}
		for i, w := range chunk {
			switch {
			case list[i].Kind == "", list[i].Kind != StatusWaiting && list[i].Ticket < w.ticket:
				continue
			case list[i].Kind == StatusWaiting:
				w.ticket = list[i].Ticket // a load may have given another
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

// tell passes news on; it says whether they are the last.
func (w *Watcher) update(s Status) (last bool) {
	if s.Kind == StatusWaiting && w.last.Kind == StatusWaiting && s.Ticket == w.last.Ticket {
		s.Rank = min(s.Rank, w.last.Rank)
		if w.last.Wait > 0 {
			s.Wait = min(s.Wait, w.last.Wait)
		}
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

// confirm answers those who wait for the broker.
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

// look tells where the latest requests of users stand, in order; Kind "" =
// there is none. The line first: who leaves it has an outcome by then. While
// the line cannot be looked at, an error says so, and those are told whose coupon
// is all that they can have; another outcome could be older than their place in
// line.
func (n *Notifier) statuses(ctx context.Context, t *reward.CouponTemplate, users []string) ([]Status, error) {
	out := make([]Status, len(users))
	drawn := t.Draw.State == reward.DrawNone || t.Draw.State == reward.DrawDone
	var missing []string
	var away error
	if drawn {
		placing, err := n.gate.Positions(ctx, t.ID, users)
		if err != nil {
			away = err // what is settled can be told all the same
			placing = gate.PositionsResult{Positions: make([]gate.Position, len(users))}
		}
		for i, p := range placing.Positions {
			if p.InLine {
				out[i] = Status{Kind: StatusWaiting, Ticket: p.Ticket, Rank: p.Rank, Wait: time.Duration(p.Rank+1) * placing.ServiceTime}
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
	if !drawn {
		if entered, err = n.rows.EntrantHas(ctx, t.ID, missing); err != nil {
			return nil, err
		}
	}
	for i, user := range users {
		if out[i].Kind != "" {
			continue
		}
		o, found := outcomes[user]
		switch {
		case found && (away == nil || t.PerUserLimit == 1 && o.Issued() && o.Coupon.Status != reward.CouponCancelled):
			out[i] = statusOf(o)
		case entered[user]:
			out[i] = Status{Kind: StatusWaiting}
		}
	}
	return out, away
}
