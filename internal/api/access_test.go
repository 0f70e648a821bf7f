package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/auth"
	"github.com/largesse/largesse/internal/coupon"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/web"
)

// badges authenticates callers whose token is the name of a role.
type badges struct{}

func (badges) Verify(_ context.Context, token string) (auth.Principal, error) {
	switch {
	case token == "away", token == "lgs_away":
		return auth.Principal{}, errors.New("the rows do not answer")
	case token == "shopper":
		return auth.Principal{Name: "u7", Role: auth.RoleShopper, User: "u7"}, nil
	case slices.Contains(auth.Roles, auth.Role(token)):
		return auth.Principal{Name: "the " + token, Role: auth.Role(token), KeyID: 5}, nil
	}
	return auth.Principal{}, fmt.Errorf("%w: there is no such API key", auth.ErrUnauthenticated)
}

func guarded(c *Config) { c.Verifier = badges{} }

// byKeys authenticates callers by the API keys of the database.
func byKeys(c *Config) {
	c.Verifier = auth.Authenticator{Keys: auth.NewKeys(c.Rows.(*faultyStore), obs.Log{})}
}

// withPages adds pages as the console has them.
func withPages(c *Config) {
	pages, err := web.ReadPages(fstest.MapFS{"index.html": {}, "drop/index.html": {}, "assets/index.js": {}}, web.Look{})
	if err != nil {
		panic(err)
	}
	c.Pages = pages
}

// mayCall lists the roles that may call each operation, independent of the code: v viewer, i
// issuer, c campaigner, p approver, o operator, a admin, s shopper; * everybody, without a key too.
var mayCall = map[string]string{
	"GET /healthz": "*", "GET /readyz": "*", "GET /metrics": "*", "GET /openapi.json": "*", "GET /docs": "*",
	"GET /{$}": "*", "GET /drop/{template}": "*", "GET /assets/index.js": "*",

	"GET /v1/promotions": "vcpoa", "POST /v1/promotions": "coa", "GET /v1/promotions/{id}": "vcpoa", "PATCH /v1/promotions/{id}": "coa", "DELETE /v1/promotions/{id}": "coa",
	"POST /v1/promotions/{id}/start": "coa", "POST /v1/promotions/{id}/pause": "coa", "POST /v1/promotions/{id}/resume": "coa",
	"POST /v1/promotions/{id}/cancel": "coa", "POST /v1/promotions/{id}/close": "coa", "POST /v1/promotions/{id}/approve": "poa", "POST /v1/promotions/{id}/reject": "poa", "POST /v1/promotions/{id}/ask-approval": "coa",
	"POST /v1/promotions/{id}/duplicate": "coa", "POST /v1/promotions/{id}/test-payment": "coa", "POST /v1/coupon-templates/{id}/duplicate": "coa",
	"GET /v1/promotions/{id}/report": "vcpoa", "GET /v1/coupon-templates/{id}/report": "vcpoa",
	"GET /v1/promotions/{id}/events": "vcpoa", "GET /v1/promotions/{id}/stream": "vcpoa",
	"POST /v1/promotions/{id}/targets": "coa", "POST /v1/targets/check": "coa", "GET /v1/promotions/{id}/uploads": "vcpoa", "GET /v1/promotions/{id}/already-paid": "vcpoa", "GET /v1/promotions/{id}/uploads/{uploadId}/report": "vcpoa", "GET /v1/promotions/{id}/uploads/{uploadId}/refused": "vcpoa",
	"GET /v1/promotions/{id}/payouts": "vcpoa", "GET /v1/promotions/{id}/payouts/{targetId}": "vcpoa",
	"POST /v1/promotions/{id}/payouts/retry": "oa", "POST /v1/promotions/{id}/payouts/{targetId}/resolve": "oa",
	"GET /v1/dead-letters": "vcpoa", "GET /v1/dead-letters/{id}": "vcpoa", "POST /v1/dead-letters/{id}/replay": "oa",
	"POST /v1/dead-letters/{id}/discard": "oa", "POST /v1/dead-letters/replay": "oa", "POST /v1/dead-letters/discard": "oa",
	"POST /v1/reconciliations": "oa", "GET /v1/reconciliations": "vcpoa", "GET /v1/reconciliations/{id}": "vcpoa", "GET /v1/instances": "vcpoa", "GET /v1/audit": "vcpoa",
	"GET /v1/coupon-templates": "vicpoa", "POST /v1/coupon-templates": "coa", "GET /v1/coupon-templates/{id}": "vicpoas",
	"PATCH /v1/coupon-templates/{id}": "coa", "POST /v1/coupon-templates/{id}/close": "coa", "POST /v1/coupon-templates/{id}/approve": "poa", "POST /v1/coupon-templates/{id}/reject": "poa", "POST /v1/coupon-templates/{id}/release-places": "oa", "POST /v1/coupon-templates/{id}/codes": "coa",
	"GET /v1/coupon-templates/{id}/coupons": "vicpoa", "GET /v1/coupon-templates/{id}/entrants": "vicpoa",
	"POST /v1/coupons/{templateId}/issue": "ioas", "GET /v1/issue-requests/{requestId}": "vicpoas", "DELETE /v1/issue-requests/{requestId}": "ioas",
	"GET /v1/issue-requests/{requestId}/events": "vicpoas", "GET /v1/coupons": "vicpoa", "GET /v1/coupons/{couponId}": "vicpoas",
	"POST /v1/coupons/{couponId}/confirm": "ioa", "POST /v1/coupons/{couponId}/use": "ioa", "POST /v1/coupons/{couponId}/cancel": "ioa",
	"POST /v1/coupon-templates/{id}/coupons/cancel": "ioa",
	"GET /v1/users/{userId}/coupons":                "vicpoas", "GET /v1/users/{userId}/history": "vicpoas",
	"GET /v1/me": "vicpoas", "GET /v1/settings": "a", "GET /v1/payouts": "vcpoa", "GET /v1/promotions/{id}/errors": "vcpoa",
	"GET /v1/webhook-endpoints": "vcpoa", "POST /v1/webhook-endpoints": "a", "GET /v1/webhook-endpoints/{id}": "vcpoa",
	"PATCH /v1/webhook-endpoints/{id}": "a", "DELETE /v1/webhook-endpoints/{id}": "a", "POST /v1/webhook-endpoints/{id}/rotate-secret": "a",
	"POST /v1/webhook-endpoints/{id}/test": "oa", "GET /v1/webhook-endpoints/{id}/deliveries": "vcpoa",
	"GET /v1/webhook-endpoints/{id}/deliveries/{deliveryId}": "vcpoa", "POST /v1/webhook-endpoints/{id}/deliveries/{deliveryId}/resend": "oa",
	"POST /v1/provider/unblock": "oa", "GET /v1/overview": "vcpoa", "GET /v1/promotions/{id}/timeline": "vcpoa", "GET /v1/coupon-templates/{id}/timeline": "vcpoa",
	"GET /v1/coupon-templates/{id}/events": "vcpoa",
	"POST /v1/api-keys":                    "a", "GET /v1/api-keys": "a", "DELETE /v1/api-keys/{id}": "a",
}

