package main

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/lab/fixture"
)

const couponJSON = `{"id":"2","code":"C-2","templateId":"42","userId":"u7","ticket":1005,"status":"ISSUED","issuedAt":"2026-11-21T10:00:00Z","expiresAt":"2026-11-22T10:00:00Z"}`

const heldJSON = `{"id":"3","code":"C-3","templateId":"42","userId":"u8","ticket":1006,"status":"HELD","issuedAt":"2026-11-21T10:00:00Z","heldUntil":"2026-11-21T10:15:00Z","expiresAt":"2026-11-22T10:00:00Z"}`

func TestCouponIssue(t *testing.T) {
	t.Parallel()
	const uri = "POST /v1/coupons/42/issue"
	// The next command only reads: with a limit above 1, another request could get a second coupon.
	const again = "; to learn the outcome: largesse coupon status 42 --user u7\n"
	for _, tt := range []struct {
		name   string
		answer answer
		want   result
	}{
		{"Issued", answer{201, `{"requestId":"42:u7","status":"ISSUED","coupon":` + couponJSON + `}`}, result{exitDone, "user u7 has coupon 2 with code C-2\n", ""}},
		{
			"Held",
			answer{201, `{"requestId":"42:u7","status":"ISSUED","coupon":{"id":"2","code":"C-2","userId":"u7","status":"HELD","heldUntil":"2026-11-21T10:05:00Z"}}`},
			result{exitDone, "user u7 has coupon 2 with code C-2; it is held until 2026-11-21 10:05:00Z, confirm it with: largesse coupon confirm 2\n", ""},
		},
		{
			"HadBefore",
			answer{200, `{"requestId":"42:u7","status":"ISSUED","coupon":` + couponJSON + `,"duplicate":true}`},
			result{exitDone, "user u7 has coupon 2 with code C-2, from an earlier request\n", ""},
		},
		{
			"Waits",
			answer{202, `{"requestId":"42:u7","status":"WAITING","ticket":981,"queueRank":1200,"estimatedWaitMillis":2345}`},
			result{exitDone, "user u7 waits with ticket 981, 1,200 people ahead, about 2.3s left" + again, ""},
		},
		{"IsNextButOne", answer{202, `{"status":"WAITING","ticket":9,"queueRank":1}`}, result{exitDone, "user u7 waits with ticket 9, 1 person ahead" + again, ""}},
		{"IsDrawn", answer{202, `{"requestId":"42:u7","status":"WAITING"}`}, result{exitDone, "user u7 takes part in the draw" + again, ""}},
		{
			"SoldOut",
			answer{409, `{"code":"SOLD_OUT","detail":"every coupon is taken"}`},
			result{exitFailed, "", "largesse: every coupon is taken (SOLD_OUT)\n"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			env, asked := fakeServer(t, map[string]answer{uri: tt.answer})
			r := largesseRun(t.Context(), "", env, "coupon", "issue", "42", "--user", "u7", "--wait", "1s")
			fixture.Equal(t, tt.want, r, cmp.AllowUnexported(result{}))
			fixture.Equal(t, []string{uri + ` {"userId":"u7"}`}, asked())
		})
	}
	if got := shellWord("u7:a/b@c") + shellWord("o'x y"); got != `u7:a/b@c'o'\''x y'` {
		t.Errorf("a shell would read %s", got)
	}
	env, _ := fakeServer(t, map[string]answer{uri: {202, `{"requestId":"42:u7","status":"WAITING","ticket":981,"queueRank":0}`}})
	r := largesseRun(t.Context(), "", env, "coupon", "issue", "42", "--user", "u7", "--output", "json")
	var out client.IssueRequest
	if err := json.Unmarshal([]byte(r.stdout), &out); err != nil || r.code != exitDone || out.Ticket != 981 || out.QueueRank == nil {
		t.Errorf("%v: %+v", err, r)
	}
}

