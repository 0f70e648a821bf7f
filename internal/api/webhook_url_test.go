package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/store"
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
		for _, role := range []string{"viewer", "operator", "admin"} {
			a := b.do(t, "GET", path, nil, as(role)...)
			a.want(t, http.StatusOK)
			if whole := strings.Contains(a.body, address); whole != (role != "viewer") || !whole && !strings.Contains(a.body, shown) {
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
// the description matches those and no others.
func TestReceiverURLs(t *testing.T) {
	t.Parallel()
	b, _ := setupEndpoints(t)
	schemas := b.described(t)["components"].(tree)["schemas"].(tree)
	pattern := func(schema, field string) *regexp.Regexp {
		t.Helper()
		return regexp.MustCompile(schemas[schema].(tree)["properties"].(tree)[field].(tree)["pattern"].(string))
	}
	patterns := map[string]*regexp.Regexp{
		"created":  pattern("CreateWebhookEndpoint", "url"),
		"changed":  pattern("ChangeWebhookEndpoint", "url"),
		"promoted": pattern("CreatePromotion", "webhookUrl"),
	}
	made := b.with(t, "admin", "POST", "/v1/webhook-endpoints", `{"url":"https://hooks.example/","events":["payout.failed"]}`)
	made.want(t, http.StatusCreated)
	change := "/v1/webhook-endpoints/" + made.text(t, "id")
	long := "https://hooks.example/" + strings.Repeat("x", 2000)
	label := strings.Repeat("x", 63)
	for address, word := range map[string]string{
		"https://hooks.example/in?key=v": "", "http://Hooks.Example": "", "https://a.example?x=1": "", "http://h:1/": "", "https://h:65535": "",
		"https://xn--mnchen-3ya.example/": "", "https://1.h-2_x.example./": "", "https://93.184.216.34/x": "", "https://[2606:4700::1111]:8443/x": "",
		"https://3com.example/%7Euser/a+b;c,d=e&f@g:h!'()*[]": "", "https://" + label + ".example/": "", "http://7f3a": "",

		"http://UHqC1PiGZD*": "host", "https://a..example/": "host", "https://-a.example/": "host", "https://a-.example/": "host", "https://.example/": "host",
		"https://1.2.3.256/": "host", "https://1.2.3/": "host", "https://01.2.3.4/": "host", "http://127.1/": "host", "https://[1.2.3.4]/": "host",
		"https://[fe80::1%25eth0]/": "host", "https://a~b.example": "host", "https://" + label + "x.example/": "host",
		"https://" + strings.Repeat(label+".", 4) + "example/": "host",
		"https://h:0/": "port", "https://h:65536/": "port", "https://h:/": "port", "https://h:080/": "port", "https://h:123456": "port",
		"https://user@h/": "user", "https://u:p@h/": "user", "https://h/#top": "#", "https://h#": "#",
		"https://h/a b": "percent", "https://h/\\u0007": "percent", "https://h/\\u00e9": "percent", "https://m\\u00fcnchen.example/": "percent", "https://h/\\u007f": "percent",
		"ftp://h/": "http://", "HTTP://h/": "http://", "hooks.example": "http://", "//h/": "http://", "https://": "http://", "https:///x": "http://", "https:h": "http://",
		"https://h/%zz": "%", long: "2000",
	} {
		var plain string
		if err := json.Unmarshal([]byte(`"`+strings.ReplaceAll(address, `\\u`, `\u`)+`"`), &plain); err != nil {
			t.Fatal(err)
		}
		text, _ := json.Marshal(plain)
		for what, a := range map[string]answer{
			"created":  b.with(t, "admin", "POST", "/v1/webhook-endpoints", `{"url":`+string(text)+`,"events":["payout.failed"],"enabled":false}`),
			"changed":  b.with(t, "admin", "PATCH", change, `{"url":`+string(text)+`}`),
			"promoted": b.with(t, "operator", "POST", "/v1/promotions", `{"name":"x","type":"POINT","webhookUrl":`+string(text)+`}`),
		} {
			ok := a.status == http.StatusCreated || a.status == http.StatusOK
			if ok != (word == "") {
				t.Errorf("%q %s: status %d: %s", plain, what, a.status, a.body)
			}
			if ok && !patterns[what].MatchString(plain) {
				t.Errorf("%q %s: the description %s does not allow it", plain, what, patterns[what])
			}
			if ok {
				continue
			}
			p := a.wantProblem(t, http.StatusUnprocessableEntity, "INVALID")
			if len(p.Errors) != 1 || p.Errors[0].Field != map[string]string{"created": "url", "changed": "url", "promoted": "webhookUrl"}[what] {
				t.Errorf("%q %s: %+v", plain, what, p)
			} else if d := p.Errors[0].Detail; !strings.Contains(d, word) || strings.Contains(d, "key=v") {
				t.Errorf("%q %s: %q does not name %q", plain, what, d, word)
			}
		}
		if created := b.with(t, "admin", "GET", "/v1/webhook-endpoints", ""); word == "" {
			for _, item := range created.object(t)["items"].([]any) {
				if id := item.(map[string]any)["id"].(string); "/v1/webhook-endpoints/"+id != change {
					b.with(t, "admin", "DELETE", "/v1/webhook-endpoints/"+id, "").want(t, http.StatusNoContent)
				}
			}
		}
	}
	if !patterns["promoted"].MatchString("") || patterns["created"].MatchString("") {
		t.Error("only a promotion may have no URL")
	}
}

// TestStoredURLsStay checks that an endpoint with a URL of an earlier version works on.
func TestStoredURLsStay(t *testing.T) {
	t.Parallel()
	b, s := setupEndpoints(t)
	const old = "https://old~receiver.example/in"
	e := fixture.Must(s.WebhookEndpointCreate(t.Context(), store.WebhookEndpoint{ID: 7, URL: old, Events: []string{"payout.failed"}, Enabled: true, Secret: "whsec_x", CreatedAt: testTime}))(t)
	path := fmt.Sprintf("/v1/webhook-endpoints/%d", e.ID)
	b.with(t, "admin", "PATCH", path, `{"description":"CRM"}`).want(t, http.StatusOK)
	if a := b.with(t, "admin", "GET", path, ""); a.text(t, "url") != old || a.text(t, "description") != "CRM" {
		t.Errorf("%s", a.body)
	}
	b.with(t, "operator", "POST", path+"/test", "").want(t, http.StatusAccepted)
}

// TestViewersSeeNoInternalAddresses checks the errors that earlier versions stored.
func TestViewersSeeNoInternalAddresses(t *testing.T) {
	t.Parallel()
	b, s := setupEndpoints(t)
	e := fixture.Must(s.WebhookEndpointCreate(t.Context(), store.WebhookEndpoint{ID: 7, URL: "https://hooks.example/", Events: []string{"payout.failed"}, Enabled: true, Secret: "whsec_x", CreatedAt: testTime}))(t)
	d := fixture.Must(s.WebhookDeliveryTest(t.Context(), e.ID))(t)
	if _, err := s.WebhookDeliveryRecord(t.Context(), store.WebhookAttemptRecord{
		EndpointID: e.ID, DeliveryID: d.ID, Error: "no response: dial tcp: lookup hooks.example on 10.255.255.53:53: no such host", RetryAfter: time.Hour,
	}); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"", "/7", "/7/deliveries", fmt.Sprintf("/7/deliveries/%d", d.ID)} {
		a := b.with(t, "viewer", "GET", "/v1/webhook-endpoints"+path, "")
		if a.want(t, http.StatusOK); strings.Contains(a.body, "10.255") || !strings.Contains(a.body, "no response") {
			t.Errorf("%s: %s", path, a.body)
		}
	}
}
