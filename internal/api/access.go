package api

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/danielgtaylor/huma/v2"

	"github.com/largesse/largesse/internal/auth"
	"github.com/largesse/largesse/internal/web"
)

// Groups of roles that may call an operation. Everybody may call a public one.
var (
	public      = []auth.Role{}
	readers     = []auth.Role{auth.RoleViewer, auth.RoleCampaigner, auth.RoleApprover, auth.RoleOperator, auth.RoleAdmin}
	staff       = []auth.Role{auth.RoleViewer, auth.RoleIssuer, auth.RoleCampaigner, auth.RoleApprover, auth.RoleOperator, auth.RoleAdmin}
	everyRole   = []auth.Role{auth.RoleViewer, auth.RoleIssuer, auth.RoleCampaigner, auth.RoleApprover, auth.RoleOperator, auth.RoleAdmin, auth.RoleShopper}
	requesters  = []auth.Role{auth.RoleIssuer, auth.RoleOperator, auth.RoleAdmin, auth.RoleShopper}
	issuers     = []auth.Role{auth.RoleIssuer, auth.RoleOperator, auth.RoleAdmin}
	campaigners = []auth.Role{auth.RoleCampaigner, auth.RoleOperator, auth.RoleAdmin}
	approvers   = []auth.Role{auth.RoleApprover, auth.RoleOperator, auth.RoleAdmin}
	operators   = []auth.Role{auth.RoleOperator, auth.RoleAdmin}
	admins      = []auth.Role{auth.RoleAdmin}
)

// Intervals at which the caller of a long operation is verified again. A key can be
// revoked at any time. A token only expires, and verifying it costs the check of a
// signature.
const (
	keyRecheckInterval   = time.Second
	tokenRecheckInterval = time.Minute
)

type caller struct {
	auth.Principal
	url         *url.URL // of the request
	idempotency []string // Idempotency-Key headers of the request
	token       string   // key or token of the request; "": none
}

type callerKey struct{}

func callerOf(ctx context.Context) caller {
	c, _ := ctx.Value(callerKey{}).(caller)
	return c
}

// actor returns the name of the caller, for records.
func actor(ctx context.Context) string { return callerOf(ctx).Name }

// checkOwnUser refuses a shopper who acts for another user.
func checkOwnUser(ctx context.Context, user string) error {
	if c := callerOf(ctx); c.Role == auth.RoleShopper && c.User != user {
		return web.NewProblem(http.StatusForbidden, CodeForbidden, "a shopper's token may act only for its own user")
	}
	return nil
}

const bearer = "bearer"

// secured is the security of every operation that is not public: a key or token, or
// nothing if auth.mode is none.
var secured = []map[string][]string{{bearer: {}}, {}}

// describeAccess adds the roles that may call an operation to its description, except
// those that the introduction names: operators, admins, and those who read.
func describeAccess(op *huma.Operation, allowed []auth.Role) {
	if len(allowed) == 0 {
		return
	}
	op.Security = secured
	roles := "Only for " + string(auth.RoleAdmin)
	if slices.Contains(allowed, auth.RoleOperator) {
		var more []string
		for _, role := range allowed {
			reads := op.Method == http.MethodGet && role != auth.RoleIssuer && role != auth.RoleShopper
			if role != auth.RoleOperator && role != auth.RoleAdmin && !reads {
				more = append(more, string(role))
			}
		}
		roles = "Also for " + strings.Join(more, ", ")
		if more == nil {
			return
		}
	}
	op.Description = strings.TrimSpace(op.Description + "\n\n" + roles + ".")
}

// admit authenticates a caller and checks permissions and rate limits. It is the
// Gate of the Router.
func (a *API) admit(r *http.Request, operation string) (*http.Request, func(), error) {
	op, known := a.declared[operation]
	if !known {
		return nil, nil, fmt.Errorf("operation %q is not declared", operation)
	}
	free := len(op.roles) == 0
	principal, token, err := a.identify(r, free)
	if err == nil && !free && !auth.IsInProcess(r.Context()) {
		err = a.permit(principal, op.roles)
	}
	if err != nil {
		a.refuse(r, operation, principal, token, err)
		return nil, nil, err
	}
	ctx, end := context.WithValue(r.Context(), callerKey{}, caller{principal, r.URL, r.Header[web.IdempotencyHeader], token}), func() {}
	if token != "" && op.long {
		ctx, end = context.WithCancel(ctx)
		a.reverify(ctx, token, end)
	}
	return r.WithContext(ctx), end, nil
}

