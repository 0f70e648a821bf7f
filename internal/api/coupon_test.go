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
	held.Status, held.HeldUntil = reward.CouponHeld, time.Now().Add(time.Hour)
	ended := issued(6, 42, "u6", 11)
	ended.Status, ended.HeldUntil, ended.CancelledAt, ended.CancelReason = reward.CouponCancelled, testTime, testTime, reward.ReasonHoldExpired
	b.shop.coupons = append(b.shop.coupons, held, ended)
	if got := b.json(t, "GET", "/v1/coupons/5", "").object(t); got["status"] != "HELD" || got["heldUntil"] == nil || got["reason"] != nil {
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
		{"/v1/coupon-templates/42/coupons?limit=3&sort=-ticket", []string{"4", "3", "2", "1"}, 2},
		{"/v1/coupon-templates/42/coupons?status=CANCELLED", []string{"3"}, 1},
		{"/v1/coupon-templates/42/coupons?status=ISSUED", []string{"2"}, 1}, // the other has expired
		{"/v1/coupon-templates/42/coupons?userId=" + user, []string{"2", "4"}, 1},
		{"/v1/coupon-templates/42/coupons?code=%20CODE-2%20", []string{"2"}, 1},
		{"/v1/users/" + user + "/coupons?limit=1", []string{"4", "2"}, 2},
		{"/v1/users/nobody/coupons?limit=5", nil, 1},
	} {
		if got, pages := b.pages(t, tt.path, "id"); !cmp.Equal(got, tt.want) || pages != tt.pages {
			t.Errorf("%s: %v on %d pages", tt.path, got, pages)
		}
	}
	for path, code := range map[string]string{
		"/v1/coupon-templates/9/coupons":                                                                         "TEMPLATE_NOT_FOUND",
		"/v1/coupon-templates/x/coupons":                                                                         "MALFORMED",
		"/v1/coupon-templates/42/coupons?cursor=" + encodeCursor(cursorUserCoupons, 1):                           "MALFORMED",
		"/v1/coupon-templates/42/coupons?sort=-ticket&cursor=" + encodePlace("ticket", reward.Coupon{Ticket: 1}): "MALFORMED",
		"/v1/users/" + user + "/coupons?cursor=" + encodePlace("ticket", reward.Coupon{Ticket: 1}):               "MALFORMED",
		"/v1/users/" + strings.Repeat("x", reward.UserIDMax+1) + "/coupons":                                      "MALFORMED",
		"/v1/users/%ff/coupons": "MALFORMED",
	} {
		status := http.StatusBadRequest
		if code == "TEMPLATE_NOT_FOUND" {
			status = http.StatusNotFound
		}
		b.json(t, "GET", path, "").wantProblem(t, status, code)
	}
}

// TestCouponExport downloads coupons as CSV, with the filters of the list.
func TestCouponExport(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.shop.template(42, 1000)
	for n := range int64(exportPageRows + 2) {
		b.shop.coupons = append(b.shop.coupons, issued(reward.CouponID(n+1), 42, "u", n+1))
	}
	first := &b.shop.coupons[0]
	first.UserID, first.Status, first.CancelledAt, first.CancelledBy = "=1+1", reward.CouponCancelled, testTime, "ann"
	get := func(query string) answer {
		return b.do(t, "GET", "/v1/coupon-templates/42/coupons"+query, nil, "Accept", "text/csv")
	}
	a := get("?limit=1")
	a.want(t, http.StatusOK)
	if name := a.header.Get("Content-Disposition"); name != `attachment; filename="coupons-42.csv"` {
		t.Errorf("file name: %s", name)
	}
	lines := strings.Split(strings.TrimSpace(a.body), "\n")
	if len(lines) != exportPageRows+3 || lines[0] != strings.Join(couponColumns, ",") {
		t.Errorf("%d lines from %s", len(lines), lines[0])
	}
	want := strings.Join(couponColumns, ",") + "\n1,1,'=1+1,CODE-1,CANCELLED,2026-11-21T01:02:03Z,,,2026-11-21T01:02:03Z,,ann,\n"
	fixture.Equal(t, want, get("?status=CANCELLED").body)
	fixture.Equal(t, strings.ReplaceAll(strings.Join(koreanCoupons, ","), "시각", "시각 (한국 시간)")+"\n1,1,'=1+1,CODE-1,취소됨,2026-11-21 10:02:03,,,2026-11-21 10:02:03,,ann,\n", get("?status=CANCELLED&language=ko&zone=Asia/Seoul").body)
	if lines := strings.Split(get("?sort=-ticket").body, "\n"); !strings.HasPrefix(lines[1], "102,") {
		t.Errorf("newest first: %s", lines[1])
	}
	for _, query := range []string{"?status=GONE", "?sort=name", "?userId=" + strings.Repeat("x", reward.UserIDMax+1), "?code=" + strings.Repeat("x", 85)} {
		get(query).wantProblem(t, http.StatusUnprocessableEntity, "INVALID")
	}
	b.do(t, "GET", "/v1/coupon-templates/9/coupons", nil, "Accept", "text/csv").wantProblem(t, http.StatusNotFound, "TEMPLATE_NOT_FOUND")
}

func TestCancelCoupons(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.shop.template(42, 10)
	used, cancelled, expired := issued(2, 42, "u2", 2), issued(3, 42, "u3", 3), issued(4, 42, "u4", 4)
	used.Status, cancelled.Status, expired.Status = reward.CouponUsed, reward.CouponCancelled, reward.CouponExpired
	b.shop.coupons = []reward.Coupon{issued(1, 42, "u1", 1), used, cancelled, expired, issued(5, 42, "u5", 5)}
	const path, all = "/v1/coupon-templates/42/coupons/cancel", `{"ids":["1","2","3","4","5","7","77"]}`
	want := map[string]any{
		"cancelled": json.Number("2"), "alreadyCancelled": json.Number("1"), "used": json.Number("1"), "expired": json.Number("1"), "notFound": []any{"7", "77"},
	}
	fixture.Equal(t, want, b.json(t, "POST", path, all).object(t))
	want["cancelled"], want["alreadyCancelled"] = json.Number("0"), json.Number("3")
	fixture.Equal(t, want, b.json(t, "POST", path, all).object(t))
	if lines := b.audit(t); !strings.HasSuffix(lines[0], path+` 200 {"count":7,"ids":["1","2","3","4","5","7","77"]}`) {
		t.Errorf("audit: %s", lines[0])
	}
	for _, body := range []string{`{}`, `{"ids":[]}`, `{"ids":["01"]}`, `{"ids":[1]}`, `{"ids":["` + strings.Repeat(`1","`, 1000) + `1"]}`} {
		b.json(t, "POST", path, body).wantProblem(t, http.StatusUnprocessableEntity, "INVALID")
	}
	b.json(t, "POST", "/v1/coupon-templates/9/coupons/cancel", all).wantProblem(t, http.StatusNotFound, "TEMPLATE_NOT_FOUND")
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
