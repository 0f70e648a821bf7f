package api

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/largesse/largesse/internal/coupon"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

func TestCoupons(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.shop.template(42, 10)
	late := issued(4, 42, "u/7 ü:%", 9)
	late.ExpiresAt = testTime
	b.shop.coupons = []reward.Coupon{issued(1, 42, "u1", 3), issued(2, 42, "u/7 ü:%", 5), issued(3, 42, "u3", 8), late}

	a := b.json(t, "GET", "/v1/coupons/2", "")
	want := map[string]any{
		"id": "2", "code": "CODE-2", "templateId": "42", "userId": "u/7 ü:%", "ticket": json.Number("5"), "status": "ISSUED", "issuedAt": "2026-11-21T01:02:03Z",
	}
	fixture.Equal(t, want, a.object(t))
	if got := b.json(t, "POST", "/v1/coupons/1/use", "").object(t); got["status"] != "USED" || got["usedAt"] == nil {
		t.Errorf("%v", got)
	}
	if got := b.json(t, "POST", "/v1/coupons/3/cancel", "").object(t); got["status"] != "CANCELLED" || got["cancelledAt"] == nil {
		t.Errorf("%v", got)
	}
	fixture.Equal(t, []any{want}, b.json(t, "GET", "/v1/coupons?code=%20CODE-2%20", "").object(t)["items"])
	if got := b.json(t, "GET", "/v1/coupons?code=code-2", "").object(t)["items"].([]any); len(got) != 0 {
		t.Errorf("by another code: %v", got)
	}
	b.json(t, "GET", "/v1/coupons?code=%20", "").wantProblem(t, http.StatusUnprocessableEntity, "INVALID")
	b.json(t, "GET", "/v1/coupons", "").wantProblem(t, http.StatusUnprocessableEntity, "INVALID")
	b.json(t, "GET", "/v1/coupons?code="+strings.Repeat("x", 85), "").wantProblem(t, http.StatusUnprocessableEntity, "INVALID")

	held := issued(5, 42, "u5", 10)
	held.Status, held.HeldUntil = reward.CouponHeld, testTime.Add(time.Minute)
	ended := issued(6, 42, "u6", 11)
	ended.Status, ended.HeldUntil, ended.CancelledAt, ended.CancelReason = reward.CouponCancelled, testTime, testTime, reward.ReasonHoldExpired
	b.shop.coupons = append(b.shop.coupons, held, ended)
	if got := b.json(t, "GET", "/v1/coupons/5", "").object(t); got["status"] != "HELD" || got["heldUntil"] != "2026-11-21T01:03:03Z" || got["reason"] != nil {
		t.Errorf("%v", got)
	}
	if got := b.json(t, "GET", "/v1/coupons/6", "").object(t); got["status"] != "CANCELLED" || got["reason"] != "HOLD_EXPIRED" {
		t.Errorf("%v", got)
	}
	b.json(t, "POST", "/v1/coupons/5/use", "").wantProblem(t, http.StatusConflict, "COUPON_HELD")
	b.json(t, "POST", "/v1/coupons/6/confirm", "").wantProblem(t, http.StatusConflict, "HOLD_EXPIRED")
	for range 2 {
		if got := b.json(t, "POST", "/v1/coupons/5/confirm", "").object(t); got["status"] != "ISSUED" || got["heldUntil"] != nil {
			t.Errorf("%v", got)
		}
	}
	b.shop.coupons = b.shop.coupons[:4]
	b.json(t, "POST", "/v1/coupons/1/confirm", "").wantProblem(t, http.StatusConflict, "COUPON_USED")
	b.json(t, "POST", "/v1/coupons/3/confirm", "").wantProblem(t, http.StatusConflict, "COUPON_CANCELLED")
	b.json(t, "POST", "/v1/coupons/9/confirm", "").wantProblem(t, http.StatusNotFound, "COUPON_NOT_FOUND")
	for _, verb := range []string{"use", "cancel"} {
		for id, code := range map[string]string{"1": "COUPON_USED", "3": "COUPON_CANCELLED", "4": "COUPON_EXPIRED"} {
			b.json(t, "POST", "/v1/coupons/"+id+"/"+verb, "").wantProblem(t, http.StatusConflict, code)
		}
		b.json(t, "POST", "/v1/coupons/9/"+verb, "").wantProblem(t, http.StatusNotFound, "COUPON_NOT_FOUND")
		b.json(t, "POST", "/v1/coupons/09/"+verb, "").wantProblem(t, http.StatusBadRequest, "MALFORMED")
	}
	b.json(t, "GET", "/v1/coupons/9", "").wantProblem(t, http.StatusNotFound, "COUPON_NOT_FOUND")

	user := url.PathEscape("u/7 ü:%")
	for _, tt := range []struct {
		path  string
		want  []string
		pages int
	}{
		{"/v1/coupon-templates/42/coupons?limit=3", []string{"1", "2", "3", "4"}, 2},
		{"/v1/users/" + user + "/coupons?limit=1", []string{"4", "2"}, 2},
		{"/v1/users/nobody/coupons?limit=5", nil, 1},
	} {
		if got, pages := b.pages(t, tt.path, "id"); !cmp.Equal(got, tt.want) || pages != tt.pages {
			t.Errorf("%s: %v on %d pages", tt.path, got, pages)
		}
	}
	for path, code := range map[string]string{
		"/v1/coupon-templates/9/coupons":                                                  "TEMPLATE_NOT_FOUND",
		"/v1/coupon-templates/x/coupons":                                                  "MALFORMED",
		"/v1/coupon-templates/42/coupons?cursor=" + encodeCursor(cursorUserCoupons, 1):    "MALFORMED",
		"/v1/users/" + user + "/coupons?cursor=" + encodeCursor(cursorTemplateCoupons, 1): "MALFORMED",
		"/v1/users/" + strings.Repeat("x", reward.UserIDMax+1) + "/coupons":               "MALFORMED",
		"/v1/users/%ff/coupons":                                                           "MALFORMED",
	} {
		status := http.StatusBadRequest
		if code == "TEMPLATE_NOT_FOUND" {
			status = http.StatusNotFound
		}
		b.json(t, "GET", path, "").wantProblem(t, status, code)
	}
}