// keyring verifies API keys of rows, and the tokens of badges.
type keyring struct {
	badges
	keys *auth.KeyVerifier
}

func (k keyring) Verify(ctx context.Context, token string) (auth.Principal, error) {
	if auth.IsKeyText(token) {
		return k.keys.Verify(ctx, token)
	}
	return k.badges.Verify(ctx, token)
}

// strangers are the Authorization headers of callers who may call public operations only,
// and what the answer to another call says.
func strangers(t *testing.T, rows *faultyStore) map[string]string {
	t.Helper()
	now := time.Now()
	past := now.Add(-time.Hour)
	expired, expiredText := auth.NewKey(1, "expired", auth.RoleAdmin, "cli", &past, now.Add(-2*time.Hour))
	revoked, revokedText := auth.NewKey(2, "revoked", auth.RoleAdmin, "cli", nil, now)
	for _, key := range []store.APIKey{expired, revoked} {
		fixture.OK(t, rows.APIKeyCreate(t.Context(), key))
	}
	fixture.Must(rows.APIKeyRevoke(t.Context(), revoked.ID, "cli", past))(t)
	return map[string]string{
		"": "has no API key", "Bearer " + string(expiredText): "expired", "Bearer " + string(revokedText): "revoked",
		"Bearer nobody": "no such API key",
	}
}

// TestWhoMayCallWhat calls every operation with every role, and as strangers.
func TestWhoMayCallWhat(t *testing.T) {
	t.Parallel()
	b := setup(t, guarded, withPages, func(c *Config) { c.Verifier = keyring{keys: auth.NewKeys(c.Rows.(*faultyStore), obs.Log{})} })
	for pattern := range b.api.Operations() {
		if _, known := mayCall[pattern]; !known {
			t.Errorf("mayCall has no entry for %s", pattern)
		}
	}
	type secured struct{ Security *[]map[string][]string }
	var described struct {
		Paths map[string]struct{ Get, Post, Patch, Delete *secured }
	}
	text := b.json(t, "GET", "/openapi.json", "").body
	fixture.OK(t, json.Unmarshal([]byte(text), &described))
	if !strings.Contains(text, `"security":[{"bearer":[]},{}]`) {
		t.Error("no key or token is described")
	}
	others := strangers(t, b.store)
	fill := strings.NewReplacer("{id}", "12", "{uploadId}", "1", "{targetId}", "7", "{requestId}", "42:u7", "{templateId}", "42", "{couponId}", "3", "{userId}", "u7", "{deliveryId}", "5")
	letters := map[string]string{"v": "viewer", "i": "issuer", "c": "campaigner", "p": "approver", "o": "operator", "a": "admin", "s": "shopper"}
	for pattern, allowed := range mayCall {
		if _, there := b.api.Operations()[pattern]; !there {
			t.Errorf("%s is no call", pattern)
			continue
		}
		if allowed != "*" && (allowed == "" || strings.Trim(allowed, "vicpoas") != "") {
			t.Errorf("%s may be called by %q", pattern, allowed)
		}
		method, path, _ := strings.Cut(pattern, " ")
		body := ""
		if method == "POST" || method == "PATCH" || method == "PUT" {
			body = "{}"
		}
		call := func(t *testing.T, authorization string) answer {
			headers := []string{"Content-Type", "application/json", "Authorization", authorization}
			if authorization == "" {
				headers = headers[:2]
			}
			return b.do(t, method, anyPlace.ReplaceAllString(fill.Replace(path), "5"), strings.NewReader(body), headers...)
		}
		t.Run(pattern, func(t *testing.T) {
			t.Parallel()
			for letter, role := range letters {
				a := call(t, "Bearer "+role)
				in := a.status != http.StatusUnauthorized && a.status != http.StatusForbidden
				if may := allowed == "*" || strings.Contains(allowed, letter); in != may {
					t.Errorf("%s: %d %s", role, a.status, a.body)
				}
				if a.status == http.StatusForbidden && !strings.Contains(a.body, CodeForbidden) {
					t.Errorf("%s: %s", role, a.body)
				}
			}
			for authorization, why := range others {
				a := call(t, authorization)
				if out := a.status == http.StatusUnauthorized; out == (allowed == "*") || out && !strings.Contains(a.body, why) {
					t.Errorf("%q: %d %s", authorization, a.status, a.body)
				}
			}
			item := described.Paths[path]
			op := map[string]*secured{"GET": item.Get, "POST": item.Post, "PATCH": item.Patch, "DELETE": item.Delete}[method]
			if op == nil && allowed != "*" || op != nil && (op.Security == nil) == (allowed == "*") {
				t.Errorf("its description is missing, or says wrongly whether it requires a key: %+v", op)
			}
		})
	}
}

