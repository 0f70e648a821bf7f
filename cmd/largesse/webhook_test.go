package main

import (
	"strings"
	"testing"

	"github.com/largesse/largesse/internal/lab/fixture"
)

const peopleJSON = `{"id":"5","kind":"EMAIL","url":"","to":["kim@example.com","lee@example.com"],"language":"ko","events":["balance.breach"],"enabled":true,"state":"ACTIVE",
	"failedAttempts":0,"pendingCount":0,"droppedCount":0,"createdAt":"2026-11-21T10:00:00Z","createdBy":"kim"}`

const endpointJSON = `{"id":"3","kind":"WEBHOOK","url":"https://crm.example/in","events":["promotion.completed","coupon.used"],"enabled":false,"state":"DISABLED","disabledReason":"FAILING",
	"failedAttempts":12,"lastError":"no\u001b route","pendingCount":1500,"droppedCount":0,"createdAt":"2026-11-21T10:00:00Z","createdBy":"kim"}`

const deliveryJSON = `{"id":"71","messageId":"msg_71_1","endpointId":"3","event":"coupon.used","at":"2026-11-21T10:00:00Z","couponId":"9","state":"ABANDONED",
	"attempts":[{"number":1,"at":"2026-11-21T10:00:01Z","status":500,"millis":7,"error":"status 500"},{"number":2,"at":"2026-11-21T10:00:06Z","millis":10000,"error":"timeout"}]}`

func TestWebhookCommands(t *testing.T) {
	t.Parallel()
	const endpoints = "/v1/webhook-endpoints"
	secret := strings.Replace(endpointJSON, `"id"`, `"secret":"whsec_x","previousSecretUntil":"2026-11-22T10:00:00Z","id"`, 1)
	env, asked := fakeServer(t, map[string]answer{
		"POST " + endpoints:                                            {201, secret},
		"GET " + endpoints:                                             {body: `{"items":[` + endpointJSON + `]}`},
		"GET " + endpoints + "/3":                                      {body: endpointJSON},
		"PATCH " + endpoints + "/3":                                    {body: endpointJSON},
		"PATCH " + endpoints + "/5":                                    {body: peopleJSON},
		"PATCH " + endpoints + "/4":                                    {body: strings.Replace(endpointJSON, `"id"`, `"secret":"whsec_y","id"`, 1)},
		"DELETE " + endpoints + "/3":                                   {status: 204},
		"POST " + endpoints + "/3/rotate-secret":                       {body: secret},
		"POST " + endpoints + "/3/test":                                {202, deliveryJSON},
		"GET " + endpoints + "/3/deliveries?limit=200&state=ABANDONED": {body: `{"items":[` + deliveryJSON + `]}`},
		"POST " + endpoints + "/3/deliveries/71/resend":                {202, strings.Replace(deliveryJSON, "ABANDONED", "PENDING", 1)},
		"POST " + endpoints + "/3/deliveries/72/resend":                {404, `{"code":"DELIVERY_NOT_FOUND","detail":"no"}`},
	})
	wantRuns(t, env, "webhook", "", []wantedRun{
		{[]string{"create", "--url", "https://crm.example/in", "--events", "promotion.completed,coupon.used", "--description", "CRM", "--disabled"}, result{
			exitDone, "whsec_x\n", "This is the secret of webhook endpoint 3. It is not shown again: give it to the receiver, which verifies deliveries with it.\n",
		}},
		{[]string{"update", "5", "--to", "kim@example.com", "--language", "en"}, result{exitDone, "webhook endpoint 5 is ACTIVE\n", ""}},
		{[]string{"list"}, result{exitDone, "ID  STATE     PENDING  DELIVERED  URL                     EVENTS                           DESCRIPTION\n" +
			"3   DISABLED  1,500               https://crm.example/in  promotion.completed coupon.used\n", ""}},
		{[]string{"show", "3"}, result{exitDone, `id                3
url               https://crm.example/in
events            promotion.completed coupon.used
state             DISABLED
disabled because  FAILING
failed attempts   12
last error        no` + "\uFFFD" + ` route
pending           1,500
created           2026-11-21 10:00:00Z
created by        kim
`, ""}},
		{[]string{"update", "3", "--enable", "--events", "coupon.used"}, result{exitDone, "webhook endpoint 3 is DISABLED\n", ""}},
		{[]string{"update", "3", "--disable", "--url", "https://x", "--description", ""}, result{exitDone, "webhook endpoint 3 is DISABLED\n", ""}},
		{[]string{"update", "4", "--url", "https://y"}, result{
			exitDone, "whsec_y\n", "The URL of webhook endpoint 3 has changed, and this is its new secret; the previous one is not valid any more. " +
				"It is not shown again: give it to the receiver, which verifies deliveries with it.\n",
		}},
		{[]string{"delete", "3"}, result{exitWrongUse, "", "largesse: this would delete webhook endpoint 3 (https://crm.example/in) with its deliveries, 1,500 of them pending; add --yes to confirm\n"}},
		{[]string{"delete", "3", "--yes"}, result{exitDone, "webhook endpoint 3 is deleted\n", ""}},
		{[]string{"rotate-secret", "3"}, result{exitWrongUse, "", "largesse: this would replace the secret of webhook endpoint 3; the present one ends in 24 hours; add --yes to confirm\n"}},
		{[]string{"rotate-secret", "3", "--yes"}, result{
			exitDone, "whsec_x\n",
			"This is the new secret of webhook endpoint 3; the previous one is valid until 2026-11-22 10:00:00Z. It is not shown again: give it to the receiver, which verifies deliveries with it.\n",
		}},
		{[]string{"test", "3"}, result{exitDone, "delivery 71 of coupon.used is ABANDONED; see: largesse webhook deliveries 3\n", ""}},
		{[]string{"deliveries", "3", "--state", "abandoned"}, result{exitDone, "ID  EVENT        OF        AT                    STATE      ATTEMPTS  NEXT ATTEMPT  LAST RESULT\n" +
			"71  coupon.used  coupon 9  2026-11-21 10:00:00Z  ABANDONED  2                       no response after 10000 ms: timeout\n", ""}},
		{[]string{"resend", "3", "71"}, result{exitDone, "delivery 71 of coupon.used is PENDING; see: largesse webhook deliveries 3\n", ""}},
		{[]string{"resend", "3", "72"}, result{exitFailed, "", "largesse: no (DELIVERY_NOT_FOUND); see largesse webhook deliveries --help\n"}},
	})
	want := []string{
		"POST " + endpoints + ` {"url":"https://crm.example/in","events":["promotion.completed","coupon.used"],"description":"CRM","enabled":false}`,
		"PATCH " + endpoints + `/5 {"to":["kim@example.com"],"language":"en"}`,
		"GET " + endpoints, "GET " + endpoints + "/3",
		"PATCH " + endpoints + `/3 {"events":["coupon.used"],"enabled":true}`,
		"PATCH " + endpoints + `/3 {"url":"https://x","description":"","enabled":false}`,
		"PATCH " + endpoints + `/4 {"url":"https://y"}`,
		"GET " + endpoints + "/3", "DELETE " + endpoints + "/3", "POST " + endpoints + "/3/rotate-secret", "POST " + endpoints + "/3/test",
		"GET " + endpoints + "/3/deliveries?limit=200&state=ABANDONED",
		"POST " + endpoints + "/3/deliveries/71/resend", "POST " + endpoints + "/3/deliveries/72/resend",
	}
	fixture.Equal(t, want, asked())
	wantWrongUse(t, nil, "webhook", []wrongRun{
		{[]string{"create", "--events", "coupon.used"}, "--url is missing"},
		{[]string{"create", "--kind", "sms"}, `--kind "sms" must be one of webhook, slack, email`},
		{[]string{"create", "--url", "https://x"}, "--events is missing: name at least one of promotion.started"},
		{[]string{"create", "--url", "https://x", "--events", "coupon.gone"}, `--events "coupon.gone" must be one of promotion.started`},
		{[]string{"update", "3"}, "needs at least one flag"},
		{[]string{"update", "3", "--enable", "--disable"}, "use only one of --enable and --disable"},
		{[]string{"update", "3", "--events", ""}, "--events must name at least one event"},
		{[]string{"show", "x"}, `"x" is not an ID`},
		{[]string{"resend", "3"}, "needs a webhook endpoint ID and a delivery ID"},
		{[]string{"deliveries", "3", "--state", "lost"}, `--state "lost" must be one of pending`},
	})
}

