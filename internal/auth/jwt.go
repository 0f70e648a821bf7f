package auth

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/golang-jwt/jwt/v5"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
)

const (
	tokenMax      = 8 << 10 // bytes of a token
	userClaim     = "sub"
	roleClaim     = "role"
	leewayDefault = 30 * time.Second
	leewayMax     = 5 * time.Minute
)

// tokenAlgorithms is what a token may be signed with: only what is verified by a key
// that everybody may know (RFC 7518, RFC 8037).
var tokenAlgorithms = slices.Concat(rsaAlgorithms, []string{"ES256", "ES384", "ES512", "EdDSA"})

// TokensConfig says whose tokens are believed, and what is read in them.
type TokensConfig struct {
	// JWKS is where the signer publishes his keys (RFC 7517): an https:// URL,
	// an http:// URL of a loopback address, or the path of a file.
	JWKS string
	// Issuer is what the claim iss must be, Audience what aud must be or hold.
	Issuer, Audience string
	// UserClaim names the claim that holds the user id of a shopper, "" = sub;
	// RoleClaim the one that holds a role, "" = role.
	UserClaim, RoleClaim string
	// Leeway is how far the signer's clock may be off, at most 5 minutes; 0 = 30 s.
	Leeway time.Duration
	Log    obs.Log
}

func (c TokensConfig) withDefaults() TokensConfig {
	if c.UserClaim == "" {
		c.UserClaim = userClaim
	}
	if c.RoleClaim == "" {
		c.RoleClaim = roleClaim
	}
	if c.Leeway == 0 {
		c.Leeway = leewayDefault
	}
	return c
}

func (c TokensConfig) validate() error {
	switch {
	case c.Issuer == "":
		return errors.New("the issuer of tokens is not set: it is what their claim iss must be")
	case c.Audience == "":
		return errors.New("the audience of tokens is not set: it is what their claim aud must name")
	case c.UserClaim == c.RoleClaim:
		return fmt.Errorf("the claim %s cannot hold both the user and the role: name two claims", reward.Quote(c.UserClaim))
	case c.Leeway < 0 || c.Leeway > leewayMax:
		return fmt.Errorf("the leeway of tokens is %v: it must be from 0s to %v", c.Leeway, leewayMax)
	}
	return nil
}

// Tokens verifies JWTs (RFC 7519) that somebody else has signed, by the keys
// that he publishes. It has nothing to start; Close ends it.
type Tokens struct {
	cfg    TokensConfig
	parser *jwt.Parser
	keys   *keyRing
}

// NewTokens makes Tokens. The keys are fetched when the first token comes.
func NewTokens(cfg TokensConfig) (*Tokens, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	keys, err := newKeyRing(cfg.JWKS, cfg.Log.For(obs.API))
	if err != nil {
		return nil, err
	}
	return &Tokens{cfg: cfg, keys: keys, parser: jwt.NewParser(
		jwt.WithValidMethods(tokenAlgorithms),
		jwt.WithStrictDecoding(),
		jwt.WithIssuer(cfg.Issuer),
		jwt.WithAudience(cfg.Audience),
		jwt.WithExpirationRequired(),
		jwt.WithIssuedAt(),
		jwt.WithLeeway(cfg.Leeway),
	)}, nil
}

// Close ends a fetch of the keys that is under way, and waits for it. Verify
// goes on with the keys that are known.
func (t *Tokens) Close() { t.keys.close() }

// Knows implements Verifier: the keys of who signs are at hand, or fetched for all
// tokens at once.
func (t *Tokens) Knows(string) bool { return true }

// Verify finds the principal of a token. A token without a role makes a Shopper
// for the user that it names; one with a role of Roles makes that, named by its
// claim sub. An error that is not ErrUnknown says that the keys could not be
// had, so that nobody can tell; it may name machines of ours.
func (t *Tokens) Verify(ctx context.Context, token string) (Principal, error) {
	if len(token) > tokenMax {
		return Principal{}, fmt.Errorf("%w: the token is longer than %d bytes", ErrUnknown, tokenMax)
	}
	if strings.ContainsAny(token, "\r\n") { // the decoder of base64 would skip them
		return Principal{}, fmt.Errorf("%w: %s", ErrUnknown, notJWT)
	}
	var keyErr error
	claims := jwt.MapClaims{}
	parsed, err := t.parser.ParseWithClaims(token, claims, func(head *jwt.Token) (any, error) {
		var key any
		key, keyErr = t.key(ctx, head)
		return key, keyErr
	})
	switch {
	case keyErr != nil:
		return Principal{}, keyErr
	case err != nil:
		return Principal{}, fmt.Errorf("%w: %s", ErrUnknown, tokenFault(err, parsed, claims))
	}
	return t.principal(claims)
}

