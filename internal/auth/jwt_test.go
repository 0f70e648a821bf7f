package auth

import (
	"bytes"
	"crypto/hmac"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/largesse/largesse/internal/lab/fixture"
)

func isUnknown(err error) bool { return errors.Is(err, ErrUnauthenticated) }

// timeless is p without its expiry. The token must have had one.
func timeless(p Principal) Principal {
	if p.ExpiresAt.IsZero() {
		p.Name += ", whose token never expires"
	}
	p.ExpiresAt = time.Time{}
	return p
}

var testShopper = Principal{Name: "marker-u1", Role: RoleShopper, TokenSubject: "marker-u1", User: "marker-u1"}

func TestTokensOfEachAlgorithm(t *testing.T) {
	t.Parallel()
	keys := testKeys()
	tokens := newTestTokens(t, reads(jwksOf(t, keys["RSA"], keys["P-256"], keys["P-384"], keys["P-521"], keys["Ed25519"])))
	fits := map[string]string{
		"RS256": "RSA", "RS384": "RSA", "RS512": "RSA", "PS256": "RSA", "PS384": "RSA", "PS512": "RSA",
		"ES256": "P-256", "ES384": "P-384", "ES512": "P-521", "EdDSA": "Ed25519",
	}
	for alg, kid := range fits {
		t.Run(alg, func(t *testing.T) {
			t.Parallel()
			token := keys[kid].token(t, alg)
			got, err := tokens.Verify(t.Context(), token)
			if err != nil || timeless(got) != testShopper {
				t.Errorf("%+v, %v", got, err)
			}
			for other := range keys {
				if other == kid {
					continue
				}
				// The right signature under the name of a key that it does not fit.
				token := keys[kid].sign(t, object{"alg": alg, "kid": other}, goodClaims().json(t))
				_, err := tokens.Verify(t.Context(), token)
				wantFault(t, err, true, "algorithm does not fit its key", token)
			}
		})
	}
	if len(fits) != len(tokenAlgorithms) {
		t.Errorf("%d algorithms are tried, of %d", len(fits), len(tokenAlgorithms))
	}
}

