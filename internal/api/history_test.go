package api

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
)

func (f *fakeStore) PayoutHistory(_ context.Context, user string, limit int) ([]store.UserPayout, error) {
	defer f.lock()()
	var out []store.UserPayout
	for id, r := range f.rows {
		if r.UserID == user {
			out = append(out, store.UserPayout{Payout: r, Answers: f.attempts[id]})
		}
	}
	slices.SortFunc(out, func(a, b store.UserPayout) int {
		if a.PromotionID == b.PromotionID {
			return int(a.TargetID - b.TargetID)
		}
		return int(b.PromotionID - a.PromotionID)
	})
	return out[:min(limit, len(out))], f.away
}

func TestHistoryOfPayouts(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.store.edit(3, func(v *store.PromotionView) {
		v.ID, v.Name, v.Status, v.PauseReason = 3, "Spring", reward.Paused, "the provider is away"
	})
	b.store.edit(1<<63-1, func(v *store.PromotionView) { v.ID, v.Status = 1<<63-1, reward.Running })
	save := func(p reward.Payout, answers ...reward.Attempt) {
		p.UserID, p.Amount, p.UpdatedAt = "u:7", 1000, testTime
		id := store.PayoutID{PromotionID: p.PromotionID, TargetID: p.TargetID}
		b.store.rows[id], b.store.attempts[id] = p, answers
	}
	save(reward.Payout{PromotionID: 3, TargetID: 8, State: reward.Succeeded, Attempts: 1, TransactionKey: "t-8", VoucherCode: "V-1"})
	save(reward.Payout{PromotionID: 3, TargetID: 7, State: reward.Unknown, ErrorCode: "TIMEOUT", ErrorMessage: "no answer within 5s", MaybeCalled: true},
		reward.Attempt{Dispatch: 1, At: testTime, Class: reward.AnswerUnknown, Code: "TIMEOUT", Message: "no answer within 5s"})
	save(reward.Payout{PromotionID: 1<<63 - 1, TargetID: 0, State: reward.Failed, Attempts: 1, ErrorCode: "HTTP_500", ErrorMessage: "oops"},
		reward.Attempt{Dispatch: 1, At: testTime, Class: reward.AnswerFailed, Code: "HTTP_500", Message: "oops"},
		reward.Attempt{Dispatch: 1, At: testTime.Add(time.Hour), Class: reward.AnswerResolved, Code: "eve", Message: "asked the bank"})
	// The history of a promotion that is deleted during the request, and of another one.
	save(reward.Payout{PromotionID: 2, TargetID: 1})
	b.store.rows[store.PayoutID{PromotionID: 3, TargetID: 9}] = reward.Payout{PromotionID: 3, TargetID: 9, UserID: "u:8"}

	const now = "2026-11-21T01:02:03Z"
	number := func(text string) json.Number { return json.Number(text) }
	want := []any{
		map[string]any{
			"promotionId": "9223372036854775807", "promotionName": "", "promotionStatus": "RUNNING", "targetId": "0", "amount": number("1000"),
			"state": "FAILED", "attempts": number("1"), "errorCode": "HTTP_500", "errorMessage": "oops", "updatedAt": now, "attemptLog": []any{
				map[string]any{"dispatch": number("1"), "at": now, "class": "FAILED", "code": "HTTP_500", "message": "oops"},
				map[string]any{"dispatch": number("1"), "at": "2026-11-21T02:02:03Z", "class": "RESOLVED", "code": "eve", "message": "asked the bank"},
			},
		},
		map[string]any{
			"promotionId": "3", "promotionName": "Spring", "promotionStatus": "PAUSED", "pauseReason": "the provider is away", "targetId": "7", "amount": number("1000"),
			"state": "UNKNOWN", "attempts": number("0"), "errorCode": "TIMEOUT", "errorMessage": "no answer within 5s", "updatedAt": now, "attemptLog": []any{
				map[string]any{"dispatch": number("1"), "at": now, "class": "UNKNOWN", "code": "TIMEOUT", "message": "no answer within 5s"},
			},
		},
		map[string]any{
			"promotionId": "3", "promotionName": "Spring", "promotionStatus": "PAUSED", "pauseReason": "the provider is away", "targetId": "8", "amount": number("1000"),
			"voucherCode": "V-1", "state": "SUCCEEDED", "attempts": number("1"), "transactionKey": "t-8", "updatedAt": now, "attemptLog": []any{},
		},
	}
	got := b.json(t, "GET", "/v1/users/u:7/history", "").object(t)
	if diff := cmp.Diff(map[string]any{"userId": "u:7", "items": []any{}, "refusals": []any{}, "payouts": want}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	none := b.json(t, "GET", "/v1/users/nobody/history", "").object(t)
	if diff := cmp.Diff(map[string]any{"userId": "nobody", "items": []any{}, "refusals": []any{}, "payouts": []any{}}, none); diff != "" {
		t.Errorf("of an unknown user (-want +got):\n%s", diff)
	}
}

// TestHistoryIsAsThePayoutItself: over a database, the log of attempts is that of
// the payout, however it came to an end.
func TestHistoryIsAsThePayoutItself(t *testing.T) {
	t.Parallel()
	b, s := setupSQLite(t)
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
	if _, err := s.PayoutFinish(ctx, store.PayoutFinishParams{Outcomes: []rules.Outcome{
		{Ref: reward.Ref{PromotionID: 9, TargetID: 1, Dispatch: 1}, Kind: rules.OutcomePaid, TransactionKey: "t-1"},
		{Ref: reward.Ref{PromotionID: 9, TargetID: 2, Dispatch: 1}, Kind: rules.OutcomeNoLookup, Attempts: []reward.Attempt{answer}},
	}, Now: testTime}); err != nil {
		t.Fatal(err)
	}
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
	if p, _ := history("ann")[2].(map[string]any); p["promotionStatus"] != "PAUSED" || p["pauseReason"] != "paused by an operator" {
		t.Errorf("of a paused promotion: %v", p)
	}
	// Without a column for the user, the row names the target.
	for user, n := range map[string]int{"bob": 2, "4": 2, "1": 0} {
		if got := len(history(user)); got != n {
			t.Errorf("%s has %d payouts, want %d", user, got, n)
		}
	}
}

// TestHistoryIsBounded: the 1000 of the latest promotions are shown.
func TestHistoryIsBounded(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for id := reward.PromotionID(1); id <= 3; id++ {
		b.store.edit(id, func(v *store.PromotionView) { v.ID, v.Status = id, reward.Running })
		for target := range reward.TargetID(400) {
			b.store.rows[store.PayoutID{PromotionID: id, TargetID: target}] = reward.Payout{PromotionID: id, TargetID: target, UserID: "guest"}
		}
	}
	list, _ := b.json(t, "GET", "/v1/users/guest/history", "").object(t)["payouts"].([]any)
	if len(list) != 1000 {
		t.Fatalf("%d payouts", len(list))
	}
	if last, _ := list[999].(map[string]any); last["promotionId"] != "1" || last["targetId"] != "199" {
		t.Errorf("the last is %v", last)
	}
}
