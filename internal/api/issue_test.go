package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/largesse/largesse/internal/coupon"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/reward"
)

// ask requests a coupon; headers are pairs.
func (b *bundle) ask(t *testing.T, template, user string, headers ...string) answer {
	t.Helper()
	body := fixture.Must(json.Marshal(map[string]string{"userId": user}))(t)
	return b.do(t, "POST", "/v1/coupons/"+template+"/issue", strings.NewReader(string(body)), append(headers, "Content-Type", "application/json")...)
}

// statuses are those of the kinds of refusals.
var statuses = map[reward.Kind]int{
	reward.KindConflict: http.StatusConflict, reward.KindNotFound: http.StatusNotFound, reward.KindUnavailable: http.StatusServiceUnavailable,
}

func refusal(kind reward.Kind, code string) error { return reward.NewError(kind, code, "no") }

func TestIssue(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.shop.template(42, 10)
	waits := coupon.Status{Kind: coupon.StatusWaiting, Ticket: 981, Rank: 12, Wait: 1500 * time.Millisecond}
	again := waits
	again.Duplicate, again.Rank, again.Wait = true, 0, 10*time.Millisecond
	has := coupon.Status{Kind: coupon.StatusIssued, Ticket: 5, Coupon: issued(2, 42, "has", 5)}
	had := has
	had.Duplicate, had.Coupon.Status = true, reward.CouponUsed
	wire := func(status string) map[string]any {
		return map[string]any{
			"id": "2", "code": "CODE-2", "templateId": "42", "userId": "has", "ticket": json.Number("5"), "status": status, "issuedAt": "2026-11-21T01:02:03Z",
		}
	}
	for _, tt := range []struct {
		user     string
		standing coupon.Status
		status   int
		location string
		want     map[string]any
	}{
		{"u/7 ü", waits, 202, "/v1/issue-requests/42:u%2F7%20%C3%BC", map[string]any{
			"requestId": "42:u/7 ü", "status": "WAITING", "ticket": json.Number("981"), "queueRank": json.Number("12"), "estimatedWaitMillis": json.Number("1500"),
		}},
		{"again", again, 202, "/v1/issue-requests/42:again", map[string]any{
			"requestId": "42:again", "status": "WAITING", "ticket": json.Number("981"), "queueRank": json.Number("0"), "estimatedWaitMillis": json.Number("10"), "duplicate": true,
		}},
		{"drawn", coupon.Status{Kind: coupon.StatusWaiting, Wait: time.Minute}, 202, "/v1/issue-requests/42:drawn", map[string]any{
			"requestId": "42:drawn", "status": "WAITING", "estimatedWaitMillis": json.Number("60000"),
		}},
		{"now", coupon.Status{Kind: coupon.StatusWaiting, Ticket: 1}, 202, "/v1/issue-requests/42:now", map[string]any{
			"requestId": "42:now", "status": "WAITING", "ticket": json.Number("1"), "queueRank": json.Number("0"), "estimatedWaitMillis": json.Number("0"),
		}},
		{"has", has, 201, "/v1/coupons/2", map[string]any{"requestId": "42:has", "status": "ISSUED", "ticket": json.Number("5"), "coupon": wire("ISSUED")}},
		{"had", had, 200, "/v1/coupons/2", map[string]any{
			"requestId": "42:had", "status": "ISSUED", "ticket": json.Number("5"), "coupon": wire("USED"), "duplicate": true,
		}},
	} {
		b.shop.stand("42:"+tt.user, tt.standing, nil)
		a := b.ask(t, "42", tt.user)
		a.want(t, tt.status)
		if diff := cmp.Diff(tt.want, a.object(t)); diff != "" || a.header.Get("Location") != tt.location || len(a.header.Values("Preference-Applied")) > 0 {
			t.Errorf("%s: %v (-want +got):\n%s", tt.user, a.header, diff)
		}
		got := b.json(t, "GET", "/v1/issue-requests/"+url.PathEscape("42:"+tt.user), "").object(t)
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s reads their status (-want +got):\n%s", tt.user, diff)
		}
	}
	// What is decided needs no waiting.
	if a := b.ask(t, "42", "has", "Prefer", "wait=5"); a.status != 201 || a.header.Get("Preference-Applied") != "wait=5" {
		t.Errorf("%+v", a)
	}
	b.shop.stand("42:lost", coupon.Status{Kind: coupon.StatusRejected, Ticket: 9, Reason: reward.ReasonNotDrawn}, nil)
	want := map[string]any{"requestId": "42:lost", "status": "REJECTED", "ticket": json.Number("9"), "reason": "NOT_DRAWN"}
	fixture.Equal(t, want, b.json(t, "GET", "/v1/issue-requests/42:lost", "").object(t))

	for code, kind := range map[string]reward.Kind{
		"SOLD_OUT": reward.KindConflict, "CLOSED": reward.KindConflict, "USER_LIMIT": reward.KindConflict, "HOLD_LAPSED": reward.KindConflict, "NOT_OPEN": reward.KindConflict,
		"TEMPLATE_NOT_FOUND": reward.KindNotFound, "UNAVAILABLE": reward.KindUnavailable,
	} {
		b.shop.stand("42:r", coupon.Status{}, refusal(kind, code))
		a := b.ask(t, "42", "r")
		p := a.wantProblem(t, statuses[kind], code)
		if retry := a.header.Get("Retry-After"); (retry != "") != (code == "UNAVAILABLE") {
			t.Errorf("%s: retry after %q", code, retry)
		}
		if !p.OpensAt.IsZero() {
			t.Errorf("%s: %+v", code, p) // this template has no opening
		}
	}
	b.json(t, "GET", "/v1/issue-requests/42:nobody", "").wantProblem(t, http.StatusNotFound, "REQUEST_UNKNOWN")
	for _, id := range []string{"42", "x:u7", ":u7", "42:", "42:%ff", "007:u"} {
		b.json(t, "GET", "/v1/issue-requests/"+id, "").wantProblem(t, http.StatusBadRequest, "MALFORMED")
		b.json(t, "GET", "/v1/issue-requests/"+id+"/events", "").wantProblem(t, http.StatusBadRequest, "MALFORMED")
	}
	b.ask(t, "x", "u7").wantProblem(t, http.StatusBadRequest, "MALFORMED")
	for _, user := range []string{"\xff", `\ud800`} { // two of them would be one user
		b.json(t, "POST", "/v1/coupons/42/issue", `{"userId":"`+user+`"}`).wantProblem(t, http.StatusBadRequest, "MALFORMED")
	}
	for body, field := range map[string]string{
		`{}`: "userId", `{"userId":""}`: "userId", `{"userId":"a\u0000"}`: "userId", `{"userId":7}`: "userId", `{"userId":"u","ticket":1}`: "ticket",
		`{"userId":"` + strings.Repeat("x", reward.UserIDMax+1) + `"}`: "userId", `{"userId":"ann "}`: "userId", `{"userId":"a\u200bnn"}`: "userId",
	} {
		p := b.json(t, "POST", "/v1/coupons/42/issue", body).wantProblem(t, http.StatusUnprocessableEntity, "INVALID")
		if diff := cmp.Diff([]string{field}, fields(p)); diff != "" {
			t.Errorf("%.40s: %s", body, diff)
		}
	}
}