func TestWebhookCommandsForPeople(t *testing.T) {
	t.Parallel()
	const endpoints = "/v1/webhook-endpoints"
	env, asked := fakeServer(t, map[string]answer{
		"POST " + endpoints: {201, peopleJSON}, "GET " + endpoints: {body: `{"items":[` + peopleJSON + `]}`}, "GET " + endpoints + "/5": {body: peopleJSON},
	})
	wantRuns(t, env, "webhook", "", []wantedRun{
		{[]string{"create", "--kind", "email", "--to", "kim@example.com,lee@example.com", "--language", "ko", "--events", "balance.breach"}, result{
			exitDone, "webhook endpoint 5 is ACTIVE; see: largesse webhook test 5\n", "",
		}},
		{[]string{"create", "--kind", "slack", "--events", "balance.breach"}, result{exitDone, "webhook endpoint 5 is ACTIVE; see: largesse webhook test 5\n", ""}},
		{[]string{"list"}, result{exitDone, "ID  STATE   PENDING  DELIVERED  URL                              EVENTS          DESCRIPTION\n" +
			"5   ACTIVE  0                   kim@example.com lee@example.com  balance.breach\n", ""}},
		{[]string{"show", "5"}, result{exitDone, `id          5
kind        EMAIL
to          kim@example.com lee@example.com
language    ko
events      balance.breach
state       ACTIVE
pending     0
created     2026-11-21 10:00:00Z
created by  kim
`, ""}},
	})
	fixture.Equal(t, []string{
		"POST " + endpoints + ` {"kind":"EMAIL","to":["kim@example.com","lee@example.com"],"language":"ko","events":["balance.breach"]}`,
		"POST " + endpoints + ` {"kind":"SLACK","events":["balance.breach"]}`,
		"GET " + endpoints, "GET " + endpoints + "/5",
	}, asked())
}