func TestCouponStatus(t *testing.T) {
	t.Parallel()
	env, _ := fakeServer(t, map[string]answer{
		"GET /v1/issue-requests/42:u7": {body: `{"requestId":"42:u7","status":"ISSUED","coupon":` + couponJSON + `}`},
		"GET /v1/issue-requests/42:u8": {body: `{"requestId":"42:u8","status":"WAITING","ticket":9,"queueRank":1}`},
		"GET /v1/issue-requests/42:u9": {body: `{"requestId":"42:u9","status":"REJECTED","reason":"NOT_DRAWN"}`},
		"GET /v1/issue-requests/42:u0": {body: `{"requestId":"42:u0","status":"LEFT","ticket":3}`},
		"GET /v1/issue-requests/42:u1": {404, `{"code":"REQUEST_UNKNOWN","detail":"no request is known"}`},
	})
	wantRuns(t, env, "coupon status 42", "", []wantedRun{
		{[]string{"--user", "u7"}, result{exitDone, "user u7 has coupon 2 with code C-2\n", ""}},
		{[]string{"--user", "u8"}, result{exitDone, "user u8 waits with ticket 9, 1 person ahead; to learn the outcome: largesse coupon status 42 --user u8\n", ""}},
		{[]string{"--user", "u9"}, result{exitDone, "user u9 was rejected with NOT_DRAWN; request again with: largesse coupon issue 42 --user u9\n", ""}},
		{[]string{"--user", "u0"}, result{exitDone, "user u0 left the line; request again with: largesse coupon issue 42 --user u0\n", ""}},
		{[]string{"--user", "u1"}, result{exitFailed, "", "largesse: no request is known (REQUEST_UNKNOWN)\n"}},
		{[]string{"--user", ""}, result{exitWrongUse, "", "largesse: --user is missing: name the user who requested the coupon; see largesse coupon status --help\n"}},
	})
}

func TestCouponCalls(t *testing.T) {
	t.Parallel()
	env, asked := fakeServer(t, map[string]answer{
		"GET /v1/coupons/2":                             {body: couponJSON},
		"POST /v1/coupons/2/confirm":                    {body: `{"id":"2","status":"ISSUED"}`},
		"POST /v1/coupons/2/use":                        {body: `{"id":"2","status":"USED"}`},
		"POST /v1/coupons/2/cancel":                     {409, `{"code":"COUPON_USED","detail":"coupon 2 is USED"}`},
		"GET /v1/coupon-templates/42/coupons?limit=200": {body: `{"items":[` + couponJSON + `,` + heldJSON + `]}`},
		"GET /v1/coupon-templates/42/coupons?limit=200&sort=-ticket&status=HELD": {body: `{"items":[` + heldJSON + `]}`},
		"GET /v1/coupon-templates/42/coupons?sort=-ticket":                       {body: "id\n3\n2\n"},
		"GET /v1/coupons?code=C-2":                                               {body: `{"items":[` + couponJSON + `,` + heldJSON + `]}`},
		"GET /v1/users/u%2F7/coupons?limit=200":                                  {body: `{"items":[]}`},
	})
	wantRuns(t, env, "coupon", "", []wantedRun{
		{[]string{"show", "2"}, result{exitDone, `id        2
code      C-2
template  42
user      u7
ticket    1,005
status    ISSUED
issued    2026-11-21 10:00:00Z
expires   2026-11-22 10:00:00Z
`, ""}},
		{[]string{"confirm", "2"}, result{exitDone, "coupon 2 is ISSUED\n", ""}},
		{[]string{"use", "2"}, result{exitDone, "coupon 2 is USED\n", ""}},
		{[]string{"cancel", "2", "--yes"}, result{exitFailed, "", "largesse: coupon 2 is USED (COUPON_USED)\n"}},
		{[]string{"list", "--template", "42"}, result{exitDone, "ID  TEMPLATE  USER  TICKET  STATUS  CODE  ISSUED                HELD UNTIL            EXPIRES\n" +
			"2   42        u7    1,005   ISSUED  C-2   2026-11-21 10:00:00Z                        2026-11-22 10:00:00Z\n" +
			"3   42        u8    1,006   HELD    C-3   2026-11-21 10:00:00Z  2026-11-21 10:15:00Z  2026-11-22 10:00:00Z\n", ""}},
		{[]string{"list", "--template", "42", "--status", "held", "--sort=-ticket"}, result{exitDone, "ID  TEMPLATE  USER  TICKET  STATUS  CODE  ISSUED                HELD UNTIL            EXPIRES\n" +
			"3   42        u8    1,006   HELD    C-3   2026-11-21 10:00:00Z  2026-11-21 10:15:00Z  2026-11-22 10:00:00Z\n", ""}},
		{[]string{"list", "--template", "42", "--sort=-ticket", "--csv"}, result{exitDone, "id\n3\n2\n", ""}},
		{[]string{"list", "--code", "C-2"}, result{exitDone, "ID  TEMPLATE  USER  TICKET  STATUS  CODE  ISSUED                HELD UNTIL            EXPIRES\n" +
			"2   42        u7    1,005   ISSUED  C-2   2026-11-21 10:00:00Z                        2026-11-22 10:00:00Z\n" +
			"3   42        u8    1,006   HELD    C-3   2026-11-21 10:00:00Z  2026-11-21 10:15:00Z  2026-11-22 10:00:00Z\n", ""}},
		{[]string{"list", "--user", "u/7"}, result{exitDone, "", "there are no coupons\n"}},
	})
	if n := len(asked()); n != 9 {
		t.Errorf("%d requests", n)
	}
}

