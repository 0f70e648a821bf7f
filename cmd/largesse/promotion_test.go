package main

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/lab/fixture"
)

func TestPromotionMoves(t *testing.T) {
	t.Parallel()
	for _, verb := range []string{"start", "pause", "resume", "cancel", "close"} {
		t.Run(verb, func(t *testing.T) {
			t.Parallel()
			env, asked := fakeServer(t, map[string]answer{"POST /v1/promotions/7/" + verb: {202, runningJSON}})
			args := []string{"promotion", verb, "7"}
			if verb == "cancel" || verb == "close" {
				args = append(args, "--yes")
			}
			r := largesseRun(t.Context(), "", env, args...)
			if r != (result{exitDone, "promotion 7 is RUNNING\n", ""}) {
				t.Errorf("%+v", r)
			}
			r = largesseRun(t.Context(), "", env, append(args, "--output", "json")...)
			var p struct{ ID, Status string }
			if err := json.Unmarshal([]byte(r.stdout), &p); err != nil || p.Status != "RUNNING" {
				t.Errorf("%v: %+v", err, r)
			}
			want := "POST /v1/promotions/7/" + verb
			fixture.Equal(t, []string{want, want}, asked())
		})
	}
}

func TestPromotionShow(t *testing.T) {
	t.Parallel()
	env, _ := fakeServer(t, map[string]answer{"GET /v1/promotions/7": {body: runningJSON}})
	r := largesseRun(t.Context(), "", env, "promotion", "show", "7")
	want := `id                 7
name               Spring
type               POINT
status             RUNNING
retries            0
targets            2
targets announced  4
  ready            1
  queued           0
  retrying         0
  unknown          0
  succeeded        1
  failed           0
  cancelled        0
amount             2,000
amount paid        1,000
remaining time     1m30s
created            2026-11-21 10:00:00Z
started            2026-11-21 10:01:00Z
`
	fixture.Equal(t, result{exitDone, want, ""}, r, cmp.AllowUnexported(result{}))
}

func TestAmountsInACurrency(t *testing.T) {
	t.Parallel()
	for currency, want := range map[string]string{"EUR": "10.50 EUR", "KRW": "1,050 KRW", "BHD": "1.050 BHD"} {
		payout := `{"promotionId":"7","targetId":"1","userId":"u1","amount":1050,"currency":"` + currency + `","state":"UNKNOWN","updatedAt":"2026-11-21T10:00:00Z"}`
		env, _ := fakeServer(t, map[string]answer{
			"GET /v1/promotions/7": {body: `{"id":"7","status":"RUNNING","currency":"` + currency + `","amount":1050,"amountTotal":1050,"amountSucceeded":1050,
				"summaries":[{"promotionSummaryId":"5","amountSucceeded":1050}],"createdAt":"2026-11-21T10:00:00Z"}`},
			"GET /v1/promotions/7/payouts?limit=200":    {body: `{"items":[` + payout + `]}`},
			"GET /v1/payouts?limit=200&state=UNKNOWN":   {body: `{"items":[` + payout + `]}`},
			"GET /v1/promotions/7/payouts/1":            {body: payout},
			"GET /v1/users/u1/history":                  {body: `{"userId":"u1","payouts":[` + payout + `]}`},
			"GET /v1/promotions/7/uploads?limit=200":    {body: `{"items":[{"id":"5","state":"COMPLETED","amount":1050,"currency":"` + currency + `","createdAt":"2026-11-21T10:00:00Z"}]}`},
			"POST /v1/promotions/7/targets?dryRun=true": {body: `{"accepted":1,"amount":1050,"currency":"` + currency + `"}`},
		})
		for command, times := range map[string]int{
			"promotion show 7": 4, "promotion payouts 7": 1, "promotion payouts 7 --target 1": 1, "promotion uploads 7": 1, "payout unknown": 1, "user history u1": 1,
			"promotion upload 7 - --dry-run": 1,
		} {
			r := largesseRun(t.Context(), targetsCSV, env, strings.Fields(command)...)
			if r.code != exitDone || strings.Count(r.stdout, want) != times {
				t.Errorf("%s says not %d times %s: %+v", command, times, want, r)
			}
		}
	}
}