func TestTokenRules(t *testing.T) {
	t.Parallel()
	key, other := testKeys()["Ed25519"], newEdKey("Ed25519")
	head := object{"alg": "EdDSA", "kid": "Ed25519"}
	for name, c := range map[string]struct {
		head, claims object // what differs from a good token
		raw          string // claims as they are, when not ""
		change       func(*TokensConfig)
		by           testKey // the signer; zero: the right one
		want         Principal
		says         string // of the refusal
	}{
		"Good":                      {want: testShopper},
		"UnknownClaimsAreNotLooked": {claims: object{"azp": "x", "scope": "a b"}, want: testShopper},
		"TypIsNotLookedAt":          {head: object{"typ": "at+jwt"}, want: testShopper},

		"ExpMissing":          {claims: object{"exp": nil}, says: "no claim exp"},
		"ExpNull":             {raw: `{"iss":"` + testIssuer + `","aud":"largesse","sub":"marker","exp":null}`, says: "wrong type"},
		"ExpZero":             {claims: object{"exp": 0}, says: "empty or of the wrong type"},
		"ExpIsText":           {claims: object{"exp": "946684800"}, says: "wrong type"},
		"ExpWithinLeeway":     {claims: object{"exp": fakeStart - 29}, want: testShopper},
		"ExpBeyondLeeway":     {claims: object{"exp": fakeStart - 30}, says: "has expired"},
		"ExpNegative":         {claims: object{"exp": -5}, says: "has expired"},
		"ExpTooLarge":         {claims: object{"exp": 1e18}, says: "claim exp is not a time"},
		"NbfWithinLeeway":     {claims: object{"nbf": fakeStart + 30}, want: testShopper},
		"NbfBeyondLeeway":     {claims: object{"nbf": fakeStart + 31}, says: "not valid yet"},
		"NbfIsText":           {claims: object{"nbf": "soon"}, says: "wrong type"},
		"NbfDoesNotFitInto64": {claims: object{"nbf": 1e300}, says: "nbf"},
		"IatWithinLeeway":     {claims: object{"iat": fakeStart + 30}, want: testShopper},
		"IatBeyondLeeway":     {claims: object{"iat": fakeStart + 31}, says: "issued in the future"},
		"IatIsAnObject":       {claims: object{"iat": object{}}, says: "wrong type"},

		"AudMissing":     {claims: object{"aud": nil}, says: "no claim aud"},
		"AudEmpty":       {claims: object{"aud": ""}, says: "empty or of the wrong type"},
		"AudOther":       {claims: object{"aud": "marker"}, says: "another audience"},
		"AudHoldsOurs":   {claims: object{"aud": []string{"marker", "largesse"}}, want: testShopper},
		"AudHoldsOthers": {claims: object{"aud": []string{"marker", "Largesse"}}, says: "another audience"},
		"AudPart":        {claims: object{"aud": "larges"}, says: "another audience"},
		"AudNumber":      {claims: object{"aud": []any{"largesse", 1}}, says: "wrong type"},
		"IssMissing":     {claims: object{"iss": nil}, says: "no claim iss"},
		"IssOther":       {claims: object{"iss": testIssuer + "/"}, says: "another issuer"},
		"IssIsAList":     {claims: object{"iss": []string{testIssuer}}, says: "wrong type"},

		"UserMissing":      {claims: object{"sub": nil}, says: `no claim "sub"`},
		"UserNumber":       {claims: object{"sub": 7}, says: "it is not a string"},
		"UserEmpty":        {claims: object{"sub": ""}, says: "not a user ID"},
		"UserLongest":      {claims: object{"sub": strings.Repeat("é", 127) + "x"}, want: Principal{Name: strings.Repeat("é", 127) + "x", Role: RoleShopper, User: strings.Repeat("é", 127) + "x"}},
		"UserTooLong":      {claims: object{"sub": strings.Repeat("marker", 43)}, says: "longer than 255 bytes"},
		"UserHoldsZero":    {claims: object{"sub": "marker\x00"}, says: "U+0000"},
		"UserIsNoText":     {raw: `{"iss":"` + testIssuer + `","aud":"largesse","sub":"marker\ud800","exp":9000000000}`, says: "not valid UTF-8"},
		"UserIsNoUTF8":     {raw: `{"iss":"` + testIssuer + `","aud":"largesse","sub":"marker` + "\xff" + `","exp":9000000000}`, says: "not valid UTF-8"},
		"UserClaimOther":   {claims: object{"uid": "u9"}, change: func(c *TokensConfig) { c.UserClaim = "uid" }, want: Principal{Name: "u9", Role: RoleShopper, User: "u9"}},
		"UserClaimMissing": {change: func(c *TokensConfig) { c.UserClaim = "uid" }, says: `no claim "uid"`},
		"UserClaimCase":    {claims: object{"UID": "u9"}, change: func(c *TokensConfig) { c.UserClaim = "uid" }, says: `no claim "uid"`},

		"Viewer":           {claims: object{"role": "viewer"}, want: Principal{Name: "marker-u1", Role: RoleViewer}},
		"Issuer":           {claims: object{"role": "issuer"}, want: Principal{Name: "marker-u1", Role: RoleIssuer}},
		"Campaigner":       {claims: object{"role": "campaigner"}, want: Principal{Name: "marker-u1", Role: RoleCampaigner}},
		"Operator":         {claims: object{"role": "operator"}, want: Principal{Name: "marker-u1", Role: RoleOperator}},
		"Admin":            {claims: object{"role": "admin"}, want: Principal{Name: "marker-u1", Role: RoleAdmin}},
		"RoleUnknown":      {claims: object{"role": "marker"}, says: "none of the roles viewer, issuer, campaigner, approver, operator, admin"},
		"RoleShopper":      {claims: object{"role": "shopper"}, says: "none of the roles"},
		"RoleCase":         {claims: object{"role": "Admin"}, says: "none of the roles"},
		"RoleEmpty":        {claims: object{"role": ""}, says: "none of the roles"},
		"RoleNull":         {raw: `{"iss":"` + testIssuer + `","aud":"largesse","sub":"marker","exp":9000000000,"role":null}`, says: "none of the roles"},
		"RoleList":         {claims: object{"role": []string{"admin"}}, says: "none of the roles"},
		"RoleClaimOther":   {claims: object{"https://x/role": "viewer"}, change: func(c *TokensConfig) { c.RoleClaim = "https://x/role" }, want: Principal{Name: "marker-u1", Role: RoleViewer}},
		"RoleOfOtherClaim": {claims: object{"role": "admin"}, change: func(c *TokensConfig) { c.RoleClaim = "r" }, want: testShopper},
		"RoleWithoutSub":   {claims: object{"sub": nil, "uid": "u9", "role": "admin"}, change: func(c *TokensConfig) { c.UserClaim = "uid" }, says: `no claim "sub"`},
		"RoleWithoutUser":  {claims: object{"role": "admin"}, change: func(c *TokensConfig) { c.UserClaim = "uid" }, want: Principal{Name: "marker-u1", Role: RoleAdmin}},
		"RoleSubWithSpace": {claims: object{"sub": " marker", "role": "admin"}, says: "cannot be seen"},
		"RoleSubUnseen":    {claims: object{"sub": "mar\u200bker", "role": "admin"}, says: "cannot be seen"},
		"RoleSubTooLong":   {claims: object{"sub": strings.Repeat("marker", 43), "role": "admin"}, says: "longer than 255 bytes"},

		"KidMissing":        {head: object{"kid": nil}, want: testShopper},
		"KidUnknown":        {head: object{"kid": "marker"}, says: "the JWKS has no key that fits"},
		"KidNumber":         {head: object{"kid": 1}, says: "kid is not a string"},
		"KidCase":           {head: object{"kid": "ed25519"}, says: "the JWKS has no key that fits"},
		"CriticalHeaders":   {head: object{"crit": []string{"marker"}, "marker": 1}, says: "critical headers"},
		"NoCriticalHeaders": {head: object{"crit": []string{}}, says: "critical headers"},
		"ClaimsAreAList":    {raw: `["marker"]`, says: "not a JWT"},
		"ClaimsAreNull":     {raw: `null`, says: "no claim iss"},
		"ClaimsAreCut":      {raw: `{"iss":"marker"`, says: "not a JWT"},
		"ClaimsAreTwo":      {raw: `{"iss":"marker"}{}`, says: "not a JWT"},
		"NumberTooLarge":    {raw: `{"iss":"marker","exp":1e999}`, says: "not a JWT"},
		"OwnKeyInTheHead":   {head: object{"kid": nil, "jwk": other.jwk, "jku": "https://marker/"}, by: other, says: "signature is wrong"},
	} {
		fixture.OnFakeTime(t, name, func(t *testing.T) {
			if c.change == nil {
				c.change = func(*TokensConfig) {}
			}
			tokens := newTestTokens(t, reads(jwksOf(t, key, testKeys()["P-256"])), c.change)
			claims := goodClaims().and(c.claims).json(t)
			if c.raw != "" {
				claims = []byte(c.raw)
			}
			if c.by.private == nil {
				c.by = key
			}
			token := c.by.sign(t, head.and(c.head), claims)
			got, err := tokens.Verify(t.Context(), token)
			if c.says != "" {
				wantFault(t, err, true, c.says, token)
			} else if err != nil {
				t.Fatal(err)
			} else {
				got = timeless(got)
			}
			c.want.TokenSubject = c.want.Name
			fixture.Equal(t, c.want, got)
			// By another key the same is worth nothing.
			token = other.sign(t, head.and(c.head), claims)
			if got, err := tokens.Verify(t.Context(), token); err == nil || got != (Principal{}) {
				t.Errorf("signed by another key: %+v, %v", got, err)
			}
		})
	}
}

