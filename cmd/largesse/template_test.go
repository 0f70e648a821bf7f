package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/lab/fixture"
)

const templateJSON = `{"id":"42","name":"Spring","totalQuantity":10000,"perUserLimit":1,"opensAt":"2026-11-21T10:00:00Z","validForSeconds":3600,"mode":"STREAM",
	"reissueAfterCancel":true,"whenRedisAway":"DATABASE","path":"GATE","createdAt":"2026-11-21T09:00:00Z",
	"counters":{"totalQuantity":10000,"stock":6000,"count":3000,"issuedTotal":3001,"waiting":1000}}`

func TestTemplateCreate(t *testing.T) {
	t.Parallel()
	env, asked := fakeServer(t, map[string]answer{"POST /v1/coupon-templates": {201, templateJSON}})
	const done = "template 42 has 10,000 coupons and opens at 2026-11-21 10:00:00Z; watch it with: largesse template watch 42\n"
	for _, more := range [][]string{
		nil,
		{
			"--id", "42", "--per-user", "2", "--opens", "2026-11-21T10:00:00Z", "--closes", "2026-11-22T10:00:00+09:00", "--valid-for", "30d", "--hold", "10m",
			"--code-prefix", "X-", "--code-length", "9", "--code-alphabet", "0123456789",
			"--mode", "Kafka", "--draw-from", "2026-11-20T10:00:00Z", "--when-redis-away", "wait", "--reissue-after-cancel=false",
		},
	} {
		r := largesseRun(t.Context(), "", env, append([]string{"template", "create", "--name", "Spring", "--quantity", "10000"}, more...)...)
		if r != (result{exitDone, done, ""}) {
			t.Errorf("%+v", r)
		}
	}
	want := []string{
		`POST /v1/coupon-templates {"name":"Spring","totalQuantity":10000}`,
		`POST /v1/coupon-templates {"id":"42","name":"Spring","totalQuantity":10000,"perUserLimit":2,"opensAt":"2026-11-21T10:00:00Z","closesAt":"2026-11-22T10:00:00+09:00",` +
			`"validForSeconds":2592000,"holdSeconds":600,"mode":"KAFKA","reissueAfterCancel":false,"whenRedisAway":"WAIT","codes":{"prefix":"X-","length":9,"alphabet":"0123456789"},"draw":{"from":"2026-11-20T10:00:00Z"}}`,
	}
	fixture.Equal(t, want, asked())
}

func TestTemplateSetAndClose(t *testing.T) {
	t.Parallel()
	env, asked := fakeServer(t, map[string]answer{
		"PATCH /v1/coupon-templates/42":      {body: templateJSON},
		"POST /v1/coupon-templates/42/close": {body: templateJSON},

		"POST /v1/coupon-templates/42/release-places": {body: `{"released":7}`},
	})
	changed := result{exitDone, "template 42 is changed; show it with: largesse template show 42\n", ""}
	wantRuns(t, env, "template", "", []wantedRun{
		{[]string{"set", "42", "--quantity", "20000", "--name", "N", "--per-user", "3", "--mode", "sync", "--when-redis-away", "Wait", "--reissue-after-cancel"}, changed},
		{[]string{"set", "42", "--opens", "none", "--closes", "2026-11-21T10:00:00Z", "--valid-for", "1h", "--hold", "10m"}, changed},
		{[]string{"set", "42", "--closes", "none", "--valid-for", "0", "--hold", "0"}, changed},
		{[]string{"set", "42", "--metadata", "shop=paris", "--metadata", "season"}, changed},
		{[]string{"close", "42", "--yes"}, result{exitDone, "template 42 is closed; 1,000 people in line will still be served\n", ""}},
		{[]string{"release-places", "42", "--yes"}, result{exitDone, "7 places of template 42 released\n", ""}},
	})
	if r := largesseRun(t.Context(), "", env, "template", "release-places", "42"); r.code != exitWrongUse || !strings.Contains(r.stderr, "if Redis comes back") {
		t.Errorf("without --yes: %+v", r)
	}
	var out client.Template
	r := largesseRun(t.Context(), "", env, "template", "close", "42", "--yes", "--output", "json")
	if err := json.Unmarshal([]byte(r.stdout), &out); err != nil || out.Counters.Waiting != 1000 {
		t.Errorf("%v: %+v", err, r)
	}
	want := []string{
		`PATCH /v1/coupon-templates/42 {"name":"N","totalQuantity":20000,"perUserLimit":3,"mode":"SYNC","reissueAfterCancel":true,"whenRedisAway":"WAIT"}`,
		`PATCH /v1/coupon-templates/42 {"opensAt":null,"closesAt":"2026-11-21T10:00:00Z","validForSeconds":3600,"holdSeconds":600}`,
		`PATCH /v1/coupon-templates/42 {"closesAt":null,"validForSeconds":null,"holdSeconds":null}`,
		`PATCH /v1/coupon-templates/42 {"metadata":{"season":null,"shop":"paris"}}`,
		"POST /v1/coupon-templates/42/close", "POST /v1/coupon-templates/42/release-places", "POST /v1/coupon-templates/42/close",
	}
	fixture.Equal(t, want, asked())
}

