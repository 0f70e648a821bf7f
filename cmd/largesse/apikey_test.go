package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/largesse/largesse/internal/lab/fixture"
)

// TestKeysAndTokens goes from no key at all to a shopper with a token of their
// own, through the whole program.
func TestKeysAndTokens(t *testing.T) {
	t.Parallel()
	signer := fixture.Must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	point, err := signer.PublicKey.Bytes() // 4, x, y
	if err != nil {
		t.Fatal(err)
	}
	b64 := base64.RawURLEncoding.EncodeToString
	jwks := filepath.Join(t.TempDir(), "jwks.json")
	keys := fmt.Sprintf(`{"keys":[{"kty":"EC","crv":"P-256","alg":"ES256","kid":"k1","x":"%s","y":"%s"}]}`, b64(point[1:33]), b64(point[33:]))
	fixture.OK(t, os.WriteFile(jwks, []byte(keys), 0o600))

	data := filepath.Join(t.TempDir(), "new")
	first := largesseRun(t.Context(), "", nil, "apikey", "create", "--role", "admin", "--name", "alice", "--data-dir", data)
	if first.code != exitDone || !strings.HasPrefix(first.stdout, "lgs_") || strings.Count(first.stdout, "\n") != 1 || strings.Contains(first.stderr, strings.TrimSpace(first.stdout)) {
		t.Fatalf("%+v", first)
	}
	if !strings.Contains(first.stderr, "the embedded database in "+data) {
		t.Errorf("a key that no server of production knows does not say where it is: %s", first.stderr)
	}
	if r := largesseRun(t.Context(), "", nil, "apikey", "create", "--role", "viewer", "--name", "Alice", "--data-dir", data); r.code != exitFailed || !strings.Contains(r.stderr, "API_KEY_NAME_TAKEN") {
		t.Errorf("a second key with the name of the first: %+v", r)
	}
	if r := largesseRun(t.Context(), "", nil, "apikey", "create", "--role", "king", "--data-dir", data); r.code != exitWrongUse || !strings.Contains(r.stderr, "viewer, issuer, campaigner, approver, operator, admin") {
		t.Errorf("%+v", r)
	}

	up := begin(t, nil, []string{
		"serve", "--data-dir", data, "--listen", "127.0.0.1:0", "--money-url", "http://127.0.0.1:1", "--output", "json",
		"--auth-mode", "jwt", "--auth-jwt-jwks", jwks, "--auth-jwt-issuer", "https://id.example", "--auth-jwt-audience", "largesse",
	})
	var said struct{ Server string }
	if err := json.NewDecoder(up.stdout).Decode(&said); err != nil {
		t.Fatalf("%v, code %d\n%s", err, <-up.code, up.stderr)
	}
	up.drain()
	as := func(key string) []string {
		return []string{"LARGESSE_SERVER=" + said.Server, "LARGESSE_API_KEY=" + strings.TrimSpace(key)}
	}
	admin := as(first.stdout)

	if r := largesseRun(t.Context(), "", as(""), "promotion", "list"); r.code != exitFailed || !strings.Contains(r.stderr, "(UNAUTHENTICATED)") {
		t.Errorf("without a key: %+v", r)
	}
	made := largesseRun(t.Context(), "", admin, "apikey", "create", "--role", "issuer", "--name", "till 4", "--expires", "1h", "--output", "json")
	var till struct{ ID, Key, CreatedBy string }
	if err := json.Unmarshal([]byte(made.stdout), &till); err != nil || till.CreatedBy != "alice" {
		t.Fatalf("%v: %+v", err, made)
	}
	if r := largesseRun(t.Context(), "", as(till.Key), "promotion", "list"); r.code != exitFailed || !strings.Contains(r.stderr, "(FORBIDDEN)") {
		t.Errorf("beyond its role: %+v", r)
	}
	template := largesseRun(t.Context(), "", admin, "template", "create", "--name", "Drop", "--quantity", "5", "--output", "json")
	var drop struct{ ID string }
	if err := json.Unmarshal([]byte(template.stdout), &drop); err != nil {
		t.Fatalf("%v: %+v", err, template)
	}
	if r := largesseRun(t.Context(), "", as(till.Key), "coupon", "issue", drop.ID, "--user", "u7", "--wait", "20s"); r.code != exitDone {
		t.Errorf("%+v", r)
	}

	token := fixture.Must(jwt.NewWithClaims(jwt.SigningMethodES256, jwt.MapClaims{
		"iss": "https://id.example", "aud": "largesse", "sub": "u8", "exp": time.Now().Add(time.Hour).Unix(),
	}).SignedString(signer))(t)
	ask := func(body string) int {
		req := fixture.Must(http.NewRequestWithContext(t.Context(), http.MethodPost, said.Server+"/v1/coupons/"+drop.ID+"/issue", strings.NewReader(body)))(t)
		for name, value := range map[string]string{"Authorization": "Bearer " + token, "Content-Type": "application/json", "Prefer": "wait=20"} {
			req.Header.Set(name, value)
		}
		res, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		return res.StatusCode
	}
	if status := ask(`{"userId":"u7"}`); status != http.StatusForbidden {
		t.Errorf("a shopper asks for another: %d", status)
	}
	if status := ask(`{}`); status != http.StatusCreated {
		t.Errorf("a shopper asks for themselves: %d", status)
	}
	if r := largesseRun(t.Context(), "", admin, "coupon", "list", "--user", "u8"); r.code != exitDone || !strings.Contains(r.stdout, "u8") {
		t.Errorf("%+v", r)
	}

	if r := largesseRun(t.Context(), "", admin, "apikey", "revoke", till.ID, "--yes"); r.code != exitDone {
		t.Errorf("%+v", r)
	}
	fixture.Until(t, "the revoked key is refused", func() bool {
		r := largesseRun(t.Context(), "", as(till.Key), "template", "list")
		return r.code == exitFailed && strings.Contains(r.stderr, "was revoked")
	})
	if r := largesseRun(t.Context(), "", admin, "apikey", "list"); r.code != exitDone || !strings.Contains(r.stdout, "revoked") || !strings.Contains(r.stdout, "alice") || strings.Contains(r.stdout, till.Key) {
		t.Errorf("%+v", r)
	}
	if r := largesseRun(t.Context(), "", admin, "audit", "--by", "alice"); r.code != exitDone || strings.Count(r.stdout, "alice") < 3 || !strings.Contains(r.stdout, "revoke-api-key") {
		t.Errorf("%+v", r)
	}
	if code := up.end(); code != exitDone {
		t.Errorf("serve ends with %d\n%s", code, up.stderr)
	}
	if log := up.stderr.String(); strings.Contains(log, till.Key) || strings.Contains(log, token) {
		t.Error("the log has a secret")
	}
}
