package api

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/web"
)

func TestWebhookEndpoints(t *testing.T) {
	t.Parallel()
	b := setup(t, guarded)
	s := b.store
	const path = "/v1/webhook-endpoints"
	made := b.jsonAs(t, "admin", "POST", path, `{"url":"https://hooks.example/in/T0K3N?key=hunter2","events":["payout.failed","promotion.started"],"description":"CRM"}`)
	made.want(t, http.StatusCreated)
	id, secret := made.text(t, "id"), made.text(t, "secret")
	if _, err := standardwebhooks.NewWebhook(secret); err != nil || !strings.HasPrefix(secret, "whsec_") {
		t.Errorf("the secret is %q: %v", secret, err)
	}
	for role, address := range map[string]string{
		"viewer": "https://hooks.example/in/xxxxx?xxxxx", "operator": "https://hooks.example/in/T0K3N?key=hunter2", "admin": "https://hooks.example/in/T0K3N?key=hunter2",
	} {
		got := b.jsonAs(t, role, "GET", path+"/"+id, "").object(t)
		want := map[string]any{
			"id": id, "kind": "WEBHOOK", "url": address, "description": "CRM", "events": []any{"promotion.started", "payout.failed"}, "enabled": true, "state": "ACTIVE",
			"failedAttempts": json.Number("0"), "pendingCount": json.Number("0"), "droppedCount": json.Number("0"), "createdBy": "the admin", "createdAt": got["createdAt"],
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", role, diff)
		}
		if list := b.jsonAs(t, role, "GET", path, ""); strings.Contains(list.body, "hunter2") == (role == "viewer") || strings.Contains(list.body, secret) {
			t.Errorf("%s: %s", role, list.body)
		}
	}

	sent := b.jsonAs(t, "operator", "POST", path+"/"+id+"/test", "")
	sent.want(t, http.StatusAccepted)
	delivery := sent.text(t, "id")
	if sent.text(t, "event") != "webhook.test" || sent.text(t, "state") != "PENDING" || !strings.HasPrefix(sent.text(t, "messageId"), "msg_"+delivery+"_") {
		t.Errorf("%s", sent.body)
	}
	e, err := s.WebhookEndpointsDue(t.Context())
	if err != nil || len(e) != 1 {
		t.Fatalf("%d endpoints are due, %v", len(e), err)
	}
	claimed, err := s.WebhookDeliveryClaim(t.Context(), e[0].ID, 1, time.Hour)
	if err != nil || len(claimed) != 1 {
		t.Fatalf("%v, %v", claimed, err)
	}
	fixture.Must(s.WebhookDeliveryRecord(t.Context(), store.WebhookAttemptRecord{
		EndpointID: e[0].ID, DeliveryID: claimed[0].ID, Status: 410, Took: 7 * time.Millisecond, Error: "gone", State: store.WebhookAbandoned, DisableNow: true, DisableReason: "GONE",
	}))(t)
	list := b.jsonAs(t, "viewer", "GET", path+"/"+id+"/deliveries?state=ABANDONED", "")
	list.want(t, http.StatusOK)
	for _, want := range []string{`"number":1`, `"status":410`, `"millis":7`, `"error":"gone"`, `"state":"ABANDONED"`} {
		if !strings.Contains(list.body, want) {
			t.Errorf("%s is missing in %s", want, list.body)
		}
	}
	if got := b.jsonAs(t, "viewer", "GET", path+"/"+id+"/deliveries?state=PENDING", ""); strings.Contains(got.body, "msg_") {
		t.Errorf("%s", got.body)
	}
	if got := b.jsonAs(t, "viewer", "GET", path+"/"+id+"/deliveries/"+delivery, ""); got.text(t, "id") != delivery {
		t.Errorf("%s", got.body)
	}
	if got := b.jsonAs(t, "viewer", "GET", path+"/"+id, ""); got.text(t, "state") != "DISABLED" || got.text(t, "disabledReason") != "GONE" {
		t.Errorf("%s", got.body)
	}
	b.jsonAs(t, "operator", "POST", path+"/"+id+"/deliveries/"+delivery+"/resend", "").wantProblem(t, http.StatusConflict, "ENDPOINT_DISABLED")
	b.jsonAs(t, "operator", "POST", path+"/"+id+"/test", "").wantProblem(t, http.StatusConflict, "ENDPOINT_DISABLED")
	if got := b.jsonAs(t, "admin", "PATCH", path+"/"+id, `{"enabled":true}`); got.text(t, "state") != "ACTIVE" {
		t.Errorf("%s", got.body)
	}
	again := b.jsonAs(t, "operator", "POST", path+"/"+id+"/deliveries/"+delivery+"/resend", "")
	again.want(t, http.StatusAccepted)
	if again.text(t, "state") != "PENDING" || again.text(t, "messageId") != sent.text(t, "messageId") {
		t.Errorf("%s", again.body)
	}

	rotated := b.jsonAs(t, "admin", "POST", path+"/"+id+"/rotate-secret", "")
	rotated.want(t, http.StatusOK)
	if second := rotated.text(t, "secret"); second == secret || rotated.text(t, "previousSecretUntil") == "" {
		t.Errorf("%s", rotated.body)
	}
	for _, change := range []string{`{"url":"https://hooks.example/in/T0K3N?key=hunter2"}`, `{"enabled":true}`, `{"url":"https://other.example/"}`} {
		made, _ := b.jsonAs(t, "admin", "PATCH", path+"/"+id, change).object(t)["secret"].(string)
		kept := fixture.Must(s.WebhookEndpointList(t.Context(), 0))(t)[0]
		if moved := strings.Contains(change, "other"); moved != (made != "") || moved && made != kept.Secret || moved == (kept.PreviousSecret != "") {
			t.Errorf("%s: the secret %q, %+v", change, made, kept)
		}
	}
	if audit := b.jsonAs(t, "viewer", "GET", "/v1/audit", ""); strings.Contains(audit.body, "hunter2") || strings.Contains(audit.body, "T0K3N") ||
		strings.Contains(audit.body, "whsec_") || strings.Count(audit.body, "webhook") < 8 {
		t.Errorf("the audit: %s", audit.body)
	}
	b.jsonAs(t, "admin", "DELETE", path+"/"+id, "").want(t, http.StatusNoContent)
	b.jsonAs(t, "viewer", "GET", path+"/"+id+"/deliveries", "").wantProblem(t, http.StatusNotFound, "ENDPOINT_NOT_FOUND")
}

