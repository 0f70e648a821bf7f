// Package auth authenticates callers: by an API key, or by a token that another
// system has signed. It also defines the roles.
package auth

import (
	"context"
	"errors"
	"slices"
	"time"
)

// Role says what a caller may do.
type Role string

// The roles. Viewers read. Issuers issue, use and cancel coupons, and read what
// they need for that. Campaigners read as viewers do, and run promotions and coupon
// templates, but approve and repair nothing. Approvers read as viewers do, and approve and
// reject. Operators do everything except manage keys,
// and admins do that too. A shopper acts for its own user only; only tokens make a
// caller a shopper.
const (
	RoleViewer     Role = "viewer"
	RoleIssuer     Role = "issuer"
	RoleCampaigner Role = "campaigner"
	RoleApprover   Role = "approver"
	RoleOperator   Role = "operator"
	RoleAdmin      Role = "admin"
	RoleShopper    Role = "shopper"
)

// Roles lists the roles that an API key can have.
var Roles = []Role{RoleViewer, RoleIssuer, RoleCampaigner, RoleApprover, RoleOperator, RoleAdmin}

// ParseRole parses the role of an API key.
func ParseRole(s string) (Role, bool) {
	r := Role(s)
	return r, slices.Contains(Roles, r)
}

// Principal is an authenticated caller.
type Principal struct {
	// Name identifies the caller in the audit log: a key's name, or a token's
	// subject. Keys of the same name belong to one person.
	Name string
	Role Role
	// KeyID is the ID of the API key; zero for other callers.
	KeyID int64
	// TokenSubject is who the token says that the caller is; "" for other callers.
	TokenSubject string
	// User is the only user that a Shopper acts for; "" for all other roles.
	User string
	// ExpiresAt is when the key or token expires; the zero time if it does not.
	ExpiresAt time.Time
}

// ErrUnauthenticated means that the key or token does not authenticate the caller. An
// error that wraps it says why, and contains no secret.
var ErrUnauthenticated = errors.New("the caller is not authenticated")

// Authenticator verifies API keys and, unless Tokens is nil, tokens.
type Authenticator struct {
	Keys   *KeyVerifier
	Tokens *TokenVerifier
}

// Verify implements Verifier.
func (c Authenticator) Verify(ctx context.Context, token string) (Principal, error) {
	if c.Tokens == nil || IsKeyText(token) {
		return c.Keys.Verify(ctx, token)
	}
	return c.Tokens.Verify(ctx, token)
}

// Verifier authenticates a caller by a bearer token. Errors wrap ErrUnauthenticated or
// ErrGuessed, or are the reason why the token cannot be verified now.
type Verifier interface {
	Verify(ctx context.Context, token string) (Principal, error)
}