func (a *API) identify(r *http.Request, free bool) (p auth.Principal, token string, err error) {
	name, err := claimedActor(r)
	if err != nil || a.cfg.Verifier == nil || auth.IsInProcess(r.Context()) {
		return auth.Principal{Name: name, Role: auth.RoleAdmin}, "", err
	}
	if free {
		return auth.Principal{}, "", nil
	}
	given := r.Header.Values("Authorization")
	if len(given) == 0 {
		return p, "", web.NewProblem(http.StatusUnauthorized, CodeUnauthenticated, "the request has no API key or token: send Authorization: Bearer with one")
	}
	scheme, token, _ := strings.Cut(given[0], " ")
	token = strings.TrimSpace(token)
	if len(given) > 1 || !strings.EqualFold(scheme, "Bearer") || token == "" {
		return p, "", web.NewProblem(http.StatusUnauthorized, CodeUnauthenticated, "send exactly one Authorization header: Bearer and an API key or token")
	}
	p, err = a.cfg.Verifier.Verify(r.Context(), token)
	switch {
	case err == nil:
		return p, token, nil
	case errors.Is(err, auth.ErrUnauthenticated):
		return p, token, web.NewProblem(http.StatusUnauthorized, CodeUnauthenticated, strings.TrimPrefix(err.Error(), auth.ErrUnauthenticated.Error()+": "))
	case errors.Is(err, auth.ErrGuessed):
		return p, token, tooMany(time.Second, "too many API keys were wrong; this one is wrong, too")
	default:
		a.log.Warn("authentication unavailable", err, "request_id", web.RequestID(r.Context()))
		detail := "the token cannot be verified now; try again later"
		if auth.IsKeyText(token) {
			detail = "the database does not answer, so the API key cannot be verified; try again later"
		}
		return p, "", web.NewProblem(http.StatusServiceUnavailable, web.CodeUnavailable, detail)
	}
}

// permit checks the rate limit and the role of a caller.
func (a *API) permit(p auth.Principal, allowed []auth.Role) error {
	if wait, ok := a.cfg.CallerLimits.Allow(limitName(p)); !ok {
		return tooMany(wait, "the caller sent too many requests (http.rate-limit)")
	}
	if p.Role == auth.RoleShopper {
		if wait, ok := a.cfg.UserLimits.Allow(p.User); !ok {
			return tooMany(wait, "too many calls of this user (http.rate-limit-per-user)")
		}
	}
	if !slices.Contains(allowed, p.Role) {
		return web.NewProblem(http.StatusForbidden, CodeForbidden, fmt.Sprintf("role %s may not call this operation; it requires %s", p.Role, strings.Join(texts(allowed), ", ")))
	}
	return nil
}

// alive returns a function that ends a stream when the caller's key or token
// becomes invalid, or nil if the caller needs none.
func (a *API) alive(ctx context.Context) web.Alive {
	token := callerOf(ctx).token
	if token == "" {
		return nil
	}
	return func(ctx context.Context, end context.CancelFunc) { a.reverify(ctx, token, end) }
}

// reverify calls end when the token becomes invalid. It returns at once, and stops
// verifying when ctx ends.
func (a *API) reverify(ctx context.Context, token string, end context.CancelFunc) {
	interval := tokenRecheckInterval
	if auth.IsKeyText(token) {
		interval = keyRecheckInterval
	}
	var timer *time.Timer
	ready := make(chan struct{}) // closed once timer is set
	timer = time.AfterFunc(interval, func() {
		<-ready
		if ctx.Err() != nil {
			return
		}
		if _, err := a.cfg.Verifier.Verify(ctx, token); errors.Is(err, auth.ErrUnauthenticated) {
			end()
			return
		}
		timer.Reset(interval)
	})
	close(ready)
	context.AfterFunc(ctx, func() { timer.Stop() })
}

func tooMany(wait time.Duration, detail string) *web.Problem {
	p := web.NewProblem(http.StatusTooManyRequests, CodeRateLimited, detail)
	p.RetryAfter = max(int(math.Ceil(wait.Seconds())), 1)
	return p
}

// ActorHeader names the actor if auth.mode is none. Nothing verifies it.
const ActorHeader = "Largesse-Actor"

const (
	// actorAnonymous is the actor if the header is absent.
	actorAnonymous = "anonymous"
	actorMax       = 200 // characters
)

// claimedActor returns the actor that the header names. It refuses a name that
// cannot be stored or shown.
func claimedActor(r *http.Request) (string, error) {
	given := r.Header.Values(ActorHeader)
	if len(given) == 0 {
		return actorAnonymous, nil
	}
	name := strings.TrimSpace(given[0])
	if n := utf8.RuneCountInString(name); len(given) > 1 || n < 1 || n > actorMax || !utf8.ValidString(name) ||
		strings.ContainsFunc(name, unicode.IsControl) {
		return "", web.Malformed(ActorHeader, fmt.Sprintf("must be one name of 1 to %d characters in UTF-8", actorMax))
	}
	return name, nil
}

func actorParam() *huma.Param {
	return &huma.Param{
		Name: ActorHeader, In: "header",
		Description: "Name of the actor, recorded as createdBy, approvedBy, settledBy and in attempts; anonymous if absent. It counts only if auth.mode is none, and nothing verifies it; otherwise the API key or token names the actor",
		Schema:      &huma.Schema{Type: huma.TypeString, MinLength: new(1), MaxLength: new(actorMax)},
	}
}
