package api

import (
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestPagesNameCalls checks that the calls which docs/api.md names exist, with their
// query parameters.
func TestPagesNameCalls(t *testing.T) {
	t.Parallel()
	b := setup(t)
	page, err := os.ReadFile("../../docs/api.md")
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for pattern := range b.api.Operations() {
		known[anyPlace.ReplaceAllString(pattern, "{}")] = true
	}
	parameters := map[string]bool{}
	for pattern, op := range describedOperations(b.api) {
		for _, p := range op.Parameters {
			parameters[anyPlace.ReplaceAllString(pattern, "{}")+" "+p.Name] = true
		}
	}
	calls := regexp.MustCompile("`(GET|POST|PATCH|PUT|DELETE) (/[^ `?]+)(?:\\?([^ `]+))?`").FindAllStringSubmatch(string(page), -1)
	if len(calls) < 60 {
		t.Errorf("the page names %d calls", len(calls))
	}
	for _, call := range calls {
		pattern := anyPlace.ReplaceAllString(call[1]+" "+call[2], "{}")
		if !known[pattern] {
			t.Errorf("there is no call %s %s", call[1], call[2])
		}
		for query := range strings.SplitSeq(call[3], "&") {
			if name, _, _ := strings.Cut(query, "="); name != "" && !parameters[pattern+" "+name] {
				t.Errorf("%s %s has no parameter %s", call[1], call[2], name)
			}
		}
	}
}

func TestOpenAPI(t *testing.T) {
	t.Parallel()
	b := setup(t)
	a := b.json(t, "GET", "/openapi.json", "")
	a.want(t, http.StatusOK)
	doc := a.object(t)
	if v, _ := doc["openapi"].(string); !strings.HasPrefix(v, "3.1") {
		t.Errorf("openapi %v", doc["openapi"])
	}
	paths, _ := doc["paths"].(map[string]any)
	for _, want := range []string{
		"post /v1/promotions", "get /v1/promotions", "get /v1/promotions/{id}", "patch /v1/promotions/{id}", "delete /v1/promotions/{id}",
		"post /v1/promotions/{id}/start", "post /v1/promotions/{id}/pause", "post /v1/promotions/{id}/resume", "post /v1/promotions/{id}/cancel",
		"post /v1/promotions/{id}/close", "post /v1/promotions/{id}/targets", "get /v1/promotions/{id}/uploads", "get /v1/promotions/{id}/uploads/{uploadId}/report",
		"post /v1/promotions/{id}/reject",
		"get /v1/promotions/{id}/payouts", "get /v1/promotions/{id}/payouts/{targetId}", "get /v1/dead-letters", "get /healthz", "get /readyz",
		"post /v1/promotions/{id}/approve", "post /v1/promotions/{id}/payouts/retry", "post /v1/promotions/{id}/payouts/{targetId}/resolve",
		"get /v1/dead-letters/{id}", "post /v1/dead-letters/{id}/replay", "post /v1/dead-letters/{id}/discard", "post /v1/dead-letters/replay", "post /v1/dead-letters/discard",
		"post /v1/reconciliations", "get /v1/reconciliations/{id}", "get /v1/reconciliations",
		"get /v1/me", "get /v1/settings", "get /v1/payouts", "get /v1/promotions/{id}/errors",
		"get /v1/overview", "get /v1/promotions/{id}/timeline", "get /v1/coupon-templates/{id}/timeline",
		"post /v1/coupon-templates", "get /v1/coupon-templates", "get /v1/coupon-templates/{id}", "patch /v1/coupon-templates/{id}",
		"post /v1/coupon-templates/{id}/close", "get /v1/coupon-templates/{id}/coupons", "get /v1/coupon-templates/{id}/entrants", "post /v1/coupons/{templateId}/issue",
		"get /v1/issue-requests/{requestId}", "get /v1/issue-requests/{requestId}/events", "get /v1/coupons/{couponId}",
		"post /v1/coupons/{couponId}/use", "post /v1/coupons/{couponId}/cancel", "get /v1/users/{userId}/coupons", "get /v1/users/{userId}/history",
		"get /v1/instances", "get /v1/promotions/{id}/stream", "get /v1/promotions/{id}/events", "get /metrics",
	} {
		method, path, _ := strings.Cut(want, " ")
		item, _ := paths[path].(map[string]any)
		if _, ok := item[method]; !ok {
			t.Errorf("%s is not described", want)
		}
	}
	for _, want := range []string{"Largesse-Actor", "application/problem+json", "application/x-ndjson", "text/csv", "text/event-stream", "Preference-Applied"} {
		if !strings.Contains(a.body, want) {
			t.Errorf("%s is not described", want)
		}
	}
	if !strings.Contains(a.body, "A success at the first call") {
		t.Error("the description does not say why attemptLog may be empty")
	}
	if strings.Contains(a.body, "$schema") {
		t.Error("the description has the field $schema")
	}
}