func TestPromotionCreateInMajorUnits(t *testing.T) {
	t.Parallel()
	file := writeTargets(t, "targets.csv", targetsCSV)
	env, asked := fakeServer(t, map[string]answer{
		"POST /v1/promotions": {201, draftJSON}, "POST /v1/promotions/7/targets?amounts=major&fileName=targets.csv": {body: `{"accepted":2}`}, "GET /v1/promotions/7": {body: draftJSON},
	})
	create := []string{"promotion", "create", "--name", "Spring", "--type", "point", "--file", file}
	r := largesseRun(t.Context(), "", env, append(create, "--currency", "EUR", "--amounts", "major", "--amount", "10.5", "--max-amount", "1000.00")...)
	if r.code != exitDone {
		t.Errorf("%+v", r)
	}
	for wrong, want := range map[string]string{
		"--currency EUR --amounts major --amount 10.505": `--amount "10.505" has 3 digits behind the decimal point, but EUR has 2`,
		"--currency EUR --amount 10.50":                  `--amount "10.50" must be a whole number of minor units; for an amount such as 10.50 EUR, add --amounts major`,
		"--currency EUR --max-amount 10.50":              `--max-amount "10.50" must be a whole number of minor units`,
		"--amounts major":                                `--amounts major needs a --currency of ISO 4217, such as EUR, not ""`,
		"--amounts major --currency PTS":                 `--amounts major needs a --currency of ISO 4217, such as EUR, not "PTS"`,
		"--amounts cents":                                `--amounts "cents" must be minor or major`,
	} {
		if r := largesseRun(t.Context(), "", env, append(create, strings.Fields(wrong)...)...); r.code != exitWrongUse || !strings.Contains(r.stderr, want) {
			t.Errorf("%s: %+v", wrong, r)
		}
	}
	want := []string{
		`POST /v1/promotions {"name":"Spring","type":"POINT","amount":1050,"currency":"EUR","maxAmount":100000}`,
		"POST /v1/promotions/7/targets?amounts=major&fileName=targets.csv " + strings.TrimSpace(targetsCSV), "GET /v1/promotions/7",
	}
	fixture.Equal(t, want, asked())
}

