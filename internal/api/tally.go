package api

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"sync"
	"time"

	"github.com/largesse/largesse/internal/service"
	"github.com/largesse/largesse/internal/store"
)

// tallyWindow is the time in which equal events become one entry of the audit.
const tallyWindow = time.Minute

// event is what requests have in common that share an entry of the audit.
type event struct {
	store.AuditLine        // without ID, times, Detail and RequestID
	key             string // part of a wrong API key that may be shown; "": none
	note            string // what several events have in common; "": only this one
}

// tally counts an event in a window.
type tally struct {
	event
	first     time.Time
	requestID string // of the first one
	n         int64  // since the last entry
	written   bool   // the first one has an entry
}

// group counts different events in a window.
type group map[event]*tally

// count adds n equal events. If the group has limit different ones already, it counts a
// new one as rest.
func (g group) count(one event, limit int, rest event, n int64, at time.Time) *tally {
	if g[one] == nil && len(g) >= limit {
		one = rest
	}
	if g[one] == nil {
		g[one] = &tally{event: one, first: at}
	}
	g[one].n += n
	return g[one]
}

// tallies counts events and has them written in the background, however many there are. Until
// Start, they are only counted. It is safe for concurrent use.
type tallies struct {
	service.Base
	write func(ctx context.Context, counted []tally)
	hint  service.Hint // there is an event to write within the window

	mu     sync.Mutex // protects groups
	groups [2]group
}

func newTallies(write func(ctx context.Context, counted []tally)) *tallies {
	return &tallies{write: write, hint: service.NewHint(), groups: [...]group{{}, {}}}
}

// Start writes what is counted at the end of each window and at Stop, and at a hint what
// is new.
func (s *tallies) Start(ctx context.Context) {
	s.Base.Start(ctx, func(ctx context.Context) {
		window := time.NewTicker(tallyWindow)
		defer window.Stop()
		for {
			select {
			case <-s.hint:
				s.write(ctx, s.take(false))
			case <-window.C:
				s.write(ctx, s.take(true))
			case <-ctx.Done():
				last, cancel := context.WithTimeout(context.WithoutCancel(ctx), auditEndTimeout)
				defer cancel()
				s.write(last, s.take(true))
				return
			}
		}
	})
}

// take returns the events that are new in this window, in their order. At the end of the
// window, it returns the repeats too, and begins another window.
func (s *tallies) take(ended bool) []tally {
	s.mu.Lock()
	defer s.mu.Unlock()
	var counted []tally
	for _, g := range s.groups {
		for _, t := range g {
			if t.n > 0 && (ended || !t.written && t.note == "") {
				counted = append(counted, *t)
				t.written, t.n = true, 0
			}
		}
		if ended {
			clear(g)
		}
	}
	slices.SortFunc(counted, func(a, b tally) int { return cmp.Or(a.first.Compare(b.first), cmp.Compare(a.n, b.n)) })
	return counted
}

// recordTally writes an entry of the audit. If the entry was written and the reply was
// lost, it has no end.
func (a *API) recordTally(ctx context.Context, t tally) error {
	line := t.AuditLine
	line.ID, line.At, line.RequestID = a.cfg.IDs.Next(), t.first, t.requestID
	detail, err := json.Marshal(struct {
		Count int64  `json:"count"`
		Key   string `json:"key,omitempty"`
		Note  string `json:"note,omitempty"`
	}{t.n, t.key, t.note})
	if err != nil { // strings and integers always have a JSON form
		panic(err)
	}
	line.Detail = string(detail)
	if err := a.cfg.Rows.AuditBegin(ctx, line); err != nil {
		return err
	}
	if err := a.cfg.Rows.AuditEnd(ctx, line.ID, line.Status, line.Code, time.Now()); err != nil {
		a.log.Warn("completing audit entry failed", err)
	}
	return nil
}
