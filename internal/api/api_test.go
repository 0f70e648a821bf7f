package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/payout"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/service"
	"github.com/largesse/largesse/internal/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bundle is an API over a store of its own, behind a real server.
type bundle struct {
	store *fakeStore
	api   *API
	url   string
	http  *http.Client
	log   *lockedBuffer
}

// lockedBuffer is written by many requests at a time.
type lockedBuffer struct {
	mu  sync.Mutex // protects buf
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

func setup(t *testing.T, edit ...func(*Config)) *bundle {
	t.Helper()
	f := newFakeStore()
	b := &bundle{store: f, log: &lockedBuffer{}}
	log, err := obs.NewLog(b.log, "info", "text")
	if err != nil {
		t.Fatal(err)
	}
	ids := service.NewIDs()
	hint := func(reward.PromotionID) {}
	cfg := Config{
		Promotions: payout.NewPromotions(payout.PromotionsConfig{Store: f, IDs: ids, Hint: hint}),
		Uploads:    payout.NewUploads(payout.UploadsConfig{Rows: f, Saver: f, IDs: ids, Hint: hint}),
		Rows:       f, Version: "1.2.3", Log: log,
	}
	for _, e := range edit {
		e(&cfg)
	}
	b.api = New(cfg)
	srv := httptest.NewServer(b.api)
	t.Cleanup(srv.Close)
	b.url, b.http = srv.URL, srv.Client()
	return b
}

type answer struct {
	status int
	header http.Header
	body   string
}

// do sends a request; headers are pairs.
func (b *bundle) do(t *testing.T, method, path string, body io.Reader, headers ...string) answer {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, b.url+path, body)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	res, err := b.http.Do(req)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	return answer{res.StatusCode, res.Header, string(text)}
}

func (b *bundle) json(t *testing.T, method, path, body string) answer {
	t.Helper()
	if body == "" {
		return b.do(t, method, path, nil)
	}
	return b.do(t, method, path, strings.NewReader(body), "Content-Type", "application/json")
}

func (b *bundle) create(t *testing.T, body string) string {
	t.Helper()
	a := b.json(t, "POST", "/v1/promotions", body)
	a.want(t, http.StatusCreated)
	return a.text(t, "id")
}

func (a answer) want(t *testing.T, status int) {
	t.Helper()
	if a.status != status {
		t.Fatalf("status %d, want %d: %s", a.status, status, a.body)
	}
}

// wantProblem checks everything that a problem promises and returns it.
func (a answer) wantProblem(t *testing.T, status int, code string) Problem {
	t.Helper()
	a.want(t, status)
	var p Problem
	dec := json.NewDecoder(strings.NewReader(a.body))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&p); err != nil {
		t.Fatalf("%v: %s", err, a.body)
	}
	if p.Code != code || p.Status != status || p.Title == "" || p.RequestID == "" || p.RequestID != a.header.Get("X-Request-Id") {
		t.Fatalf("problem %+v, want %s; header %v", p, code, a.header)
	}
	if got := a.header.Get("Content-Type"); got != "application/problem+json" {
		t.Fatalf("content type %s", got)
	}
	return p
}

func (a answer) object(t *testing.T) map[string]any {
	t.Helper()
	var m map[string]any
	dec := json.NewDecoder(strings.NewReader(a.body))
	dec.UseNumber()
	if err := dec.Decode(&m); err != nil {
		t.Fatalf("%v: %s", err, a.body)
	}
	return m
}

func (a answer) text(t *testing.T, field string) string {
	t.Helper()
	s, ok := a.object(t)[field].(string)
	if !ok {
		t.Fatalf("%s is no string: %s", field, a.body)
	}
	return s
}

func fields(p Problem) []string {
	var out []string
	for _, f := range p.Errors {
		out = append(out, f.Field)
	}
	return out
}

