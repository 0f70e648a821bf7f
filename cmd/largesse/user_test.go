package main

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/largesse/largesse/client"
)

func TestUserHistoryOfPayouts(t *testing.T) {
	t.Parallel()
	const payouts = `"payouts":[
		{"promotionId":"12","promotionName":"Spring","promotionStatus":"PAUSED","pauseReason":"the provider\u001b[2J is away","targetId":"7","amount":1500,"state":"RETRYING","mayBePaid":true,
		"attempts":2,"errorCode":"HTTP_500","updatedAt":"2026-11-21T10:00:00Z","attemptLog":[
		{"dispatch":1,"at":"2026-11-21T09:00:00Z","class":"THROTTLED"},{"dispatch":2,"at":"2026-11-21T10:00:00Z","class":"FAILED","code":"HTTP_500","message":"oops"}]},
		{"promotionId":"12","promotionName":"Spring","promotionStatus":"PAUSED","pauseReason":"the provider\u001b[2J is away","targetId":"8","amount":5,"state":"READY",
		"attempts":0,"updatedAt":"2026-11-21T10:00:00Z","attemptLog":[]},
		{"promotionId":"3","promotionName":"","promotionStatus":"COMPLETED","targetId":"7","amount":10,"state":"SUCCEEDED",
		"attempts":1,"transactionKey":"t-7","updatedAt":"2026-11-21T10:00:00Z","attemptLog":[]},
		{"promotionId":"2","promotionName":"","promotionStatus":"COMPLETED","targetId":"7","amount":10,"state":"SUCCEEDED",
		"attempts":2,"transactionKey":"t-2","updatedAt":"2026-11-21T10:00:00Z","attemptLog":[
		{"dispatch":1,"at":"2026-11-21T09:00:00Z","class":"FAILED","code":"HTTP_500"}]},
		{"promotionId":"1","promotionName":"","promotionStatus":"CANCELLED","targetId":"7","amount":10,"state":"SUCCEEDED",
		"attempts":0,"transactionKey":"t-1","updatedAt":"2026-11-21T10:00:00Z","attemptLog":[
		{"dispatch":1,"at":"2026-11-21T09:00:00Z","class":"RESOLVED","code":"eve","message":"asked the bank"}]}]`
	env, _ := fakeServer(t, map[string]answer{
		"GET /v1/users/u7/history": {body: `{"userId":"u7","items":[],"refusals":[],` + payouts + `}`},
		"GET /v1/users/u7/history?templateId=42": {body: `{"userId":"u7","items":[],"refusals":[
			{"templateId":"42","reason":"CLOSED","since":"2026-11-21T12:00:00Z"}],` + payouts + `}`},
	})
	const (
		table = "PROMOTION  NAME    STATUS     TARGET  AMOUNT  STATE      ATTEMPTS  UPDATED               TRANSACTION  LAST ANSWER\n" +
			"12         Spring  PAUSED     7       1,500   RETRYING   2         2026-11-21 10:00:00Z               FAILED HTTP_500 oops\n" +
			"12         Spring  PAUSED     8       5       READY      0         2026-11-21 10:00:00Z\n" +
			"3                  COMPLETED  7       10      SUCCEEDED  1         2026-11-21 10:00:00Z  t-7          PAID\n" +
			"2                  COMPLETED  7       10      SUCCEEDED  2         2026-11-21 10:00:00Z  t-2          PAID\n" +
			"1                  CANCELLED  7       10      SUCCEEDED  0         2026-11-21 10:00:00Z  t-1          RESOLVED eve asked the bank\n" +
			"promotion 12 is PAUSED: the provider\uFFFD[2J is away\n" +
			"target 7 of promotion 12 may already be paid: do not pay by hand\n"
		noCoupons = "user u7 has no settled coupon request"
		hint      = "; with --template ID, this also shows when that template refused everyone"
	)
	for want, args := range map[string][]string{
		table: nil,
		"template 42 was CLOSED for everyone from 2026-11-21 12:00:00Z until now\n\n" + table: {"--template", "42"},
	} {
		r := largesseRun(t.Context(), "", env, append([]string{"user", "history", "u7"}, args...)...)
		said := noCoupons + "\n"
		if args == nil {
			said = noCoupons + hint + "\n"
		}
		if diff := cmp.Diff(result{exitDone, want, said}, r, cmp.AllowUnexported(result{})); diff != "" {
			t.Errorf("%v: %s", args, diff)
		}
	}
	r := largesseRun(t.Context(), "", env, "user", "history", "u7", "--output", "json")
	var out client.History
	if err := json.Unmarshal([]byte(r.stdout), &out); err != nil || len(out.Payouts) != 5 || len(out.Payouts[0].Log) != 2 || out.Payouts[0].Log[1].Message != "oops" {
		t.Errorf("%v: %+v", err, r)
	}
}
