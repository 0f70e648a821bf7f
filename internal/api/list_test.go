package api

import (
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
)

// pages walks a list to its end and returns one field of all items.
func (b *bundle) pages(t *testing.T, path, field string) (got []string, pages int) {
	t.Helper()
	cursor := ""
	for {
		a := b.json(t, "GET", path+cursor, "")
		a.want(t, http.StatusOK)
		pages++
		for _, item := range a.object(t)["items"].([]any) {
			got = append(got, item.(map[string]any)[field].(string))
		}
		next, ok := a.object(t)["nextCursor"].(string)
		if !ok {
			return got, pages
		}
		cursor = "&cursor=" + next
	}
}

func TestLists(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for id := reward.PromotionID(1); id <= 6; id++ {
		b.store.promotion(t, id, map[bool]reward.PromotionStatus{true: reward.Running, false: reward.Draft}[id == 1])
	}
	for target := reward.TargetID(0); target < 5; target++ {
		kind, code := rules.OutcomePaid, ""
		if target%2 == 1 {
			kind, code = rules.OutcomeRefused, "NO_ACCOUNT"
		}
		b.store.pay(t, 1, testTime, ended(target, kind, code))
		fixture.OK(t, b.store.DeadLetterAdd(t.Context(), []reward.DeadLetter{
			{Source: "t", Offset: target.String(), Reason: code, Value: []byte("{"), Key: []byte{0xff}, At: testTime},
		}))
	}
	for _, tt := range []struct {
		path, field string
		want        []string
		pages       int
	}{
		{"/v1/promotions?limit=2", "id", []string{"6", "5", "4", "3", "2", "1"}, 3},
		{"/v1/promotions?limit=1000", "id", []string{"6", "5", "4", "3", "2", "1"}, 1},
		{"/v1/promotions?status=RUNNING", "id", []string{"1"}, 1},
		{"/v1/promotions?status=PAUSED", "id", nil, 1},
		{"/v1/promotions/1/payouts?limit=2", "targetId", []string{"0", "1", "2", "3", "4"}, 3},
		{"/v1/promotions/1/payouts?state=failed", "targetId", []string{"1", "3"}, 1},
		{"/v1/promotions/1/payouts?state=FAILED&code=OTHER", "targetId", nil, 1},
		{"/v1/dead-letters?limit=3", "id", []string{"5", "4", "3", "2", "1"}, 2},
		{"/v1/dead-letters?limit=1&reason=NO_ACCOUNT&source=t&status=OPEN", "id", []string{"4", "2"}, 2},
		{"/v1/dead-letters?status=DISCARDED", "id", nil, 1},
		{"/v1/dead-letters?source=u", "id", nil, 1},
		{"/v1/dead-letters?limit=1", "value", []string{"{", "{", "{", "{", "{"}, 5},
		{"/v1/dead-letters?limit=5", "keyBase64", []string{"/w==", "/w==", "/w==", "/w==", "/w=="}, 1},
	} {
		got, pages := b.pages(t, tt.path, tt.field)
		if diff := cmp.Diff(tt.want, got); diff != "" || pages != tt.pages {
			t.Errorf("%s: %d pages (-want +got):\n%s", tt.path, pages, diff)
		}
	}
	payoutCursor := encodeCursor(cursorPayouts, 1)
	for _, tt := range []struct {
		path   string
		status int
		code   string
	}{
		{"/v1/promotions?cursor=garbage", 400, "MALFORMED"},
		{"/v1/promotions?cursor=" + payoutCursor, 400, "MALFORMED"},
		{"/v1/promotions?cursor=" + encodeCursor(cursorPromotions, -1), 400, "MALFORMED"},
		{"/v1/promotions?limit=x", 400, "MALFORMED"},
		{"/v1/promotions?limit=0", 422, "INVALID"},
		{"/v1/promotions?limit=1001", 422, "INVALID"},
		{"/v1/promotions?limti=5", 422, "INVALID"},
		{"/v1/promotions?limit=", 400, "MALFORMED"},
		{"/v1/promotions?status=", 400, "MALFORMED"},
		{"/v1/promotions?limit=5&limit=5", 400, "MALFORMED"},
		{"/v1/promotions?status=%zz", 400, "MALFORMED"},
		{"/v1/promotions?limit=5;status=DRAFT", 400, "MALFORMED"},
		{"/v1/promotions?status=GONE", 422, "INVALID"},
		{"/v1/promotions/1/payouts?state=GONE", 422, "INVALID"},
		{"/v1/promotions/1/payouts?cursor=%00", 400, "MALFORMED"},
		{"/v1/promotions/77/payouts", 404, "PROMOTION_NOT_FOUND"},
		{"/v1/promotions/1/payouts/77", 404, "PAYOUT_NOT_FOUND"},
		{"/v1/promotions/1/payouts/07", 400, "MALFORMED"},
		{"/v1/dead-letters?cursor=x", 400, "MALFORMED"},
		{"/v1/dead-letters?status=GONE", 422, "INVALID"},
		{"/v1/dead-letters/77", 404, "DEAD_LETTER_NOT_FOUND"},
		{"/v1/dead-letters/07", 400, "MALFORMED"},
		{"/v1/reconciliations/77", 404, "RECONCILIATION_NOT_FOUND"},
		{"/v1/reconciliations/x", 400, "MALFORMED"},
		{"/v1/nothing", 404, "ROUTE_NOT_FOUND"},
		{"/", 404, "ROUTE_NOT_FOUND"},
		{"/v1/promotions/77/events", 404, "PROMOTION_NOT_FOUND"},
		{"/v1/promotions/x/events", 400, "MALFORMED"},
		{"/v1/coupon-templates/7/events", 404, "TEMPLATE_NOT_FOUND"},
		{"/v1/coupon-templates/x/events", 400, "MALFORMED"},
	} {
		b.json(t, "GET", tt.path, "").wantProblem(t, tt.status, tt.code)
	}
	a := b.json(t, "PUT", "/v1/promotions/1", "")
	a.wantProblem(t, http.StatusMethodNotAllowed, "METHOD_NOT_ALLOWED")
	if allow := a.header.Get("Allow"); !strings.Contains(allow, "GET") || !strings.Contains(allow, "DELETE") {
		t.Errorf("allow %q", allow)
	}
}
