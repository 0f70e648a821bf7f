package api

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/largesse/largesse/internal/auth"
	"github.com/largesse/largesse/internal/web"
)

const (
	// heldDefault is the default limit of held responses.
	heldDefault = 16_000
	// heldPerReader limits the streams of promotions and templates that a caller holds,
	// and all held responses of those who issue nothing. heldPerShopper limits those of a shopper. Other callers may
	// hold half of all: a shop follows the requests of thousands of users with one key.
	heldPerReader  = 100
	heldPerShopper = 10
	// heldRetry is the time after which a caller may try again.
	heldRetry = 5 * time.Second
)

// heldAnswers limits the responses that are held open: event streams, and coupon
// requests with Prefer: wait. Each occupies a connection for as long as its caller
// likes. It is safe for concurrent use.
type heldAnswers struct {
	max int

	mu      sync.Mutex // protects what follows
	all     int
	callers map[string]int
}

func newHeldAnswers(most int) *heldAnswers {
	return &heldAnswers{max: most, callers: make(map[string]int)}
}

// enter counts a held response of a caller, until leave is called. It returns an error
// if the caller holds most responses already, or if all places are taken. A caller without
// authentication has no limit of its own.
func (h *heldAnswers) enter(c caller, most int) (leave func(), err error) {
	switch c.Role {
	case auth.RoleShopper:
		most = min(most, heldPerShopper)
	case auth.RoleViewer, auth.RoleCampaigner, auth.RoleApprover:
		most = min(most, heldPerReader)
	}
	name := limitName(c.Principal)
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case c.token != "" && h.callers[name] >= most:
		return nil, tooMany(heldRetry, fmt.Sprintf("the caller holds %d event streams or waiting requests open, which is the limit; close some first", most))
	case h.all >= h.max:
		p := web.NewProblem(http.StatusServiceUnavailable, web.CodeUnavailable, "too many responses are held open (http.max-held-answers); poll instead, or try again later")
		p.RetryAfter = int(heldRetry.Seconds())
		return nil, p
	}
	h.all++
	h.callers[name]++
	return sync.OnceFunc(func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.all--
		if h.callers[name]--; h.callers[name] == 0 {
			delete(h.callers, name)
		}
	}), nil
}

// hold counts a held response of the caller of ctx. Callers hold at most half of all.
func (a *API) hold(ctx context.Context) (leave func(), err error) {
	return a.held.enter(callerOf(ctx), max(a.held.max/2, 1))
}

// holdProgress counts an open stream of a promotion or template.
func (a *API) holdProgress(ctx context.Context) (leave func(), err error) {
	return a.held.enter(callerOf(ctx), heldPerReader)
}