// TestPlainRequestsAreAnsweredAlike compares the responses to a request in its plain form
// with those to the same request in another one, which huma answers.
func TestPlainRequestsAreAnsweredAlike(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.shop.template(42, 10)
	notOpen := reward.NewError(reward.KindConflict, reward.CodeNotOpen, "not yet")
	notOpen.OpensAt = time.Date(2030, 1, 2, 10, 0, 0, 0, time.UTC)
	b.shop.stand("42:waits", coupon.Status{Kind: coupon.StatusWaiting, Ticket: 981, Rank: 12, Wait: 1500 * time.Millisecond}, nil)
	b.shop.stand("42:has", coupon.Status{Kind: coupon.StatusIssued, Ticket: 5, Coupon: issued(2, 42, "has", 5)}, nil)
	b.shop.stand("42:had", coupon.Status{Kind: coupon.StatusIssued, Ticket: 5, Coupon: issued(2, 42, "had", 5), Duplicate: true}, nil)
	b.shop.stand("42:lost", coupon.Status{Kind: coupon.StatusRejected, Reason: reward.ReasonNotDrawn}, nil)
	b.shop.stand("42:late", coupon.Status{}, refusal(reward.KindConflict, reward.CodeSoldOut))
	b.shop.stand("42:early", coupon.Status{}, notOpen)
	b.shop.stand("42:away", coupon.Status{}, refusal(reward.KindUnavailable, reward.CodeUnavailable))
	b.shop.stand("42:broken", coupon.Status{}, errors.New("broken"))
	const path = "/v1/coupons/42/issue"
	for path, users := range map[string][]string{
		path:                   {"waits", "has", "had", "lost", "late", "early", "away", "broken", strings.Repeat("x", reward.UserIDMax+1)},
		"/v1/coupons/41/issue": {"waits"}, "/v1/coupons/x/issue": {"waits"}, "/v1/coupons/042/issue": {"waits"}, path + "?a=b": {"waits"},
	} {
		for _, user := range users {
			shown := func(body string) string {
				got := b.do(t, http.MethodPost, path, strings.NewReader(body), "Content-Type", "application/json", "X-Request-Id", "r1")
				got.header.Del("Date")
				return fmt.Sprint(got.status, got.header, got.body)
			}
			want := shown(`{"userId": "` + user + `" }`)
			for _, body := range []string{`{"userId":"` + user + `"}`, `{"userId": "` + user + `"}`} {
				if got := shown(body); got != want {
					t.Errorf("%s %.40s: got %s, want %s", path, body, got, want)
				}
			}
		}
	}
}