// key finds the key that a token says it is signed with.
func (t *Tokens) key(ctx context.Context, head *jwt.Token) (any, error) {
	if _, critical := head.Header["crit"]; critical {
		return nil, fmt.Errorf("%w: the token has critical headers (crit), of which we know none", ErrUnknown)
	}
	named, has := head.Header["kid"]
	kid, text := named.(string)
	if has && !text {
		return nil, fmt.Errorf("%w: the token's kid is no text", ErrUnknown)
	}
	return t.keys.find(ctx, kid, head.Method.Alg())
}

const notJWT = "the token is no JWT (three parts in base64url, the first two of them JSON objects)"

// tokenFault says what the parser has found, without what it has found it in.
func tokenFault(err error, parsed *jwt.Token, claims jwt.MapClaims) string {
	switch {
	case errors.Is(err, jwt.ErrTokenMalformed):
		return notJWT
	case errors.Is(err, jwt.ErrTokenUnverifiable), parsed.Method != nil && !slices.Contains(tokenAlgorithms, parsed.Method.Alg()):
		return "the token's algorithm is none of " + strings.Join(tokenAlgorithms, ", ")
	case errors.Is(err, jwt.ErrTokenSignatureInvalid):
		return "the token's signature is wrong"
	case errors.Is(err, jwt.ErrTokenInvalidIssuer):
		return "the token is from another issuer (iss)"
	case errors.Is(err, jwt.ErrTokenInvalidAudience):
		return "the token is for another audience (aud)"
	case errors.Is(err, jwt.ErrTokenExpired):
		return "the token has expired (exp)"
	case errors.Is(err, jwt.ErrTokenNotValidYet):
		return "the token is not valid yet (nbf)"
	case errors.Is(err, jwt.ErrTokenUsedBeforeIssued):
		return "the token was issued in the future (iat)"
	}
	// What is left: a claim is missing or of the wrong type.
	for _, name := range []string{"iss", "aud", "exp"} {
		if _, has := claims[name]; !has {
			return "the token has no claim " + name
		}
	}
	return "one of the token's claims iss, aud, exp, nbf, iat is empty or of the wrong type"
}

func (t *Tokens) principal(claims jwt.MapClaims) (Principal, error) {
	for _, name := range []string{"exp", "nbf", "iat"} {
		if at, has := claims[name].(float64); has && (at < 0 || at > timeMax) {
			return Principal{}, fmt.Errorf("%w: the token's claim %s is no time between the years 1970 and 9999", ErrUnknown, name)
		}
	}
	named, has := claims[t.cfg.RoleClaim]
	if !has {
		user, err := userOf(claims, t.cfg.UserClaim)
		if err != nil {
			return Principal{}, err
		}
		return Principal{Name: user, Role: Shopper, User: user}, nil
	}
	text, _ := named.(string)
	role, ok := ParseRole(text)
	if !ok {
		return Principal{}, fmt.Errorf("%w: the token's claim %s is none of the roles %s", ErrUnknown, reward.Quote(t.cfg.RoleClaim), rolesText())
	}
	name, err := userOf(claims, "sub")
	if err != nil {
		return Principal{}, err
	}
	return Principal{Name: name, Role: role}, nil
}

// timeMax is the last second of the year 9999. Far beyond it seconds do not fit
// into 64 bits and turn into any other time.
const timeMax = 253402300799

// userOf reads a claim that names somebody.
func userOf(claims jwt.MapClaims, name string) (string, error) {
	user, ok := claims[name].(string)
	if !ok {
		return "", fmt.Errorf("%w: the token has no claim %s, or it is no text", ErrUnknown, reward.Quote(name))
	}
	if err := reward.CheckUserID(user); err != nil {
		return "", fmt.Errorf("%w: the token's claim %s is no user id: %w", ErrUnknown, reward.Quote(name), err)
	}
	// The parser puts U+FFFD for whatever is no UTF-8: different users would
	// become one.
	if strings.ContainsRune(user, utf8.RuneError) {
		return "", fmt.Errorf("%w: the token's claim %s is not valid UTF-8", ErrUnknown, reward.Quote(name))
	}
	return user, nil
}

func rolesText() string {
	names := make([]string, len(Roles))
	for i, r := range Roles {
		names[i] = string(r)
	}
	return strings.Join(names, ", ")
}
