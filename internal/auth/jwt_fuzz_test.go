package auth

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/x509"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/largesse/largesse/internal/reward"
)

// fuzzKeys are the same in each process: a fuzzer's workers are handed tokens
// that another process has signed.
func fuzzKeys() (ed, ec testKey) {
	scalar := make([]byte, 32)
	scalar[31] = 7
	private := must(ecdsa.ParseRawPrivateKey(elliptic.P256(), scalar))
	return edTestKey("ed", ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize))), ecTestKey("ec", private)
}

// FuzzToken checks that no text makes the verifier panic, that none is accepted
// but what our keys have signed, and that whatever claims they sign make a
// principal of the rules, or none.
func FuzzToken(f *testing.F) {
	ed, ec := fuzzKeys()
	tokens := newTestTokens(f, reads(jwksOf(f, ed, ec)))
	claims := object{"iss": testIssuer, "aud": testAudience, "sub": "u1", "exp": time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC).Unix()}
	signed := map[string]bool{}
	for _, c := range []object{claims, claims.and(object{"role": "admin"}), claims.and(object{"aud": []string{"x", testAudience}, "nbf": 1, "iat": 1.5})} {
		for _, token := range []string{
			ed.sign(f, object{"alg": "EdDSA", "kid": "ed"}, c.json(f)), ed.sign(f, object{"alg": "EdDSA"}, c.json(f)),
			ec.sign(f, object{"alg": "ES256", "kid": "ec", "typ": "JWT"}, c.json(f)),
		} {
			if _, err := tokens.Verify(f.Context(), token); err != nil {
				f.Fatalf("a good token: %v", err)
			}
			signed[token[:strings.LastIndexByte(token, '.')]] = true
			f.Add(token)
		}
		f.Add(string(c.json(f)))
	}
	unsigned := b64([]byte(`{"alg":"none"}`)) + "." + b64(claims.json(f)) + "."
	for _, seed := range []string{"", "..", "a.b.c", unsigned, "null", "[]", `{"exp":1e999}`, `{"exp":1e300,"nbf":-1e300}`, `{"sub":"\ud800"}`, `{"role":null}`, strings.Repeat("[", 4000)} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if got, err := tokens.Verify(t.Context(), text); err == nil {
			cut := strings.LastIndexByte(text, '.')
			if cut < 0 || !signed[text[:cut]] {
				t.Fatalf("accepted an unsigned token: %+v", got)
			}
		} else if !isUnknown(err) || got != (Principal{}) {
			t.Fatalf("refused as %v with %+v", err, got)
		}

		token := ed.sign(t, object{"alg": "EdDSA", "kid": "ed"}, []byte(text))
		got, err := tokens.Verify(t.Context(), token)
		if err != nil {
			if !isUnknown(err) || got != (Principal{}) {
				t.Fatalf("refused as %v with %+v", err, got)
			}
			return
		}
		var said map[string]any
		if err := json.Unmarshal([]byte(text), &said); err != nil {
			t.Fatalf("believed claims that are no JSON: %v", err)
		}
		_, hasRole := said["role"]
		user, _ := said["sub"].(string)
		_, isRole := ParseRole(string(got.Role))
		switch {
		case said["iss"] != testIssuer:
			t.Fatal("believed another issuer")
		case said["exp"].(float64) < float64(time.Now().Add(-time.Minute).Unix()):
			t.Fatal("believed a token that has expired")
		case got.Name != user || reward.CheckUserID(user) != nil || got.KeyID != 0:
			t.Fatalf("made %+v for %q", got, user)
		case hasRole && (!isRole || said["role"] != string(got.Role) || got.User != ""):
			t.Fatalf("made %+v for the role %v", got, said["role"])
		case !hasRole && (got.Role != RoleShopper || got.User != user):
			t.Fatalf("made %+v without a role", got)
		}
	})
}

// FuzzJWKS checks that no document makes the reader panic, that each key it
// takes is one that crypto takes, for algorithms of its type alone, and that
// verifying by it does not panic either.
func FuzzJWKS(f *testing.F) {
	ed, ec := fuzzKeys()
	modulus := make([]byte, 256)
	for i := range modulus {
		modulus[i] = 0xff
	}
	rsaJWK := object{"kty": "RSA", "kid": "rsa", "n": b64(modulus), "e": "AQAB"}
	for _, jwk := range []object{ed.jwk, ec.jwk, rsaJWK, rsaJWK.and(object{"alg": "PS256", "use": "sig", "key_ops": []string{"verify"}}), rsaJWK.and(object{"n": "AQ"}), ec.jwk.and(object{"crv": "P-521"}), ed.jwk.and(object{"d": "AA"})} {
		f.Add(jwksOf(f, testKey{jwk: jwk}))
		f.Add(jwksOf(f, testKey{jwk: jwk}, testKey{jwk: ed.jwk}))
	}
	for _, seed := range []string{"", "{}", `{"keys":null}`, `{"keys":[null,1,"x",{}]}`, `{"keys":[{"kty":"oct","k":"AA"}]}`, `{"keys":[` + strings.Repeat("[", 1000)} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, doc []byte) {
		keys, skipped, err := parseJWKS(doc)
		if err != nil && len(keys)+len(skipped) > 0 {
			t.Fatalf("%d keys, %d skipped and %v", len(keys), len(skipped), err)
		}
		for _, why := range skipped {
			if !strings.HasPrefix(why, "key ") {
				t.Fatalf("skipped %q", why)
			}
		}
		for _, k := range keys {
			if _, err := x509.MarshalPKIXPublicKey(k.key); err != nil {
				t.Fatalf("%T: %v", k.key, err)
			}
			if len(k.algorithms) == 0 {
				t.Fatal("a key without algorithms")
			}
			for _, alg := range k.algorithms {
				for _, n := range []int{0, 64, 96, 132, 256, 257} {
					err := jwt.GetSigningMethod(alg).Verify("x.y", bytes.Repeat([]byte{1}, n), k.key)
					if errors.Is(err, jwt.ErrInvalidKeyType) || errors.Is(err, jwt.ErrInvalidKey) {
						t.Fatalf("%s is no algorithm of %T", alg, k.key)
					}
				}
			}
			if _, _, err := pickKey(keys, k.kid, k.algorithms[0]); err != nil && !isUnknown(err) {
				t.Fatal(err)
			}
		}
	})
}
