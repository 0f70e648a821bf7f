package api

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/largesse/largesse/internal/auth"
	"github.com/largesse/largesse/internal/service"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/web"
)

const (
	// refusalAction is the action of refusals in the audit. No operation has this ID.
	refusalAction = "refused-access"
	// refusalWindow is the time in which equal refusals become one entry. The first one
	// gets an entry at once, and those that follow get one together at the end.
	refusalWindow = time.Minute
	// refusalKinds limits the different refusals of a group and a window that get
	// their own entries. All others of the group together get one.
	refusalKinds = 20
)

// accessRefusal describes requests that were refused because of who sent them. It contains
// nothing that a caller could vary without end, but the address.
type accessRefusal struct {
	operation string         // ID of the operation; "" if none was looked for
	status    int            // HTTP status of the response
	caller    auth.Principal // zero: the caller is not authenticated
	key       string         // part of a wrong API key that may be shown; "": none
	address   string         // of the client
}

// refusalCount counts equal refusals of a window.
type refusalCount struct {
	accessRefusal
	requestID string // of the first one
	first     time.Time
	n         int64
	written   bool // the first one is in the audit
}

// refusalGroup counts the refusals of a group of callers in a window.
type refusalGroup struct {
	kinds map[accessRefusal]*refusalCount
	other refusalCount // those beyond refusalKinds
}

// refusals writes refused requests to the audit and the log, however many there are: at
// most 2 × refusalKinds + 1 entries per group and window. Until Start, it only counts them in the
// metrics. It is safe for concurrent use.
type refusals struct {
	service.Base
	api  *API
	hint service.Hint

	mu sync.Mutex // protects what follows
	// staff are callers with a role. All others are strangers, shoppers too: they can
	// be so many that nobody would see what the staff does.
	staff, strangers refusalGroup
}

func newRefusals(a *API) *refusals {
	s := &refusals{api: a, hint: service.NewHint()}
	for _, g := range s.groups() {
		g.kinds = make(map[accessRefusal]*refusalCount)
	}
	return s
}

func (s *refusals) groups() []*refusalGroup { return []*refusalGroup{&s.staff, &s.strangers} }

// refuse records the refusal of a request by the gate.
func (a *API) refuse(r *http.Request, operation string, p auth.Principal, token string, err error) {
	problem, ok := errors.AsType[*web.Problem](err)
	if !ok {
		return
	}
	// A client that asks who it is without a credential finds out whether it needs one, as
	// the page for signing in does. Nobody tried to get in.
	if operation == "get-me" && r.Header.Get("Authorization") == "" {
		return
	}
	from := accessRefusal{operation: operation, status: problem.Status, caller: p}
	if p == (auth.Principal{}) && auth.IsKeyText(token) {
		from.key = strings.ToValidUTF8(auth.KeySecret(token).Prefix(), "")
	}
	guessed := problem.Status == http.StatusTooManyRequests && p == (auth.Principal{})
	if guessed || problem.Status == http.StatusUnauthorized || problem.Status == http.StatusForbidden {
		a.refusals.record(r.Context(), from)
	}
}

func (s *refusals) record(ctx context.Context, r accessRefusal) {
	s.api.cfg.Metrics.Refused(r.status)
	r.address = web.ClientAddress(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	g := &s.strangers
	if slices.Contains(staff, r.caller.Role) {
		g = &s.staff
	}
	c := g.kinds[r]
	switch {
	case c != nil:
	case len(g.kinds) >= refusalKinds:
		c = &g.other
		if c.n == 0 {
			c.accessRefusal, c.first = accessRefusal{status: r.status}, time.Now()
		}
	default:
		c = &refusalCount{accessRefusal: r, requestID: web.RequestID(ctx), first: time.Now()}
		g.kinds[r] = c
		defer s.hint.Give()
	}
	c.n++
}

// Start writes what is recorded in the background, and the rest at Stop.
func (s *refusals) Start(ctx context.Context) {
	s.Base.Start(ctx, func(ctx context.Context) {
		window := time.NewTicker(refusalWindow)
		defer window.Stop()
		for {
			select {
			case <-s.hint:
				s.writeFirst(ctx)
			case <-window.C:
				s.writeRest(ctx)
			case <-ctx.Done():
				last, cancel := context.WithTimeout(context.WithoutCancel(ctx), auditEndTimeout)
				defer cancel()
				s.writeRest(last)
				return
			}
		}
	})
}

// writeFirst writes an entry for each refusal that is new in this window.
func (s *refusals) writeFirst(ctx context.Context) {
	s.mu.Lock()
	var fresh []refusalCount
	for _, g := range s.groups() {
		for _, c := range g.kinds {
			if !c.written {
				c.written = true
				fresh = append(fresh, *c)
				c.n = 0
			}
		}
	}
	s.mu.Unlock()
	s.write(ctx, fresh)
}

// writeRest ends a window: it writes one entry for all repeats of each refusal.
func (s *refusals) writeRest(ctx context.Context) {
	s.mu.Lock()
	var rest []refusalCount
	for _, g := range s.groups() {
		for _, c := range g.kinds {
			rest = append(rest, *c)
		}
		rest = append(rest, g.other)
		*g = refusalGroup{kinds: make(map[accessRefusal]*refusalCount)}
	}
	s.mu.Unlock()
	s.write(ctx, rest)
}

func (s *refusals) write(ctx context.Context, counts []refusalCount) {
	slices.SortFunc(counts, func(a, b refusalCount) int { return cmp.Or(a.first.Compare(b.first), cmp.Compare(a.n, b.n)) })
	for _, c := range counts {
		if c.n == 0 {
			continue
		}
		line := c.line()
		line.ID = s.api.cfg.IDs.Next()
		s.api.log.Warn("access refused", errors.New(http.StatusText(c.status)), "status", c.status, "actor", line.Actor, "client", line.Address,
			"operation", c.operation, "key", c.key, "count", c.n, "request_id", c.requestID)
		err := s.api.cfg.Rows.AuditBegin(ctx, line)
		if err == nil {
			err = s.api.cfg.Rows.AuditEnd(ctx, line.ID, c.status, refusalCode(c.status), time.Now())
		}
		if err != nil {
			s.api.log.Warn("recording refused access failed", err, "count", c.n)
		}
	}
}

// line returns the audit entry of equal refusals.
func (c refusalCount) line() store.AuditLine {
	detail := countDetail{Count: c.n, Key: c.key}
	if c.operation == "" && c.address == "" {
		detail.Note = "various callers and operations"
	}
	line := lineOf(c.caller)
	line.At, line.Action, line.Subject, line.Detail = c.first, refusalAction, c.operation, detail.text()
	line.RequestID, line.Address = c.requestID, c.address
	return line
}

func refusalCode(status int) string {
	switch status {
	case http.StatusUnauthorized:
		return CodeUnauthenticated
	case http.StatusTooManyRequests:
		return CodeRateLimited
	case http.StatusMisdirectedRequest:
		return web.CodeWrongHost
	}
	return CodeForbidden
}