func TestPromotionCreate(t *testing.T) {
	t.Parallel()
	b := setup(t)

	t.Run("ShapeOfAPromotion", func(t *testing.T) {
		t.Parallel()
		a := b.json(t, "POST", "/v1/promotions", `{"id":12345,"name":"Spring","type":"POINT","amount":9007199254740993,"currency":"EUR","maxRetries":0}`)
		a.want(t, http.StatusCreated)
		got := a.object(t)
		if at, err := time.Parse(time.RFC3339, got["createdAt"].(string)); err != nil || at.Location() != time.UTC {
			t.Errorf("createdAt %v: %v", got["createdAt"], err)
		}
		delete(got, "createdAt")
		zero := json.Number("0")
		want := map[string]any{
			"id": "12345", "name": "Spring", "type": "POINT", "status": "DRAFT", "amount": json.Number("9007199254740993"),
			"currency": "EUR", "maxRetries": zero, "closed": false, "totalCount": zero,
			"counts":      map[string]any{"ready": zero, "queued": zero, "retrying": zero, "unknown": zero, "succeeded": zero, "failed": zero, "cancelled": zero},
			"amountTotal": zero, "amountSucceeded": zero,
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		if a.header.Get("Location") != "/v1/promotions/12345" {
			t.Errorf("location %q", a.header.Get("Location"))
		}
		b.json(t, "POST", "/v1/promotions", `{"id":"12345","name":"Again","type":"POINT"}`).wantProblem(t, http.StatusConflict, "ALREADY_EXISTS")
	})

	t.Run("MadeIDsAreLargeAndRetriesDefault", func(t *testing.T) {
		t.Parallel()
		a := b.json(t, "POST", "/v1/promotions", `{"name":"V","type":"VOUCHER","voucherCode":"V-1"}`)
		a.want(t, http.StatusCreated)
		if id := a.text(t, "id"); len(id) < 15 {
			t.Errorf("id %s could meet one of an upstream system", id)
		}
		if got := a.object(t)["maxRetries"]; got != json.Number("5") {
			t.Errorf("maxRetries %v", got)
		}
	})

	t.Run("AllWrongFieldsAtOnce", func(t *testing.T) {
		t.Parallel()
		a := b.json(t, "POST", "/v1/promotions", `{"id":"007","name":"","type":"POINT","amount":-1,"voucherCode":"V","currency":"eur","maxRetries":21,"nmae":"x"}`)
		p := a.wantProblem(t, http.StatusUnprocessableEntity, "INVALID")
		want := map[string]bool{"id": true, "name": true, "amount": true, "voucherCode": true, "currency": true, "maxRetries": true, "nmae": true}
		got := map[string]bool{}
		for _, f := range fields(p) {
			if got[f] {
				t.Errorf("%s is named twice", f)
			}
			got[f] = true
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got):\n%s\n%s", diff, a.body)
		}
	})

	for _, tt := range []struct {
		name, body string
		status     int
		code       string
		fields     []string
	}{
		{"Missing", `{}`, 422, "INVALID", []string{"name", "type"}},
		{"UnknownType", `{"name":"x","type":"COIN"}`, 422, "INVALID", []string{"type"}},
		{"ZeroPoints", `{"name":"x","type":"POINT","amount":0}`, 422, "INVALID", []string{"amount"}},
		{"NUL", `{"name":"x\u0000","type":"POINT"}`, 422, "INVALID", []string{"name"}},
		{"LongName", `{"name":"` + strings.Repeat("é", 201) + `","type":"POINT"}`, 422, "INVALID", []string{"name"}},
		{"LongVoucher", `{"name":"x","type":"VOUCHER","voucherCode":"` + strings.Repeat("V", 201) + `"}`, 422, "INVALID", []string{"voucherCode"}},
		{"FormulaVoucher", `{"name":"x","type":"VOUCHER","voucherCode":"=V"}`, 422, "INVALID", []string{"voucherCode"}},
		{"Fraction", `{"name":"x","type":"POINT","amount":1.5}`, 422, "INVALID", []string{"amount"}},
		{"ZeroID", `{"id":0,"name":"x","type":"POINT"}`, 422, "INVALID", []string{"id"}},
		{"OverflowID", `{"id":9223372036854775808,"name":"x","type":"POINT"}`, 422, "INVALID", []string{"id"}},
		{"WrongTypeOfID", `{"id":true,"name":"x","type":"POINT"}`, 422, "INVALID", []string{"id"}},
		{"NotJSON", `{"name":`, 400, "MALFORMED", []string{"body"}},
		{"NoBody", ``, 400, "MALFORMED", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p := b.json(t, "POST", "/v1/promotions", tt.body).wantProblem(t, tt.status, tt.code)
			if diff := cmp.Diff(tt.fields, fields(p)); diff != "" {
				t.Errorf("(-want +got):\n%s\n%+v", diff, p)
			}
		})
	}

	t.Run("OtherMediaTypes", func(t *testing.T) {
		t.Parallel()
		b.do(t, "POST", "/v1/promotions", strings.NewReader("name=x"), "Content-Type", "application/x-www-form-urlencoded").
			wantProblem(t, http.StatusUnsupportedMediaType, "UNSUPPORTED_MEDIA_TYPE")
	})

	t.Run("BodyOverOneMegabyte", func(t *testing.T) {
		t.Parallel()
		b.json(t, "POST", "/v1/promotions", `{"name":"`+strings.Repeat("x", 1<<20)+`"}`).wantProblem(t, http.StatusRequestEntityTooLarge, "BODY_TOO_LARGE")
	})
}

