package api

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
)

func TestPayoutWithAttempts(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.store.promotion(t, 1, reward.Running)
	failed := ended(7, rules.OutcomeFailed, "HTTP_500")
	failed.Message = "oops"
	failed.Attempts = []reward.Attempt{{Dispatch: 1, At: testTime, Class: reward.AnswerFailed, Code: "HTTP_500", Message: "oops"}}
	b.store.pay(t, 1, testTime, failed)
	got := b.json(t, "GET", "/v1/promotions/1/payouts/7", "").object(t)
	want := map[string]any{
		"targetId": "7", "userId": "u", "promotionSummaryId": "3", "amount": json.Number("5"), "state": "RETRYING", "attempts": json.Number("1"),
		"errorCode": "HTTP_500", "errorMessage": "oops", "updatedAt": "2026-11-21T01:02:03Z",
		"attemptLog": []any{map[string]any{"dispatch": json.Number("1"), "at": "2026-11-21T01:02:03Z", "class": "FAILED", "code": "HTTP_500", "message": "oops"}},
	}
	fixture.Equal(t, want, got)
}

func TestPayoutExport(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.store.promotion(t, 1, reward.Running)
	outcomes := make([]rules.Outcome, 2500)
	for i := range outcomes {
		outcomes[i] = ended(reward.TargetID(i), rules.OutcomeRefused, "C")
		outcomes[i].Message = "=cmd(),\"x\""
	}
	b.store.pay(t, 1, testTime, outcomes...)
	const head = "targetId,userId,amount,voucherCode,state,attempts,transactionKey,errorCode,errorMessage,updatedAt\n"
	a := b.do(t, "GET", "/v1/promotions/1/payouts?state=FAILED", nil, "Accept", "text/csv")
	a.want(t, http.StatusOK)
	if lines := strings.Count(a.body, "\n"); lines != 2501 {
		t.Errorf("%d lines", lines)
	}
	if want := head + "0,u,5,,FAILED,1,,C,\"'=cmd(),\"\"x\"\"\",2026-11-21T01:02:03Z\n"; !strings.HasPrefix(a.body, want) {
		t.Errorf("begins %q", a.body[:len(want)])
	}
	if got := a.header.Get("Content-Type"); got != "text/csv; charset=utf-8" {
		t.Errorf("content type %s", got)
	}
	if a := b.do(t, "GET", "/v1/promotions/1/payouts?state=READY", nil, "Accept", "text/csv"); a.body != head {
		t.Errorf("an empty export is %q", a.body)
	}
	a = b.do(t, "GET", "/v1/promotions/1/payouts?state=FAILED&language=ko&zone=Asia/Seoul", nil, "Accept", "text/csv")
	if want := strings.Replace(strings.Join(koreanPayouts, ","), "시각", "시각 (한국 시간)", 1) + "\n0,u,5,,,실패,1,,\"'=cmd(),\"\"x\"\"\",2026-11-21 10:02:03\n"; !strings.HasPrefix(a.body, want) {
		t.Errorf("in Korean, it begins %q", a.body[:min(len(want), len(a.body))])
	}
	b.json(t, "POST", "/v1/promotions", `{"id":8,"name":"x","type":"POINT","currency":"EUR","amount":1050}`).want(t, http.StatusCreated)
	b.do(t, "POST", "/v1/promotions/8/targets", strings.NewReader("targetId\n1\n2\n"), "Content-Type", "text/csv").want(t, http.StatusOK)
	a = b.do(t, "GET", "/v1/promotions/8/payouts?language=ko&cursor="+encodeCursor(cursorPayouts, 1), nil, "Accept", "text/csv")
	if !strings.Contains(a.body, "\n2,2,10.50,유로,,대기,0,,,") {
		t.Errorf("from the second payout on, in euros: %q", a.body)
	}
	b.do(t, "GET", "/v1/promotions/1/payouts?language=xx", nil, "Accept", "text/csv").wantProblem(t, http.StatusBadRequest, "MALFORMED")
	b.do(t, "GET", "/v1/promotions/1/payouts?zone=Mars", nil, "Accept", "text/csv").wantProblem(t, http.StatusUnprocessableEntity, "INVALID")
	if a := b.do(t, "GET", "/v1/promotions/1/payouts?limit=1", nil, "Accept", "application/json, text/csv"); !strings.HasPrefix(a.body, "{") {
		t.Errorf("the caller prefers JSON: %q", a.body)
	}
	b.do(t, "GET", "/v1/promotions/9/payouts", nil, "Accept", "text/csv").wantProblem(t, http.StatusNotFound, "PROMOTION_NOT_FOUND")
	b.do(t, "GET", "/v1/promotions/1/payouts?state=x", nil, "Accept", "text/csv").wantProblem(t, http.StatusUnprocessableEntity, "INVALID")

	// The store goes away after the first page: the caller must notice.
	b.store.fail("PayoutList", errors.New("secret address"))
	req := fixture.Must(http.NewRequestWithContext(t.Context(), http.MethodGet, b.url+"/v1/promotions/1/payouts", nil))(t)
	req.Header.Set("Accept", "text/csv")
	res, err := b.http.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	if _, err := io.ReadAll(res.Body); err == nil {
		t.Error("half an export looks like a whole one")
	}
}
