package api

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/reward"
)

func TestDuplicateAPromotion(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.as(t, "kim", "POST", "/v1/promotions", `{"id":7,"name":"Spring","type":"VOUCHER","amount":5,"voucherCode":"V-1","currency":"EUR","maxRetries":2,"ratePerSecond":3,
		"weight":4,"maxAmount":500,"canary":{"targets":3},"startsAt":"2100-01-01T00:00:00Z","endsAt":"2100-01-02T00:00:00Z","metadata":{"a":"b"},"notes":"only of this one"}`).want(t, http.StatusCreated)
	b.upload(t, "/v1/promotions/7/targets", "targetId\n1\n").want(t, http.StatusOK)
	a := b.as(t, "lee", "POST", "/v1/promotions/7/duplicate", `{}`)
	a.want(t, http.StatusCreated)
	original, got := b.json(t, "GET", "/v1/promotions/7", "").object(t), a.object(t)
	for _, field := range []string{"type", "amount", "voucherCode", "currency", "maxRetries", "ratePerSecond", "weight", "maxAmount"} {
		if got[field] != original[field] {
			t.Errorf("%s is %v, and was %v", field, got[field], original[field])
		}
	}
	if got["name"] != "Spring (copy)" || got["status"] != "DRAFT" || got["createdBy"] != "lee" || a.header.Get("Location") != "/v1/promotions/"+got["id"].(string) ||
		!strings.Contains(a.body, `"metadata":{"a":"b"}`) || !strings.Contains(a.body, `"targets":3`) {
		t.Errorf("the copy is %s", a.body)
	}
	for _, field := range []string{"startsAt", "endsAt", "notes"} {
		if got[field] != nil {
			t.Errorf("%s was copied: %v", field, got[field])
		}
	}
	if !strings.Contains(a.body, `"totalCount":0`) {
		t.Errorf("targets were copied: %s", a.body)
	}
	first := b.do(t, "POST", "/v1/promotions/7/duplicate", strings.NewReader(`{"name":"Summer"}`), "Content-Type", "application/json", "Idempotency-Key", "k")
	again := b.do(t, "POST", "/v1/promotions/7/duplicate", strings.NewReader(`{"name":"Summer"}`), "Content-Type", "application/json", "Idempotency-Key", "k")
	if first.text(t, "name") != "Summer" || again.text(t, "id") != first.text(t, "id") {
		t.Errorf("%s, then %s", first.body, again.body)
	}
	b.json(t, "POST", "/v1/promotions/9/duplicate", `{}`).wantProblem(t, http.StatusNotFound, "PROMOTION_NOT_FOUND")
	b.json(t, "POST", "/v1/promotions/7/duplicate", `{"name":"\u001b"}`).wantProblem(t, http.StatusUnprocessableEntity, "INVALID")
}

func TestTestPayment(t *testing.T) {
	t.Parallel()
	b := setup(t, func(c *Config) { c.ApprovalAbove = reward.Limits{Default: 100} })
	b.create(t, `{"id":7,"name":"Spring","type":"POINT","amount":5,"startsAt":"2100-01-01T00:00:00Z","canary":{"targets":9}}`)
	a := b.as(t, "kim", "POST", "/v1/promotions/7/test-payment", `{"userId":"u7"}`)
	a.want(t, http.StatusCreated)
	id := a.text(t, "id")
	if a.text(t, "name") != "Test of Spring" || a.text(t, "status") != "RUNNING" || !strings.Contains(a.body, `"testOf":"7"`) || !strings.Contains(a.body, `"amountTotal":5`) {
		t.Errorf("the test is %s", a.body)
	}
	if p := b.json(t, "GET", "/v1/promotions/"+id+"/payouts/1", ""); p.text(t, "userId") != "u7" {
		t.Errorf("it pays %s", p.body)
	}
	if p := b.json(t, "GET", "/v1/promotions/7", ""); p.text(t, "status") != "DRAFT" || !strings.Contains(p.body, `"totalCount":0`) {
		t.Errorf("the promotion itself is %s", p.body)
	}
	for body, field := range map[string]string{
		`{"userId":" "}`: "userId", `{"userId":"u","targetId":"x"}`: "targetId", `{"userId":"u","amount":0}`: "amount", `{"userId":"u","voucherCode":"V"}`: "voucherCode",
	} {
		p := b.json(t, "POST", "/v1/promotions/7/test-payment", body).wantProblem(t, http.StatusUnprocessableEntity, "INVALID")
		if len(p.Errors) != 1 || !strings.HasSuffix(p.Errors[0].Field, field) {
			t.Errorf("%s: %+v", body, p)
		}
	}
}