func TestCouponCancelMany(t *testing.T) {
	t.Parallel()
	const uri = "POST /v1/coupon-templates/42/coupons/cancel"
	env, asked := fakeServer(t, map[string]answer{uri: {body: `{"cancelled":1200,"alreadyCancelled":1,"used":2,"expired":0,"notFound":[]}`}})
	done := result{exitDone, "1,200 coupons cancelled, 1 cancelled before, 2 used\n", ""}
	files := t.TempDir()
	file := func(text string) string {
		path := filepath.Join(files, fmt.Sprintf("%x", sha256.Sum256([]byte(text))))
		fixture.OK(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	wantRuns(t, env, "coupon cancel --yes --template 42", "7\n", []wantedRun{
		{[]string{"5", "6"}, done},
		{[]string{"--file", file("\ufeffid,ticket\r\n5,1\r\n\r\n6,2\r\n")}, done},
		{[]string{"--file", file("ticket,id\n1,5\n2, 6\n")}, done},
		{[]string{"--file", "-"}, done},
	})
	both := uri + ` {"ids":["5","6"]}`
	fixture.Equal(t, []string{both, both, both, uri + ` {"ids":["7"]}`}, asked())
	for text, want := range map[string]string{
		"":               "it has no IDs",
		"code\nA\n":      `its first line has neither an ID nor a column id: "code"`,
		"id\n5\nfive\n":  `line 3: "five" is not a coupon ID`,
		"x,id\n1,5\n2\n": "line 3 has no ID",
	} {
		if r := largesseRun(t.Context(), "", env, "coupon", "cancel", "--template", "42", "--file", file(text), "--yes"); r.code == exitDone || !strings.Contains(r.stderr, want) {
			t.Errorf("%q: %+v", text, r)
		}
	}
	wantWrongUse(t, env, "coupon cancel", []wrongRun{
		{nil, "needs a coupon ID"},
		{[]string{"5", "6"}, "--template is missing"},
		{[]string{"--file", "x"}, "--template is missing"},
		{[]string{"5", "x", "--template", "42"}, `"x" is not a coupon ID`},
		{[]string{"5", "--template", "42", "--file", "x"}, "given twice"},
		{[]string{"5", "--template", "42"}, "this would cancel 1 coupon of template 42 permanently; add --yes"},
	})
	env, asked = fakeServer(t, map[string]answer{uri: {body: `{"cancelled":999,"alreadyCancelled":0,"used":0,"expired":0,"notFound":["5"]}`}})
	r := largesseRun(t.Context(), strings.Repeat("5\n", cancelBatch+1), env, "coupon", "cancel", "--template", "42", "--file", "-", "--yes")
	want := result{exitFailed, "1,998 coupons cancelled\n", "largesse: template 42 does not have 2 of the coupons, for example 5; see largesse coupon list --template 42\n"}
	fixture.Equal(t, want, r, cmp.AllowUnexported(result{}))
	fixture.Equal(t, 2, len(asked()))
}

func TestUserHistory(t *testing.T) {
	t.Parallel()
	const uri = "GET /v1/users/u7/history?templateId=42&templateId=43"
	env, _ := fakeServer(t, map[string]answer{
		"GET /v1/users/u7/history": {body: `{"userId":"u7","items":[],"refusals":[]}`},
		uri: {body: `{"userId":"u7","items":[
			{"requestId":"42:u7","templateId":"42","ticket":1012,"status":"REJECTED","reason":"SOLD_OUT","at":"2026-11-21T11:00:00Z"},
			{"requestId":"42:u7","templateId":"42","ticket":5,"status":"ISSUED","coupon":` + couponJSON + `,"at":"2026-11-21T10:00:00Z"},
			{"requestId":"42:u7","templateId":"42","ticket":4,"status":"ISSUED","coupon":{"id":"1","status":"CANCELLED","reason":"HOLD_EXPIRED"},"at":"2026-11-21T09:00:00Z"}],
			"refusals":[{"templateId":"43","reason":"CLOSED","since":"2026-11-21T12:00:00Z"},
			{"templateId":"43","reason":"SOLD_OUT","since":"2026-11-21T10:00:00Z","until":"2026-11-21T11:00:00Z"}]}`},
	})
	r := largesseRun(t.Context(), "", env, "user", "history", "u7", "--template", "42,43")
	want := "AT                    TEMPLATE  TICKET  STATUS    REASON    COUPON  COUPON STATUS\n" +
		"2026-11-21 11:00:00Z  42        1,012   REJECTED  SOLD_OUT\n" +
		"2026-11-21 10:00:00Z  42        5       ISSUED              2       ISSUED\n" +
		"2026-11-21 09:00:00Z  42        4       ISSUED              1       CANCELLED (HOLD_EXPIRED)\n" +
		"template 43 was CLOSED for everyone from 2026-11-21 12:00:00Z until now\n" +
		"template 43 was SOLD_OUT for everyone from 2026-11-21 10:00:00Z until 2026-11-21 11:00:00Z\n"
	const nothing = "user u7 has no payouts\n"
	fixture.Equal(t, result{exitDone, want, "template 42 has no record that it refused everyone\n" + nothing}, r, cmp.AllowUnexported(result{}))
	r = largesseRun(t.Context(), "", env, "user", "history", "u7")
	if r.code != exitDone || r.stdout != "" || r.stderr != "user u7 has no settled coupon request; with --template ID, this also shows when that template refused everyone\n"+nothing {
		t.Errorf("%+v", r)
	}
	var out client.History
	r = largesseRun(t.Context(), "", env, "user", "history", "u7", "--template", "42", "--template", "43", "--output", "json")
	if err := json.Unmarshal([]byte(r.stdout), &out); err != nil || len(out.Items) != 3 || len(out.Refusals) != 2 {
		t.Errorf("%v: %+v", err, r)
	}
}

func TestReconcileTemplate(t *testing.T) {
	t.Parallel()
	const uri = "POST /v1/reconciliations"
	env, asked := fakeServer(t, map[string]answer{uri: {201, `{"id":"9","checked":1,"drifts":[{"templateId":"42","what":"stock","detail":"4 and 5","repaired":true}]}`}})
	r := largesseRun(t.Context(), "", env, "reconcile", "--template", "42", "--repair", "--yes")
	want := result{exitDone, "OF           WHAT   REPAIRED  DETAIL\ntemplate 42  stock  yes       4 and 5\n1 template compared, 1 difference\n", ""}
	fixture.Equal(t, want, r, cmp.AllowUnexported(result{}))
	fixture.Equal(t, []string{uri + ` {"templateId":"42","repair":true}`}, asked())
}
