package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/largesse/largesse/internal/auth"
	"github.com/largesse/largesse/internal/coupon"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/web"
)

// TestActsOfStaffAreCounted requests coupons and leaves lines with keys of the staff and as
// a shopper, while the audit can be written and while it cannot.
func TestActsOfStaffAreCounted(t *testing.T) {
	t.Parallel()
	inMemory(t, func(t *testing.T, b *bundle) {
		b.api.Start(t.Context())
		t.Cleanup(b.api.Stop)
		b.shop.template(42, 10)
		request := func(role string) answer {
			return b.do(t, "POST", "/v1/coupons/42/issue", strings.NewReader(`{"userId":"u7"}`), "Authorization", "Bearer "+role, "Content-Type", "application/json")
		}
		status := coupon.Status{RequestID: "42:u7", Kind: coupon.StatusIssued, Ticket: 3, Coupon: issued(1, 42, "u7", 3)}
		b.shop.stand("42:u7", status, nil)
		request("issuer").want(t, http.StatusCreated)
		request("issuer").want(t, http.StatusCreated)
		request("operator").want(t, http.StatusCreated)
		request("shopper").want(t, http.StatusCreated)
		b.shop.stand("42:u7", coupon.Status{RequestID: "42:u7", Kind: coupon.StatusWaiting, Ticket: 3}, nil)
		b.do(t, "DELETE", "/v1/issue-requests/42:u7", nil, "Authorization", "Bearer operator").want(t, http.StatusNoContent)
		status.Duplicate = true
		b.shop.stand("42:u7", status, nil)
		request("issuer").want(t, http.StatusOK) // nothing new
		if got := b.audit(t); len(got) > 0 {
			t.Errorf("within the minute: %q", got)
		}

		b.store.fail("AuditBegin", reward.NewError(reward.KindUnavailable, reward.CodeUnavailable, "no rows"))
		time.Sleep(tallyWindow + time.Second)
		b.store.fail("AuditBegin", nil)
		time.Sleep(tallyWindow)
		synctest.Wait()
		got := map[string]bool{}
		for _, l := range b.audit(t) {
			got[l] = true
		}
		want := map[string]bool{}
		for _, l := range []string{`issue-coupon by the issuer 2`, `issue-coupon by the operator 1`, `leave-line by the operator 1`} {
			at := strings.LastIndex(l, " ")
			want[fmt.Sprintf(`%s: /v1/coupon-templates/42 200 {"count":%s}`, l[:at], l[at+1:])] = true
		}
		fixture.Equal(t, want, got)
		if first := b.store.audit(t, "")[0]; first.KeyID != 5 {
			t.Errorf("%+v", first)
		}
	}, guarded)
}

// TestRefusedChangesAreCounted checks that refused changes of a caller do not flood the
// audit, that none is missing in its numbers, and that changes which are made have entries.
func TestRefusedChangesAreCounted(t *testing.T) {
	t.Parallel()
	inMemory(t, func(t *testing.T, b *bundle) {
		b.api.Start(t.Context())
		t.Cleanup(b.api.Stop)
		start := func(role string) {
			b.jsonAs(t, role, "POST", "/v1/promotions/9/start", "").want(t, http.StatusNotFound)
		}
		for range refusedMax + 7 {
			start("operator")
		}
		start("admin")
		b.jsonAs(t, "operator", "POST", "/v1/promotions", `{"id":7,"name":"x","type":"POINT"}`).want(t, http.StatusCreated)
		b.jsonAs(t, "operator", "PATCH", "/v1/promotions/8", `{"name":"x"}`).want(t, http.StatusNotFound)
		time.Sleep(tallyWindow + time.Second)
		start("operator")
		synctest.Wait()
		got := map[string]int{}
		for _, l := range b.audit(t) {
			if !strings.Contains(l, "create-promotion") {
				got[l]++
			} else if !strings.Contains(l, " 201 ") {
				t.Error(l)
			}
		}
		fixture.Equal(t, map[string]int{
			"start-promotion by the operator: /v1/promotions/9/start 404 ":                                           refusedMax + 1,
			"start-promotion by the admin: /v1/promotions/9/start 404 ":                                              1,
			`start-promotion by the operator:  404 {"count":7,"note":"refused, beyond the first 20 of the minute"}`:  1,
			`change-promotion by the operator:  404 {"count":1,"note":"refused, beyond the first 20 of the minute"}`: 1,
		}, got)
		if entries := b.audit(t); len(entries) != refusedMax+5 {
			t.Errorf("%d entries", len(entries))
		}
	}, guarded)
}

// TestChangesMadeInPartHaveEntries checks that a flood of refused changes hides no file of
// which some targets were saved.
func TestChangesMadeInPartHaveEntries(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ctx := context.WithValue(t.Context(), callerKey{}, caller{url: &url.URL{Path: "/v1/promotions/9/targets"}})
	for range refusedMax + 2 {
		err := b.api.audited(ctx, "upload-targets", "", http.StatusOK, func() error { return partly{reward.NewError(reward.KindInvalid, "X", "too much")} })
		if p, ok := errors.AsType[*web.Problem](err); !ok || p.Status != http.StatusUnprocessableEntity || p.Code != "X" {
			t.Fatal(err)
		}
	}
	if got := len(b.audit(t)); got != refusedMax+2 {
		t.Errorf("%d entries", got)
	}
}

// TestActsOfManyTemplates checks that acts on many templates within a minute do not flood
// the audit.
func TestActsOfManyTemplates(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ctx := context.WithValue(t.Context(), callerKey{}, caller{Principal: auth.Principal{Role: auth.RoleIssuer}})
	for n := range actsMax + 5 {
		b.api.acted(ctx, "issue-coupon", reward.TemplateID(n+1))
	}
	counted := b.api.acts.take(true)
	rest := slices.IndexFunc(counted, func(t tally) bool { return t.note != "" })
	if len(counted) != actsMax+1 || rest < 0 || counted[rest].n != 5 || counted[rest].Action != "issue-coupon" {
		t.Errorf("%d entries, the shared one is number %d", len(counted), rest)
	}
}
