package api

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/largesse/largesse/internal/auth"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/web"
)

// Who may do what, by groups of roles.
var (
	anybody   = []auth.Role(nil)
	readers   = []auth.Role{auth.Viewer, auth.Operator, auth.Admin}
	attendant = []auth.Role{auth.Viewer, auth.Issuer, auth.Operator, auth.Admin}
	visitors  = []auth.Role{auth.Viewer, auth.Issuer, auth.Operator, auth.Admin, auth.Shopper}
	askers    = []auth.Role{auth.Issuer, auth.Operator, auth.Admin, auth.Shopper}
	issuers   = []auth.Role{auth.Issuer, auth.Operator, auth.Admin}
	operators = []auth.Role{auth.Operator, auth.Admin}
	admins    = []auth.Role{auth.Admin}
)

// permissions is who may call which operation. A shopper is held to what is his
// where the operation is carried out.
var permissions = map[string][]auth.Role{
	"alive": anybody, "ready": anybody, "metrics": anybody, "describe": anybody, "docs": anybody,

	"list-promotions": readers, "get-promotion": readers, "watch-promotion": readers, "get-promotion-stream": readers,
	"get-upload-report": readers, "list-payouts": readers, "get-payout": readers,
	"list-dead-letters": readers, "get-dead-letter": readers, "list-instances": readers, "get-reconciliation": readers,
	"list-audit": readers,

	"create-promotion": operators, "delete-promotion": operators, "start-promotion": operators, "pause-promotion": operators,
	"resume-promotion": operators, "cancel-promotion": operators, "close-promotion": operators, "approve-promotion": operators,
	"upload-targets": operators, "retry-payouts": operators, "resolve-payout": operators,
	"replay-dead-letter": operators, "discard-dead-letter": operators, "replay-dead-letters": operators, "discard-dead-letters": operators,
	"reconcile": operators, "create-template": operators, "change-template": operators, "close-template": operators,

	"list-templates": visitors, "get-template": visitors, "list-template-coupons": attendant, "list-template-entrants": attendant,
	"issue-coupon": askers, "get-issue-request": visitors, "watch-issue-request": visitors,
	"get-coupon": visitors, "list-user-coupons": visitors, "get-user-history": visitors,
	"use-coupon": issuers, "cancel-coupon": issuers,

	"create-api-key": admins, "list-api-keys": admins, "revoke-api-key": admins,
}

// How often who reads or sends for long is looked at again: a key may be revoked,
// a token only ends by itself, and costs the check of a signature.
const (
	reverifyKeys   = time.Second
	reverifyTokens = time.Minute
)

// caller is who has sent a request, and what for.
type caller struct {
	auth.Principal
	path        string   // of the request, as it was escaped
	idempotency []string // its Idempotency-Key headers
	token       string   // that he has shown; "" = none
}

type callerKey struct{}

// callerOf returns who has sent the request that ctx belongs to.
func callerOf(ctx context.Context) caller {
	c, _ := ctx.Value(callerKey{}).(caller)
	return c
}

// actor returns who has sent the request that ctx belongs to, for the books.
func actor(ctx context.Context) string { return callerOf(ctx).Name }

// onlyOwn refuses a shopper who asks for somebody else.
func onlyOwn(ctx context.Context, user string) error {
	if c := callerOf(ctx); c.Role == auth.Shopper && c.User != user {
		return web.NewProblem(http.StatusForbidden, CodeForbidden, "a shopper's token asks for its own user only")
	}
	return nil
}

// bearer is the name of the security scheme in the description.
const bearer = "bearer"

// describeAccess adds to an operation what it takes to be let in.
func describeAccess(op *huma.Operation) {
	allowed := permissions[op.OperationID]
	if allowed == nil {
		return
	}
	op.Security = []map[string][]string{{bearer: {}}, {}}
	op.Description = strings.TrimSpace(op.Description + "\n\nRoles: " + oneOf(allowed) + ".")
}

// describe adds an operation that huma does not carry out to the description.
func (a *API) describe(op huma.Operation) {
	describeAccess(&op)
	a.OpenAPI().AddOperation(&op)
}

// admit finds out who calls and whether he may. What it returns instead of a
// request is the answer.
func (a *API) admit(r *http.Request, operation string) (*http.Request, func(), error) {
	allowed, known := permissions[operation]
	if !known {
		return nil, nil, fmt.Errorf("nobody has said who may call %q", operation)
	}
	ctx, cancel := context.WithCancel(r.Context())
	principal, token, err := a.identify(r, allowed == nil)
	if err == nil && allowed != nil && !auth.IsInProcess(r.Context()) {
		err = a.permit(principal, allowed)
	}
	if err != nil {
		cancel()
		return nil, nil, err
	}
	if token != "" && long[operation] {
		a.reverify(ctx, token, cancel)
	}
	ctx = context.WithValue(ctx, callerKey{}, caller{principal, r.URL.EscapedPath(), r.Header.Values(web.IdempotencyHeader), token})
	return r.WithContext(ctx), cancel, nil
}