// anyPlace is a path parameter.
var anyPlace = regexp.MustCompile(`\{[A-Za-z]+\}`)

func TestWhoProvesNothing(t *testing.T) {
	t.Parallel()
	b := setup(t, guarded)
	for given, want := range map[string]string{
		"":                    "the request has no API key or token",
		"Bearer":              "exactly one Authorization header: Bearer and an API key or token",
		"Bearer ":             "one Authorization header: Bearer and",
		"Basic viewer":        "one Authorization header: Bearer and",
		"Bearer nobody":       "there is no such API key",
		"Bearer " + "x y":     "there is no such API key",
		"viewer":              "one Authorization header: Bearer and",
		"Bearer viewer admin": "there is no such API key",
	} {
		headers := []string{"Authorization", given}
		if given == "" {
			headers = nil
		}
		a := b.do(t, "GET", "/v1/promotions", nil, headers...)
		if a.wantProblem(t, http.StatusUnauthorized, CodeUnauthenticated); !strings.Contains(a.body, want) || a.header.Get("WWW-Authenticate") != "Bearer" {
			t.Errorf("%q: %d %s %v", given, a.status, a.body, a.header)
		}
	}
	if a := b.do(t, "GET", "/v1/promotions", nil, "Authorization", "bearer  viewer"); a.status != http.StatusOK {
		t.Errorf("the scheme's case and spaces: %d %s", a.status, a.body)
	}
	if a := b.do(t, "GET", "/v1/promotions", nil, "Authorization", "Bearer away"); a.status != http.StatusServiceUnavailable || strings.Contains(a.body, "rows") || a.header.Get("Retry-After") == "" {
		t.Errorf("while authentication is unavailable: %d %s", a.status, a.body)
	}
	if a := b.do(t, "GET", "/v1/promotions", nil, "Authorization", "Bearer lgs_away"); a.status != http.StatusServiceUnavailable ||
		!strings.Contains(a.body, "the database does not answer") || strings.Contains(a.body, "rows") {
		t.Errorf("an API key during an outage of the database: %d %s", a.status, a.body)
	}
}

func TestCallerAndUserLimits(t *testing.T) {
	t.Parallel()
	b := setup(t, guarded, func(c *Config) { c.CallerLimits, c.UserLimits = auth.NewLimits(0.001), auth.NewLimits(0.001) })
	b.shop.template(42, 10)
	read := func(role string) answer {
		return b.do(t, "GET", "/v1/coupon-templates/42", nil, "Authorization", "Bearer "+role)
	}
	if a := read("shopper"); a.status != http.StatusOK {
		t.Fatalf("%d %s", a.status, a.body)
	}
	a := read("shopper")
	if a.wantProblem(t, http.StatusTooManyRequests, CodeRateLimited); !strings.Contains(a.body, "http.rate-limit") || a.header.Get("Retry-After") != "1000" {
		t.Errorf("%d %s %v", a.status, a.body, a.header)
	}
	if a := read("viewer"); a.status != http.StatusOK {
		t.Errorf("another caller: %d %s", a.status, a.body)
	}

	b = setup(t, guarded, func(c *Config) { c.UserLimits = auth.NewLimits(0.001) })
	ask := func(user string) answer {
		return b.do(t, "POST", "/v1/coupons/42/issue", strings.NewReader(`{"userId":"`+user+`"}`), "Content-Type", "application/json", "Authorization", "Bearer issuer")
	}
	ask("u7")
	if a := ask("u7"); a.status != http.StatusTooManyRequests || !strings.Contains(a.body, "http.rate-limit-per-user") {
		t.Errorf("%d %s", a.status, a.body)
	}
	if a := ask("u8"); a.status == http.StatusTooManyRequests {
		t.Errorf("another user: %s", a.body)
	}
	// u7 has no call left, and the issuer has.
	b.jsonAs(t, "shopper", "GET", "/v1/coupon-templates/42", "").wantProblem(t, http.StatusTooManyRequests, CodeRateLimited)
	b.jsonAs(t, "issuer", "GET", "/v1/coupon-templates/42", "").wantProblem(t, http.StatusNotFound, reward.CodeTemplateNotFound)
}

