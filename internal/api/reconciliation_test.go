package api

import (
	"encoding/json"
	"maps"
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/largesse/largesse/internal/lab/fixture"
)

func TestReconciliations(t *testing.T) {
	t.Parallel()
	five, four := json.Number("5"), json.Number("4")
	promotion := map[string]any{
		"promotionId": "7", "what": "stream", "store": five, "redis": four, "detail": "5 QUEUED, 4 entries", "repaired": true,
	}
	template := map[string]any{
		"templateId": "42", "what": "user", "userId": "u7", "store": five, "redis": four, "detail": "5 coupons, the gate says 4", "repaired": true,
	}
	// The reports about everything are about others.
	allPromotions, allTemplates := maps.Clone(promotion), maps.Clone(template)
	allPromotions["promotionId"], allTemplates["templateId"] = "12345", "43"
	for _, tt := range []struct {
		name, body, id, checked string
		drifts, skipped         []any
	}{
		{"OfAPromotion", `{"promotionId":"7","repair":true}`, "9", "1", []any{promotion}, []any{"charges: no list"}},
		{"OfATemplate", `{"templateId":42,"repair":true}`, "10", "2", []any{template}, []any{"template 3"}},
		{"OfAll", `{"repair":true}`, "9", "3", []any{allPromotions, allTemplates}, []any{"charges: no list", "template 3"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			a := b.json(t, "POST", "/v1/reconciliations", tt.body)
			a.want(t, http.StatusCreated)
			want := map[string]any{"id": tt.id, "checked": json.Number(tt.checked), "at": "2026-11-21T01:02:03Z", "drifts": tt.drifts, "skipped": tt.skipped}
			if diff := cmp.Diff(want, a.object(t)); diff != "" || a.header.Get("Location") != "/v1/reconciliations/"+tt.id {
				t.Errorf("%v (-want +got):\n%s", a.header, diff)
			}
			// The kept report is the same, whichever room has written it.
			fixture.Equal(t, want, b.json(t, "GET", a.header.Get("Location"), "").object(t))
		})
	}

	b := setup(t)
	for _, body := range []string{`{"repair":false}`, `{"all":true}`, `{}`} {
		if got := b.json(t, "POST", "/v1/reconciliations", body).object(t); got["checked"] != json.Number("3") {
			t.Errorf("%s: %v", body, got)
		}
	}
	for body, field := range map[string]string{
		`{"templateId":"x"}`: "templateId", `{"promotionId":"x"}`: "promotionId", `{"promotionId":1,"all":true}`: "all", `{"templateId":1,"all":true}`: "all",
		`{"promotionId":7,"templateId":"42"}`: "templateId",
	} {
		p := b.json(t, "POST", "/v1/reconciliations", body).wantProblem(t, http.StatusUnprocessableEntity, "INVALID")
		if diff := cmp.Diff([]string{field}, fields(p)); diff != "" {
			t.Errorf("%s: %s", body, diff)
		}
	}
}