func TestPromotionMoves(t *testing.T) {
	t.Parallel()
	b := setup(t)
	all := []string{"start", "pause", "resume", "cancel", "close"}
	legal := map[string]map[string]string{
		"DRAFT":     {"start": "RUNNING", "cancel": "CANCELLED", "close": "DRAFT"},
		"RUNNING":   {"pause": "PAUSED", "cancel": "CANCELLED", "close": "RUNNING"},
		"PAUSED":    {"resume": "RUNNING", "cancel": "CANCELLED", "close": "PAUSED"},
		"COMPLETED": {"close": "COMPLETED"},
		"CANCELLED": {},
	}
	id := int64(0)
	for status, moves := range legal {
		for _, move := range all {
			id++
			promotion := reward.PromotionID(id)
			b.store.edit(promotion, func(v *store.PromotionView) {
				v.ID, v.Type, v.Status = promotion, reward.Point, reward.PromotionStatus(status)
			})
			t.Run(status+"/"+move, func(t *testing.T) {
				t.Parallel()
				a := b.json(t, "POST", fmt.Sprintf("/v1/promotions/%d/%s", promotion, move), "")
				to, ok := moves[move]
				if !ok {
					p := a.wantProblem(t, http.StatusConflict, "ILLEGAL_STATE")
					if !strings.Contains(p.Detail, "is "+status) || !strings.Contains(p.Detail, "allowed now: ") {
						t.Errorf("detail %q names neither the status nor what is allowed", p.Detail)
					}
					return
				}
				a.want(t, http.StatusAccepted)
				if got := a.text(t, "status"); got != to {
					t.Errorf("status %s, want %s", got, to)
				}
				if closed := a.object(t)["closed"]; closed != (move == "close") {
					t.Errorf("closed %v", closed)
				}
			})
		}
	}
	for _, move := range all {
		b.json(t, "POST", "/v1/promotions/99999/"+move, "").wantProblem(t, http.StatusNotFound, "PROMOTION_NOT_FOUND")
		b.json(t, "POST", "/v1/promotions/0x7/"+move, "").wantProblem(t, http.StatusBadRequest, "MALFORMED")
	}
}

func TestPromotionDelete(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.create(t, `{"name":"x","type":"POINT"}`)
	b.json(t, "DELETE", "/v1/promotions/"+id, "").want(t, http.StatusNoContent)
	b.json(t, "GET", "/v1/promotions/"+id, "").wantProblem(t, http.StatusNotFound, "PROMOTION_NOT_FOUND")
	b.json(t, "DELETE", "/v1/promotions/"+id, "").wantProblem(t, http.StatusNotFound, "PROMOTION_NOT_FOUND")
	running := b.create(t, `{"name":"x","type":"POINT"}`)
	b.json(t, "POST", "/v1/promotions/"+running+"/start", "").want(t, http.StatusAccepted)
	b.json(t, "DELETE", "/v1/promotions/"+running, "").wantProblem(t, http.StatusConflict, "ILLEGAL_STATE")
}