func TestAShopperAsksForThemselves(t *testing.T) {
	t.Parallel()
	b := setup(t, guarded)
	const id = "42"
	b.shop.statuses["42:u7"] = coupon.Status{RequestID: "42:u7", Kind: coupon.StatusWaiting, Ticket: 1}
	b.shop.coupons = []reward.Coupon{{ID: 1, TemplateID: 42, UserID: "u7"}, {ID: 2, TemplateID: 42, UserID: "u8"}}
	do := func(method, path, body string) answer {
		return b.do(t, method, path, strings.NewReader(body), "Content-Type", "application/json", "Authorization", "Bearer shopper")
	}
	for _, c := range []struct{ method, path, body string }{
		{"POST", "/v1/coupons/" + id + "/issue", `{"userId":"u8"}`},
		{"GET", "/v1/issue-requests/" + id + ":u8", ""},
		{"GET", "/v1/issue-requests/" + id + ":u8/events", ""},
		{"DELETE", "/v1/issue-requests/" + id + ":u8", ""},
		{"GET", "/v1/users/u8/coupons", ""},
		{"GET", "/v1/users/u8/history", ""},
	} {
		do(c.method, c.path, c.body).wantProblem(t, http.StatusForbidden, CodeForbidden)
	}
	b.do(t, "POST", "/v1/coupon-templates", strings.NewReader(`{"id":43,"name":"Drop","totalQuantity":5,"metadata":{"cost":"4711"}}`),
		"Content-Type", "application/json", "Authorization", "Bearer operator").want(t, http.StatusCreated)
	do("GET", "/v1/coupon-templates", "").wantProblem(t, http.StatusForbidden, CodeForbidden)
	before := b.shop.gets
	if a := do("GET", "/v1/coupon-templates/43", ""); a.status != http.StatusOK || strings.Contains(a.body, "4711") || !strings.Contains(a.body, "Drop") || b.shop.gets != before {
		t.Errorf("a template, after %d reads of its row: %d %s", b.shop.gets-before, a.status, a.body)
	}
	if a := b.do(t, "GET", "/v1/coupon-templates/43", nil, "Authorization", "Bearer issuer"); !strings.Contains(a.body, "4711") {
		t.Errorf("as an issuer: %s", a.body)
	}
	a := do("POST", "/v1/coupons/"+id+"/issue", `{}`)
	if a.status != http.StatusAccepted || a.object(t)["requestId"] != id+":u7" {
		t.Fatalf("without a userId: %d %s", a.status, a.body)
	}
	if a := do("GET", "/v1/issue-requests/"+id+":u7", ""); a.status != http.StatusOK {
		t.Errorf("their own request: %d %s", a.status, a.body)
	}
	if a := do("DELETE", "/v1/issue-requests/"+id+":u7", ""); a.status != http.StatusNoContent {
		t.Errorf("they leave the line: %d %s", a.status, a.body)
	}
	for path, want := range map[string]int{"/v1/coupons/1": http.StatusOK, "/v1/coupons/2": http.StatusNotFound, "/v1/coupons/3": http.StatusNotFound} {
		if a := do("GET", path, ""); a.status != want {
			t.Errorf("%s: %d %s", path, a.status, a.body)
		}
	}
	if a := b.do(t, "POST", "/v1/coupons/"+id+"/issue", strings.NewReader(`{}`), "Content-Type", "application/json", "Authorization", "Bearer issuer"); a.status != http.StatusUnprocessableEntity {
		t.Errorf("an issuer without a userId: %d %s", a.status, a.body)
	}
}

func TestAPIKeys(t *testing.T) {
	t.Parallel()
	b := setup(t, byKeys)
	first, text := auth.NewKey(1, "first", auth.RoleAdmin, "cli", nil, time.Now())
	fixture.OK(t, b.store.APIKeyCreate(t.Context(), first))
	admin := []string{"Authorization", "Bearer " + string(text), "Content-Type", "application/json"}
	a := b.do(t, "POST", "/v1/api-keys", strings.NewReader(`{"name":"till 4","role":"issuer","expiresAt":"2999-01-01T00:00:00Z"}`), admin...)
	a.want(t, http.StatusCreated)
	if kept := a.header.Get("Cache-Control"); kept != "no-store" {
		t.Errorf("a new key may be kept: %q", kept)
	}
	made := a.object(t)
	key, _ := made["key"].(string)
	prefix, _ := made["prefix"].(string)
	if made["name"] != "till 4" || made["role"] != "issuer" || made["createdBy"] != "first" || len(key) < 50 || !strings.HasPrefix(key, prefix) || len(prefix) != 12 {
		t.Errorf("%v", made)
	}
	// It is accepted, may do what its role allows, and the audit has its name.
	if a := b.do(t, "GET", "/v1/coupon-templates", nil, "Authorization", "Bearer "+key); a.status != http.StatusOK {
		t.Errorf("the new key: %d %s", a.status, a.body)
	}
	a = b.do(t, "GET", "/v1/api-keys", nil, admin...)
	if a.status != http.StatusOK || strings.Contains(a.body, key) || strings.Contains(a.body, `"key"`) || !strings.Contains(a.body, prefix) {
		t.Errorf("the list: %s", a.body)
	}
	create := func(name string) answer {
		return b.do(t, "POST", "/v1/api-keys", strings.NewReader(`{"name":"`+name+`","role":"issuer"}`), admin...)
	}
	create("Till 4").wantProblem(t, http.StatusConflict, "API_KEY_NAME_TAKEN")
	create("FIRST").wantProblem(t, http.StatusConflict, "API_KEY_NAME_TAKEN")
	id, _ := made["id"].(string)
	if a := b.do(t, "DELETE", "/v1/api-keys/"+id, nil, admin...); a.status != http.StatusNoContent {
		t.Fatalf("revoke: %d %s", a.status, a.body)
	}
	fixture.Until(t, "the revoked key is refused", func() bool {
		a := b.do(t, "GET", "/v1/coupon-templates", nil, "Authorization", "Bearer "+key)
		return a.status == http.StatusUnauthorized && strings.Contains(a.body, "was revoked") && !strings.Contains(a.body, key)
	})
	create("Till 4").want(t, http.StatusCreated)
	for body, field := range map[string]string{
		`{"name":"","role":"viewer"}`:                                                 "name",
		`{"name":"x","role":"shopper"}`:                                               "role",
		`{"name":"x","role":"admin","expiresAt":"2001-01-01T00:00:00Z"}`:              "expiresAt",
		`{"name":" x","role":"admin"}`:                                                "name",
		`{"name":"a\u200bnn","role":"admin"}`:                                         "name",
		`{"name":"a\u202enn","role":"admin"}`:                                         "name",
		`{"name":"` + strings.Repeat("x", 201) + `","role":"admin"}`:                  "name",
		`{"name":"x","role":"admin","expiresAt":"2999-01-01T00:00:00Z","key":"mine"}`: "key",
	} {
		if a := b.do(t, "POST", "/v1/api-keys", strings.NewReader(body), admin...); a.status != http.StatusUnprocessableEntity || !strings.Contains(a.body, `"field":"`+field+`"`) {
			t.Errorf("%s: %d %s", body, a.status, a.body)
		}
	}
	b.do(t, "DELETE", "/v1/api-keys/77", nil, admin...).wantProblem(t, http.StatusNotFound, reward.CodeAPIKeyNotFound)
	for _, id := range []string{"x", "-1"} {
		b.do(t, "DELETE", "/v1/api-keys/"+id, nil, admin...).wantProblem(t, http.StatusBadRequest, reward.CodeMalformed)
	}
	if audit := b.store.audit(t, ""); len(audit) < 2 || audit[0].Action != "create-api-key" || audit[0].Actor != "first" || audit[0].KeyID != 1 || strings.Contains(fmt.Sprint(audit), key) {
		t.Errorf("the audit: %v", audit)
	}
}

