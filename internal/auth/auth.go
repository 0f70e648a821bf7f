// Package auth says who a caller is and what he may do: by an API key, by a
// token that somebody else has signed, or, where nobody has to prove anything,
// by what he says.
package auth

import (
	"context"
	"errors"
	"slices"
)

// Role is what a caller may do.
type Role string

// The roles. Viewers read; issuers issue, use and cancel coupons, and read what
// belongs to that; operators do everything but keys; admins keys too. A shopper
// asks for himself and reads what is his: only tokens make one.
const (
	Viewer   Role = "viewer"
	Issuer   Role = "issuer"
	Operator Role = "operator"
	Admin    Role = "admin"
	Shopper  Role = "shopper"
)

// Roles lists those that an API key can have.
var Roles = []Role{Viewer, Issuer, Operator, Admin}

// ParseRole reads the role of an API key.
func ParseRole(s string) (Role, bool) {
	r := Role(s)
	return r, slices.Contains(Roles, r)
}

// Principal is who a caller is.
type Principal struct {
	// Name stands in the books: a key's name, or a token's subject. Keys of the
	// same name are those of one person.
	Name string
	Role Role
	// KeyID is the API key's; 0 = it was none.
	KeyID int64
	// User is the one person that a Shopper asks for; "" for all others.
	User string
}

// ErrUnknown says that what a caller shows proves nothing: it is malformed,
// unknown, expired, revoked or not meant for us. The text of an error around it
// says which, and holds no secret.
var ErrUnknown = errors.New("it proves nothing")

// Callers verifies API keys and, unless Tokens is nil, tokens.
type Callers struct {
	Keys   *Keys
	Tokens *Tokens
}

// Verify implements Verifier.
func (c Callers) Verify(ctx context.Context, token string) (Principal, error) {
	if c.Tokens == nil || IsKeyText(token) {
		return c.Keys.Verify(ctx, token)
	}
	return c.Tokens.Verify(ctx, token)
}

// Knows implements Verifier.
func (c Callers) Knows(token string) bool {
	if c.Tokens == nil || IsKeyText(token) {
		return c.Keys.Knows(token)
	}
	return c.Tokens.Knows(token)
}

// Verifier finds out who a caller is by the bearer token that he shows. Errors
// are ErrUnknown, or what keeps us from knowing.
type Verifier interface {
	Verify(ctx context.Context, token string) (Principal, error)
	// Knows says that Verify of this token asks nobody.
	Knows(token string) bool
}