func TestWhichBodiesArePlain(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]string{
		`{"userId":"u7"}`: "u7", `{"userId": "A.b-C_9"}`: "A.b-C_9",
		`{"userId":""}`: "", `{"userId":"u7" }`: "", `{"userId":"u7"}x`: "", `{"userId":"a","userId":"b"}`: "", `{"userId":"a\u0062"}`: "", `{"userId":"ü"}`: "",
		`{"userId":"a b"}`: "", `{"userId":7}`: "", `{"userId":"}`: "", `{"UserId":"u7"}`: "", ``: "", `{"userId":"u7"`: "", `{"userId":u7"}`: "",
	} {
		if user, ok := plainUser([]byte(body)); user != want && ok || ok != (want != "") {
			t.Errorf("%s: %q, %t", body, user, ok)
		}
	}
}

func TestNotOpen(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.shop.template(42, 10)
	v := b.shop.templates[42]
	v.OpensAt = time.Date(2030, 1, 2, 10, 0, 0, 0, time.FixedZone("KST", 9*3600))
	b.shop.templates[42] = v
	notOpen := reward.NewError(reward.KindConflict, "NOT_OPEN", "not yet")
	notOpen.OpensAt = v.OpensAt
	b.shop.stand("42:u7", coupon.Status{}, notOpen)
	// A crowd that is too early costs few looks at the template.
	const asks = 50
	for range asks {
		a := b.ask(t, "42", "u7")
		a.wantProblem(t, http.StatusConflict, "NOT_OPEN")
		if got := a.text(t, "opensAt"); got != "2030-01-02T01:00:00Z" {
			t.Errorf("opens at %s", got)
		}
	}
	if b.shop.gets > asks/5 {
		t.Errorf("%d reads for %d requests", b.shop.gets, asks)
	}
}

