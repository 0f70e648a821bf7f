package api

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/largesse/largesse/internal/bus"
	"github.com/largesse/largesse/internal/coupon"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/reward"
)

// TestCodesByRole reads codes at every door that shows them: viewers see how a code ends,
// others see it whole, and the audit has the reads of the staff, once per minute.
func TestCodesByRole(t *testing.T) {
	t.Parallel()
	inMemory(t, func(t *testing.T, b *bundle) {
		const code, voucher, malformed = "SPRING-7KQ2", "VOUCHER-9XYZ", "VSECRET-0004"
		b.shop.template(42, 10)
		one := issued(1, 42, "u7", 3)
		one.Code = code
		b.shop.coupons = []reward.Coupon{one}
		b.shop.history = coupon.History{Outcomes: []reward.IssueOutcome{{TemplateID: 42, UserID: "u7", Ticket: 3, Coupon: one, At: testTime}}}
		b.shop.stand("42:u7", coupon.Status{RequestID: "42:u7", Kind: coupon.StatusIssued, Ticket: 3, Coupon: one}, nil)
		for i, value := range []string{`{"voucherCode":"` + voucher + `"}`, "voucherCode=" + malformed} {
			fixture.OK(t, b.store.DeadLetterAdd(t.Context(), []reward.DeadLetter{{Source: "t", Offset: fmt.Sprint(i), Reason: "MALFORMED", Value: []byte(value), At: testTime}}))
		}
		operator := []string{"Authorization", "Bearer operator", "Content-Type", "application/json"}
		b.do(t, "POST", "/v1/promotions", strings.NewReader(`{"id":7,"name":"x","type":"VOUCHER","voucherCode":"`+voucher+`"}`), operator...).want(t, http.StatusCreated)
		operator[3] = "text/csv"
		b.do(t, "POST", "/v1/promotions/7/targets", strings.NewReader("targetId,voucherCode\n1,"+voucher+"\n"), operator...).want(t, http.StatusOK)
		change := struct{ Body ChangePromotion }{}
		change.Body.VoucherCode = change.Body.VoucherCode.With(voucher)
		for _, l := range append(b.audit(t), bodyOf(change)) {
			if strings.Contains(l, voucher) {
				t.Errorf("the audit has the voucher: %s", l)
			}
		}

		for _, door := range []struct {
			path, code string
			operation  string // in the audit; "": none
			accept     string
		}{
			{path: "/v1/coupons/1", code: code, operation: "get-coupon"},
			{path: "/v1/coupons?code=" + code, code: code},
			{path: "/v1/coupon-templates/42/coupons", code: code, operation: "list-template-coupons"},
			{path: "/v1/coupon-templates/42/coupons", code: code, operation: "list-template-coupons", accept: "text/csv"},
			{path: "/v1/users/u7/coupons", code: code, operation: "list-user-coupons"},
			{path: "/v1/users/u7/history", code: code, operation: "get-user-history"},
			{path: "/v1/issue-requests/42:u7", code: code},
			{path: "/v1/issue-requests/42:u7/events", code: code, accept: "text/event-stream"},
			{path: "/v1/promotions/7", code: voucher},
			{path: "/v1/promotions", code: voucher},
			{path: "/v1/promotions/7/payouts", code: voucher, operation: "list-payouts"},
			{path: "/v1/promotions/7/payouts", code: voucher, operation: "list-payouts", accept: "text/csv"},
			{path: "/v1/promotions/7/payouts/1", code: voucher, operation: "get-payout"},
			{path: "/v1/dead-letters/1", code: voucher, operation: "get-dead-letter"},
			{path: "/v1/dead-letters", code: voucher, operation: "list-dead-letters"},
			{path: "/v1/dead-letters/2", code: malformed, operation: "get-dead-letter"},
		} {
			for _, role := range []string{"viewer", "approver", "issuer", "operator", "admin", "shopper"} {
				before := len(b.audit(t))
				read := func() answer {
					return b.do(t, "GET", door.path, nil, "Authorization", "Bearer "+role, "Accept", door.accept)
				}
				a := read()
				if a.status == http.StatusForbidden {
					continue // TestWhoMayCallWhat says who may
				}
				a.want(t, http.StatusOK)
				whole, masked := strings.Contains(a.body, door.code), strings.Contains(a.body, "…"+door.code[len(door.code)-4:]) || strings.Contains(a.body, `"value":"…"`)
				hidden := role == "viewer" || role == "approver"
				if whole == hidden || masked != hidden {
					t.Errorf("%s by %s: %s", door.path, role, a.body)
				}
				read() // within a minute: no further entry
				var want []string
				path, _, _ := strings.Cut(door.path, "?")
				switch {
				case door.accept == "text/csv":
					want = []string{fmt.Sprintf(`%s by the %s: %s 200 {"export":"text/csv"}`, door.operation, role, path)}
				case door.operation != "" && !hidden && role != "shopper":
					want = []string{fmt.Sprintf("%s by the %s: %s 200 ", door.operation, role, path)}
				}
				if diff := cmp.Diff(want, b.audit(t)[before:], cmp.Transformer("empty", func(s []string) string { return strings.Join(s, "\n") })); diff != "" {
					t.Errorf("audit of %s by %s (-want +got):\n%s", door.path, role, diff)
				}
				time.Sleep(shownWindow)
			}
		}
		b.store.fail("AuditBegin", reward.NewError(reward.KindUnavailable, reward.CodeUnavailable, "no rows"))
		b.do(t, "GET", "/v1/coupons/1", nil, "Authorization", "Bearer issuer").wantProblem(t, http.StatusServiceUnavailable, "UNAVAILABLE")
		b.store.fail("AuditBegin", nil)
		b.do(t, "GET", "/v1/coupons/1", nil, "Authorization", "Bearer issuer").want(t, http.StatusOK)
	}, guarded)
}

