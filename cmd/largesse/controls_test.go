package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os/user"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/largesse/largesse/internal/lab/fixture"
)

func TestCreateWithControls(t *testing.T) {
	t.Parallel()
	env, asked := fakeServer(t, map[string]answer{"POST /v1/promotions": {201, draftJSON}})
	r := largesseRun(t.Context(), "", env, "promotion", "create", "--name", "S", "--type", "point", "--rate", "50", "--weight", "3", "--max-amount", "900",
		"--canary-targets", "10", "--canary-max-failure-rate", "0", "--starts-at", "2099-12-24T19:00:00+01:00", "--webhook-url", "https://h/x")
	if r.code != exitDone {
		t.Errorf("%+v", r)
	}
	want := []string{`POST /v1/promotions {"name":"S","type":"POINT","ratePerSecond":50,"weight":3,"maxAmount":900,"canary":{"targets":10,"maxFailureRate":0},` +
		`"startsAt":"2099-12-24T19:00:00+01:00","webhookUrl":"https://h/x"}`}
	fixture.Equal(t, want, asked())
}

func TestShowControls(t *testing.T) {
	t.Parallel()
	env, _ := fakeServer(t, map[string]answer{
		"GET /v1/promotions/7": {body: strings.Replace(draftJSON, `"type"`, `"ratePerSecond":1500,"weight":3,"maxAmount":9000,
			"canary":{"targets":10,"maxFailureRate":0.02,"dispatched":4,"judged":false},"startsAt":"2026-12-24T18:00:00Z","webhookUrl":"https://h/x",
			"createdBy":"kim","approvedBy":"lee\u001b","type"`, 1)},
		"POST /v1/promotions/7/ask-approval": {202, draftJSON},
		"POST /v1/promotions/7/approve":      {202, strings.Replace(draftJSON, `"type"`, `"approvedBy":"lee","approvedAmount":5000,"approvedCount":2,"type"`, 1)},
	})
	r := largesseRun(t.Context(), "", env, "promotion", "show", "7")
	for _, want := range []string{
		"rate per second  1,500\n", "weight           3\n", "max amount       90.00 EUR\n", "canary           10 targets, at most 2% failed; 4 payouts dispatched\n",
		"starts           Thu 24 Dec 2026 18:00 ", "webhook          https://h/x\n", "created by       kim\n", "approved by      lee\uFFFD\n",
	} {
		if !strings.Contains(r.stdout, want) {
			t.Errorf("the output lacks %q:\n%s", want, r.stdout)
		}
	}
	if r := largesseRun(t.Context(), "", env, "promotion", "approve", "7", "--yes"); r != (result{exitDone, "promotion 7 is DRAFT, approved by lee: 2 targets worth 50.00 EUR\n", ""}) {
		t.Errorf("%+v", r)
	}
	if r := largesseRun(t.Context(), "", env, "promotion", "ask-approval", "7"); r != (result{exitDone, "Spring (7) waits for an approval of 20.00 EUR\n", ""}) {
		t.Errorf("%+v", r)
	}
}

func TestActor(t *testing.T) {
	t.Parallel()
	me := fixture.Must(user.Current())(t)
	actors := make(chan string, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			actors <- r.Header.Get("Largesse-Actor")
		}
		_, _ = io.WriteString(w, draftJSON)
	}))
	t.Cleanup(server.Close)
	for _, tt := range []struct {
		env  []string
		args []string
		want string
	}{
		{nil, nil, me.Username},
		{[]string{"LARGESSE_ACTOR=lee"}, nil, "lee"},
		{[]string{"LARGESSE_ACTOR=lee"}, []string{"--actor", "김 kim"}, "김 kim"},
	} {
		args := append([]string{"promotion", "approve", "7", "--yes", "--server", server.URL}, tt.args...)
		if r := largesseRun(t.Context(), "", tt.env, args...); r.code != exitDone {
			t.Fatalf("%+v", r)
		}
		if got := <-actors; got != tt.want {
			t.Errorf("%v %v: %q acts, want %q", tt.env, tt.args, got, tt.want)
		}
	}
}

func TestRetryResolveExport(t *testing.T) {
	t.Parallel()
	const resolved = `{"targetId":"8","userId":"u8","amount":5,"state":"SUCCEEDED","attempts":1,"transactionKey":"T-9","updatedAt":"2026-11-21T10:00:00Z",
		"attemptLog":[{"at":"2026-11-21T10:00:00Z","class":"RESOLVED","code":"kim","message":"seen"}]}`
	env, asked := fakeServer(t, map[string]answer{
		"POST /v1/promotions/7/payouts/retry":     {202, `{"requeued":1234}`},
		"POST /v1/promotions/7/payouts/8/resolve": {body: resolved},
	})
	wantRuns(t, env, "promotion", "", []wantedRun{
		{[]string{"retry", "7", "--code", "X"}, result{exitDone, "1,234 payouts requeued\n", ""}},
		{[]string{"retry", "7", "--output", "json"}, result{exitDone, "{\n  \"requeued\": 1234\n}\n", ""}},
		{[]string{"resolve", "7", "8", "--outcome", "Succeeded", "--transaction-key", "T-9", "--note", "seen", "--yes"}, result{
			exitDone, "target 8, user u8: SUCCEEDED, amount 5, 1 attempt, updated 2026-11-21 10:00:00Z\ntransaction T-9\n  2026-11-21 10:00:00Z RESOLVED kim seen\n", "",
		}},
	})
	want := []string{
		`POST /v1/promotions/7/payouts/retry {"state":"FAILED","code":"X"}`, `POST /v1/promotions/7/payouts/retry {"state":"FAILED"}`,
		`POST /v1/promotions/7/payouts/8/resolve {"outcome":"SUCCEEDED","transactionKey":"T-9","note":"seen"}`,
	}
	fixture.Equal(t, want, asked())

	t.Run("Export", func(t *testing.T) {
		t.Parallel()
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/csv")
			_, _ = io.WriteString(w, "targetId\n1\n")
			if r.URL.Query().Get("state") != "FAILED" {
				t.Errorf("query %s", r.URL.RawQuery)
			}
		}))
		t.Cleanup(server.Close)
		r := largesseRun(t.Context(), "", nil, "promotion", "export", "7", "--state", "failed", "--server", server.URL)
		if r != (result{exitDone, "targetId\n1\n", ""}) {
			t.Errorf("%+v", r)
		}
	})
}