func TestPromotionShowStream(t *testing.T) {
	t.Parallel()
	const stream = `{"key":"campaign-promotion-stream:POINT:7","group":"campaign-promotion-group:POINT:7","exists":true,"length":1500,"lag":1200,"pending":300,
		"oldestAt":"2026-11-21T10:01:00Z","oldestPendingAt":"2026-11-21T10:01:01Z","consumers":[
		{"name":"host-1-0","instance":"host-1","alive":true,"pending":64,"idleMillis":40},
		{"name":"host-1-1\u001b","instance":"host-1","alive":false,"pending":0,"idleMillis":61500}]}`

	t.Run("ATableBelowThePromotion", func(t *testing.T) {
		t.Parallel()
		env, asked := fakeServer(t, map[string]answer{
			"GET /v1/promotions/7":        {body: strings.Replace(runningJSON, `"type"`, `"consumersPerInstance":2,"type"`, 1)},
			"GET /v1/promotions/7/stream": {body: stream},
		})
		r := largesseRun(t.Context(), "", env, "promotion", "show", "7", "--stream")
		want := `
stream          campaign-promotion-stream:POINT:7
group           campaign-promotion-group:POINT:7
entries         1,500
  not read      1,200
  pending       300
oldest entry    2026-11-21 10:01:00Z
oldest pending  2026-11-21 10:01:01Z

CONSUMER   INSTANCE  ALIVE  PENDING  IDLE
host-1-0   host-1    yes    64       40ms
host-1-1�  host-1    no     0        1m1.5s
`
		promotion, table, _ := strings.Cut(r.stdout, "\n\n")
		if diff := cmp.Diff(want, "\n"+table); diff != "" || r.code != exitDone || r.stderr != "" {
			t.Errorf("%+v (-want +got):\n%s", r, diff)
		}
		if !strings.HasPrefix(promotion, "id ") || !strings.Contains(promotion, "\nconsumers per instance  2\n") {
			t.Errorf("the promotion: %s", promotion)
		}
		if n := len(asked()); n != 2 {
			t.Errorf("%d requests", n)
		}
	})

	t.Run("JSONIncludesIt", func(t *testing.T) {
		t.Parallel()
		env, _ := fakeServer(t, map[string]answer{"GET /v1/promotions/7": {body: runningJSON}, "GET /v1/promotions/7/stream": {body: stream}})
		r := largesseRun(t.Context(), "", env, "promotion", "show", "7", "--stream", "--output", "json")
		var out struct {
			ID     string
			Stream struct {
				Length    int
				Consumers []struct{ Name string }
			}
		}
		if err := json.Unmarshal([]byte(r.stdout), &out); err != nil || out.ID != "7" || out.Stream.Length != 1500 || len(out.Stream.Consumers) != 2 {
			t.Errorf("%v: %+v", err, r)
		}
		r = largesseRun(t.Context(), "", env, "promotion", "show", "7", "--output", "json")
		if r.code != exitDone || strings.Contains(r.stdout, "stream") {
			t.Errorf("not asked for: %+v", r)
		}
	})

	for _, tt := range []struct{ name, body, want string }{
		{"None", `{"exists":false,"consumers":[]}`, "stream  none: nothing is dispatched\n"},
		{
			"InProcess", `{"exists":true,"length":2,"lag":2,"pending":0,"consumers":[]}`,
			"stream      in the process of the server\nentries     2\n  not read  2\n  pending   0\n\nthe stream has no consumers\n",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			env, _ := fakeServer(t, map[string]answer{"GET /v1/promotions/7": {body: runningJSON}, "GET /v1/promotions/7/stream": {body: tt.body}})
			r := largesseRun(t.Context(), "", env, "promotion", "show", "7", "--stream")
			_, table, _ := strings.Cut(r.stdout, "\n\n")
			if diff := cmp.Diff(tt.want, table); diff != "" || r.code != exitDone {
				t.Errorf("%+v (-want +got):\n%s", r, diff)
			}
		})
	}

	t.Run("TheQueueIsAway", func(t *testing.T) {
		t.Parallel()
		env, _ := fakeServer(t, map[string]answer{
			"GET /v1/promotions/7":        {body: runningJSON},
			"GET /v1/promotions/7/stream": {503, `{"code":"UNAVAILABLE","detail":"the work queue does not answer; ask again later","status":503}`},
		})
		r := largesseRun(t.Context(), "", env, "promotion", "show", "7", "--stream")
		if r.code != exitDone || r.stderr != "" || !strings.HasPrefix(r.stdout, "id ") || !strings.HasSuffix(r.stdout, "\n\nstream  unknown: the work queue does not answer\n") {
			t.Errorf("%+v", r)
		}
		r = largesseRun(t.Context(), "", env, "promotion", "show", "7", "--stream", "--output", "json")
		var out struct {
			ID, StreamProblem string
			Stream            any
		}
		if err := json.Unmarshal([]byte(r.stdout), &out); err != nil || r.code != exitDone || out.ID != "7" || out.StreamProblem != "the work queue does not answer" || out.Stream != nil {
			t.Errorf("%v: %+v", err, r)
		}
	})

	t.Run("AnyOtherFailureIsOne", func(t *testing.T) {
		t.Parallel()
		env, _ := fakeServer(t, map[string]answer{
			"GET /v1/promotions/7":        {body: runningJSON},
			"GET /v1/promotions/7/stream": {500, `{"code":"INTERNAL","detail":"sorry","status":500}`},
		})
		r := largesseRun(t.Context(), "", env, "promotion", "show", "7", "--stream")
		if r.code != exitFailed || r.stdout != "" || !strings.Contains(r.stderr, "stream of promotion 7: sorry") {
			t.Errorf("%+v", r)
		}
	})
}

func TestPromotionList(t *testing.T) {
	t.Parallel()
	env, _ := fakeServer(t, map[string]answer{
		"GET /v1/promotions?limit=200":               {body: `{"items":[` + runningJSON + `,` + draftJSON + `]}`},
		"GET /v1/promotions?limit=200&status=PAUSED": {body: `{"items":[]}`},
	})
	r := largesseRun(t.Context(), "", env, "promotion", "list")
	want := "ID  NAME    TYPE   STATUS   TARGETS  OPEN  SUCCEEDED  FAILED  AMOUNT PAID\n" +
		"7   Spring  POINT  RUNNING  2        1     1          0       1,000\n" +
		"7   Spring  POINT  DRAFT    2        2     0          0       0.00 EUR\n"
	fixture.Equal(t, result{exitDone, want, ""}, r, cmp.AllowUnexported(result{}))
	r = largesseRun(t.Context(), "", env, "promotion", "list", "--status", "paused")
	if r.code != exitDone || !strings.HasPrefix(r.stderr, "there are no promotions") {
		t.Errorf("%+v", r)
	}
}

