package api

import (
	"net/http"
	"strings"
	"testing"
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
	view, err := b.store.PromotionGet(t.Context(), 7)
	if err != nil {
		t.Fatal(err)
	}
	if f := b.api.progress.frame(view); !strings.Contains(string(f.state), shown) || strings.Contains(string(f.state), "T0K3N") {
		t.Errorf("events: %s", f.state)
	}
}
