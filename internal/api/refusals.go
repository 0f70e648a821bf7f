package api

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/largesse/largesse/internal/auth"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/web"
)

const (
	// refusalAction is the action of refusals in the audit. No operation has this ID.
	refusalAction = "refused-access"
	// refusalKinds limits the different refusals of a group and a window that get
	// their own entries: the first one at once, and those that follow together at the end.
	// All others of the group together get one.
	refusalKinds = 20
)

// The groups of refusals. Staff are callers with a role. All others are strangers, shoppers
// too: they can be so many that nobody would see what the staff does.
const (
	ofStaff = iota
	ofStrangers
)

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
	var key string
	if p == (auth.Principal{}) && auth.IsKeyText(token) {
		key = strings.ToValidUTF8(auth.KeySecret(token).Prefix(), "")
	}
	guessed := problem.Status == http.StatusTooManyRequests && p == (auth.Principal{})
	if guessed || problem.Status == http.StatusUnauthorized || problem.Status == http.StatusForbidden {
		a.countRefusal(r.Context(), operation, problem.Status, p, key)
	}
}

// countRefusal counts a request that was refused because of who sent it, in the metrics and
// for the audit and the log: these get at most 2 × refusalKinds + 1 entries per group and
// window. An event has nothing that a caller could vary without end, but the address.
// operation is "" if none was looked for.
func (a *API) countRefusal(ctx context.Context, operation string, status int, p auth.Principal, key string) {
	a.cfg.Metrics.Refused(status)
	one := event{AuditLine: lineOf(p), key: key}
	one.Action, one.Subject, one.Address, one.Status = refusalAction, operation, web.ClientAddress(ctx), status
	kind := ofStrangers
	if slices.Contains(staff, p.Role) {
		kind = ofStaff
	}
	rest := event{AuditLine: store.AuditLine{Action: refusalAction}, note: "various callers and operations"}
	s := a.refusals
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.groups[kind].count(one, refusalKinds, rest, 1, time.Now())
	if t.Code == "" {
		t.Status, t.Code = status, refusalCode(status)
	}
	if t.note == "" && t.requestID == "" {
		t.requestID = web.RequestID(ctx)
		s.hint.Give()
	}
}

func (a *API) writeRefusals(ctx context.Context, counted []tally) {
	for _, t := range counted {
		a.log.Warn("access refused", errors.New(http.StatusText(t.Status)), "status", t.Status, "actor", t.Actor, "client", t.Address,
			"operation", t.Subject, "key", t.key, "count", t.n, "request_id", t.requestID)
		if err := a.recordTally(ctx, t); err != nil {
			a.log.Warn("recording refused access failed", err, "count", t.n)
		}
	}
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