func TestPeopleAreEndpoints(t *testing.T) {
	t.Parallel()
	b := setup(t, guarded, func(c *Config) { c.SlackSet, c.MailSet = true, true })
	const path = "/v1/webhook-endpoints"
	made := b.jsonAs(t, "admin", "POST", path, `{"kind":"EMAIL","to":["kim@example.com"],"language":"ko","events":["balance.breach"]}`, web.IdempotencyHeader, "k")
	made.want(t, http.StatusCreated)
	if o := made.object(t); o["secret"] != nil || o["notice"] != nil || o["kind"] != "EMAIL" || o["url"] != "" || o["language"] != "ko" {
		t.Errorf("%s", made.body)
	}
	id := made.text(t, "id")
	tag := made.header.Get("ETag")
	changed := b.jsonAs(t, "admin", "PATCH", path+"/"+id, `{"to":["lee@example.com","ann@example.com"],"language":"en"}`, "If-Match", tag)
	changed.want(t, http.StatusOK)
	if o := changed.object(t); !cmp.Equal(o["to"], []any{"lee@example.com", "ann@example.com"}) || o["language"] != "en" {
		t.Errorf("%s", changed.body)
	}
	b.jsonAs(t, "admin", "PATCH", path+"/"+id, `{"enabled":false}`, "If-Match", tag).wantProblem(t, http.StatusPreconditionFailed, "PRECONDITION_FAILED")
	b.jsonAs(t, "admin", "POST", path+"/"+id+"/rotate-secret", "").wantProblem(t, http.StatusConflict, "ILLEGAL_STATE")
	channel := b.jsonAs(t, "admin", "POST", path, `{"kind":"SLACK","events":["promotion.paused","coupon.sold_out"]}`)
	channel.want(t, http.StatusCreated)
	moved := b.jsonAs(t, "admin", "PATCH", path+"/"+channel.text(t, "id"), `{"url":"https://hooks.example/T/B/x"}`)
	if o := moved.object(t); o["secret"] != nil || o["url"] != "https://hooks.example/T/B/x" {
		t.Errorf("%s", moved.body)
	}
	for body, field := range map[string]string{
		`{"url":"https://hooks.example"}`: "url", `{"to":["kim"]}`: "to[0]", `{"events":["balance.breach","coupon.used"]}`: "events[1]",
	} {
		p := b.jsonAs(t, "admin", "PATCH", path+"/"+id, body).wantProblem(t, http.StatusUnprocessableEntity, "INVALID")
		if diff := cmp.Diff([]string{field}, fields(p)); diff != "" {
			t.Errorf("%s: %s", body, diff)
		}
	}
	without := setup(t, guarded)
	for body, field := range map[string]string{
		`{"events":["coupon.used"]}`: "url",
		`{"url":"https://hooks.example","to":["kim@example.com"],"events":["coupon.used"]}`:             "to",
		`{"url":"https://hooks.example","language":"ko","events":["coupon.used"]}`:                      "language",
		`{"kind":"SLACK","events":["balance.breach"]}`:                                                  "url",
		`{"kind":"SLACK","url":"https://hooks.example","events":["payout.failed"]}`:                     "events[0]",
		`{"kind":"EMAIL","events":["balance.breach"]}`:                                                  "to",
		`{"kind":"EMAIL","to":["kim@example.com"],"events":["balance.breach"]}`:                         "kind",
		`{"kind":"EMAIL","to":["a@example.com","b@example.com\r\nBcc: c"],"events":["balance.breach"]}`: "to[1]",
		`{"kind":"EMAIL","url":"https://x","to":["a@example.com"],"events":["balance.breach"]}`:         "url",
	} {
		p := without.jsonAs(t, "admin", "POST", path, body).wantProblem(t, http.StatusUnprocessableEntity, "INVALID")
		if diff := cmp.Diff([]string{field}, fields(p)); diff != "" {
			t.Errorf("%s: %s", body, diff)
		}
	}
}

