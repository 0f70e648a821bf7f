package api

import (
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

const (
	// actsMax limits the different acts of a window that get their own entries. All
	// others together get one for each operation and code.
	actsMax = 1000
	// refusedMax limits the entries of refused changes of a caller in a window.
	refusedMax = 20
)

// The groups of acts: what the staff does in unaudited operations, together with the changes
// that were refused beyond refusedMax, and all refused changes by caller, which get no
// entries. A drop or a flood has thousands of them per second, which would bury all other
// entries. A crash loses the counts of its last minute; what was done is in the rows, and
// what was refused has changed nothing.
const (
	acts = iota
	refusedChanges
)

// acted counts an act of the caller, if they are staff. Shoppers act for themselves only.
func (a *API) acted(ctx context.Context, operation string, id reward.TemplateID) {
	caller := callerOf(ctx).Principal
	if !slices.Contains(issuers, caller.Role) {
		return
	}
	one := event{AuditLine: lineOf(caller)}
	one.Action, one.Subject, one.Status = operation, "/v1/coupon-templates/"+id.String(), http.StatusOK
	a.countAct(one, 1, time.Now())
}

// refusedOften counts a refused change, and reports whether its caller had refusedMax of
// them in the window already.
func (a *API) refusedOften(line store.AuditLine) bool {
	who := event{AuditLine: store.AuditLine{Role: line.Role, KeyID: line.KeyID, TokenSubject: line.TokenSubject}} // not what callers choose or renew
	a.acts.mu.Lock()
	defer a.acts.mu.Unlock()
	return a.acts.groups[refusedChanges].count(who, actsMax, event{}, 1, line.At).n > refusedMax
}

func (a *API) countAct(one event, n int64, at time.Time) {
	rest := event{AuditLine: store.AuditLine{Action: one.Action, Status: one.Status, Code: one.Code}, note: "various callers and subjects"}
	a.acts.mu.Lock()
	defer a.acts.mu.Unlock()
	a.acts.groups[acts].count(one, actsMax, rest, n, at)
}

// writeActs writes the counts of a window. After the first one that cannot be written, it
// tries no other: they are part of the next window.
func (a *API) writeActs(ctx context.Context, counted []tally) {
	var failed error
	for _, t := range counted {
		if t.Action == "" { // of refusedChanges
			continue
		}
		if failed == nil {
			failed = a.recordTally(ctx, t)
		}
		if failed != nil {
			a.countAct(t.event, t.n, t.first)
		}
	}
	if failed != nil {
		a.log.Warn("recording what the staff did failed", failed)
	}
}