// A stream that is read for hours ends when its reader's key is revoked.
func TestALongCallEndsWithItsKey(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBundle(t, byKeys)
		key, text := auth.NewKey(1, "reader", auth.RoleViewer, "cli", nil, time.Now())
		fixture.OK(t, b.store.APIKeyCreate(t.Context(), key))
		req := httptest.NewRequestWithContext(t.Context(), "GET", "/v1/issue-requests/42:u7/events", nil)
		req.Header.Set("Authorization", "Bearer "+string(text))
		admitted, end, err := b.api.admit(req, "watch-issue-request")
		if err != nil {
			t.Fatal(err)
		}
		defer end()
		time.Sleep(time.Minute)
		if err := admitted.Context().Err(); err != nil {
			t.Fatalf("it ended before: %v", err)
		}
		fixture.Must(b.store.APIKeyRevoke(t.Context(), 1, "admin", time.Now()))(t)
		revoked := time.Now()
		<-admitted.Context().Done()
		if took := time.Since(revoked); took > 2*time.Second {
			t.Errorf("it went on for %v", took)
		}
	})
}

func TestAudit(t *testing.T) {
	t.Parallel()
	b := setup(t, guarded)
	do := func(method, path, body string) answer {
		return b.do(t, method, path, strings.NewReader(body), "Content-Type", "application/json", "Authorization", "Bearer operator", "X-Request-Id", "r-1")
	}
	made := do("POST", "/v1/promotions", `{"id":12,"name":"Spring","type":"POINT","amount":5}`)
	made.want(t, http.StatusCreated)
	do("POST", "/v1/promotions", `{"id":12,"name":"Spring","type":"POINT","amount":5}`).want(t, http.StatusConflict)
	do("POST", "/v1/promotions", `{"name":""}`).want(t, http.StatusUnprocessableEntity)
	do("GET", "/v1/promotions/12", "").want(t, http.StatusOK)
	b.do(t, "POST", "/v1/promotions/12/targets", strings.NewReader("targetId\n1\n"), "Content-Type", "text/csv", "Authorization", "Bearer operator").want(t, http.StatusOK)
	b.do(t, "POST", "/v1/promotions/12/targets?dryRun=true", strings.NewReader("targetId\n1\n"), "Content-Type", "text/csv", "Authorization", "Bearer operator").want(t, http.StatusOK)
	do("POST", "/v1/%70romotions/%31%32/%73tart", "").want(t, http.StatusAccepted)

	a := do("GET", "/v1/audit", "")
	a.want(t, http.StatusOK)
	var list struct{ Items []client.AuditLine }
	fixture.OK(t, json.Unmarshal([]byte(a.body), &list))
	got := make([]string, len(list.Items))
	for i, l := range slices.Backward(list.Items) {
		if l.EndedAt.IsZero() || l.Actor != "the operator" || l.Role != "operator" {
			t.Errorf("%+v", l)
		}
		got[len(got)-1-i] = fmt.Sprintf("%s %s %d %s", l.Action, l.Subject, l.Status, l.Code)
	}
	want := []string{
		"create-promotion /v1/promotions 201 ", "create-promotion /v1/promotions 409 ALREADY_EXISTS",
		"upload-targets /v1/promotions/12/targets 200 ", "start-promotion /v1/promotions/12/start 202 ",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	if first := list.Items[len(list.Items)-1]; first.RequestID != "r-1" || !strings.Contains(first.Detail, `"name":"Spring"`) {
		t.Errorf("%+v", first)
	}
	if a := do("GET", "/v1/audit?subject=/v1/promotions/12/&limit=1", ""); !strings.Contains(a.body, "start-promotion") || !strings.Contains(a.body, "nextCursor") {
		t.Errorf("%s", a.body)
	}
	status := func() reward.PromotionStatus { return fixture.Must(b.store.PromotionGet(t.Context(), 12))(t).Status }
	if got := status(); got != reward.Running {
		t.Errorf("it is %s, although it was started", got)
	}
	template := do("POST", "/v1/coupon-templates", `{"id":42,"name":"Drop","totalQuantity":5}`)
	template.want(t, http.StatusCreated)
	do("PATCH", "/v1/coupon-templates/42", `{"closesAt":"2999-01-01T00:00:00Z","opensAt":null}`).want(t, http.StatusOK)
	latest := func() store.AuditLine { audit := b.store.audit(t, ""); return audit[len(audit)-1] }
	last := latest()
	if last.Status != http.StatusOK || last.Detail != `{"opensAt":null,"closesAt":"2999-01-01T00:00:00Z"}` {
		t.Errorf("%+v", last)
	}
	// Long metadata hides nothing else.
	long := make(map[string]string)
	for i := range 20 {
		long[fmt.Sprint(i)] = strings.Repeat("語", 200)
	}
	metadata := fixture.Must(json.Marshal(long))(t)
	for _, c := range []struct{ method, path, fields, shown string }{
		{"POST", "/v1/promotions", `,"id":13,"name":"x","type":"POINT","currency":"EUR","webhookUrl":"https://hooks.example/in"`, `"webhookUrl":"https://`},
		{"PATCH", "/v1/promotions/13", `,"currency":"USD","startsAt":"2999-01-01T00:00:00Z"`, `"currency":"USD","startsAt":"2999-`},
		{"POST", "/v1/coupon-templates", `,"id":44,"name":"x","totalQuantity":5,"reissueAfterCancel":false`, `"reissueAfterCancel":false`},
		{"PATCH", "/v1/coupon-templates/44", `,"whenRedisAway":"WAIT"`, `"whenRedisAway":"WAIT"`},
	} {
		do(c.method, c.path, `{"metadata":`+string(metadata)+c.fields+`}`)
		if last := latest(); len(last.Detail) < auditDetailMax-2 || !strings.Contains(last.Detail, c.shown) {
			t.Errorf("%s %s: %+v", c.method, c.path, last)
		}
	}
	do("POST", "/v1/promotions/"+strings.Repeat("x", 6000)+"/start", "").want(t, http.StatusBadRequest)
	if last := latest(); len(last.Subject) > auditSubjectMax {
		t.Errorf("a subject of %d bytes", len(last.Subject))
	}
	// A change that cannot be audited is not made.
	b.store.fail("AuditBegin", errors.New("away"))
	if a := do("POST", "/v1/promotions/12/pause", ""); a.status < 500 || status() != reward.Running {
		t.Errorf("%d %s, %s", a.status, a.body, status())
	}
}

func TestIdempotency(t *testing.T) {
	t.Parallel()
	post := func(t *testing.T, b *bundle, path, key, body string) answer {
		t.Helper()
		return b.do(t, "POST", path, strings.NewReader(body), "Content-Type", "application/json", "Idempotency-Key", key)
	}
	const spring = `{"name":"Spring","type":"POINT","amount":5}`
	paths := map[string]string{
		"/v1/promotions": spring, "/v1/coupon-templates": `{"name":"Spring","totalQuantity":5}`,
		"/v1/reconciliations": `{}`, "/v1/api-keys": `{"name":"till","role":"viewer"}`,
	}
	// repeated is the body of a repeated response: only the first one has the key.
	repeated := func(first string) string {
		key := regexp.MustCompile(`"key":"[^"]*"`)
		return key.ReplaceAllString(first, `"notice":"only the first response to this request had the key, which is kept nowhere: if you have lost it, revoke this key and create another"`)
	}
	// crashed sends a request whose instance dies before it stores the answer, and waits
	// until a repeat may run it.
	crashed := func(t *testing.T, b *bundle, path, body string) answer {
		t.Helper()
		b.store.fail("IdempotencyFinish", errors.New("died"))
		a := post(t, b, path, "k1", body)
		b.store.fail("IdempotencyFinish", nil)
		time.Sleep(idempotencyLease + time.Second) // fake time
		return a
	}
	for path, body := range paths {
		t.Run("TheSameAnswer"+path, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			first := post(t, b, path, "k1", body)
			first.want(t, http.StatusCreated)
			again := post(t, b, path, "k1", body)
			if again.status != first.status || again.body != repeated(first.body) || again.header.Get("Location") != first.header.Get("Location") {
				t.Errorf("%d %s\n%d %s", first.status, first.body, again.status, again.body)
			}
			if first.header.Get(ReplayedHeader) != "" || again.header.Get(ReplayedHeader) != "true" {
				t.Errorf("%s is %q at first and %q at the repeat", ReplayedHeader, first.header.Get(ReplayedHeader), again.header.Get(ReplayedHeader))
			}
			if kept := strings.Join(b.store.answers, " "); kept == "" || strings.Contains(kept, "Spring") || strings.Contains(kept, "lgs_") {
				t.Errorf("answers are kept in clear text, or not: %q", kept)
			}
			if a := post(t, b, path, "k1", strings.Replace(strings.Replace(body, "{", `{"x":1,`, 1), ",}", "}", 1)); a.status != http.StatusUnprocessableEntity || a.header.Get(ReplayedHeader) != "" {
				t.Errorf("%d %s %v", a.status, a.body, a.header)
			}
			if other := post(t, b, path, "k2", strings.Replace(body, "till", "till 2", 1)); other.status != http.StatusCreated || path != "/v1/reconciliations" && other.body == first.body {
				t.Errorf("another key: %d %s", other.status, other.body)
			}
		})
	}
	t.Run("AnotherRequest", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		post(t, b, "/v1/promotions", "k1", spring).want(t, http.StatusCreated)
		a := post(t, b, "/v1/promotions", "k1", strings.Replace(spring, "5", "6", 1))
		a.wantProblem(t, http.StatusUnprocessableEntity, CodeKeyReused)
		if ids, _ := b.pages(t, "/v1/promotions?limit=9", "id"); len(ids) != 1 {
			t.Errorf("promotions %v", ids)
		}
	})
	t.Run("WhatFailedKeepsNoAnswer", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		post(t, b, "/v1/promotions", "k0", `{"id":9,"name":"a","type":"POINT","amount":5}`).want(t, http.StatusCreated)
		post(t, b, "/v1/promotions", "k1", `{"id":9,"name":"b","type":"POINT","amount":5}`).want(t, http.StatusConflict)
		b.json(t, "DELETE", "/v1/promotions/9", "").want(t, http.StatusNoContent)
		post(t, b, "/v1/promotions", "k1", `{"id":9,"name":"b","type":"POINT","amount":5}`).want(t, http.StatusCreated)
	})
	t.Run("UnderWay", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.store.fail("IdempotencyFinish", errors.New("died"))
		post(t, b, "/v1/promotions", "k1", spring).want(t, http.StatusCreated)
		a := post(t, b, "/v1/promotions", "k1", spring)
		if a.wantProblem(t, http.StatusConflict, CodeInProgress); a.header.Get("Retry-After") != "1" {
			t.Errorf("%v", a.header)
		}
	})
	for path, body := range paths {
		t.Run("AfterACrash"+path, func(t *testing.T) {
			t.Parallel()
			inMemory(t, func(t *testing.T, b *bundle) {
				first := crashed(t, b, path, body)
				first.want(t, http.StatusCreated)
				b.shop.mu.Lock()
				for id, v := range b.shop.templates {
					v.CreatedAt = time.Now()
					b.shop.templates[id] = v
				}
				b.shop.mu.Unlock()
				again := post(t, b, path, "k1", body)
				again.want(t, http.StatusCreated)
				if again.header.Get(ReplayedHeader) != "" {
					t.Error("the request that ran again is marked as a repeated response")
				}
				switch path {
				case "/v1/promotions", "/v1/coupon-templates":
					if again.object(t)["id"] != first.object(t)["id"] {
						t.Errorf("created twice: %s and %s", first.body, again.body)
					}
				case "/v1/api-keys":
					keys := fixture.Must(b.store.APIKeyList(t.Context(), 0, 9))(t) // the latest first
					if len(keys) != 2 || keys[1].RevokedAt.IsZero() || !keys[0].RevokedAt.IsZero() {
						t.Errorf("%+v", keys)
					}
				}
				if third := post(t, b, path, "k1", body); third.body != repeated(again.body) {
					t.Errorf("%s\n%s", again.body, third.body)
				}
			})
		})
	}
	t.Run("TheLimitOfTimeIsThatOfTheFirst", func(t *testing.T) {
		t.Parallel()
		inMemory(t, func(t *testing.T, b *bundle) {
			body := fmt.Sprintf(`{"name":"till","role":"viewer","expiresAt":%q}`, time.Now().Add(time.Second).UTC().Format(time.RFC3339Nano))
			first := post(t, b, "/v1/api-keys", "k1", body)
			first.want(t, http.StatusCreated)
			time.Sleep(time.Second)
			if a := post(t, b, "/v1/api-keys", "k1", body); a.body != repeated(first.body) {
				t.Errorf("%d %s", a.status, a.body)
			}
			if a := post(t, b, "/v1/api-keys", "k2", body); a.status != http.StatusUnprocessableEntity || !strings.Contains(a.body, `"field":"expiresAt"`) {
				t.Errorf("%d %s", a.status, a.body)
			}
		})
	})
	t.Run("AskAgainAfterAFailure", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.shop.refusals["42:u7"] = reward.NewError(reward.KindUnavailable, reward.CodeUnavailable, "not now")
		ask := func() answer { return post(t, b, "/v1/coupons/42/issue", "k1", `{"userId":"u7"}`) }
		if a := ask(); a.status != http.StatusServiceUnavailable {
			t.Fatalf("%d %s", a.status, a.body)
		}
		delete(b.shop.refusals, "42:u7")
		b.shop.statuses["42:u7"] = coupon.Status{RequestID: "42:u7", Kind: coupon.StatusWaiting, Ticket: 1}
		if a := ask(); a.status != http.StatusAccepted {
			t.Errorf("%d %s", a.status, a.body)
		}
	})
	t.Run("ARefusalWritesNothing", func(t *testing.T) {
		t.Parallel()
		for _, body := range []string{`{"userId":"u7"}`, `{"userId": "u7" }`} { // the second one by huma
			b := setup(t)
			ask := func(key string) answer { return post(t, b, "/v1/coupons/42/issue", key, body) }
			soldOut := reward.NewError(reward.KindConflict, reward.CodeSoldOut, "sold out")
			b.shop.stand("42:u7", coupon.Status{}, soldOut)
			for range 2 {
				ask("k1").wantProblem(t, http.StatusConflict, reward.CodeSoldOut)
			}
			if b.store.claims != 0 || b.shop.refused != 2 || len(b.shop.asked) != 0 {
				t.Errorf("%d claims, %d refusals counted, requested %v", b.store.claims, b.shop.refused, b.shop.asked)
			}
			b.shop.stand("42:u7", coupon.Status{RequestID: "42:u7", Kind: coupon.StatusIssued, Ticket: 3, Coupon: issued(9, 42, "u7", 3)}, nil)
			ask("k1").want(t, http.StatusCreated)
			// A request that succeeded is repeated, whatever a new one would get.
			b.shop.stand("42:u7", coupon.Status{}, soldOut)
			if a := ask("k1"); a.status != http.StatusOK || a.header.Get(ReplayedHeader) != "true" {
				t.Errorf("%d %s", a.status, a.body)
			}
			ask("k2").wantProblem(t, http.StatusConflict, reward.CodeSoldOut)
			post(t, b, "/v1/coupons/43/issue", "k1", body).wantProblem(t, http.StatusUnprocessableEntity, CodeKeyReused)
		}
	})
	t.Run("WhatHasBecomeOfAnAsk", func(t *testing.T) {
		t.Parallel()
		for name, tc := range map[string]struct {
			first, now coupon.Status
			want       int
			says       string
		}{
			"Waits":      {coupon.Status{Kind: coupon.StatusWaiting, Ticket: 3, Rank: 2}, coupon.Status{Kind: coupon.StatusWaiting, Ticket: 3, Rank: 1}, 202, `"queueRank":1`},
			"Issued":     {coupon.Status{Kind: coupon.StatusWaiting, Ticket: 3}, coupon.Status{Kind: coupon.StatusIssued, Ticket: 3, Coupon: reward.Coupon{ID: 9, TemplateID: 42, UserID: "u7"}}, 200, `"id":"9"`},
			"Drawn":      {coupon.Status{Kind: coupon.StatusWaiting}, coupon.Status{Kind: coupon.StatusIssued, Ticket: 5, Coupon: reward.Coupon{ID: 9, TemplateID: 42, UserID: "u7"}}, 200, `"id":"9"`},
			"Rejected":   {coupon.Status{Kind: coupon.StatusWaiting, Ticket: 3}, coupon.Status{Kind: coupon.StatusRejected, Ticket: 3, Reason: reward.ReasonSoldOut}, 409, "SOLD_OUT"},
			"AskedLater": {coupon.Status{Kind: coupon.StatusWaiting, Ticket: 3}, coupon.Status{Kind: coupon.StatusWaiting, Ticket: 7}, 202, `"ticket":3`},
			"Had":        {coupon.Status{Kind: coupon.StatusIssued, Ticket: 3, Coupon: reward.Coupon{ID: 9, TemplateID: 42, UserID: "u7"}}, coupon.Status{Kind: coupon.StatusWaiting, Ticket: 7}, 200, `"id":"9"`},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				b := setup(t)
				tc.first.RequestID, tc.now.RequestID = "42:u7", "42:u7"
				b.shop.statuses["42:u7"] = tc.first
				first := post(t, b, "/v1/coupons/42/issue", "k1", `{"userId":"u7"}`)
				b.shop.statuses["42:u7"] = tc.now
				a := post(t, b, "/v1/coupons/42/issue", "k1", `{"userId":"u7"}`)
				if a.status != tc.want || a.header.Get(ReplayedHeader) != "true" || !strings.Contains(a.body, tc.says) || a.status < 300 && !strings.Contains(a.body, `"duplicate":true`) {
					t.Errorf("%d %s, then %d %s", first.status, first.body, a.status, a.body)
				}
			})
		}
	})
	t.Run("AnAskWhoseInstanceDied", func(t *testing.T) {
		t.Parallel()
		inMemory(t, func(t *testing.T, b *bundle) {
			b.shop.statuses["42:u7"] = coupon.Status{RequestID: "42:u7", Kind: coupon.StatusWaiting, Ticket: 1}
			// It is issued at once, by the clock of an instance that is a little behind.
			b.shop.coupons = []reward.Coupon{{ID: 9, TemplateID: 42, UserID: "u7", Ticket: 1, IssuedAt: time.Now().Add(-2 * time.Second)}}
			crashed(t, b, "/v1/coupons/42/issue", `{"userId":"u7"}`).want(t, http.StatusAccepted)
			b.shop.statuses["42:u7"] = coupon.Status{RequestID: "42:u7", Kind: coupon.StatusRejected, Ticket: 2, Reason: reward.ReasonUserLimit}
			a := post(t, b, "/v1/coupons/42/issue", "k1", `{"userId":"u7"}`)
			if a.status != http.StatusOK || !strings.Contains(a.body, `"id":"9"`) {
				t.Errorf("%d %s", a.status, a.body)
			}
		})
	})
	t.Run("KeysThatAreNone", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		for _, key := range []string{strings.Repeat("k", 256), "a\tb", "é"} {
			if a := post(t, b, "/v1/promotions", key, spring); a.status != http.StatusBadRequest || !strings.Contains(a.body, "Idempotency-Key") {
				t.Errorf("%q: %d %s", key, a.status, a.body)
			}
		}
		if ids, _ := b.pages(t, "/v1/promotions?limit=9", "id"); len(ids) != 0 {
			t.Errorf("created %v", ids)
		}
	})
	t.Run("EachCallerHasHisOwn", func(t *testing.T) {
		t.Parallel()
		b := setup(t, guarded)
		ids := map[string]bool{}
		for _, role := range []string{"operator", "admin", "operator"} {
			a := b.do(t, "POST", "/v1/promotions", strings.NewReader(spring), "Content-Type", "application/json", "Idempotency-Key", "k1", "Authorization", "Bearer "+role)
			a.want(t, http.StatusCreated)
			id, _ := a.object(t)["id"].(string)
			ids[id] = true
		}
		if len(ids) != 2 {
			t.Errorf("%v", ids)
		}
	})
}