func TestTemplateApprovals(t *testing.T) {
	t.Parallel()
	waiting := strings.Replace(templateJSON, `"perUserLimit"`, `"awaitingQuantity":1000000,"perUserLimit"`, 1)
	env, asked := fakeServer(t, map[string]answer{
		"POST /v1/coupon-templates": {201, waiting}, "PATCH /v1/coupon-templates/42": {body: waiting}, "GET /v1/coupon-templates/42": {body: waiting},
		"POST /v1/coupon-templates/42/approve": {body: strings.Replace(templateJSON, "10000", "1000000", 1)}, "POST /v1/coupon-templates/42/reject": {body: templateJSON},
	})
	const waits = "its quantity is 10,000 until another person approves 1,000,000: largesse template approve 42\n"
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"create", "--name", "Spring", "--quantity", "1000000"}, waits},
		{[]string{"set", "42", "--quantity", "1000000"}, waits},
		{[]string{"show", "42"}, "  awaiting approval    1,000,000\n"},
		{[]string{"approve", "42", "--yes"}, "approved: template 42 has 1,000,000 coupons\n"},
		{[]string{"approve", "42", "--yes", "--output", "json"}, `"totalQuantity": 1000000`},
		{[]string{"reject", "42"}, "rejected: template 42 has 10,000 coupons\n"},
	} {
		if r := largesseRun(t.Context(), "", env, append([]string{"template"}, tt.args...)...); r.code != exitDone || !strings.Contains(r.stdout, tt.want) {
			t.Errorf("%v: %+v", tt.args, r)
		}
	}
	if calls := strings.Join(asked(), "\n"); !strings.Contains(calls, "POST /v1/coupon-templates/42/approve") || !strings.Contains(calls, "POST /v1/coupon-templates/42/reject") {
		t.Error(calls)
	}
}

func TestTemplateMetadata(t *testing.T) {
	t.Parallel()
	env, asked := fakeServer(t, map[string]answer{
		"POST /v1/coupon-templates":   {201, templateJSON},
		"GET /v1/coupon-templates/42": {body: `{"id":"42","metadata":{"shop":"paris\u001b"}}`},
		"GET /v1/coupon-templates?limit=200": {body: `{"items":[{"id":"1","metadata":{"shop":"paris","season":"x"}},{"id":"2","metadata":{"shop":"rome"}},{"id":"3"},
			{"id":"4","metadata":{"shop":"paris"}}]}`},
	})
	run := func(args ...string) result {
		return largesseRun(t.Context(), "", env, append([]string{"template"}, args...)...)
	}
	if r := run("create", "--name", "S", "--quantity", "5", "--metadata", "shop=paris"); r.code != exitDone {
		t.Errorf("%+v", r)
	}
	if r := run("show", "42"); !strings.Contains(r.stdout, "metadata shop         paris\uFFFD\n") {
		t.Errorf("%+v", r)
	}
	for want, args := range map[string][]string{"1 4": {"--metadata", "shop=paris"}, "1": {"--metadata", "shop=paris", "--metadata", "season=x"}, "": {"--metadata", "season="}} {
		var found []client.Template
		r := run(append([]string{"list", "--output", "json"}, args...)...)
		err := json.Unmarshal([]byte(r.stdout), &found)
		ids := make([]string, len(found))
		for i, one := range found {
			ids[i] = one.ID
		}
		if got := strings.Join(ids, " "); err != nil || got != want {
			t.Errorf("%v: %q, %v", args, got, err)
		}
	}
	for _, args := range [][]string{{"list", "--metadata", "shop"}, {"create", "--name", "S", "--quantity", "5", "--metadata", "shop"}, {"set", "42", "--metadata", "=x"}} {
		if r := run(args...); r.code != exitWrongUse || !strings.Contains(r.stderr, "--metadata") {
			t.Errorf("%v: %+v", args, r)
		}
	}
	if requests := asked(); !strings.Contains(requests[0], `"metadata":{"shop":"paris"}`) {
		t.Errorf("%q", requests)
	}
}