// fakeStart is when time begins in a bubble of synctest.
var fakeStart = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC).Unix()

func TestMalformedTokens(t *testing.T) {
	t.Parallel()
	rsaKey, ed := testKeys()["RSA"], testKeys()["Ed25519"]
	tokens := newTestTokens(t, reads(jwksOf(t, rsaKey, ed)))
	good := ed.token(t, "EdDSA")
	part := strings.Split(good, ".")
	claims := goodClaims().json(t)
	unsigned := func(head object) string { return b64(head.json(t)) + "." + b64(claims) }
	const (
		noJWT = "the token is not a JWT"
		noAlg = "the token's algorithm is none of RS256, RS384"
		wrong = "the token's signature is wrong"
	)
	for name, c := range map[string]struct{ token, says string }{
		"Empty":             {"", noJWT},
		"Dots":              {"..", noJWT},
		"TwoParts":          {part[0] + "." + part[1], noJWT},
		"FourParts":         {good + ".", noJWT},
		"FiveParts":         {good + "." + part[0] + "." + part[1], noJWT}, // as a JWE has
		"NotBase64":         {"marker!." + part[1] + "." + part[2], noJWT},
		"Padded":            {good + "==", noJWT},
		"StandardAlphabet":  {part[0] + "." + part[1] + ".+/+/", noJWT},
		"LineBreak":         {good + "\n", noJWT},
		"LineBreakWithin":   {part[0] + "." + part[1] + "." + part[2][:5] + "\r" + part[2][5:], noJWT},
		"LooseBits":         {good[:len(good)-1] + string(good[len(good)-1]+1), noJWT}, // the same bytes for a lax decoder
		"HeadIsAList":       {b64([]byte(`["marker"]`)) + "." + part[1] + "." + part[2], noJWT},
		"HeadIsNull":        {b64([]byte("null")) + "." + part[1] + "." + part[2], noAlg},
		"HeadIsNoJSON":      {b64([]byte("marker")) + "." + part[1] + "." + part[2], noJWT},
		"AlgMissing":        {unsigned(object{"kid": "Ed25519"}) + "." + part[2], noAlg},
		"AlgNumber":         {unsigned(object{"alg": 1, "kid": "Ed25519"}) + "." + part[2], noAlg},
		"AlgUnheardOf":      {unsigned(object{"alg": "marker", "kid": "Ed25519"}) + "." + part[2], noAlg},
		"AlgCase":           {unsigned(object{"alg": "eddsa", "kid": "Ed25519"}) + "." + part[2], noAlg},
		"None":              {unsigned(object{"alg": "none"}) + ".", noAlg},
		"NoneSigned":        {unsigned(object{"alg": "none", "kid": "Ed25519"}) + "." + part[2], noAlg},
		"NoneCase":          {unsigned(object{"alg": "nOnE"}) + ".", noAlg},
		"SignatureMissing":  {part[0] + "." + part[1] + ".", wrong},
		"SignatureShort":    {part[0] + "." + part[1] + "." + b64(make([]byte, 63)), wrong},
		"SignatureOfZeros":  {part[0] + "." + part[1] + "." + b64(make([]byte, 64)), wrong},
		"OtherClaims":       {part[0] + "." + b64(goodClaims().and(object{"sub": "marker-u2"}).json(t)) + "." + part[2], wrong},
		"OtherHead":         {b64(object{"alg": "EdDSA", "kid": "Ed25519", "x": 1}.json(t)) + "." + part[1] + "." + part[2], wrong},
		"OtherKeyOfTheKid":  {newEdKey("Ed25519").token(t, "EdDSA"), wrong},
		"RSAForPSS":         {unsigned(object{"alg": "PS256", "kid": "RSA"}) + "." + strings.Split(rsaKey.token(t, "RS256"), ".")[2], wrong},
		"ShortKeyNamedRSA":  {shortKey().sign(t, object{"alg": "RS256", "kid": "RSA"}, claims), wrong},
		"SignedByItsReader": {hmacToken(t, object{"alg": "HS256", "kid": "RSA"}, claims, rsaKey.private.(*rsa.PrivateKey)), noAlg},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := tokens.Verify(t.Context(), c.token)
			wantFault(t, err, true, c.says, c.token)
			if got != (Principal{}) {
				t.Errorf("a refused token returns %+v", got)
			}
		})
	}
	if _, err := tokens.Verify(t.Context(), good); err != nil {
		t.Errorf("the token that all are made of: %v", err)
	}
}

