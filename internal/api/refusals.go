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

type refusalCount struct {
	accessRefusal
	requestID string // of the first one
	first     time.Time
	n         int64
	written   bool // the first one is in the audit
}

// refusalGroup counts the refusals of a group of callers in a window. Those beyond
// refusalKinds have the zero key.
type refusalGroup map[accessRefusal]*refusalCount

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
	return &refusals{api: a, hint: service.NewHint(), staff: make(refusalGroup), strangers: make(refusalGroup)}
}

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
	g := s.strangers
	if slices.Contains(staff, r.caller.Role) {
		g = s.staff
	}
	if g[r] == nil && len(g) >= refusalKinds {
		if g[accessRefusal{}] == nil {
			g[accessRefusal{}] = &refusalCount{accessRefusal: accessRefusal{status: r.status}, first: time.Now(), written: true}
		}
		r = accessRefusal{}
	}
	if g[r] == nil {
		g[r] = &refusalCount{accessRefusal: r, requestID: web.RequestID(ctx), first: time.Now()}
		defer s.hint.Give()
	}
	g[r].n++
}

// Start writes what is recorded in the background, and the rest at Stop.
func (s *refusals) Start(ctx context.Context) {
	s.Base.Start(ctx, func(ctx context.Context) {
		window := time.NewTicker(refusalWindow)
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

// take returns the refusals that are new in this window. At the end of the window, it returns
// the repeats of each refusal, and begins another window.
func (s *refusals) take(ended bool) []refusalCount {
	s.mu.Lock()
	defer s.mu.Unlock()
	var counts []refusalCount
	for _, g := range []refusalGroup{s.staff, s.strangers} {
		for _, c := range g {
			if ended || !c.written {
				counts = append(counts, *c)
				c.written, c.n = true, 0
			}
		}
		if ended {
			clear(g)
		}
	}
	return counts
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