func TestPromotionGet(t *testing.T) {
	t.Parallel()
	b := setup(t)
	expected := int64(10)
	b.store.edit(7, func(v *store.PromotionView) {
		v.ID, v.Type, v.Status, v.ExpectedCount, v.PauseReason = 7, reward.Voucher, reward.Paused, &expected, "money.url answers 401"
		v.CreatedAt = time.Date(2026, 11, 21, 12, 0, 0, 0, time.FixedZone("KST", 9*3600))
		v.StartedAt = v.CreatedAt.Add(time.Hour)
		for i := range reward.StateCount {
			v.Counts.Payouts[i], v.Counts.Amounts[i] = int64(i)+1, reward.Amount(i+1)*100
		}
	})
	b.store.sums = []reward.Summary{{PromotionID: 7, ID: 3, Counts: reward.Counts{Payouts: [reward.StateCount]int64{reward.Succeeded: 2}, Amounts: [reward.StateCount]reward.Amount{reward.Succeeded: 50}}}}
	got := b.json(t, "GET", "/v1/promotions/7", "").object(t)
	n := func(i int) json.Number { return json.Number(fmt.Sprint(i)) }
	for field, want := range map[string]any{
		"totalCount": n(28), "expectedCount": n(10), "amountTotal": n(2800), "amountSucceeded": n(500), "pauseReason": "money.url answers 401",
		"createdAt": "2026-11-21T03:00:00Z", "startedAt": "2026-11-21T04:00:00Z", "finishedAt": nil, "etaSeconds": nil,
		"counts": map[string]any{"ready": n(1), "queued": n(2), "retrying": n(3), "unknown": n(4), "succeeded": n(5), "failed": n(6), "cancelled": n(7)},
		"summaries": []any{map[string]any{
			"promotionSummaryId": "3", "totalCount": n(2), "amountSucceeded": n(50),
			"counts": map[string]any{"ready": n(0), "queued": n(0), "retrying": n(0), "unknown": n(0), "succeeded": n(2), "failed": n(0), "cancelled": n(0)},
		}},
	} {
		if diff := cmp.Diff(want, got[field]); diff != "" {
			t.Errorf("%s (-want +got):\n%s", field, diff)
		}
	}
	b.json(t, "GET", "/v1/promotions/8", "").wantProblem(t, http.StatusNotFound, "PROMOTION_NOT_FOUND")
	b.json(t, "GET", "/v1/promotions/-1", "").wantProblem(t, http.StatusBadRequest, "MALFORMED")
}

// pages walks a list to its end and returns one field of all items.
func (b *bundle) pages(t *testing.T, path, field string) (got []string, pages int) {
	t.Helper()
	cursor := ""
	for {
		a := b.json(t, "GET", path+cursor, "")
		a.want(t, http.StatusOK)
		pages++
		for _, item := range a.object(t)["items"].([]any) {
			got = append(got, item.(map[string]any)[field].(string))
		}
		next, ok := a.object(t)["nextCursor"].(string)
		if !ok {
			return got, pages
		}
		cursor = "&cursor=" + next
	}
}

func TestLists(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for id := reward.PromotionID(1); id <= 6; id++ {
		b.store.edit(id, func(v *store.PromotionView) { v.ID, v.Type, v.Status = id, reward.Point, reward.Draft })
	}
	for target := reward.TargetID(0); target < 5; target++ {
		state := reward.Succeeded
		code := ""
		if target%2 == 1 {
			state, code = reward.Failed, "NO_ACCOUNT"
		}
		b.store.rows[store.PayoutID{PromotionID: 1, TargetID: target}] = reward.Payout{PromotionID: 1, TargetID: target, State: state, ErrorCode: code}
		b.store.letters = append(b.store.letters, reward.DeadLetter{ID: int64(target) + 1, Value: []byte("{"), Key: []byte{0xff}})
	}
	for _, tt := range []struct {
		path, field string
		want        []string
		pages       int
	}{
		{"/v1/promotions?limit=2", "id", []string{"6", "5", "4", "3", "2", "1"}, 3},
		{"/v1/promotions?limit=1000", "id", []string{"6", "5", "4", "3", "2", "1"}, 1},
		{"/v1/promotions?status=RUNNING", "id", nil, 1},
		{"/v1/promotions/1/payouts?limit=2", "targetId", []string{"0", "1", "2", "3", "4"}, 3},
		{"/v1/promotions/1/payouts?state=failed", "targetId", []string{"1", "3"}, 1},
		{"/v1/promotions/1/payouts?state=FAILED&code=OTHER", "targetId", nil, 1},
		{"/v1/dead-letters?limit=3", "id", []string{"5", "4", "3", "2", "1"}, 2},
		{"/v1/dead-letters?limit=1", "value", []string{"{", "{", "{", "{", "{"}, 5},
		{"/v1/dead-letters?limit=5", "keyBase64", []string{"/w==", "/w==", "/w==", "/w==", "/w=="}, 1},
	} {
		got, pages := b.pages(t, tt.path, tt.field)
		if diff := cmp.Diff(tt.want, got); diff != "" || pages != tt.pages {
			t.Errorf("%s: %d pages (-want +got):\n%s", tt.path, pages, diff)
		}
	}
	payoutCursor := encodeCursor(cursorPayouts, 1)
	for _, tt := range []struct {
		path   string
		status int
		code   string
	}{
		{"/v1/promotions?cursor=garbage", 400, "MALFORMED"},
		{"/v1/promotions?cursor=" + payoutCursor, 400, "MALFORMED"},
		{"/v1/promotions?cursor=" + encodeCursor(cursorPromotions, -1), 400, "MALFORMED"},
		{"/v1/promotions?limit=x", 400, "MALFORMED"},
		{"/v1/promotions?limit=0", 422, "INVALID"},
		{"/v1/promotions?limit=1001", 422, "INVALID"},
		{"/v1/promotions?limti=5", 422, "INVALID"},
		{"/v1/promotions?status=GONE", 422, "INVALID"},
		{"/v1/promotions/1/payouts?state=GONE", 422, "INVALID"},
		{"/v1/promotions/1/payouts?cursor=%00", 400, "MALFORMED"},
		{"/v1/promotions/77/payouts", 404, "PROMOTION_NOT_FOUND"},
		{"/v1/promotions/1/payouts/77", 404, "PAYOUT_NOT_FOUND"},
		{"/v1/promotions/1/payouts/07", 400, "MALFORMED"},
		{"/v1/dead-letters?cursor=x", 400, "MALFORMED"},
		{"/v1/nothing", 404, "ROUTE_NOT_FOUND"},
		{"/", 404, "ROUTE_NOT_FOUND"},
	} {
		b.json(t, "GET", tt.path, "").wantProblem(t, tt.status, tt.code)
	}
	a := b.json(t, "PUT", "/v1/promotions/1", "")
	a.wantProblem(t, http.StatusMethodNotAllowed, "METHOD_NOT_ALLOWED")
	if allow := a.header.Get("Allow"); !strings.Contains(allow, "GET") || !strings.Contains(allow, "DELETE") {
		t.Errorf("allow %q", allow)
	}
}

