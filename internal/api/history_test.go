package api

import (
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
)

// TestHistoryIsAsThePayoutItself: over a database, the log of attempts is that of
// the payout, however it came to an end.
func TestHistoryIsAsThePayoutItself(t *testing.T) {
	t.Parallel()
	b := setup(t)
	s := b.store
	ctx := t.Context()
	for _, id := range []string{"5", "9"} {
		b.create(t, `{"id":`+id+`,"name":"P`+id+`","type":"POINT","amount":10}`)
		b.upload(t, "/v1/promotions/"+id+"/targets", "targetId,userId\n1,ann\n2,ann\n3,bob\n4,\n")
		b.json(t, "POST", "/v1/promotions/"+id+"/start", "").want(t, http.StatusAccepted)
	}
	rows, err := s.PayoutDispatch(ctx, store.PayoutDispatchParams{PromotionID: 9, Limit: 9, MaxLen: 9, Now: testTime})
	if err != nil || len(rows) != 4 {
		t.Fatalf("%d dispatched, %v", len(rows), err)
	}
	answer := reward.Attempt{Dispatch: 1, At: testTime, Class: reward.AnswerUnknown, Code: "RESET", Message: "it broke"}
	fixture.Must(s.PayoutFinish(ctx, store.PayoutFinishParams{Outcomes: []rules.Outcome{
		{Ref: reward.Ref{PromotionID: 9, TargetID: 1, Dispatch: 1}, Kind: rules.OutcomePaid, TransactionKey: "t-1"},
		{Ref: reward.Ref{PromotionID: 9, TargetID: 2, Dispatch: 1}, Kind: rules.OutcomeNoLookup, Attempts: []reward.Attempt{answer}},
	}, Now: testTime}))(t)
	history := func(user string) []any {
		list, _ := b.json(t, "GET", "/v1/users/"+user+"/history", "").object(t)["payouts"].([]any)
		return list
	}
	check := func(when string, want ...string) {
		t.Helper()
		var got []string
		for _, each := range history("ann") {
			p, _ := each.(map[string]any)
			promotion, target, state := p["promotionId"].(string), p["targetId"].(string), p["state"].(string)
			got = append(got, p["promotionName"].(string)+" "+promotion+":"+target+" "+state)
			alone := b.json(t, "GET", "/v1/promotions/"+promotion+"/payouts/"+target, "").object(t)
			for name, value := range alone {
				if name != "userId" && !cmp.Equal(value, p[name]) {
					t.Errorf("%s, %s:%s: %s is %v, alone %v", when, promotion, target, name, p[name], value)
				}
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", when, diff)
		}
	}
	check("unknown", "P9 9:1 SUCCEEDED", "P9 9:2 UNKNOWN", "P5 5:1 READY", "P5 5:2 READY")
	b.json(t, "POST", "/v1/promotions/9/payouts/2/resolve", `{"outcome":"FAILED","note":"asked the bank"}`).want(t, http.StatusOK)
	b.json(t, "POST", "/v1/promotions/5/pause", "").want(t, http.StatusAccepted)
	check("resolved", "P9 9:1 SUCCEEDED", "P9 9:2 FAILED", "P5 5:1 READY", "P5 5:2 READY")
	if p, _ := history("ann")[2].(map[string]any); p["promotionStatus"] != "PAUSED" || p["pauseReason"] != `paused by "anonymous"` {
		t.Errorf("of a paused promotion: %v", p)
	}
	// Without a column for the user, the row names the target.
	for user, n := range map[string]int{"bob": 2, "4": 2, "1": 0} {
		if got := len(history(user)); got != n {
			t.Errorf("%s has %d payouts, want %d", user, got, n)
		}
	}
}