func TestPromotionPayouts(t *testing.T) {
	t.Parallel()
	env, _ := fakeServer(t, map[string]answer{
		"GET /v1/promotions/7/payouts?code=NO_ACCOUNT&limit=200&state=FAILED": {body: `{"items":[
			{"targetId":"1","userId":"u1","amount":1000,"state":"FAILED","attempts":2,"errorCode":"NO_ACCOUNT","errorMessage":"gone","updatedAt":"2026-11-21T10:00:00Z"}]}`},
		"GET /v1/promotions/7/payouts/1": {body: `{"targetId":"1","userId":"u1","amount":1000,"state":"SUCCEEDED","attempts":1,"transactionKey":"T-1","updatedAt":"2026-11-21T10:00:00Z",
			"attemptLog":[{"dispatch":1,"at":"2026-11-21T09:59:00Z","class":"FAILED","code":"HTTP_500","message":"oops"}]}`},
	})
	r := largesseRun(t.Context(), "", env, "promotion", "payouts", "7", "--state", "failed", "--code", "NO_ACCOUNT")
	want := "TARGET  USER  AMOUNT  STATE   ATTEMPTS  TRANSACTION  ERROR            UPDATED\n" +
		"1       u1    1,000   FAILED  2                      NO_ACCOUNT gone  2026-11-21 10:00:00Z\n"
	fixture.Equal(t, result{exitDone, want, ""}, r, cmp.AllowUnexported(result{}))
	r = largesseRun(t.Context(), "", env, "promotion", "payouts", "7", "--target", "1")
	want = "target 1, user u1: SUCCEEDED, amount 1,000, 1 attempt, updated 2026-11-21 10:00:00Z\ntransaction T-1\n  2026-11-21 09:59:00Z FAILED HTTP_500 oops\n"
	fixture.Equal(t, result{exitDone, want, ""}, r, cmp.AllowUnexported(result{}))
}

const (
	targetsCSV   = "targetId\n1\n2\n"
	uploadResult = `{"uploadId":"5","accepted":2,"duplicates":1,"conflicts":0,"rejected":2,"amount":2000,"errors":[{"line":3,"code":"BAD_ID","detail":"\"x\" is no number"}],"reportUrl":"/v1/promotions/7/uploads/5/report"}`
)