// audit returns the entries of the audit, oldest first.
func (b *bundle) audit(t *testing.T) []string {
	t.Helper()
	lines := b.store.audit(t, "")
	out := make([]string, len(lines))
	for i, l := range lines {
		out[i] = fmt.Sprintf("%s by %s: %s %d %s", l.Action, l.Actor, l.Subject, l.Status, l.Detail)
	}
	return out
}

// TestCodesShownOfMany checks that reads of many paths within a minute do not flood the
// audit.
func TestCodesShownOfMany(t *testing.T) {
	t.Parallel()
	var s shownCodes
	now := time.Now()
	for n := range shownMax + 5 {
		first, others := s.add(shownRead{"a", "get-coupon", fmt.Sprint(n), ""}, now)
		if want := n <= shownMax; first != want || others != (n >= shownMax) {
			t.Fatalf("read %d: first %t, for others %t", n, first, others)
		}
	}
	if first, others := s.add(shownRead{"a", "get-coupon", "new", ""}, now.Add(shownWindow)); !first || others {
		t.Errorf("in the next window: first %t, for others %t", first, others)
	}
}

// TestVouchersInRecords checks that viewers see no voucher in a record that became a dead
// letter, whatever its form.
func TestVouchersInRecords(t *testing.T) {
	t.Parallel()
	const point, stream = bus.TopicPointPublish, "campaign-promotion-stream:VOUCHER:1"
	for _, tt := range []struct{ source, record, want string }{
		{bus.TopicVoucherPublish, `{"targetId":"1","voucherCode":"GIFT-2026"}`, `{"targetId":"1","voucherCode":"…2026"}`},
		{bus.TopicVoucherRetry, "{\"VOUCHERcode\" :\n\"GIFT-\\u0032026\",\"userId\":\"<u>\"}", `{"VOUCHERcode":"…2026","userId":"<u>"}`},
		{stream, `{"voucher\u0043ode":"GIFT-2026", "amount": 12345678901234567890}`, `{"amount":12345678901234567890,"voucherCode":"…2026"}`},
		{stream, "{\"voucherCode\":\"GIFT-\xff2026\"}", `{"voucherCode":"…2026"}`},
		{stream, `{"voucherCode":"A-GIFT","voucherCode":"B-GIFT"}`, "…"},
		{stream, `{"voucherCode":"GIFT-20`, "…"},
		{stream, `{"voucherCode":20261128}`, "…"},
		{stream, `{"voucherCode":["VSECRET-0004"]}`, "…"},
		{stream, `{"voucherCode":{"code":"VSECRET-0004"}}`, "…"},
		{stream, `{"voucherCode":"VSECRET-0004","more":{"voucherCode":"VSECRET-0005"}}`, "…"},
		{stream, `{'voucherCode':'VSECRET-0004'}`, "…"},
		{stream, `voucherCode=VSECRET-0004`, "…"},
		{stream, `{"code":"VSECRET-0004"}`, "…"},
		{stream, `VSECRET-0004`, "…"},
		{stream, `{"voucherCode":""}`, "…"},
		{stream, "", ""},
		{point, `{"voucherCode":"GIFT-2026","targetId":1}`, `{"targetId":1,"voucherCode":"…2026"}`},
		{point, `{"voucherCode":["VSECRET-0004"]}`, "…"},
		{point, `[{"voucherCode":"VSECRET-0004"}]`, "…"},
		{point, `{'voucher_code':'VSECRET-0004'}`, "…"},
		{point, `{"voucher\u0043ode":"VSECRET-`, "…"},
		{point, `{ "userId": "u", "amount": -1 }`, `{ "userId": "u", "amount": -1 }`},
		{point, `nothing`, `nothing`},
		{bus.TopicStarted, `{"promotionId":1,"promotionType":"VOUCHER"}`, `{"promotionId":1,"promotionType":"VOUCHER"}`},
	} {
		if got := string(recordMasked(tt.source, []byte(tt.record))); got != tt.want {
			t.Errorf("%s of %s is shown as %s, want %s", tt.record, tt.source, got, tt.want)
		}
	}
}