// hmacToken is signed with what everybody knows, the public key as PEM: a
// verifier that lets the token choose the algorithm believes it.
func hmacToken(t testing.TB, head object, claims []byte, private *rsa.PrivateKey) string {
	t.Helper()
	der := fixture.Must(x509.MarshalPKIXPublicKey(&private.PublicKey))(t)
	text := b64(head.json(t)) + "." + b64(claims)
	mac := hmac.New(sha256.New, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
	mac.Write([]byte(text))
	return text + "." + b64(mac.Sum(nil))
}

// Whatever is changed in a token, at whatever place, it is worth nothing.
func TestTokensHoldAgainstEachChange(t *testing.T) {
	t.Parallel()
	key := testKeys()["Ed25519"]
	tokens := newTestTokens(t, reads(jwksOf(t, key)))
	good := key.token(t, "EdDSA")
	fixture.Must(tokens.Verify(t.Context(), good))(t)
	for i := range good {
		for _, other := range []byte("A_.9 \n") {
			if good[i] == other {
				continue
			}
			changed := []byte(good)
			changed[i] = other
			if got, err := tokens.Verify(t.Context(), string(changed)); !isUnknown(err) {
				t.Fatalf("byte %d made %q: %+v, %v", i, other, got, err)
			}
		}
		if got, err := tokens.Verify(t.Context(), good[:i]+good[i+1:]); !isUnknown(err) {
			t.Fatalf("without byte %d: %+v, %v", i, got, err)
		}
	}
}

func TestTokensHaveALength(t *testing.T) {
	t.Parallel()
	key := testKeys()["Ed25519"]
	tokens := newTestTokens(t, reads(jwksOf(t, key)))
	ofLength := func(n int) string {
		for pad := range 1500 {
			head := object{"alg": "EdDSA", "kid": "Ed25519", "pad": strings.Repeat("x", pad%3)}
			token := key.sign(t, head, goodClaims().and(object{"pad": strings.Repeat("x", 3*n/4-400+pad/3)}).json(t))
			if len(token) == n {
				return token
			}
		}
		t.Fatalf("no token has %d bytes", n)
		return ""
	}
	longest := ofLength(8 << 10)
	if got, err := tokens.Verify(t.Context(), longest); err != nil || timeless(got) != testShopper {
		t.Errorf("8 KiB: %+v, %v", got, err)
	}
	longer := ofLength(8<<10 + 1)
	_, err := tokens.Verify(t.Context(), longer)
	wantFault(t, err, true, "longer than 8192 bytes", longer)
}

func TestTokensConfig(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*TokensConfig)
		says   string // "" = it is good
	}{
		"File":          {func(c *TokensConfig) { c.JWKS = "keys/jwks.json" }, ""},
		"HTTPS":         {func(c *TokensConfig) { c.JWKS = "https://id.example.com/keys?v=1" }, ""},
		"Loopback":      {func(c *TokensConfig) { c.JWKS = "http://127.8.0.1:99/keys" }, ""},
		"LoopbackIPv6":  {func(c *TokensConfig) { c.JWKS = "http://[::1]:99/keys" }, ""},
		"LoopbackName":  {func(c *TokensConfig) { c.JWKS = "http://localhost/keys" }, ""},
		"NoJWKS":        {func(c *TokensConfig) { c.JWKS = "" }, "JWKS is not set"},
		"HTTP":          {func(c *TokensConfig) { c.JWKS = "http://id.example.com/marker" }, "must be https:// unless"},
		"HTTPByAddress": {func(c *TokensConfig) { c.JWKS = "http://192.0.2.7/marker" }, "must be https:// unless"},
		"HTTPByAnyName": {func(c *TokensConfig) { c.JWKS = "http://localhost.example.com/marker" }, "must be https:// unless"},
		"OtherScheme":   {func(c *TokensConfig) { c.JWKS = "ftp://127.0.0.1/marker" }, "must be of the form https://"},
		"FileScheme":    {func(c *TokensConfig) { c.JWKS = "file:///marker" }, "must be of the form https://"},
		"NoHost":        {func(c *TokensConfig) { c.JWKS = "https:///marker" }, "must be of the form https://"},
		"NoURL":         {func(c *TokensConfig) { c.JWKS = "https://marker:\x7f/" }, "is not a valid URL"},
		"Password":      {func(c *TokensConfig) { c.JWKS = "https://u:marker@id.example.com/" }, "user or password"},
		"Fragment":      {func(c *TokensConfig) { c.JWKS = "https://id.example.com/#marker" }, "fragment"},
		"NoIssuer":      {func(c *TokensConfig) { c.Issuer = "" }, "issuer of tokens is not set"},
		"NoAudience":    {func(c *TokensConfig) { c.Audience = "" }, "audience of tokens is not set"},
		"OneClaim":      {func(c *TokensConfig) { c.UserClaim = "role" }, "both the user and the role"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := TokensConfig{JWKS: "jwks.json", Issuer: testIssuer, Audience: testAudience, UserClaim: "sub", RoleClaim: "role"}
			c.change(&cfg)
			tokens, err := NewTokens(cfg)
			if c.says != "" {
				wantFault(t, err, false, c.says, "")
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			tokens.Close()
		})
	}
}

