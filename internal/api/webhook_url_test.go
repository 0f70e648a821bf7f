package api

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/webhook"
)

// TestViewersSeeNoSecretURLs checks every answer that has the URL of a receiver.
func TestViewersSeeNoSecretURLs(t *testing.T) {
	t.Parallel()
	b := setup(t, guarded)
	as := func(role string) []string {
		return []string{"Authorization", "Bearer " + role, "Content-Type", "application/json"}
	}
	const address, shown = "https://hooks.example/in/T0K3N-of-the-receiver?key=hunter2", "https://hooks.example/in/xxxxx?xxxxx"
	b.do(t, "POST", "/v1/promotions", strings.NewReader(`{"id":7,"name":"x","type":"POINT","webhookUrl":"`+address+`"}`), as("operator")...).
		want(t, http.StatusCreated)
	for _, field := range []string{`"` + address + `"`, `{"url":"` + address + `"}`} {
		b.do(t, "PATCH", "/v1/promotions/7", strings.NewReader(`{"webhookUrl":`+field+`}`), as("operator")...).
			wantProblem(t, http.StatusUnprocessableEntity, "IMMUTABLE")
	}
	for _, path := range []string{"/v1/promotions", "/v1/promotions/7"} {
		for _, role := range []string{"viewer", "campaigner", "approver", "operator", "admin"} {
			a := b.do(t, "GET", path, nil, as(role)...)
			a.want(t, http.StatusOK)
			if whole := strings.Contains(a.body, address); whole != (role != "viewer" && role != "approver") || !whole && !strings.Contains(a.body, shown) {
				t.Errorf("%s as %s: %s", path, role, a.body)
			}
		}
	}
	if a := b.do(t, "GET", "/v1/audit", nil, as("viewer")...); strings.Contains(a.body, "hunter2") || strings.Contains(a.body, "T0K3N") || !strings.Contains(a.body, "hooks.example") {
		t.Errorf("the audit: %s", a.body)
	}
	view := fixture.Must(b.store.PromotionGet(t.Context(), 7))(t)
	if f := b.api.progress.frame(view); !strings.Contains(string(f.state), shown) || strings.Contains(string(f.state), "T0K3N") {
		t.Errorf("events: %s", f.state)
	}
}

// TestReceiverURLs checks that endpoints and promotions accept the same URLs, and that
// the description has their pattern, which package webhook tests.
func TestReceiverURLs(t *testing.T) {
	t.Parallel()
	b := setup(t, guarded)
	schemas := b.described(t)["components"].(tree)["schemas"].(tree)
	change := "/v1/webhook-endpoints/" + b.jsonAs(t, "admin", "POST", "/v1/webhook-endpoints", `{"url":"https://hooks.example/","events":["payout.failed"]}`).text(t, "id")
	for _, door := range []struct{ role, method, path, schema, field, pattern, body string }{
		{"admin", "POST", "/v1/webhook-endpoints", "CreateWebhookEndpoint", "url", receiverURL, `{"events":["payout.failed"],"url":%q}`},
		{"admin", "PATCH", change, "ChangeWebhookEndpoint", "url", receiverURL, `{"url":%q}`},
		{"operator", "POST", "/v1/promotions", "CreatePromotion", "webhookUrl", "^(" + webhook.URLPattern + ")?$", `{"name":"x","type":"POINT","webhookUrl":%q}`},
	} {
		if pattern := schemas[door.schema].(tree)["properties"].(tree)[door.field].(tree)["pattern"]; pattern != door.pattern {
			t.Errorf("%s.%s has the pattern %s", door.schema, door.field, pattern)
		}
		if a := b.jsonAs(t, door.role, door.method, door.path, fmt.Sprintf(door.body, "https://hooks.example/in?key=v")); a.status != http.StatusCreated && a.status != http.StatusOK {
			t.Errorf("%s: %d %s", door.schema, a.status, a.body)
		}
		p := b.jsonAs(t, door.role, door.method, door.path, fmt.Sprintf(door.body, "https://a..example/?key=v")).wantProblem(t, http.StatusUnprocessableEntity, "INVALID")
		if len(p.Errors) != 1 || p.Errors[0].Field != door.field || strings.Contains(p.Errors[0].Detail, "key=v") || !strings.Contains(p.Errors[0].Detail, "host") {
			t.Errorf("%s: %+v", door.schema, p)
		}
	}
}

// TestStoredURLsStay checks that an endpoint with a URL of an earlier version works on.
func TestStoredURLsStay(t *testing.T) {
	t.Parallel()
	b := setup(t, guarded)
	s := b.store
	const old = "https://old~receiver.example/in"
	e := fixture.Must(s.WebhookEndpointCreate(t.Context(), store.WebhookEndpoint{ID: 7, URL: old, Events: []string{"payout.failed"}, Enabled: true, Secret: "whsec_x", CreatedAt: testTime}))(t)
	path := fmt.Sprintf("/v1/webhook-endpoints/%d", e.ID)
	b.jsonAs(t, "admin", "PATCH", path, `{"description":"CRM"}`).want(t, http.StatusOK)
	if a := b.jsonAs(t, "admin", "GET", path, ""); a.text(t, "url") != old || a.text(t, "description") != "CRM" {
		t.Errorf("%s", a.body)
	}
	b.jsonAs(t, "operator", "POST", path+"/test", "").want(t, http.StatusAccepted)
}

// TestViewersSeeNoInternalAddresses checks the errors that earlier versions stored.
func TestViewersSeeNoInternalAddresses(t *testing.T) {
	t.Parallel()
	b := setup(t, guarded)
	s := b.store
	e := fixture.Must(s.WebhookEndpointCreate(t.Context(), store.WebhookEndpoint{ID: 7, URL: "https://hooks.example/", Events: []string{"payout.failed"}, Enabled: true, Secret: "whsec_x", CreatedAt: testTime}))(t)
	d := fixture.Must(s.WebhookDeliveryTest(t.Context(), e.ID))(t)
	fixture.Must(s.WebhookDeliveryRecord(t.Context(), store.WebhookAttemptRecord{
		EndpointID: e.ID, DeliveryID: d.ID, Error: "no response: dial tcp: lookup hooks.example on 10.255.255.53:53: no such host", RetryAfter: time.Hour,
	}))(t)
	for _, path := range []string{"", "/7", "/7/deliveries", fmt.Sprintf("/7/deliveries/%d", d.ID)} {
		a := b.jsonAs(t, "viewer", "GET", "/v1/webhook-endpoints"+path, "")
		if a.want(t, http.StatusOK); strings.Contains(a.body, "10.255") || !strings.Contains(a.body, "no response") {
			t.Errorf("%s: %s", path, a.body)
		}
	}
}