func TestPromotionCreate(t *testing.T) {
	t.Parallel()
	file := writeTargets(t, "targets.csv", targetsCSV)
	answers := func() map[string]answer {
		return map[string]answer{
			"POST /v1/promotions":                                {201, draftJSON},
			"POST /v1/promotions/7/targets?fileName=targets.csv": {body: uploadResult},
			"POST /v1/promotions/7/start":                        {202, runningJSON},
			"GET /v1/promotions/7":                               {body: runningJSON},
		}
	}

	t.Run("MakesADraft", func(t *testing.T) {
		t.Parallel()
		env, asked := fakeServer(t, answers())
		r := largesseRun(t.Context(), "", env, "promotion", "create", "--name", "Gifts", "--type", "voucher", "--voucher", "V-1", "--id", "7", "--max-retries", "0", "--consumers-per-instance", "4")
		if r.code != exitDone || r.stdout != "promotion 7 is DRAFT with 2 targets; start it with: largesse promotion start 7\n" {
			t.Errorf("%+v", r)
		}
		want := []string{`POST /v1/promotions {"id":"7","name":"Gifts","type":"VOUCHER","voucherCode":"V-1","maxRetries":0,"consumersPerInstance":4}`}
		fixture.Equal(t, want, asked())
	})

	t.Run("SaysWhatComesNext", func(t *testing.T) {
		t.Parallel()
		for from, want := range map[string]string{
			`"totalCount":2`: "with 2 targets; start it with: largesse promotion start 7\n",
			`"totalCount":0`: "with 0 targets; add targets with: largesse promotion upload 7 FILE\n",
			`"startsAt":"2026-11-21T10:00:00Z","totalCount":2`: "with 2 targets; watch it with: largesse promotion watch 7\n",
			`"awaitingApproval":true,"totalCount":2`:           "with 2 targets; watch it with: largesse promotion watch 7\n",
		} {
			draft := strings.Replace(draftJSON, `"totalCount":2`, from, 1)
			env, _ := fakeServer(t, map[string]answer{"POST /v1/promotions": {201, draft}})
			r := largesseRun(t.Context(), "", env, "promotion", "create", "--name", "Gifts", "--type", "voucher", "--voucher", "V-1")
			if r.code != exitDone || r.stdout != "promotion 7 is DRAFT "+want {
				t.Errorf("%s: %+v", from, r)
			}
		}
	})

	t.Run("UploadsAndStarts", func(t *testing.T) {
		t.Parallel()
		env, asked := fakeServer(t, answers())
		args := []string{"promotion", "create", "--name", "Spring", "--type", "point", "--amount", "1000", "--file", file, "--start"}
		r := largesseRun(t.Context(), "", env, args...)
		if r.code != exitDone || r.stdout != "2 accepted (amount 2,000), 1 duplicate, 0 conflicts, 2 rejected\npromotion 7 is RUNNING with 2 targets; watch it with: largesse promotion watch 7\n" {
			t.Errorf("%+v", r)
		}
		server := strings.TrimPrefix(env[0], "LARGESSE_SERVER=")
		if r.stderr != "line 3: BAD_ID \"x\" is no number\nand 1 more; full report: "+server+"/v1/promotions/7/uploads/5/report\n" {
			t.Errorf("stderr %q", r.stderr)
		}
		r = largesseRun(t.Context(), "", env, append(args, "--output", "json")...)
		var out struct {
			ID, Status string
			Upload     struct{ Accepted int }
		}
		if err := json.Unmarshal([]byte(r.stdout), &out); err != nil || out.Status != "RUNNING" || out.Upload.Accepted != 2 {
			t.Errorf("%v: %+v", err, r)
		}
		once := []string{
			`POST /v1/promotions {"name":"Spring","type":"POINT","amount":1000}`,
			"POST /v1/promotions/7/targets?fileName=targets.csv " + strings.TrimSpace(targetsCSV), "POST /v1/promotions/7/start", "GET /v1/promotions/7",
		}
		fixture.Equal(t, append(once, once...), asked())
	})

	t.Run("MakesNothingWithoutItsFile", func(t *testing.T) {
		t.Parallel()
		env, asked := fakeServer(t, nil)
		for _, path := range []string{file + "x", t.TempDir()} {
			r := largesseRun(t.Context(), "", env, "promotion", "create", "--name", "Spring", "--type", "point", "--file", path)
			if r.code != exitFailed || !strings.Contains(r.stderr, "open the file of targets") {
				t.Errorf("%+v", r)
			}
		}
		if got := asked(); len(got) > 0 {
			t.Errorf("the server was asked %v", got)
		}
	})

	t.Run("PromisesNothingOfAFileThatIsWrong", func(t *testing.T) {
		t.Parallel()
		env, _ := fakeServer(t, map[string]answer{"POST /v1/promotions/7/targets?fileName=targets.csv": {422, `{"code":"NO_HEADER","detail":"no header"}`}})
		r := largesseRun(t.Context(), "", env, "promotion", "upload", "7", file)
		if r != (result{exitFailed, "", "largesse: no header (NO_HEADER)\n"}) {
			t.Errorf("%+v", r)
		}
	})

	t.Run("SaysHowToGoOnAfterAFailure", func(t *testing.T) {
		t.Parallel()
		for uri, want := range map[string]string{
			"POST /v1/promotions/7/targets?fileName=targets.csv": "promotion 7 is created, but its upload failed: sorry (UNAVAILABLE); you can safely upload the same file again; continue with: largesse promotion upload 7 " + file,
			"POST /v1/promotions/7/start":                        "promotion 7 is created, but did not start: sorry (UNAVAILABLE); continue with: largesse promotion start 7",
		} {
			a := answers()
			a[uri] = answer{503, `{"code":"UNAVAILABLE","detail":"sorry"}`}
			env, _ := fakeServer(t, a)
			r := largesseRun(t.Context(), "", env, "promotion", "create", "--name", "Spring", "--type", "point", "--file", file, "--start")
			if r.code != exitFailed || !strings.Contains(r.stderr, want) {
				t.Errorf("%+v", r)
			}
		}
	})
}