func TestHistory(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.shop.history = coupon.History{
		Outcomes: []reward.IssueOutcome{
			{TemplateID: 7, UserID: "u:7", Ticket: 12, Reason: reward.ReasonSoldOut, At: testTime.Add(time.Minute)},
			{TemplateID: 42, UserID: "u:7", Ticket: 5, Coupon: issued(2, 42, "u:7", 5), At: testTime},
		},
		Refusals: map[reward.TemplateID][]store.Refusal{
			42: {{Reason: "CLOSED", Since: testTime.Add(time.Hour)}, {Reason: "SOLD_OUT", Since: testTime, Until: testTime.Add(time.Hour)}},
			7:  nil,
			8:  {{Reason: "SOLD_OUT", Since: testTime}},
		},
	}
	got := b.json(t, "GET", "/v1/users/u:7/history?templateId=8,7&templateId=42", "").object(t)
	want := map[string]any{
		"userId": "u:7",
		"items": []any{
			map[string]any{"requestId": "7:u:7", "templateId": "7", "ticket": json.Number("12"), "status": "REJECTED", "reason": "SOLD_OUT", "at": "2026-11-21T01:03:03Z"},
			map[string]any{
				"requestId": "42:u:7", "templateId": "42", "ticket": json.Number("5"), "status": "ISSUED", "at": "2026-11-21T01:02:03Z",
				"coupon": map[string]any{
					"id": "2", "code": "CODE-2", "templateId": "42", "userId": "u:7", "ticket": json.Number("5"), "status": "ISSUED", "issuedAt": "2026-11-21T01:02:03Z",
				},
			},
		},
		"refusals": []any{
			map[string]any{"templateId": "8", "reason": "SOLD_OUT", "since": "2026-11-21T01:02:03Z"},
			map[string]any{"templateId": "42", "reason": "CLOSED", "since": "2026-11-21T02:02:03Z"},
			map[string]any{"templateId": "42", "reason": "SOLD_OUT", "since": "2026-11-21T01:02:03Z", "until": "2026-11-21T02:02:03Z"},
		},
		"payouts": []any{},
	}
	fixture.Equal(t, want, got)
	fixture.Equal(t, []reward.TemplateID{8, 7, 42}, b.shop.named)
	b.json(t, "GET", "/v1/users/u7/history?templateId=8,,7", "").wantProblem(t, http.StatusBadRequest, "MALFORMED")
	b.json(t, "GET", "/v1/users/u7/history?templateId="+strings.Repeat("1,", 100)+"1", "").wantProblem(t, http.StatusUnprocessableEntity, "INVALID")
	b.json(t, "GET", "/v1/users/u7/history?template=8", "").wantProblem(t, http.StatusUnprocessableEntity, "INVALID")
}