func TestTemplateShowAndList(t *testing.T) {
	t.Parallel()
	opened := strings.Replace(templateJSON, "2026-11-21T10:00:00Z", "2020-11-21T10:00:00Z", 1)
	drawn := strings.Replace(opened, `"path":"GATE"`, `"path":"DATABASE","degraded":["gate"],"closesAt":"2020-11-22T10:00:00Z",
		"draw":{"from":"2020-11-20T10:00:00Z","state":"DONE","commitment":"ab","seed":"cd","listHash":"ef"}`, 1)
	env, _ := fakeServer(t, map[string]answer{
		"GET /v1/coupon-templates/42":        {body: drawn},
		"GET /v1/coupon-templates?limit=200": {body: `{"items":[` + opened + `,` + drawn + `]}`},
	})
	r := largesseRun(t.Context(), "", env, "template", "show", "42")
	want := `id                     42
name                   Spring
state                  CLOSED
mode                   STREAM
opens                  2020-11-21 10:00:00Z
closes                 2020-11-22 10:00:00Z
quantity               10,000
  live                 3,000
  waiting              ?
  stock                6,000
ever issued            3,001
per user               1
coupons valid for      1h0m0s
reissue after cancel   yes
during a Redis outage  DATABASE
path                   DATABASE
unknown                waiting users: the gate does not answer
draw                   DONE, for users who enter from 2020-11-20 10:00:00Z
  commitment           ab
  seed                 cd
  list hash            ef
created                2026-11-21 09:00:00Z
`
	fixture.Equal(t, result{exitDone, want, ""}, r, cmp.AllowUnexported(result{}))
	r = largesseRun(t.Context(), "", env, "template", "list")
	want = "ID  NAME    STATE   MODE    QUANTITY  LIVE   WAITING  STOCK  OPENS                 CLOSES\n" +
		"42  Spring  OPEN    STREAM  10,000    3,000  1,000    6,000  2020-11-21 10:00:00Z\n" +
		"42  Spring  CLOSED  STREAM  10,000    3,000  ?        6,000  2020-11-21 10:00:00Z  2020-11-22 10:00:00Z\n"
	fixture.Equal(t, result{exitDone, want, ""}, r, cmp.AllowUnexported(result{}))
}

func TestTemplateState(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
	at := func(d time.Duration) *time.Time { x := now.Add(d); return &x }
	for _, tt := range []struct {
		want          string
		opens, closes *time.Time
		stock         int64
		codes         *client.ImportedCodes
	}{
		{"OPEN", nil, nil, 1, nil},
		{"OPEN", at(0), at(time.Nanosecond), 1, nil},
		{"OPEN", nil, nil, 1, &client.ImportedCodes{Left: 1, Missing: 2}},
		{"SOLD OUT", at(-time.Hour), at(time.Hour), 0, nil},
		{"SOLD OUT", nil, nil, 0, &client.ImportedCodes{Imported: 5}},
		{"OUT OF CODES", nil, nil, 0, &client.ImportedCodes{Imported: 5, Missing: 2}},
		{"NOT OPEN", at(time.Nanosecond), nil, 1, nil},
		{"CLOSED", nil, at(0), 1, nil},
		{"CLOSED", at(-time.Hour), at(-time.Minute), 0, nil},
	} {
		out := client.Template{OpensAt: tt.opens, ClosesAt: tt.closes, ImportedCodes: tt.codes, Counters: client.TemplateCounters{Stock: tt.stock}}
		if got := templateState(out, now); got != tt.want {
			t.Errorf("%+v: %s", tt, got)
		}
	}
}