func TestDeadLetterShowAndSettle(t *testing.T) {
	t.Parallel()
	const letter = `{"id":"7","source":"campaign-promotion-point-publish","partition":1,"offset":"9","key":"k","valueBase64":"/3g=","reason":"MALFORMED","detail":"not\u001bJSON",
		"at":"2026-11-21T10:00:00Z","status":"REPLAYED","settledAt":"2026-11-21T11:00:00Z","settledBy":"kim"}`
	env, asked := fakeServer(t, map[string]answer{
		"GET /v1/dead-letters/7":                                               {body: letter},
		"POST /v1/dead-letters/7/replay":                                       {202, letter},
		"POST /v1/dead-letters/replay":                                         {202, `{"count":1200,"skipped":3}`},
		"POST /v1/dead-letters/discard":                                        {202, `{"count":1,"skipped":0}`},
		"GET /v1/dead-letters?limit=200&reason=MALFORMED&source=s&status=OPEN": {body: `{"items":[]}`},
	})
	wantRuns(t, env, "deadletter", "", []wantedRun{
		{[]string{"show", "7"}, result{exitDone, "dead letter 7, 2026-11-21 10:00:00Z: REPLAYED by kim at 2026-11-21 11:00:00Z\n" +
			"from campaign-promotion-point-publish, partition 1, offset 9\nMALFORMED not\uFFFDJSON\nkey: k\nvalue (not UTF-8): \"\\xffx\"\n", ""}},
		{[]string{"replay", "7"}, result{exitDone, "dead letter 7 is REPLAYED\n", ""}},
		{[]string{"replay", "--reason", "MALFORMED", "--source", "s"}, result{exitDone, "1,200 dead letters replayed, 3 skipped\n", ""}},
		{[]string{"discard", "7", "8", "--yes"}, result{exitDone, "1 dead letter discarded, 0 skipped\n", ""}},
		{[]string{"replay", "--all", "--yes"}, result{exitDone, "1,200 dead letters replayed, 3 skipped\n", ""}},
		{[]string{"list", "--status", "open", "--source", "s", "--reason", "MALFORMED"}, result{exitDone, "", "there are no dead letters\n"}},
	})
	want := []string{
		"GET /v1/dead-letters/7", "POST /v1/dead-letters/7/replay", `POST /v1/dead-letters/replay {"source":"s","reason":"MALFORMED"}`,
		`POST /v1/dead-letters/discard {"ids":["7","8"]}`, `POST /v1/dead-letters/replay {"all":true}`,
		"GET /v1/dead-letters?limit=200&reason=MALFORMED&source=s&status=OPEN",
	}
	fixture.Equal(t, want, asked())
}

func TestReconcile(t *testing.T) {
	t.Parallel()
	const uri = "POST /v1/reconciliations"

	t.Run("EndsWellWhenAllIsRepaired", func(t *testing.T) {
		t.Parallel()
		env, asked := fakeServer(t, map[string]answer{uri: {201, `{"id":"9","checked":1,"skipped":["charges: no list"],
			"drifts":[{"promotionId":"7","what":"stream","detail":"5 QUEUED, 4 entries","repaired":true}]}`}})
		r := largesseRun(t.Context(), "", env, "reconcile", "--promotion", "7", "--repair", "--yes")
		want := result{exitDone, "OF           WHAT    REPAIRED  DETAIL\npromotion 7  stream  yes       5 QUEUED, 4 entries\n1 promotion compared, 1 difference\n", "not compared: charges: no list\n"}
		fixture.Equal(t, want, r, cmp.AllowUnexported(result{}))
		fixture.Equal(t, []string{uri + ` {"promotionId":"7","repair":true}`}, asked())
	})

	t.Run("FailsWhenADifferenceIsLeft", func(t *testing.T) {
		t.Parallel()
		env, _ := fakeServer(t, map[string]answer{uri: {201, `{"id":"9","checked":1,"drifts":[{"promotionId":"7","what":"charges.above","detail":"d","repaired":false}]}`}})
		r := largesseRun(t.Context(), "", env, "reconcile", "--all", "--output", "json")
		if r.code != exitFailed || !strings.Contains(r.stdout, `"charges.above"`) || r.stderr != "largesse: 1 difference left; see the report of reconciliation 9\n" {
			t.Errorf("%+v", r)
		}
	})
}
