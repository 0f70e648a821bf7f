package api

import (
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
)

// TestHistoryIsAsThePayoutItself: the history of a user says of each payout what the
// payout itself says, and names its promotion.
func TestHistoryIsAsThePayoutItself(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for id, name := range map[reward.PromotionID]string{5: "P5", 9: "P9"} {
		b.store.promotion(t, id, reward.Running, func(p *reward.Promotion) { p.Name = name })
	}
	paid, unknown := ended(1, rules.OutcomePaid, ""), ended(2, rules.OutcomeNoLookup, "")
	paid.TransactionKey = "t-1"
	unknown.Attempts = []reward.Attempt{{Dispatch: 1, At: testTime, Class: reward.AnswerUnknown, Code: "RESET", Message: "it broke"}}
	b.store.pay(t, 9, testTime, paid, unknown)
	b.store.pay(t, 5, testTime, ended(1, queued, ""))
	b.json(t, "POST", "/v1/promotions/9/payouts/2/resolve", `{"outcome":"FAILED","note":"asked the bank"}`).want(t, http.StatusOK)
	b.json(t, "POST", "/v1/promotions/5/pause", "").want(t, http.StatusAccepted)
	var got []string
	list, _ := b.json(t, "GET", "/v1/users/u/history", "").object(t)["payouts"].([]any)
	for _, each := range list {
		p, _ := each.(map[string]any)
		promotion, target := p["promotionId"].(string), p["targetId"].(string)
		got = append(got, p["promotionName"].(string)+" "+p["promotionStatus"].(string)+" "+promotion+":"+target+" "+p["state"].(string))
		if p["mayBePaid"] == true {
			got[len(got)-1] += ", may be paid"
		}
		for name, value := range b.json(t, "GET", "/v1/promotions/"+promotion+"/payouts/"+target, "").object(t) {
			if name != "userId" && name != "promotionSummaryId" && !cmp.Equal(value, p[name]) {
				t.Errorf("%s:%s: %s is %v, alone %v", promotion, target, name, p[name], value)
			}
		}
		if reason := p["pauseReason"]; promotion == "5" && (reason != `paused by "anonymous"` || p["pausedBy"] != "anonymous") {
			t.Errorf("a paused promotion has the reason %v, by %v", reason, p["pausedBy"])
		}
	}
	fixture.Equal(t, []string{"P9 RUNNING 9:1 SUCCEEDED", "P9 RUNNING 9:2 FAILED", "P5 PAUSED 5:1 QUEUED, may be paid"}, got)
}