func TestPromotionUpload(t *testing.T) {
	t.Parallel()
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	fixture.Must(io.WriteString(z, targetsCSV))(t)
	fixture.OK(t, z.Close())
	for _, tc := range []struct {
		name, file, text string
		args             []string
		stdin            string
		wantType         string
		wantDry          bool
		unnamed          bool
	}{
		{name: "CSV", file: "t.csv", text: targetsCSV, wantType: "text/csv"},
		{name: "NDJSON", file: "t.ndjson", text: targetsCSV, wantType: "application/x-ndjson"},
		{name: "JSONLines", file: "t.JSONL", text: targetsCSV, wantType: "application/x-ndjson"},
		{name: "Gzip", file: "t.csv.gz", text: zipped.String(), wantType: "text/csv"},
		{name: "Tabs", file: "t.tsv", text: targetsCSV, wantType: "text/tab-separated-values"},
		{name: "UnicodeText", file: "t.txt", text: targetsCSV, wantType: "text/csv"},
		{name: "Workbook", file: "t.XLSX", text: targetsCSV, wantType: "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"},
		{name: "FormatByFlag", file: "t.txt", text: targetsCSV, args: []string{"--format", "ndjson"}, wantType: "application/x-ndjson"},
		{name: "DryRun", file: "t.csv", text: targetsCSV, args: []string{"--dry-run"}, wantType: "text/csv", wantDry: true},
		{name: "NameThatIsRefused", file: "a\u202eb.csv", text: targetsCSV, wantType: "text/csv", unnamed: true},
		{name: "Stdin", file: "-", stdin: targetsCSV, wantType: "text/csv", unnamed: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				var body io.Reader = r.Body
				if r.Header.Get("Content-Encoding") == "gzip" {
					var err error
					if body, err = gzip.NewReader(r.Body); err != nil {
						t.Error(err)
						return
					}
				}
				text, _ := io.ReadAll(body)
				if name := r.URL.Query().Get("fileName"); name != tc.file && !tc.unnamed || name != "" && tc.unnamed {
					t.Errorf("the file is called %q", name)
				}
				if string(text) != targetsCSV || r.Header.Get("Content-Type") != tc.wantType || (r.URL.Query().Get("dryRun") == "true") != tc.wantDry {
					t.Errorf("got %q as %s from %s", text, r.Header.Get("Content-Type"), r.RequestURI)
				}
				_, _ = io.WriteString(w, `{"accepted":2,"amount":2000}`)
			}))
			defer server.Close()
			path := tc.file
			if path != "-" {
				path = writeTargets(t, tc.file, tc.text)
			}
			r := largesseRun(t.Context(), tc.stdin, nil, append([]string{"promotion", "upload", "7", path, "--server", server.URL}, tc.args...)...)
			want := "2 accepted"
			if tc.wantDry {
				want = "2 would be accepted"
			}
			if r.code != exitDone || !strings.HasPrefix(r.stdout, want+" (amount 2,000)") || r.stderr != "" {
				t.Errorf("%+v", r)
			}
		})
	}
}