func TestIssueWaits(t *testing.T) {
	t.Parallel()
	waits := coupon.Status{Kind: coupon.StatusWaiting, Ticket: 9, Rank: 3}
	moved := coupon.Status{RequestID: "42:u7", Kind: coupon.StatusWaiting, Ticket: 9, Rank: 1}
	got := coupon.Status{RequestID: "42:u7", Kind: coupon.StatusIssued, Ticket: 9, Coupon: issued(2, 42, "u7", 9)}
	repeated := waits
	repeated.Duplicate = true
	for _, tt := range []struct {
		name     string
		standing coupon.Status
		news     []coupon.Status
		status   int
		text     string // that the body has
		took     time.Duration
	}{
		{"Issued", waits, []coupon.Status{moved, got}, 201, `"coupon":{"id":"2"`, 0},
		{"ARepeatIsIssued", repeated, []coupon.Status{got}, 200, `"duplicate":true`, 0},
		{"TimeIsOver", waits, []coupon.Status{moved}, 202, `"queueRank":1`, 5 * time.Second},
		{"NothingIsHeard", repeated, nil, 202, `"duplicate":true`, 5 * time.Second},
		{"SoldOut", waits, []coupon.Status{{Kind: coupon.StatusRejected, Ticket: 9, Reason: "SOLD_OUT"}}, 409, `"code":"SOLD_OUT"`, 0},
		{"UserLimit", waits, []coupon.Status{{Kind: coupon.StatusRejected, Ticket: 9, Reason: "USER_LIMIT"}}, 409, `"code":"USER_LIMIT"`, 0},
		{"NotDrawn", coupon.Status{Kind: coupon.StatusWaiting}, []coupon.Status{{Kind: coupon.StatusRejected, Ticket: 9, Reason: "NOT_DRAWN"}}, 409, `"code":"NOT_DRAWN"`, 0},
		{"Error", waits, []coupon.Status{{Kind: coupon.StatusRejected, Ticket: 9, Reason: "ERROR"}}, 409, `"code":"ERROR"`, 0},
	} {
		fixture.OnFakeTime(t, tt.name, func(t *testing.T) {
			w := newWire(t)
			w.shop.stand("42:u7", tt.standing, nil)
			began := time.Now()
			r := w.send(t.Context(), "POST", "/v1/coupons/42/issue", `{"userId":"u7"}`, "Prefer", "respond-async, wait=5")
			for _, s := range tt.news {
				w.shop.news <- s
			}
			<-r.done
			if took := time.Since(began); r.status != tt.status || !strings.Contains(r.text(), tt.text) || took != tt.took || r.Header().Get("Preference-Applied") != "wait=5" {
				t.Errorf("%d after %s, %v: %s", r.status, took, r.Header(), r.text())
			}
			if strings.Contains(r.text(), `"status":409`) && !strings.Contains(r.text(), `"detail":"`) {
				t.Errorf("no detail: %s", r.text())
			}
			if told := <-w.shop.begun; told != tt.standing.Ticket {
				t.Errorf("watched ticket %d", told)
			}
			w.shop.watchers.Wait()
		})
	}

	fixture.OnFakeTime(t, "NotWhileTheInstanceStops", func(t *testing.T) {
		w := newWire(t)
		w.shop.stand("42:u7", waits, nil)
		began := time.Now()
		first := w.send(t.Context(), "POST", "/v1/coupons/42/issue", `{"userId":"u7"}`, "Prefer", "wait=30")
		<-w.shop.begun
		w.api.Drain()
		<-first.done
		second := w.send(t.Context(), "POST", "/v1/coupons/42/issue", `{"userId":"u7"}`, "Prefer", "wait=30")
		<-second.done
		if time.Since(began) != 0 || first.status != 202 || second.status != 202 {
			t.Errorf("%d and %d after %s", first.status, second.status, time.Since(began))
		}
		w.api.Undrain()
		third := w.send(t.Context(), "POST", "/v1/coupons/42/issue", `{"userId":"u7"}`, "Prefer", "wait=99")
		<-third.done
		if time.Since(began) != 30*time.Second || third.Header().Get("Preference-Applied") != "wait=30" {
			t.Errorf("after %s: %v", time.Since(began), third.Header())
		}
		w.shop.watchers.Wait()
	})
}

func TestLeaveLine(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const path = "/v1/issue-requests/42:u%2F7"
	leave := func(id string) answer { return b.json(t, "DELETE", "/v1/issue-requests/"+id, "") }
	b.shop.stand("42:u/7", coupon.Status{Kind: coupon.StatusWaiting, Ticket: 9, Rank: 3}, nil)
	for range 2 { // a repeat is the same
		if a := leave("42:u%2F7"); a.status != http.StatusNoContent || a.body != "" {
			t.Fatalf("%d %s", a.status, a.body)
		}
	}
	got := b.json(t, "GET", path, "").object(t)
	fixture.Equal(t, map[string]any{"requestId": "42:u/7", "status": "LEFT", "ticket": json.Number("9")}, got)
	b.shop.stand("42:has", coupon.Status{Kind: coupon.StatusIssued, Ticket: 5, Coupon: issued(2, 42, "has", 5)}, nil)
	leave("42:has").wantProblem(t, http.StatusConflict, reward.CodeRequestEnded)
	leave("42:nobody").wantProblem(t, http.StatusNotFound, reward.CodeRequestUnknown)
	b.shop.stand("42:away", coupon.Status{}, refusal(reward.KindUnavailable, reward.CodeUnavailable))
	if a := leave("42:away"); a.status != http.StatusServiceUnavailable || a.header.Get("Retry-After") == "" {
		t.Errorf("%d %v", a.status, a.header)
	}
	leave("42").wantProblem(t, http.StatusBadRequest, reward.CodeMalformed)
}
