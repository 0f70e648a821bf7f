package auth

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"maps"
	"math/big"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/largesse/largesse/internal/lab/fixture"
)

// object is a JSON object: a JWK, the head of a token, or its claims.
type object map[string]any

// and returns the object with other members; nil takes one away.
func (o object) and(other object) object {
	made := maps.Clone(o)
	for name, value := range other {
		if value == nil {
			delete(made, name)
		} else {
			made[name] = value
		}
	}
	return made
}

func (o object) json(t testing.TB) []byte {
	t.Helper()
	return fixture.Must(json.Marshal(o))(t)
}

func b64(raw []byte) string { return base64.RawURLEncoding.EncodeToString(raw) }

// testKey signs tokens. Its JWK is written by other means than ours reads it.
type testKey struct {
	jwk     object
	private any
}

func must[T any](made T, err error) T {
	if err != nil {
		panic(err)
	}
	return made
}

func rsaTestKey(kid string, private *rsa.PrivateKey) testKey {
	return testKey{object{"kty": "RSA", "kid": kid, "n": b64(private.N.Bytes()), "e": b64(big.NewInt(int64(private.E)).Bytes())}, private}
}

func ecTestKey(kid string, private *ecdsa.PrivateKey) testKey {
	point := must(private.PublicKey.Bytes())[1:]
	x, y := point[:len(point)/2], point[len(point)/2:]
	return testKey{object{"kty": "EC", "kid": kid, "crv": private.Params().Name, "x": b64(x), "y": b64(y)}, private}
}

func edTestKey(kid string, private ed25519.PrivateKey) testKey {
	return testKey{object{"kty": "OKP", "kid": kid, "crv": "Ed25519", "x": b64(private.Public().(ed25519.PublicKey))}, private}
}

func newEdKey(kid string) testKey {
	_, private, err := ed25519.GenerateKey(rand.Reader)
	return edTestKey(kid, must(private, err))
}

// testKeys is one key of each kind; kid is kty or the curve.
var testKeys = sync.OnceValue(func() map[string]testKey {
	keys := map[string]testKey{"RSA": rsaTestKey("RSA", must(rsa.GenerateKey(rand.Reader, 2048))), "Ed25519": newEdKey("Ed25519")}
	for _, curve := range []elliptic.Curve{elliptic.P256(), elliptic.P384(), elliptic.P521()} {
		name := curve.Params().Name
		keys[name] = ecTestKey(name, must(ecdsa.GenerateKey(curve, rand.Reader)))
	}
	return keys
})

// shortKey signs like any other, but can be broken.
var shortKey = sync.OnceValue(func() testKey {
	return rsaTestKey("short", must(rsa.GenerateKey(rand.Reader, 1024))) //nolint:gosec // it must be refused
})

// jwksOf is the document that publishes keys.
func jwksOf(t testing.TB, keys ...testKey) []byte {
	t.Helper()
	jwks := []object{}
	for _, k := range keys {
		jwks = append(jwks, k.jwk)
	}
	return object{"keys": jwks}.json(t)
}

// sign creates a token with any header and claims.
func (k testKey) sign(t testing.TB, head object, claims []byte) string {
	t.Helper()
	text := b64(head.json(t)) + "." + b64(claims)
	signature := fixture.Must(jwt.GetSigningMethod(head["alg"].(string)).Sign(text, k.private))(t)
	return text + "." + b64(signature)
}

const (
	testIssuer   = "https://id.example.com"
	testAudience = "largesse"
)

// goodClaims are those of a token that is believed, as of now.
func goodClaims() object {
	return object{"iss": testIssuer, "aud": testAudience, "sub": "marker-u1", "exp": time.Now().Add(time.Hour).Unix()}
}

// token is a good one with that algorithm.
func (k testKey) token(t testing.TB, alg string) string {
	t.Helper()
	return k.sign(t, object{"alg": alg, "kid": k.jwk["kid"]}, goodClaims().json(t))
}

// newTestTokens reads its keys by read.
func newTestTokens(t testing.TB, read func(context.Context) ([]byte, error), change ...func(*TokensConfig)) *TokenVerifier {
	t.Helper()
	cfg := TokensConfig{JWKS: "replaced", Issuer: testIssuer, Audience: testAudience, UserClaim: "sub", RoleClaim: "role"}
	for _, c := range change {
		c(&cfg)
	}
	tokens := fixture.Must(NewTokens(cfg))(t)
	tokens.keys.read = read
	t.Cleanup(tokens.Close)
	return tokens
}

func reads(doc []byte) func(context.Context) ([]byte, error) {
	return func(context.Context) ([]byte, error) { return doc, nil }
}

// wantFault checks that an error is of the kind and says what, and nothing that
// stands in the token.
func wantFault(t *testing.T, err error, unknown bool, says, token string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want %q", says)
	}
	if is := isUnknown(err); is != unknown {
		t.Errorf("ErrUnknown is %v, want %v: %v", is, unknown, err)
	}
	if !strings.Contains(err.Error(), says) {
		t.Errorf("error %q, want %q in it", err, says)
	}
	if strings.Contains(err.Error(), "marker") {
		t.Errorf("the error repeats the content of the token: %v", err)
	}
	for part := range strings.SplitSeq(token, ".") {
		if len(part) > 8 && strings.Contains(err.Error(), part) {
			t.Errorf("the error repeats the token: %v", err)
		}
	}
}
