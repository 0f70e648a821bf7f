package api

import (
	"context"
	"encoding/json"
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
)

// act is what a member of the staff does to the line of a template. A drop has thousands
// of them per second, which would bury all other entries.
type act struct {
	caller    auth.Principal
	operation string
	template  reward.TemplateID
}

// acts counts what the staff does in unaudited operations, and writes the counts to the
// audit. Until Start, it only counts. A crash loses the counts of its last minute; what
// was done is in the rows. It is safe for concurrent use.
type acts struct {
	service.Base
	api *API

	mu     sync.Mutex // protects what follows
	since  time.Time
	counts map[act]int64
}

// acted counts an act of the caller, if they are staff. Shoppers act for themselves only.
func (a *API) acted(ctx context.Context, operation string, id reward.TemplateID) {
	one := act{callerOf(ctx).Principal, operation, id}
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
		one = act{operation: one.operation}
	}
	s.counts[one] += n
}

// Start writes the counts in the background, every minute and at Stop.
func (s *acts) Start(ctx context.Context) { s.StartEvery(ctx, actsWindow, auditEndTimeout, s.write) }

// write ends a window. After the first count that cannot be written, it tries no other:
// they are part of the next window. If an entry was written and the reply was lost, it has
// no end, and the next one counts the same again.
func (s *acts) write(ctx context.Context) {
	s.mu.Lock()
	since, counts := s.since, s.counts
	s.counts = nil
	s.mu.Unlock()
	var failed error
	for one, n := range counts {
		line := one.line(n)
		line.ID, line.At = s.api.cfg.IDs.Next(), since
		if failed == nil {
			failed = s.api.cfg.Audits.AuditBegin(ctx, line)
		}
		if failed != nil {
			s.add(one, n, since)
		} else if err := s.api.cfg.Audits.AuditEnd(ctx, line.ID, http.StatusOK, "", time.Now()); err != nil {
			s.api.log.Warn("completing audit entry failed", err)
		}
	}
	if failed != nil {
		s.api.log.Warn("recording what the staff did failed", failed)
	}
}

func (one act) line(n int64) store.AuditLine {
	detail := struct {
		Count int64  `json:"count"`
		Note  string `json:"note,omitempty"`
	}{Count: n}
	line := lineOf(one.caller)
	line.Action = one.operation
	if one.template == 0 {
		detail.Note = "various callers and templates"
	} else {
		line.Subject = "/v1/coupon-templates/" + one.template.String()
	}
	text, err := json.Marshal(detail)
	if err != nil { // strings and integers always have a JSON form
		panic(err)
	}
	line.Detail = string(text)
	return line
}