func TestWhichKeyOfTheJWKS(t *testing.T) {
	t.Parallel()
	rsaKey, p256, ed := testKeys()["RSA"], testKeys()["P-256"], testKeys()["Ed25519"]
	as := func(k testKey, change object) testKey { return testKey{k.jwk.and(change), k.private} }
	const missing = "the JWKS has no key that fits"
	for name, c := range map[string]struct {
		jwks []testKey
		by   testKey
		head object
		says string // "" = it is good
	}{
		"AlgOfTheKey":              {[]testKey{as(rsaKey, object{"alg": "RS384"})}, rsaKey, object{"alg": "RS384", "kid": "RSA"}, ""},
		"OtherAlgOfTheKey":         {[]testKey{as(rsaKey, object{"alg": "RS384"})}, rsaKey, object{"alg": "RS256", "kid": "RSA"}, "algorithm does not fit its key"},
		"UseSig":                   {[]testKey{as(ed, object{"use": "sig", "key_ops": []string{"verify"}})}, ed, object{"alg": "EdDSA", "kid": "Ed25519"}, ""},
		"UseEnc":                   {[]testKey{as(ed, object{"use": "enc"})}, ed, object{"alg": "EdDSA", "kid": "Ed25519"}, missing},
		"OpsWithoutVerify":         {[]testKey{as(ed, object{"key_ops": []string{"sign"}})}, ed, object{"alg": "EdDSA", "kid": "Ed25519"}, missing},
		"OpsEmpty":                 {[]testKey{as(ed, object{"key_ops": []string{}})}, ed, object{"alg": "EdDSA", "kid": "Ed25519"}, missing},
		"WithoutKidOneFits":        {[]testKey{rsaKey, p256, ed}, p256, object{"alg": "ES256"}, ""},
		"WithoutKidNoneFits":       {[]testKey{p256, ed}, rsaKey, object{"alg": "RS256"}, missing},
		"WithoutKidTwoFit":         {[]testKey{ed, newEdKey("other")}, ed, object{"alg": "EdDSA"}, "several fit"},
		"WithoutKidsAtAll":         {[]testKey{as(ed, object{"kid": nil})}, ed, object{"alg": "EdDSA"}, ""},
		"WithoutKidTheAlgDecides":  {[]testKey{as(rsaKey, object{"alg": "PS256"}), as(shortKey(), object{"alg": "RS256"})}, rsaKey, object{"alg": "PS256"}, ""},
		"KidOfAKeyWithoutKid":      {[]testKey{as(ed, object{"kid": nil})}, ed, object{"alg": "EdDSA", "kid": "Ed25519"}, missing},
		"OneKidTwoTypes":           {[]testKey{as(rsaKey, object{"kid": "k"}), as(ed, object{"kid": "k"})}, ed, object{"alg": "EdDSA", "kid": "k"}, ""},
		"OneKidTwoKeys":            {[]testKey{as(newEdKey("k"), object{}), as(ed, object{"kid": "k"})}, ed, object{"alg": "EdDSA", "kid": "k"}, "several keys with the token's kid"},
		"NoKeys":                   {nil, ed, object{"alg": "EdDSA", "kid": "Ed25519"}, missing},
		"SymmetricKeyOfTheSameKid": {[]testKey{{jwk: object{"kty": "oct", "k": "AAAA", "kid": "Ed25519"}}, ed}, ed, object{"alg": "EdDSA", "kid": "Ed25519"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tokens := newTestTokens(t, reads(jwksOf(t, c.jwks...)))
			token := c.by.sign(t, c.head, goodClaims().json(t))
			got, err := tokens.Verify(t.Context(), token)
			switch {
			case c.says != "":
				wantFault(t, err, true, c.says, token)
			case err != nil || timeless(got) != testShopper:
				t.Errorf("%+v, %v", got, err)
			}
		})
	}
}