func TestWebhookEndpointsAreChecked(t *testing.T) {
	t.Parallel()
	b := setup(t, guarded)
	s := b.store
	const path = "/v1/webhook-endpoints"
	for body, field := range map[string]string{
		`{"url":"ftp://hooks.example","events":["coupon.used"]}`:                            "url",
		`{"url":"https://user:password@hooks.example","events":["coupon.used"]}`:            "url",
		`{"url":"http://127.0.0.1:8080/in","events":["coupon.used"]}`:                       "url",
		`{"url":"http://[::ffff:10.0.0.1]/in","events":["coupon.used"]}`:                    "url",
		`{"url":"http://169.254.169.254/latest","events":["coupon.used"]}`:                  "url",
		`{"url":"https://hooks.example","events":[]}`:                                       "events",
		`{"url":"https://hooks.example","events":["promotion.started","promotion.gone"]}`:   "events[1]",
		`{"url":"https://hooks.example","events":["coupon.used"],"description":"a\u0007b"}`: "description",
		`{"url":"https://hooks.example","events":["coupon.used"],"description":"a\u202eb"}`: "description",
	} {
		p := b.jsonAs(t, "admin", "POST", path, body).wantProblem(t, http.StatusUnprocessableEntity, "INVALID")
		if diff := cmp.Diff([]string{field}, fields(p)); diff != "" {
			t.Errorf("%s: %s", body, diff)
		}
	}
	const good = `{"url":"https://hooks.example","events":["coupon.used"],"enabled":false}`
	first := b.jsonAs(t, "admin", "POST", path, good, web.IdempotencyHeader, "k")
	second := b.jsonAs(t, "admin", "POST", path, good, web.IdempotencyHeader, "k")
	if second.text(t, "id") != first.text(t, "id") || second.object(t)["secret"] != nil || second.text(t, "notice") == "" || first.text(t, "state") != "DISABLED" {
		t.Errorf("%s, then %s", first.body, second.body)
	}
	for range store.WebhookEndpointsMax - 1 {
		b.jsonAs(t, "admin", "POST", path, good).want(t, http.StatusCreated)
	}
	b.jsonAs(t, "admin", "POST", path, good).wantProblem(t, http.StatusConflict, "TOO_MANY_ENDPOINTS")
	id := first.text(t, "id")
	b.jsonAs(t, "viewer", "GET", path+"/"+id+"/deliveries/1", "").wantProblem(t, http.StatusNotFound, "DELIVERY_NOT_FOUND")
	if list, err := s.WebhookEndpointList(t.Context(), 1); err != nil || len(list) != store.WebhookEndpointsMax {
		t.Errorf("%d endpoints, %v", len(list), err)
	}
}
