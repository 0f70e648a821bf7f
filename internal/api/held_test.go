package api

import (
	"net/http"
	"strings"
	"testing"

	"github.com/largesse/largesse/internal/auth"
	"github.com/largesse/largesse/internal/coupon"
	"github.com/largesse/largesse/internal/lab/fixture"
)

// TestHeldAnswersAreLimited opens thousands of event streams with one key, and with keys
// of several roles. Each gets its share, others get theirs, and places become free again.
func TestHeldAnswersAreLimited(t *testing.T) {
	t.Parallel()
	const most, tries = 150, 600
	b := setup(t, guarded, func(c *Config) { c.HeldMost = most })
	id := b.jsonAs(t, "operator", "POST", "/v1/promotions", `{"name":"x","type":"POINT","amount":5}`).text(t, "id")
	open := func(token string) *http.Response {
		req := fixture.Must(http.NewRequestWithContext(t.Context(), http.MethodGet, b.url+"/v1/promotions/"+id+"/events", nil))(t)
		req.Header.Set("Authorization", "Bearer "+token)
		res := fixture.Must(b.http.Do(req))(t)
		t.Cleanup(func() { _ = res.Body.Close() })
		return res
	}
	got := map[int]int{}
	var held *http.Response
	for range tries {
		res := open("viewer")
		if got[res.StatusCode]++; res.StatusCode == http.StatusOK {
			held = res
		} else if res.Header.Get("Retry-After") != "5" {
			t.Fatalf("%d without Retry-After", res.StatusCode)
		}
	}
	if got[http.StatusOK] != heldPerReader || got[http.StatusTooManyRequests] != tries-heldPerReader {
		t.Fatalf("%d streams of one key: %v", tries, got)
	}
	_ = held.Body.Close()
	fixture.Until(t, "one is closed", func() bool { return b.held() == heldPerReader-1 })
	if res := open("viewer"); res.StatusCode != http.StatusOK { //nolint:bodyclose // open closes it at the end
		t.Errorf("after one was closed: %d", res.StatusCode)
	}
	b.jsonAs(t, "viewer", "GET", "/v1/promotions/"+id, "").want(t, http.StatusOK)
	for range most - heldPerReader {
		leave := fixture.Must(b.api.held.enter(caller{token: "t", Principal: auth.Principal{Role: auth.RoleOperator, Name: "ann", KeyID: 9}}, most))(t)
		defer leave()
	}
	b.shop.statuses["42:u7"] = coupon.Status{RequestID: "42:u7", Kind: coupon.StatusWaiting, Ticket: 1}
	b.jsonAs(t, "shopper", "GET", "/v1/issue-requests/42:u7/events", "").wantProblem(t, http.StatusServiceUnavailable, "UNAVAILABLE")
	// A request that cannot be held is answered at once.
	a := b.jsonAs(t, "shopper", "POST", "/v1/coupons/42/issue", `{"userId":"u7"}`, "Prefer", "wait=30")
	if a.status != http.StatusAccepted || a.header.Get("Preference-Applied") != "" {
		t.Errorf("%d %v %s", a.status, a.header, a.body)
	}
}

// jsonAs sends a JSON request with a token; headers are pairs.
func (b *bundle) jsonAs(t *testing.T, token, method, path, body string, headers ...string) answer {
	t.Helper()
	return b.do(t, method, path, strings.NewReader(body), append(headers, "Content-Type", "application/json", "Authorization", "Bearer "+token)...)
}

// held returns the number of held responses.
func (b *bundle) held() int {
	b.api.held.mu.Lock()
	defer b.api.held.mu.Unlock()
	return b.api.held.all
}