func TestParseJWKS(t *testing.T) {
	t.Parallel()
	rsaKey, p256, p521, ed := testKeys()["RSA"].jwk, testKeys()["P-256"].jwk, testKeys()["P-521"].jwk, testKeys()["Ed25519"].jwk
	for name, c := range map[string]struct {
		jwk  object
		says string // why it is skipped; "" = it is used
	}{
		"RSA":               {rsaKey, ""},
		"RSALongZero":       {rsaKey.and(object{"n": b64(append([]byte{0}, testKeys()["RSA"].private.(*rsa.PrivateKey).N.Bytes()...))}), ""},
		"RSAShort":          {shortKey().jwk, "it has 1024 bits: it must have from 2048 to 8192"},
		"RSA2047":           {rsaKey.and(object{"n": b64(append([]byte{0x7f}, bytes.Repeat([]byte{0xff}, 255)...))}), "it has 2047 bits"},
		"RSALong":           {rsaKey.and(object{"n": b64(bytes.Repeat([]byte{0xff}, 1025))}), "it has 8200 bits"},
		"RSAEven":           {rsaKey.and(object{"n": b64(append(bytes.Repeat([]byte{0xff}, 255), 0))}), "its n is even"},
		"RSAWithoutN":       {rsaKey.and(object{"n": nil}), "its n is missing"},
		"RSAWithoutE":       {rsaKey.and(object{"e": nil}), "its e is missing"},
		"RSAPadded":         {rsaKey.and(object{"e": "AQAB===="}), "base64url without padding"},
		"RSAExponent1":      {rsaKey.and(object{"e": "AQ"}), "its e is not odd"},
		"RSAExponent3":      {rsaKey.and(object{"e": "Aw"}), ""},
		"RSAExponentEven":   {rsaKey.and(object{"e": "BA"}), "its e is not odd"},
		"RSAExponentLarge":  {rsaKey.and(object{"e": b64([]byte{0x80, 0, 0, 1})}), "its e is not odd"},
		"P256":              {p256, ""},
		"P521":              {p521, ""},
		"ECWithoutY":        {p256.and(object{"y": nil}), "its y is missing"},
		"ECWithoutX":        {p256.and(object{"x": nil}), "its x is missing"},
		"ECShort":           {p256.and(object{"x": b64(make([]byte, 31))}), "must have 32 bytes each"},
		"ECOffCurve":        {p256.and(object{"x": b64(make([]byte, 32))}), "not a point of its curve"},
		"ECInfinity":        {p256.and(object{"x": b64(make([]byte, 32)), "y": b64(make([]byte, 32))}), "not a point of its curve"},
		"ECOtherCurve":      {p256.and(object{"crv": "P-521"}), "must have 66 bytes each"},
		"ECUnknownCurve":    {p256.and(object{"crv": "secp256k1"}), `its curve "secp256k1" is none of`},
		"Ed25519":           {ed, ""},
		"Ed25519Short":      {ed.and(object{"x": b64(make([]byte, 31))}), "must have 32 bytes"},
		"Ed25519WithoutX":   {ed.and(object{"x": nil}), "its x is missing"},
		"X25519":            {ed.and(object{"crv": "X25519"}), "is not Ed25519"},
		"Symmetric":         {object{"kty": "oct", "k": "AAAA"}, "it is symmetric"},
		"UnknownType":       {object{"kty": "AKP"}, `its kty "AKP" is none of`},
		"WithoutType":       {object{"kid": "x"}, `its kty "" is none of`},
		"WrongMember":       {object{"kty": "RSA", "n": 7}, "key 1: json"},
		"AlgDoesNotFit":     {p256.and(object{"alg": "ES384"}), `its alg "ES384" does not fit`},
		"AlgIsSymmetric":    {rsaKey.and(object{"alg": "HS256"}), `its alg "HS256" does not fit`},
		"PrivateHalf":       {p256.and(object{"d": "AAAA"}), "it contains the private key"},
		"PrivateHalfOfNone": {p256.and(object{"d": 7}), "it contains the private key"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			keys, skipped, err := parseJWKS(jwksOf(t, testKey{jwk: c.jwk}, testKey{jwk: ed.and(object{"kid": "next"})}))
			if err != nil {
				t.Fatal(err)
			}
			if c.says == "" {
				if len(keys) != 2 || len(skipped) != 0 || keys[0].kid != c.jwk["kid"] {
					t.Errorf("%d keys, skipped %q", len(keys), skipped)
				}
				return
			}
			if len(keys) != 1 || keys[0].kid != "next" {
				t.Errorf("%d keys: only the valid one should stay", len(keys))
			}
			if len(skipped) != 1 || !strings.Contains(skipped[0], c.says) {
				t.Errorf("skipped %q, want %q", skipped, c.says)
			}
		})
	}
	for _, doc := range []string{"", "null", "[]", "{}", `{"keys":null}`, `{"keys":{}}`, `{"keys":[]`, `"keys"`, "<html>", `{"keys":[]} x`} {
		if keys, _, err := parseJWKS([]byte(doc)); err == nil || !strings.Contains(err.Error(), "it is not a JWKS") {
			t.Errorf("%q: %d keys, %v", doc, len(keys), err)
		}
	}
	if keys, skipped, err := parseJWKS([]byte(`{"keys":[]}`)); err != nil || len(keys)+len(skipped) != 0 {
		t.Errorf("no keys at all: %d, %q, %v", len(keys), skipped, err)
	}
}