// long are operations that may go on for hours.
var long = map[string]bool{"watch-promotion": true, "watch-issue-request": true, "upload-targets": true, "list-payouts": true}

// identify finds out who calls.
func (a *API) identify(r *http.Request, free bool) (p auth.Principal, token string, err error) {
	name, err := claimedActor(r)
	if err != nil || a.cfg.Verifier == nil || auth.IsInProcess(r.Context()) {
		return auth.Principal{Name: name, Role: auth.Admin}, "", err
	}
	if free {
		return auth.Principal{}, "", nil
	}
	given := r.Header.Values("Authorization")
	if len(given) == 0 {
		return p, "", web.NewProblem(http.StatusUnauthorized, CodeUnauthenticated, "say who you are: Authorization: Bearer and an API key or a token")
	}
	scheme, token, _ := strings.Cut(given[0], " ")
	token = strings.TrimSpace(token)
	if len(given) > 1 || !strings.EqualFold(scheme, "Bearer") || token == "" {
		return p, "", web.NewProblem(http.StatusUnauthorized, CodeUnauthenticated, "Authorization must be Bearer and an API key or a token, once")
	}
	// Who guesses costs a look-up each time.
	from := remoteHost(r)
	if a.failures.Spent(from) && !a.cfg.Verifier.Knows(token) {
		return p, "", tooMany(time.Second, "too many keys and tokens from your address were wrong")
	}
	p, err = a.cfg.Verifier.Verify(r.Context(), token)
	switch {
	case err == nil:
		return p, token, nil
	case errors.Is(err, auth.ErrUnknown):
		_, _ = a.failures.Allow(from) // it is noted, and refused in any case
		return p, "", web.NewProblem(http.StatusUnauthorized, CodeUnauthenticated, strings.TrimPrefix(err.Error(), auth.ErrUnknown.Error()+": "))
	default:
		a.log.Warn(obs.Unavailable, err, "request_id", web.RequestID(r.Context()))
		return p, "", web.NewProblem(http.StatusServiceUnavailable, web.CodeUnavailable, "who you are cannot be found out now; ask again later")
	}
}

// permit says whether a caller has not called too often, and has the role.
func (a *API) permit(p auth.Principal, allowed []auth.Role) error {
	name := string(p.Role) + " " + p.Name
	if p.KeyID != 0 {
		name = strconv.FormatInt(p.KeyID, 10)
	}
	if wait, ok := a.cfg.CallerLimits.Allow(name); !ok {
		return tooMany(wait, "you have called too often (http.rate-limit)")
	}
	if !slices.Contains(allowed, p.Role) {
		return web.NewProblem(http.StatusForbidden, CodeForbidden, fmt.Sprintf("the role %s may not do this; it takes %s", p.Role, oneOf(allowed)))
	}
	return nil
}

// alive ends a stream when its caller's key or token is not good any more; nil
// when there is nothing to look at.
func (a *API) alive(ctx context.Context) web.Alive {
	token := callerOf(ctx).token
	if token == "" {
		return nil
	}
	return func(ctx context.Context, end context.CancelFunc) { a.reverify(ctx, token, end) }
}

// reverify ends a request that goes on when its caller's key or token is not
// good any more.
func (a *API) reverify(ctx context.Context, token string, end context.CancelFunc) {
	every := reverifyTokens
	if auth.IsKeyText(token) {
		every = reverifyKeys
	}
	var timer *time.Timer
	look := make(chan struct{}) // closed once timer is set
	timer = time.AfterFunc(every, func() {
		<-look
		if ctx.Err() != nil {
			return
		}
		if _, err := a.cfg.Verifier.Verify(ctx, token); errors.Is(err, auth.ErrUnknown) {
			end()
			return
		}
		timer.Reset(every)
	})
	close(look)
	context.AfterFunc(ctx, func() { timer.Stop() })
}

func tooMany(wait time.Duration, detail string) *web.Problem {
	p := web.NewProblem(http.StatusTooManyRequests, CodeRateLimited, detail)
	p.RetryAfter = max(int(math.Ceil(wait.Seconds())), 1)
	return p
}

func oneOf(roles []auth.Role) string {
	names := make([]string, len(roles))
	for i, r := range roles {
		names[i] = string(r)
	}
	return strings.Join(names, ", ")
}

// remoteHost is the address of whoever is at the other end of the connection.
func remoteHost(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	return host
}
