package api

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/largesse/largesse/internal/auth"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/service"
	"github.com/largesse/largesse/internal/store"
)

const (
	// actsWindow is the time in which equal acts become one entry of the audit.
	actsWindow = time.Minute
	// actsMax limits the different acts of a window that get their own entries. All
	// others together get one.
	actsMax = 1000
	// refusedMax limits the entries of refused changes of a caller in a window.
	refusedMax = 20
)

// act is what a member of the staff does to the line of a template, or a change of a caller
// that was refused. A drop or a flood has thousands of them per second, which would bury
// all other entries.
type act struct {
	caller    auth.Principal
	operation string
	template  reward.TemplateID
	// status and code are the response to a change that was refused; zero otherwise.
	status int
	code   string
}

// acts counts what the staff does in unaudited operations, and the changes that were refused
// beyond refusedMax. It writes the counts to the audit. Until Start, it only counts. A crash
// loses the counts of its last minute; what was done is in the rows, and what was refused
// has changed nothing. It is safe for concurrent use.
type acts struct {
	service.Base
	api *API

	mu     sync.Mutex // protects what follows
	since  time.Time
	counts map[act]int64
	// refused counts all refused changes of the window.
	refused map[auth.Principal]int
}

// acted counts an act of the caller, if they are staff. Shoppers act for themselves only.
func (a *API) acted(ctx context.Context, operation string, id reward.TemplateID) {
	one := act{caller: callerOf(ctx).Principal, operation: operation, template: id}
	if slices.Contains(issuers, one.caller.Role) {
		a.acts.add(one, 1, time.Now())
	}
}

func (s *acts) add(one act, n int64, at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.counts) == 0 {
		s.since, s.counts = at, make(map[act]int64)
	}
	if s.counts[one] == 0 && len(s.counts) >= actsMax {
		one = act{operation: one.operation, status: one.status, code: one.code}
	}
	s.counts[one] += n
}

// refusedOften counts a refused change, and reports whether its caller had refusedMax of
// them in the window already.
func (s *acts) refusedOften(caller auth.Principal) bool {
	who := auth.Principal{Role: caller.Role, KeyID: caller.KeyID, TokenSubject: caller.TokenSubject} // not what callers choose or renew
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refused == nil {
		s.refused = make(map[auth.Principal]int)
	}
	if s.refused[who] == 0 && len(s.refused) >= actsMax {
		who = auth.Principal{}
	}
	s.refused[who]++
	return s.refused[who] > refusedMax
}

// Start writes the counts in the background, every minute and at Stop.
func (s *acts) Start(ctx context.Context) { s.StartEvery(ctx, actsWindow, auditEndTimeout, s.write) }

// write ends a window. After the first count that cannot be written, it tries no other:
// they are part of the next window. If an entry was written and the reply was lost, it has
// no end, and the next one counts the same again.
func (s *acts) write(ctx context.Context) {
	s.mu.Lock()
	since, counts := s.since, s.counts
	s.counts, s.refused = nil, nil
	s.mu.Unlock()
	var failed error
	for one, n := range counts {
		line := one.line(n)
		line.ID, line.At = s.api.cfg.IDs.Next(), since
		if failed == nil {
			failed = s.api.cfg.Rows.AuditBegin(ctx, line)
		}
		if failed != nil {
			s.add(one, n, since)
		} else if err := s.api.cfg.Rows.AuditEnd(ctx, line.ID, cmp.Or(one.status, http.StatusOK), one.code, time.Now()); err != nil {
			s.api.log.Warn("completing audit entry failed", err)
		}
	}
	if failed != nil {
		s.api.log.Warn("recording what the staff did failed", failed)
	}
}

func (one act) line(n int64) store.AuditLine {
	detail := countDetail{Count: n}
	line := lineOf(one.caller)
	line.Action = one.operation
	switch {
	case one.caller == auth.Principal{}:
		detail.Note = "various callers and subjects"
	case one.template == 0:
		detail.Note = fmt.Sprintf("refused, beyond the first %d of the minute", refusedMax)
	default:
		line.Subject = "/v1/coupon-templates/" + one.template.String()
	}
	line.Detail = detail.text()
	return line
}

type countDetail struct {
	Count int64  `json:"count"`
	Key   string `json:"key,omitempty"`
	Note  string `json:"note,omitempty"`
}

func (d countDetail) text() string {
	text, err := json.Marshal(d)
	if err != nil { // strings and integers always have a JSON form
		panic(err)
	}
	return string(text)
}