func TestTemplateEntrants(t *testing.T) {
	t.Parallel()
	env, asked := fakeServer(t, map[string]answer{
		"GET /v1/coupon-templates/42/entrants?limit=200":          {body: `{"items":[{"userId":"a\tb"},{"userId":"u,7"}],"nextCursor":"c"}`},
		"GET /v1/coupon-templates/42/entrants?cursor=c&limit=200": {body: `{"items":[{"userId":"ü 8"}]}`},
		"GET /v1/coupon-templates/43/entrants?limit=200":          {body: `{"items":[]}`},
		"GET /v1/coupon-templates/44/entrants?limit=200":          {409, `{"code":"ILLEGAL_STATE","detail":"the draw is OPEN"}`},
	})
	wantRuns(t, env, "template entrants", "", []wantedRun{
		{[]string{"42"}, result{exitDone, "a b\nu,7\nü 8\n", ""}},
		{[]string{"42", "--output", "json"}, result{exitDone, "[\n  \"a\\tb\",\n  \"u,7\",\n  \"ü 8\"\n]\n", ""}},
		{[]string{"43"}, result{exitDone, "", "the draw has no entrants\n"}},
		{[]string{"43", "--output", "json"}, result{exitDone, "[]\n", ""}},
		{[]string{"44"}, result{exitFailed, "", "largesse: the draw is OPEN (ILLEGAL_STATE)\n"}},
	})
	if n := len(asked()); n != 7 {
		t.Errorf("%d requests", n)
	}
}

func TestTemplateCodes(t *testing.T) {
	t.Parallel()
	env, asked := fakeServer(t, map[string]answer{
		"POST /v1/coupon-templates/42/codes": {body: `{"accepted":2,"firstCode":"A","lastCode":"B","importedCodes":{"imported":1002,"left":2,"missing":0},"totalQuantity":9}`},
		"POST /v1/coupon-templates/43/codes": {body: `{"accepted":1,"firstCode":"A","lastCode":"A","importedCodes":{"imported":1,"left":1,"missing":2},"totalQuantity":1,"awaitingQuantity":3}`},
		"POST /v1/coupon-templates/44/codes": {422, `{"code":"BAD_CODES","detail":"line 2: code \"A\" appears twice"}`},
	})
	dir := t.TempDir()
	file := filepath.Join(dir, "codes.csv")
	fixture.OK(t, os.WriteFile(file, []byte("code\nA\nB\n"), 0o600))
	wantRuns(t, env, "template codes", "A\nB\n", []wantedRun{
		{[]string{"42", file}, result{exitDone, "2 codes imported, from A to B; template 42 has 2 codes left of 1,002\n", ""}},
		{[]string{"42", "-"}, result{exitDone, "2 codes imported, from A to B; template 42 has 2 codes left of 1,002\n", ""}},
		{[]string{"42", file, "--output", "json"}, result{exitDone, "{\n  \"accepted\": 2,\n  \"firstCode\": \"A\",\n  \"lastCode\": \"B\",\n  \"importedCodes\": {\n    \"imported\": 1002,\n    \"left\": 2,\n    \"missing\": 0\n  },\n  \"totalQuantity\": 9\n}\n", ""}},
		{[]string{"43", file}, result{exitDone, "1 code imported, from A to A; template 43 has 1 code left of 1; 2 coupons cannot be issued until you import more codes\n" +
			"its quantity is 1 until another person approves 3: largesse template approve 43\n", ""}},
		{[]string{"44", file}, result{exitFailed, "", "largesse: line 2: code \"A\" appears twice (BAD_CODES)\n"}},
		{[]string{"42", dir}, result{exitFailed, "", "largesse: open the file of codes: " + dir + " is a directory\n"}},
		{[]string{"x", file}, result{exitWrongUse, "", "largesse: \"x\" is not a template ID: it must be a whole number from 1; see largesse template list\n"}},
	})
	if n := len(asked()); n != 5 {
		t.Errorf("%d requests", n)
	}
}