func TestPromotionCheck(t *testing.T) {
	t.Parallel()
	file := writeTargets(t, "t.csv", targetsCSV)
	const accepted = `{"columns":{"targetId":"No","amount":"Sum"},"header":["No","Name","Sum"],"delimiter":";","encoding":"cp949","accepted":1,"rejected":1,"amount":1050,"currency":"EUR",
		"lines":[{"line":2,"accepted":true,"cells":["7","kim","10.50"],"targetId":"7","userId":"7","amount":1050},{"line":3,"cells":["x","lee","5"],"code":"BAD_ID","detail":"no number"}],
		"alreadyPaid":[{"promotionId":"6","name":"Fall","count":1200},{"promotionId":"5","name":"May","count":1}]}`
	const path = "POST /v1/targets/check?amount=1050&amounts=major&columns=targetId%3DNo&currency=EUR&encoding=cp949&type=POINT"
	args := []string{"promotion", "check", file, "--currency", "EUR", "--amounts", "major", "--amount", "10.50", "--columns", "targetId=No", "--encoding", "cp949"}
	env, _ := fakeServer(t, map[string]answer{path: {body: accepted}})
	r := largesseRun(t.Context(), "", env, args...)
	const want = `header   No, Name, Sum; cp949, separated by ";"
columns  targetId=No,amount=Sum
LINE  TARGET       USER  AMOUNT     VOUCHER  RESULT
2     7            7     10.50 EUR           ok
3     x | lee | 5                            BAD_ID: no number
1,200 people of the file already paid by promotion 6 (Fall)
1 person of the file already paid by promotion 5 (May)
1 would be accepted (amount 10.50 EUR), 0 duplicates, 0 conflicts, 1 rejected
`
	fixture.Equal(t, result{exitDone, want, ""}, r, cmp.AllowUnexported(result{}))
	if r := largesseRun(t.Context(), "", env, append(args, "--strict")...); r.code != exitFailed || !strings.Contains(r.stderr, "1 line of the file not accepted") {
		t.Errorf("--strict: %+v", r)
	}
	env, _ = fakeServer(t, map[string]answer{"POST /v1/targets/check?type=POINT": {body: `{"header":["a"],"sheet":"A","sheets":["A","B"],"rejected":1,"lines":[]}`}})
	r = largesseRun(t.Context(), "", env, "promotion", "check", file)
	if r.code != exitFailed || !strings.HasPrefix(r.stdout, "header   a; sheet A of A, B\ncolumns  none; name them with --columns targetId=A,userId=B\n") || !strings.Contains(r.stderr, "no line of the file was accepted") {
		t.Errorf("nothing accepted: %+v", r)
	}
	if r := largesseRun(t.Context(), "", env, "promotion", "check", file, "--type", "coin"); r.code != exitWrongUse {
		t.Errorf("an unknown type: %+v", r)
	}
}

func TestPromotionUploadWritesWhatWasRefused(t *testing.T) {
	t.Parallel()
	file := writeTargets(t, "t.csv", targetsCSV)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/promotions/7/uploads/5/refused" {
			w.Header().Set("Content-Type", "text/csv")
			_, _ = io.WriteString(w, "targetId,error\nx,line 3: BAD_ID\n")
			return
		}
		_, _ = io.WriteString(w, uploadResult)
	}))
	defer server.Close()
	out := filepath.Join(t.TempDir(), "refused.csv")
	args := []string{"promotion", "upload", "7", file, "--server", server.URL, "--refused", out}
	if r := largesseRun(t.Context(), "", nil, args...); r.code != exitDone {
		t.Errorf("%+v", r)
	}
	fixture.Equal(t, "targetId,error\nx,line 3: BAD_ID\n", string(fixture.Must(os.ReadFile(out))(t)))
	if r := largesseRun(t.Context(), "", nil, args...); r.code != exitFailed || !strings.Contains(r.stderr, "file exists") {
		t.Errorf("a file that is there: %+v", r)
	}
	if r := largesseRun(t.Context(), "", nil, append(args, "--dry-run")...); r.code != exitWrongUse {
		t.Errorf("with a dry run: %+v", r)
	}
}