func TestDuplicateATemplate(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.json(t, "POST", "/v1/coupon-templates", `{"id":42,"name":"Spring","totalQuantity":9}`).want(t, http.StatusCreated)
	a := b.json(t, "POST", "/v1/coupon-templates/42/duplicate", `{"name":"Summer","opensAt":"2100-01-01T00:00:00Z"}`)
	a.want(t, http.StatusCreated)
	if a.text(t, "name") != "Summer" || a.text(t, "id") == "42" || !strings.HasPrefix(a.text(t, "opensAt"), "2100-") {
		t.Errorf("the copy is %s", a.body)
	}
	b.json(t, "POST", "/v1/coupon-templates/9/duplicate", `{}`).wantProblem(t, http.StatusNotFound, "TEMPLATE_NOT_FOUND")
}

func TestNotesEndAndPause(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ends := time.Now().Add(time.Hour).UTC().Truncate(time.Second).Format(time.RFC3339)
	b.create(t, `{"id":7,"name":"x","type":"POINT","amount":5,"endsAt":"`+ends+`","notes":"line 1\nline 2"}`)
	if got := b.json(t, "GET", "/v1/promotions/7", "").object(t); got["endsAt"] != ends || got["notes"] != "line 1\nline 2" {
		t.Errorf("%v", got)
	}
	for body, field := range map[string]string{
		`{"endsAt":"2001-01-01T00:00:00Z"}`: "endsAt", `{"startsAt":"2100-01-01T00:00:00Z"}`: "endsAt",
		`{"notes":"\u001b[31m"}`: "notes", `{"notes":"` + strings.Repeat("x", reward.NotesMax+1) + `"}`: "notes",
	} {
		p := b.json(t, "PATCH", "/v1/promotions/7", body).wantProblem(t, http.StatusUnprocessableEntity, "INVALID")
		if len(p.Errors) != 1 || !strings.HasSuffix(p.Errors[0].Field, field) {
			t.Errorf("%.60s: %+v", body, p)
		}
	}
	b.upload(t, "/v1/promotions/7/targets", "targetId\n1\n").want(t, http.StatusOK)
	b.json(t, "POST", "/v1/promotions/7/start", "").want(t, http.StatusAccepted)
	a := b.as(t, "kim", "POST", "/v1/promotions/7/pause", `{"reason":"the shop is closed"}`)
	if got := a.object(t); got["pausedBy"] != "kim" || got["pauseReason"] != "the shop is closed" || got["pausedAt"] == nil {
		t.Errorf("%s", a.body)
	}
	b.json(t, "POST", "/v1/promotions/7/resume", "").want(t, http.StatusAccepted)
	b.as(t, "kim", "POST", "/v1/promotions/7/pause", "").want(t, http.StatusAccepted)
	a = b.as(t, "lee", "POST", "/v1/promotions/7/cancel", "")
	if got := a.object(t); got["cancelledBy"] != "lee" || got["cancelledAt"] == nil || got["pausedBy"] != nil {
		t.Errorf("%s", a.body)
	}
	b.json(t, "PATCH", "/v1/promotions/7", `{"notes":"after the end"}`).want(t, http.StatusOK)
}