// The examples of RFC 8037 A.4 and RFC 7515 A.3: signatures that others made.
func TestSignaturesOfTheRFCs(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ jwk, alg, text, signature string }{
		"EdDSA": {
			`{"kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}`, "EdDSA",
			"eyJhbGciOiJFZERTQSJ9.RXhhbXBsZSBvZiBFZDI1NTE5IHNpZ25pbmc",
			"hgyY0il_MGCjP0JzlnLWG1PPOt7-09PGcvMg3AIbQR6dWbhijcNR4ki4iylGjg5BhVsPt9g7sVvpAr_MuM0KAg",
		},
		"ES256": {
			`{"kty":"EC","crv":"P-256","x":"f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU","y":"x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0"}`, "ES256",
			"eyJhbGciOiJFUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ",
			"DtEhU3ljbEg8L38VWAfUAqOyKAM6-Xx-F4GawxaepmXFCgfTjDxw5djxLa8ISlSApmWQxfKTUJqPP3-Kg6NU1Q",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			keys, skipped, err := parseJWKS([]byte(`{"keys":[` + c.jwk + `]}`))
			if err != nil || len(keys) != 1 {
				t.Fatalf("%d keys, skipped %q, %v", len(keys), skipped, err)
			}
			signature := must(jwt.NewParser().DecodeSegment(c.signature))
			if err := jwt.GetSigningMethod(c.alg).Verify(c.text, signature, keys[0].key); err != nil {
				t.Error(err)
			}
		})
	}
}