func TestPayoutWithAttempts(t *testing.T) {
	t.Parallel()
	b := setup(t)
	at := time.Date(2026, 11, 21, 1, 2, 3, 0, time.UTC)
	id := store.PayoutID{PromotionID: 1, TargetID: 7}
	b.store.rows[id] = reward.Payout{
		PromotionID: 1, TargetID: 7, SummaryID: 4, UserID: "u7", Amount: 1000, State: reward.Retrying, Attempts: 1,
		ErrorCode: "HTTP_500", ErrorMessage: "oops", UpdatedAt: at,
	}
	b.store.attempts[id] = []reward.Attempt{{Dispatch: 1, At: at, Class: reward.AnswerFailed, Code: "HTTP_500", Message: "oops"}}
	got := b.json(t, "GET", "/v1/promotions/1/payouts/7", "").object(t)
	want := map[string]any{
		"targetId": "7", "userId": "u7", "promotionSummaryId": "4", "amount": json.Number("1000"), "state": "RETRYING", "attempts": json.Number("1"),
		"errorCode": "HTTP_500", "errorMessage": "oops", "updatedAt": "2026-11-21T01:02:03Z",
		"attemptLog": []any{map[string]any{"dispatch": json.Number("1"), "at": "2026-11-21T01:02:03Z", "class": "FAILED", "code": "HTTP_500", "message": "oops"}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestPayoutExport(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.store.edit(1, func(v *store.PromotionView) { v.ID = 1 })
	at := time.Date(2026, 11, 21, 1, 2, 3, 0, time.UTC)
	for target := reward.TargetID(0); target < 2500; target++ {
		b.store.rows[store.PayoutID{PromotionID: 1, TargetID: target}] = reward.Payout{
			PromotionID: 1, TargetID: target, UserID: "u", Amount: 5, State: reward.Failed, ErrorCode: "C", ErrorMessage: "=cmd(),\"x\"", UpdatedAt: at,
		}
	}
	const head = "targetId,userId,amount,voucherCode,state,attempts,transactionKey,errorCode,errorMessage,updatedAt\n"
	a := b.do(t, "GET", "/v1/promotions/1/payouts?state=FAILED", nil, "Accept", "text/csv")
	a.want(t, http.StatusOK)
	if lines := strings.Count(a.body, "\n"); lines != 2501 {
		t.Errorf("%d lines", lines)
	}
	if want := head + "0,u,5,,FAILED,0,,C,\"'=cmd(),\"\"x\"\"\",2026-11-21T01:02:03Z\n"; !strings.HasPrefix(a.body, want) {
		t.Errorf("begins %q", a.body[:len(want)])
	}
	if got := a.header.Get("Content-Type"); got != "text/csv; charset=utf-8" {
		t.Errorf("content type %s", got)
	}
	if a := b.do(t, "GET", "/v1/promotions/1/payouts?state=READY", nil, "Accept", "text/csv"); a.body != head {
		t.Errorf("an empty export is %q", a.body)
	}
	if a := b.do(t, "GET", "/v1/promotions/1/payouts?limit=1", nil, "Accept", "application/json, text/csv"); !strings.HasPrefix(a.body, "{") {
		t.Errorf("JSON was asked for first: %q", a.body)
	}
	b.do(t, "GET", "/v1/promotions/9/payouts", nil, "Accept", "text/csv").wantProblem(t, http.StatusNotFound, "PROMOTION_NOT_FOUND")
	b.do(t, "GET", "/v1/promotions/1/payouts?state=x", nil, "Accept", "text/csv").wantProblem(t, http.StatusUnprocessableEntity, "INVALID")

	// The store goes away after the first page: the caller must notice.
	b.store.mu.Lock()
	b.store.away, b.store.awayFrom = errors.New("secret address"), 1
	b.store.mu.Unlock()
	req, err := http.NewRequestWithContext(t.Context(), "GET", b.url+"/v1/promotions/1/payouts", nil)
	if err != nil {
		t.Fatal(err)
	}
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

func TestHealth(t *testing.T) {
	t.Parallel()
	var stuck error
	b := setup(t, func(c *Config) {
		c.Alive = func() error { return stuck }
		c.Degraded = func() []string { return []string{"redis"} }
	})
	if a := b.json(t, "GET", "/healthz", ""); a.status != 200 || a.text(t, "status") != "ok" {
		t.Errorf("%+v", a)
	}
	a := b.json(t, "GET", "/readyz", "")
	a.want(t, http.StatusOK)
	if diff := cmp.Diff([]any{"redis"}, a.object(t)["degraded"]); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	b.api.Drain()
	b.json(t, "GET", "/readyz", "").wantProblem(t, http.StatusServiceUnavailable, "DRAINING")
	b.api.Undrain()
	b.store.away = errors.New("dial tcp 10.0.0.1: refused")
	a = b.json(t, "GET", "/readyz", "")
	a.wantProblem(t, http.StatusServiceUnavailable, "UNAVAILABLE")
	if strings.Contains(a.body, "10.0.0.1") || a.header.Get("Retry-After") == "" {
		t.Errorf("%+v", a)
	}
	if a := b.json(t, "GET", "/healthz", ""); a.status != 200 {
		t.Errorf("healthz must not ask the store: %+v", a)
	}
	stuck = errors.New("feeder stands still")
	b.json(t, "GET", "/healthz", "").wantProblem(t, http.StatusServiceUnavailable, "UNAVAILABLE")
}

func TestRequestIDs(t *testing.T) {
	t.Parallel()
	b := setup(t)
	if a := b.do(t, "GET", "/healthz", nil, "X-Request-Id", "abc-1:2"); a.header.Get("X-Request-Id") != "abc-1:2" {
		t.Errorf("%v", a.header)
	}
	for _, bad := range []string{"", "a b", strings.Repeat("x", 129), "é"} {
		got := b.do(t, "GET", "/healthz", nil, "X-Request-Id", bad).header.Get("X-Request-Id")
		if got == bad || got == "" {
			t.Errorf("%q became %q", bad, got)
		}
	}
}

func TestErrorsOfOursDoNotLeak(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.store.edit(1, func(v *store.PromotionView) { v.ID = 1 })
	b.store.away = errors.New("password=hunter2")
	a := b.json(t, "GET", "/v1/promotions/1", "")
	p := a.wantProblem(t, http.StatusInternalServerError, "INTERNAL")
	if strings.Contains(a.body, "hunter2") {
		t.Errorf("leaked: %s", a.body)
	}
	b.store.away = &reward.Error{Kind: reward.KindUnavailable, Code: "UNAVAILABLE", Detail: "the store is away", Err: errors.New("hunter2")}
	a = b.json(t, "GET", "/v1/promotions/1", "")
	a.wantProblem(t, http.StatusServiceUnavailable, "UNAVAILABLE")
	if strings.Contains(a.body, "hunter2") || a.header.Get("Retry-After") == "" {
		t.Errorf("%+v", a)
	}
	if log := b.log.String(); !strings.Contains(log, "hunter2") || !strings.Contains(log, p.RequestID) {
		t.Errorf("the log does not say what happened: %s", log)
	}
}

func TestPanicsBecomeProblems(t *testing.T) {
	t.Parallel()
	b := setup(t, func(c *Config) { c.Degraded = func() []string { panic("boom") } })
	b.json(t, "GET", "/readyz", "").wantProblem(t, http.StatusInternalServerError, "INTERNAL")
	b.api.mux.HandleFunc("GET /half", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("half"))
		panic("boom")
	})
	req, err := http.NewRequestWithContext(t.Context(), "GET", b.url+"/half", nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := b.http.Do(req)
	if err == nil {
		_, err = io.ReadAll(res.Body)
		_ = res.Body.Close()
	}
	if err == nil {
		t.Error("half an answer looks like a whole one")
	}
	if !strings.Contains(b.log.String(), "boom") {
		t.Errorf("log %s", b.log)
	}
}

func TestOpenAPI(t *testing.T) {
	t.Parallel()
	b := setup(t)
	a := b.json(t, "GET", "/openapi.json", "")
	a.want(t, http.StatusOK)
	doc := a.object(t)
	if v, _ := doc["openapi"].(string); !strings.HasPrefix(v, "3.1") {
		t.Errorf("openapi %v", doc["openapi"])
	}
	paths, _ := doc["paths"].(map[string]any)
	for _, want := range []string{
		"post /v1/promotions", "get /v1/promotions", "get /v1/promotions/{id}", "delete /v1/promotions/{id}",
		"post /v1/promotions/{id}/start", "post /v1/promotions/{id}/pause", "post /v1/promotions/{id}/resume", "post /v1/promotions/{id}/cancel",
		"post /v1/promotions/{id}/close", "post /v1/promotions/{id}/targets", "get /v1/promotions/{id}/uploads/{uploadId}/report",
		"get /v1/promotions/{id}/payouts", "get /v1/promotions/{id}/payouts/{targetId}", "get /v1/dead-letters", "get /healthz", "get /readyz",
	} {
		method, path, _ := strings.Cut(want, " ")
		item, _ := paths[path].(map[string]any)
		if _, ok := item[method]; !ok {
			t.Errorf("%s is not described", want)
		}
	}
	for _, want := range []string{"application/problem+json", "application/x-ndjson", "text/csv"} {
		if !strings.Contains(a.body, want) {
			t.Errorf("%s is not described", want)
		}
	}
	if strings.Contains(a.body, "$schema") {
		t.Error("$schema is nobody's field")
	}
}

func TestEstimator(t *testing.T) {
	t.Parallel()
	e := newEstimator()
	now := time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC)
	view := func(done int64) store.PromotionView {
		v := store.PromotionView{Promotion: reward.Promotion{ID: 1, Status: reward.Running}}
		v.Counts.Payouts[reward.Succeeded], v.Counts.Payouts[reward.Ready] = done, 1000-done
		return v
	}
	if got := e.seconds(view(0), now); got != nil {
		t.Errorf("one look gave %d", *got)
	}
	if got := e.seconds(view(100), now.Add(500*time.Millisecond)); got != nil {
		t.Errorf("two looks too close together gave %d", *got)
	}
	if got := e.seconds(view(100), now.Add(2*time.Second)); got == nil || *got != 18 {
		t.Errorf("100 in 2 s leave 900 for 18 s, not %v", got)
	}
	if got := e.seconds(view(150), now.Add(3*time.Minute)); got != nil {
		t.Errorf("an old look gave %d", *got)
	}
	paused := view(150)
	paused.Status = reward.Paused
	if got := e.seconds(paused, now.Add(3*time.Minute)); got != nil {
		t.Errorf("a paused promotion gave %d", *got)
	}
	for id := range reward.PromotionID(3 * rateTracks) {
		v := view(0)
		v.ID = id
		e.seconds(v, now)
	}
	if len(e.tracks) > rateTracks {
		t.Errorf("%d tracks", len(e.tracks))
	}
}

func TestServer(t *testing.T) {
	t.Parallel()
	b := setup(t)

	t.Run("RefusesWhatIsNotLoopback", func(t *testing.T) {
		t.Parallel()
		for _, listen := range []string{"0.0.0.0:0", ":0", "192.0.2.1:80", "[::]:0", "example.com:80", "127.0.0.1"} {
			if _, err := NewServer(ServerConfig{Listen: listen, AuthMode: AuthNone, API: b.api}); err == nil {
				t.Errorf("%s was taken", listen)
			}
		}
		if _, err := NewServer(ServerConfig{Listen: "127.0.0.1:0", AuthMode: "apikey", API: b.api}); err == nil {
			t.Error("an unknown mode was taken")
		}
	})

	t.Run("StartStopStress", func(t *testing.T) {
		t.Parallel()
		s, err := NewServer(ServerConfig{Listen: "localhost:0", AuthMode: AuthNone, API: setup(t).api})
		if err != nil {
			t.Fatal(err)
		}
		s.Stop()
		client := &http.Client{}
		defer client.CloseIdleConnections()
		for range 20 {
			if err := errors.Join(s.Start(t.Context()), s.Start(t.Context())); err != nil {
				t.Fatal(err)
			}
			req, err := http.NewRequestWithContext(t.Context(), "GET", "http://"+s.Addr()+"/readyz", nil)
			if err != nil {
				t.Fatal(err)
			}
			res, err := client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			_ = res.Body.Close()
			if res.StatusCode != http.StatusOK {
				t.Fatalf("status %d", res.StatusCode)
			}
			go s.Stop()
			s.Stop()
		}
	})

	t.Run("TakenAddress", func(t *testing.T) {
		t.Parallel()
		other := setup(t)
		s, err := NewServer(ServerConfig{Listen: strings.TrimPrefix(other.url, "http://"), AuthMode: AuthNone, API: other.api})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Start(t.Context()); err == nil {
			t.Error("an address was bound twice")
		}
	})

	t.Run("KeepsPagesOfOthersOut", func(t *testing.T) {
		t.Parallel()
		s, err := NewServer(ServerConfig{Listen: "127.0.0.1:0", AuthMode: AuthNone, API: b.api})
		if err != nil {
			t.Fatal(err)
		}
		for _, tt := range []struct {
			method, host, site string
			status             int
		}{
			{"GET", "127.0.0.1:8080", "", 200},
			{"GET", "[::1]:8080", "", 200},
			{"GET", "localhost", "", 200},
			{"GET", "evil.example:8080", "", 421},
			{"POST", "127.0.0.1:8080", "cross-site", 403},
		} {
			r := httptest.NewRequestWithContext(t.Context(), tt.method, "/healthz", nil)
			r.Host = tt.host
			if tt.site != "" {
				r.Header.Set("Sec-Fetch-Site", tt.site)
			}
			w := httptest.NewRecorder()
			s.guard().ServeHTTP(w, r)
			if w.Code != tt.status {
				t.Errorf("%+v: status %d", tt, w.Code)
			}
		}
	})

	t.Run("AnUploadUnderWayEndsAtAStop", func(t *testing.T) {
		t.Parallel()
		own := setup(t)
		own.store.edit(1, func(v *store.PromotionView) { v.ID, v.Type, v.Amount = 1, reward.Point, 5 })
		s, err := NewServer(ServerConfig{Listen: "127.0.0.1:0", AuthMode: AuthNone, API: own.api})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		body, feed := io.Pipe()
		client := &http.Client{}
		defer client.CloseIdleConnections()
		done := make(chan int, 1)
		go func() {
			req, err := http.NewRequestWithContext(context.WithoutCancel(t.Context()), "POST", "http://"+s.Addr()+"/v1/promotions/1/targets", body)
			if err != nil {
				done <- 0
				return
			}
			req.Header.Set("Content-Type", "text/csv")
			res, err := client.Do(req)
			if err != nil {
				done <- 0
				return
			}
			_ = res.Body.Close()
			done <- res.StatusCode
		}()
		if _, err := io.WriteString(feed, "targetId\n1\n"); err != nil {
			t.Fatal(err)
		}
		waitFor(t, func() bool { defer own.store.lock()(); return own.store.gets > 0 })
		stopped := make(chan struct{})
		go func() { s.Stop(); close(stopped) }()
		waitFor(t, func() bool { return own.api.draining.Load() })
		if _, err := io.WriteString(feed, "2\n"); err != nil {
			t.Fatal(err)
		}
		_ = feed.Close()
		if status := <-done; status != http.StatusOK {
			t.Errorf("status %d", status)
		}
		<-stopped
		if len(own.store.rows) != 2 {
			t.Errorf("%d rows", len(own.store.rows))
		}
	})
}

// waitFor polls until ok, for at most ten seconds.
func waitFor(t *testing.T, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !ok(); {
		if time.Now().After(deadline) {
			t.Fatal("it did not happen within 10 s")
		}
		time.Sleep(time.Millisecond)
	}
}