func TestTemplateWatch(t *testing.T) {
	t.Parallel()
	t.Run("EndsAtOnceWhenThereIsNoSuchTemplate", func(t *testing.T) {
		t.Parallel()
		env, _ := fakeServer(t, map[string]answer{"GET /v1/coupon-templates/42": {404, `{"code":"TEMPLATE_NOT_FOUND","detail":"there is no coupon template 42"}`}})
		r := largesseRun(t.Context(), "", env, "template", "watch", "42")
		if r != (result{exitFailed, "", "largesse: there is no coupon template 42 (TEMPLATE_NOT_FOUND); see largesse template list\n"}) {
			t.Errorf("%+v", r)
		}
	})
	counters := func(stock, count, waiting string) string {
		return `{"id":"42","name":"S","totalQuantity":10,"path":"GATE","counters":{"totalQuantity":10,"stock":` + stock + `,"count":` + count + `,"issuedTotal":` + count + `,"waiting":` + waiting + `}}`
	}
	closed := strings.Replace(counters("0", "8", "2"), `"path"`, `"closesAt":"2020-01-01T00:00:00Z","path"`, 1)
	steps := []answer{
		{body: counters("10", "0", "0")},
		{body: counters("10", "0", "0")}, // no change, no line
		{502, ""},                        // a restart is sat out
		{body: counters("0", "4", "6")},
		{body: closed},
		{body: strings.Replace(strings.Replace(closed, `"waiting":2`, `"waiting":0`, 1), `"count":8`, `"count":10`, 1)},
	}

	t.Run("WritesALineForEachChange", func(t *testing.T) {
		t.Parallel()
		r := largesseRun(t.Context(), "", nil, "template", "watch", "42", "--every", "10ms", "--server", serveInTurn(t, steps))
		lines := strings.Split(r.stdout, "\n")
		if r.code != exitDone || r.stderr != "" || len(lines) != 5 ||
			lines[0] != "OPEN 0% of 10, live 0, waiting 0, stock 10" ||
			!strings.HasPrefix(lines[1], "SOLD OUT 40% of 10, live 4, waiting 6, stock 0, ") || !strings.HasSuffix(lines[1], "/s") ||
			!strings.HasPrefix(lines[2], "CLOSED 80% of 10, live 8, waiting 2, stock 0") ||
			!strings.HasPrefix(lines[3], "CLOSED 100% of 10, live 10, waiting 0, stock 0, ever issued 8") {
			t.Errorf("%+v", r)
		}
	})

	t.Run("DrawsWhatIsLiveWaitsAndIsLeft", func(t *testing.T) {
		t.Parallel()
		f := &templateFrame{Template: client.Template{TotalQuantity: 10, Path: "DATABASE", Counters: client.TemplateCounters{Stock: 3, Count: 5, IssuedTotal: 5, Waiting: 2}}}
		if got := stackedBar(f.layers(), 10, false); got != "█████▒▒···" {
			t.Errorf("bar %q", got)
		}
		if got := f.counts(); !strings.HasSuffix(got, ", stock 3, Redis is unavailable") {
			t.Errorf("counts %q", got)
		}
		opens := time.Now().Add(time.Hour)
		if f.OpensAt, f.now = &opens, time.Now(); !strings.HasPrefix(f.counts(), "NOT OPEN ") || f.ended() {
			t.Errorf("counts %q", f.counts())
		}
		var seen looks
		began := time.Now()
		for second := range 20 {
			seen.add(int64(second*second), began.Add(time.Duration(second)*time.Second))
		}
		if rate := seen.rate(); rate != 28 {
			t.Errorf("the rate of the last 10 s is %f", rate)
		}
	})
}
