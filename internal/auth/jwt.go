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
	tokenMax = 8 << 10          // maximum bytes of a token
	leeway   = 30 * time.Second // accepted error of the issuer's clock
)

// tokenAlgorithms are verified with a public key (RFC 7518, RFC 8037).
var tokenAlgorithms = slices.Concat(rsaAlgorithms, []string{"ES256", "ES384", "ES512", "EdDSA"})

// TokensConfig says whose tokens are accepted, and which claims are read.
type TokensConfig struct {
	// JWKS is the location of the issuer's keys (RFC 7517): an https:// URL, an
	// http:// URL of a loopback address, or the path of a file.
	JWKS string
	// Issuer is the required value of the claim iss. Audience is the value that
	// the claim aud must be or contain.
	Issuer, Audience string
	// UserClaim names the claim with a shopper's user ID, RoleClaim that with a role.
	UserClaim, RoleClaim string
	Log                  obs.Log
}

func (c TokensConfig) validate() error {
	switch {
	case c.Issuer == "":
		return errors.New("the issuer of tokens is not set: set the required value of their iss claim")
	case c.Audience == "":
		return errors.New("the audience of tokens is not set: set the value that their aud claim must contain")
	case c.UserClaim == c.RoleClaim:
		return fmt.Errorf("the claim %s cannot hold both the user and the role: set two different claims", reward.Quote(c.UserClaim))
	}
	return nil
}

// TokenVerifier verifies JWTs (RFC 7519) with the keys that their issuer publishes. It
// needs no start, but a Close. It is safe for concurrent use.
type TokenVerifier struct {
	cfg    TokensConfig
	parser *jwt.Parser
	keys   *keyRing
}

// NewTokens returns a TokenVerifier. The first token makes it fetch the keys.
func NewTokens(cfg TokensConfig) (*TokenVerifier, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	keys, err := newKeyRing(cfg.JWKS, cfg.Log.For(obs.API))
	if err != nil {
		return nil, err
	}
	return &TokenVerifier{cfg: cfg, keys: keys, parser: jwt.NewParser(
		jwt.WithValidMethods(tokenAlgorithms),
		jwt.WithStrictDecoding(),
		jwt.WithIssuer(cfg.Issuer),
		jwt.WithAudience(cfg.Audience),
		jwt.WithExpirationRequired(),
		jwt.WithIssuedAt(),
		jwt.WithLeeway(leeway),
	)}, nil
}

// Close cancels a fetch of the keys. Verify still uses the known keys.
func (t *TokenVerifier) Close() { t.keys.close() }

// Verify returns the principal of a token: a shopper with the claimed user, or a caller
// with the claimed role and the name in sub. An error that does not wrap
// ErrUnauthenticated means that the keys are unavailable; it may name internal hosts.
func (t *TokenVerifier) Verify(ctx context.Context, token string) (Principal, error) {
	if len(token) > tokenMax {
		return Principal{}, fmt.Errorf("%w: the token is longer than %d bytes", ErrUnauthenticated, tokenMax)
	}
	if strings.ContainsAny(token, "\r\n") { // the base64 decoder would skip them
		return Principal{}, fmt.Errorf("%w: %s", ErrUnauthenticated, notJWT)
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
		return Principal{}, fmt.Errorf("%w: %s", ErrUnauthenticated, tokenFault(err, parsed, claims))
	}
	return t.principal(claims)
}

func (t *TokenVerifier) key(ctx context.Context, head *jwt.Token) (any, error) {
	if _, critical := head.Header["crit"]; critical {
		return nil, fmt.Errorf("%w: the token has critical headers (crit), and none is supported", ErrUnauthenticated)
	}
	named, has := head.Header["kid"]
	kid, text := named.(string)
	if has && !text {
		return nil, fmt.Errorf("%w: the token's kid is not a string", ErrUnauthenticated)
	}
	return t.keys.find(ctx, kid, head.Method.Alg())
}

const notJWT = "the token is not a JWT (three parts in base64url, the first two of them JSON objects)"

// tokenFault describes an error of the parser, without any part of the token.
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
	// The remaining errors: a claim is missing or has the wrong type.
	for _, name := range []string{"iss", "aud", "exp"} {
		if _, has := claims[name]; !has {
			return "the token has no claim " + name
		}
	}
	return "one of the token's claims iss, aud, exp, nbf, iat is empty or of the wrong type"
}

func (t *TokenVerifier) principal(claims jwt.MapClaims) (Principal, error) {
	for _, name := range []string{"exp", "nbf", "iat"} {
		if at, has := claims[name].(float64); has && (at < 0 || at > timeMax) {
			return Principal{}, fmt.Errorf("%w: the token's claim %s is not a time between the years 1970 and 9999", ErrUnauthenticated, name)
		}
	}
	named, has := claims[t.cfg.RoleClaim]
	if !has {
		user, err := userOf(claims, t.cfg.UserClaim)
		if err != nil {
			return Principal{}, err
		}
		return Principal{Name: user, Role: RoleShopper, TokenSubject: user, User: user, ExpiresAt: expiry(claims)}, nil
	}
	text, _ := named.(string)
	role, ok := ParseRole(text)
	if !ok {
		return Principal{}, fmt.Errorf("%w: the token's claim %s is none of the roles %s", ErrUnauthenticated, reward.Quote(t.cfg.RoleClaim), rolesText())
	}
	name, err := userOf(claims, "sub")
	switch {
	case err != nil:
		return Principal{}, err
	case !visible(name):
		return Principal{}, fmt.Errorf(`%w: the token's claim "sub" has characters that cannot be seen, or spaces at its ends, and names somebody with a role`, ErrUnauthenticated)
	}
	return Principal{Name: name, Role: role, TokenSubject: name, ExpiresAt: expiry(claims)}, nil
}

func expiry(claims jwt.MapClaims) time.Time {
	at, err := claims.GetExpirationTime()
	if err != nil || at == nil {
		return time.Time{}
	}
	return at.UTC()
}

// timeMax is the end of the year 9999. Much later seconds overflow 64 bits.
const timeMax = 253402300799

func userOf(claims jwt.MapClaims, name string) (string, error) {
	user, ok := claims[name].(string)
	if !ok {
		return "", fmt.Errorf("%w: the token has no claim %s, or it is not a string", ErrUnauthenticated, reward.Quote(name))
	}
	if err := reward.CheckUserID(user); err != nil {
		return "", fmt.Errorf("%w: the token's claim %s is not a user ID: %w", ErrUnauthenticated, reward.Quote(name), err)
	}
	// The parser makes one user of several by replacing invalid UTF-8.
	if strings.ContainsRune(user, utf8.RuneError) {
		return "", fmt.Errorf("%w: the token's claim %s is not valid UTF-8", ErrUnauthenticated, reward.Quote(name))
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