func TestPromotionWatch(t *testing.T) {
	t.Parallel()
	steps := []answer{
		{body: `{"id":"7","name":"S","status":"RUNNING","totalCount":4,"counts":{"ready":4}}`},
		{body: `{"id":"7","name":"S","status":"RUNNING","totalCount":4,"counts":{"ready":4}}`}, // no change, no line
		{502, ""}, // a restart is sat out
		{body: `{"id":"7","name":"S","status":"PAUSED","pauseReason":"the Money API says 401","totalCount":4,"counts":{"ready":3,"failed":1}}`},
		{body: `{"id":"7","name":"S","status":"COMPLETED","totalCount":4,"counts":{"succeeded":3,"failed":1}}`},
	}

	t.Run("WritesALineForEachChange", func(t *testing.T) {
		t.Parallel()
		r := largesseRun(t.Context(), "", nil, "promotion", "watch", "7", "--every", "10ms", "--server", serveInTurn(t, steps))
		lines := strings.Split(r.stdout, "\n")
		if r.code != exitDone || r.stderr != "" || len(lines) != 4 ||
			lines[0] != "RUNNING 0% of 4, ready 4" ||
			!strings.HasPrefix(lines[1], "PAUSED 25% of 4, ready 3, failed 1, the Money API says 401, ") || !strings.HasSuffix(lines[1], "/s") ||
			!strings.HasPrefix(lines[2], "COMPLETED 100% of 4, succeeded 3, failed 1") {
			t.Errorf("%+v", r)
		}
	})

	t.Run("WritesAnObjectForEachChange", func(t *testing.T) {
		t.Parallel()
		r := largesseRun(t.Context(), "", nil, "promotion", "watch", "7", "--every", "10ms", "--output", "json", "--server", serveInTurn(t, steps))
		var statuses []string
		for d := json.NewDecoder(strings.NewReader(r.stdout)); d.More(); {
			var p struct{ Status string }
			fixture.OK(t, d.Decode(&p))
			statuses = append(statuses, p.Status)
		}
		if diff := cmp.Diff([]string{"RUNNING", "PAUSED", "COMPLETED"}, statuses); diff != "" || r.code != exitDone {
			t.Errorf("code %d\n%s", r.code, diff)
		}
	})

	t.Run("TellsOfAStandstillNowAndThen", func(t *testing.T) {
		t.Parallel()
		env, asked := fakeServer(t, map[string]answer{
			"GET /readyz": {body: `{"status":"ok","degraded":["queue","provider"],
			"troubles":[{"part":"provider","reason":"the provider does not respond"}]}`},
			"GET /v1/instances": {body: `{"items":[
				{"name":"h-1","troubles":[{"part":"provider","reason":"the provider does not respond"},{"part":"redis-clock","reason":"the clock is off"}]},
				{"name":"h-2","troubles":[{"part":"kafka","reason":"Kafka did not answer"},{"part":"redis-clock","reason":"the clock is off"}]},
				{"name":"h-3"}]}`},
		})
		cl := fixture.Must(client.New(strings.TrimPrefix(env[0], "LARGESSE_SERVER="), client.Options{Transport: &http.Transport{DisableKeepAlives: true}}))(t)
		var out bytes.Buffer
		w := &watch{screen: &screen{cli: &cli{world: world{stdout: &out, stderr: io.Discard}, output: outputTable}}, client: cl}
		now := time.Now()
		for still := range 15 {
			s := &snapshot{Promotion: client.Promotion{Status: "RUNNING", TotalCount: 2, Counts: client.Counts{Queued: 2}}}
			if s.still = time.Duration(still) * time.Second; s.still >= stillMin {
				s.parts = w.degraded(t.Context(), now.Add(s.still))
			} else {
				s.still = 0
			}
			fixture.OK(t, w.show(s))
		}
		want := `RUNNING 0% of 2, queued 2
RUNNING 0% of 2, queued 2, nothing paid for 3s, the work queue does not answer, the provider does not respond, h-1 and 1 more: the clock is off, h-2: Kafka did not answer
RUNNING 0% of 2, queued 2, nothing paid for 13s, the work queue does not answer, the provider does not respond, h-1 and 1 more: the clock is off, h-2: Kafka did not answer
`
		fixture.Equal(t, want, out.String())
		if n := len(asked()); n != 8 {
			t.Errorf("the server was asked %d times in 12 s, want 2 questions 4 times", n)
		}
	})

	t.Run("EndsAtOnceWhenThereIsNoSuchPromotion", func(t *testing.T) {
		t.Parallel()
		env, _ := fakeServer(t, map[string]answer{"GET /v1/promotions/7/events": {404, `{"code":"PROMOTION_NOT_FOUND","detail":"there is no promotion 7"}`}})
		r := largesseRun(t.Context(), "", env, "promotion", "watch", "7")
		if r != (result{exitFailed, "", "largesse: there is no promotion 7 (PROMOTION_NOT_FOUND); see largesse promotion list\n"}) {
			t.Errorf("%+v", r)
		}
	})
}

func writeTargets(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	fixture.OK(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}