func TestETag(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.json(t, "POST", "/v1/promotions", `{"id":12,"name":"Spring","type":"POINT","amount":5}`).want(t, http.StatusCreated)
	first := b.do(t, "GET", "/v1/promotions/12", nil)
	tag := first.header.Get("ETag")
	if tag == "" || first.header.Get("Cache-Control") != "private, no-cache" {
		t.Fatalf("%v", first.header)
	}
	for _, given := range []string{tag, "W/" + tag, `"x", ` + tag, "*"} {
		a := b.do(t, "GET", "/v1/promotions/12", nil, "If-None-Match", given)
		if a.status != http.StatusNotModified || a.body != "" || a.header.Get("ETag") != tag || a.header.Get("Content-Type") != "" {
			t.Errorf("%s: %d %q %v", given, a.status, a.body, a.header)
		}
	}
	b.json(t, "PATCH", "/v1/promotions/12", `{"name":"Summer"}`).want(t, http.StatusOK)
	a := b.do(t, "GET", "/v1/promotions/12", nil, "If-None-Match", tag)
	if a.status != http.StatusOK || !strings.Contains(a.body, "Summer") || a.header.Get("ETag") == tag {
		t.Errorf("%d %s %v", a.status, a.body, a.header)
	}
	if a := b.do(t, "GET", "/v1/promotions/13", nil, "If-None-Match", "*"); a.status != http.StatusNotFound || a.header.Get("ETag") != "" {
		t.Errorf("an error: %d %v", a.status, a.header)
	}
}
