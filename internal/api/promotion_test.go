package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
)

func TestPromotionCreate(t *testing.T) {
	t.Parallel()
	b := setup(t)

	t.Run("ShapeOfAPromotion", func(t *testing.T) {
		t.Parallel()
		a := b.json(t, "POST", "/v1/promotions", `{"id":12345,"name":"Spring","type":"POINT","amount":1000000000000000,"currency":"EUR","maxRetries":0}`)
		a.want(t, http.StatusCreated)
		got := a.object(t)
		if at, err := time.Parse(time.RFC3339, got["createdAt"].(string)); err != nil || at.Location() != time.UTC {
			t.Errorf("createdAt %v: %v", got["createdAt"], err)
		}
		delete(got, "createdAt")
		zero := json.Number("0")
		want := map[string]any{
			"id": "12345", "name": "Spring", "type": "POINT", "status": "DRAFT", "amount": json.Number("1000000000000000"),
			"currency": "EUR", "maxRetries": zero, "weight": json.Number("1"), "createdBy": "anonymous", "awaitingApproval": false, "closed": false, "totalCount": zero,
			"counts":      map[string]any{"ready": zero, "queued": zero, "retrying": zero, "unknown": zero, "succeeded": zero, "failed": zero, "cancelled": zero},
			"amountTotal": zero, "amountSucceeded": zero,
		}
		fixture.Equal(t, want, got)
		if a.header.Get("Location") != "/v1/promotions/12345" {
			t.Errorf("location %q", a.header.Get("Location"))
		}
		b.json(t, "POST", "/v1/promotions", `{"id":"12345","name":"Again","type":"POINT"}`).wantProblem(t, http.StatusConflict, "ALREADY_EXISTS")
		b.json(t, "POST", "/v1/promotions", `{"id":"12345","name":"Again","type":"VOUCHER"}`).wantProblem(t, http.StatusConflict, "TYPE_MISMATCH")
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

	t.Run("ConsumersPerInstance", func(t *testing.T) {
		t.Parallel()
		for _, n := range []json.Number{"1", "256"} {
			id := b.create(t, `{"name":"C","type":"POINT","consumersPerInstance":`+n.String()+`}`)
			if got := b.json(t, "GET", "/v1/promotions/"+id, "").object(t)["consumersPerInstance"]; got != n {
				t.Errorf("consumersPerInstance %v, want %s", got, n)
			}
		}
		id := b.create(t, `{"name":"C","type":"POINT"}`)
		if got, there := b.json(t, "GET", "/v1/promotions/"+id, "").object(t)["consumersPerInstance"]; there {
			t.Errorf("consumersPerInstance %v where the size decides", got)
		}
	})

	t.Run("AllWrongFieldsAtOnce", func(t *testing.T) {
		t.Parallel()
		a := b.json(t, "POST", "/v1/promotions", `{"id":"007","name":"","type":"POINT","amount":-1,"voucherCode":"V","currency":"eur","maxRetries":21,"shade":"x"}`)
		p := a.wantProblem(t, http.StatusUnprocessableEntity, "INVALID")
		want := map[string]bool{"id": true, "name": true, "amount": true, "voucherCode": true, "currency": true, "maxRetries": true, "shade": true}
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
		{"TooManyConsumers", `{"name":"x","type":"POINT","consumersPerInstance":257}`, 422, "INVALID", []string{"consumersPerInstance"}},
		{"TooHighARate", `{"name":"x","type":"POINT","ratePerSecond":1000001}`, 422, "INVALID", []string{"ratePerSecond"}},
		{"UnknownType", `{"name":"x","type":"COIN"}`, 422, "INVALID", []string{"type"}},
		{"LongName", `{"name":"` + strings.Repeat("é", 201) + `","type":"POINT"}`, 422, "INVALID", []string{"name"}},
		{"HalfAConsumer", `{"name":"x","type":"POINT","consumersPerInstance":0.5}`, 422, "INVALID", []string{"consumersPerInstance"}},
		{"EmptyCanary", `{"name":"x","type":"POINT","canary":{}}`, 422, "INVALID", []string{"canary.targets"}},
		{"CanaryAboveOne", `{"name":"x","type":"POINT","canary":{"targets":5,"maxFailureRate":1.1}}`, 422, "INVALID", []string{"canary.maxFailureRate"}},
		{"StartsInThePast", `{"name":"x","type":"POINT","startsAt":"2020-01-01T00:00:00Z"}`, 422, "INVALID", []string{"startsAt"}},
		{"StartsSomeday", `{"name":"x","type":"POINT","startsAt":"tomorrow"}`, 422, "INVALID", []string{"startsAt"}},
		{"WebhookByMail", `{"name":"x","type":"POINT","webhookUrl":"mailto:a@b"}`, 422, "INVALID", []string{"webhookUrl"}},
		{"WebhookWithAPassword", `{"name":"x","type":"POINT","webhookUrl":"https://u:hunter2@h/x"}`, 422, "INVALID", []string{"webhookUrl"}},
		{"WebhookWithAFragment", `{"name":"x","type":"POINT","webhookUrl":"https://h/x#y"}`, 422, "INVALID", []string{"webhookUrl"}},
		{"LongWebhook", `{"name":"x","type":"POINT","webhookUrl":"https://h/` + strings.Repeat("é", 1000) + `"}`, 422, "INVALID", []string{"webhookUrl"}},
		{"Missing", `{}`, 422, "INVALID", []string{"name", "type"}},
		{"ZeroPoints", `{"name":"x","type":"POINT","amount":0}`, 422, "INVALID", []string{"amount"}},
		{"NUL", `{"name":"x\u0000","type":"POINT"}`, 422, "INVALID", []string{"name"}},
		{"LongVoucher", `{"name":"x","type":"VOUCHER","voucherCode":"` + strings.Repeat("V", 201) + `"}`, 422, "INVALID", []string{"voucherCode"}},
		{"FormulaVoucher", `{"name":"x","type":"VOUCHER","voucherCode":"=V"}`, 422, "INVALID", []string{"voucherCode"}},
		{"Fraction", `{"name":"x","type":"POINT","amount":1.5}`, 422, "INVALID", []string{"amount"}},
		{"ZeroID", `{"id":0,"name":"x","type":"POINT"}`, 422, "INVALID", []string{"id"}},
		{"OverflowID", `{"id":9223372036854775808,"name":"x","type":"POINT"}`, 422, "INVALID", []string{"id"}},
		{"WrongTypeOfID", `{"id":true,"name":"x","type":"POINT"}`, 422, "INVALID", []string{"id"}},
		{"TooMuch", `{"name":"x","type":"POINT","amount":1000000000000001}`, 422, "INVALID", []string{"amount"}},
		{"FarTooMuch", `{"name":"x","type":"POINT","amount":99999999999999999999}`, 422, "INVALID", []string{"amount"}},
		{"Exponent", `{"name":"x","type":"POINT","amount":1e3}`, 422, "INVALID", []string{"amount"}},
		{"OtherCase", `{"name":"x","Type":"POINT"}`, 422, "INVALID", []string{"type", "Type"}},
		{"NameTwice", `{"name":"A","name":"B","type":"POINT"}`, 400, "MALFORMED", []string{"name"}},
		{"NameTwiceEscaped", `{"name":"A","n\u0061me":"B","type":"POINT"}`, 400, "MALFORMED", []string{"name"}},
		{"NameTwiceWithin", `{"name":[{"a":1,"a":2}],"type":"POINT"}`, 400, "MALFORMED", []string{"a"}},
		{"List", `[]`, 422, "INVALID", []string{"body"}},
		{"Null", `null`, 422, "INVALID", []string{"body"}},
		{"NotJSON", `{"name":`, 400, "MALFORMED", []string{"body"}},
		{"NoBody", ``, 400, "MALFORMED", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p := b.json(t, "POST", "/v1/promotions", tt.body).wantProblem(t, tt.status, tt.code)
			if diff := cmp.Diff(tt.fields, fields(p)); diff != "" {
				t.Errorf("(-want +got):\n%s\n%+v", diff, p)
			}
			for _, ours := range []string{"Go ", "json:", "int64", "unmarshal", "e+"} {
				if text := fmt.Sprint(p.Detail, p.Errors); strings.Contains(text, ours) {
					t.Errorf("%q says %q", text, ours)
				}
			}
		})
	}

	t.Run("RangesOfIDs", func(t *testing.T) {
		t.Parallel()
		for _, id := range []string{"0", "-1", `"x"`, "9223372036854775808"} {
			p := b.json(t, "POST", "/v1/promotions", `{"id":`+id+`,"name":"x","type":"POINT"}`).wantProblem(t, 422, "INVALID")
			if !strings.Contains(p.Detail, "from 1 to 9223372036854775807") {
				t.Errorf("%s: %q", id, p.Detail)
			}
		}
		p := b.json(t, "GET", "/v1/promotions/0", "").wantProblem(t, 400, "MALFORMED")
		if !strings.Contains(p.Detail, "from 1 to") {
			t.Errorf("%q", p.Detail)
		}
	})

	t.Run("OtherMediaTypes", func(t *testing.T) {
		t.Parallel()
		p := b.do(t, "POST", "/v1/promotions", strings.NewReader("name=x"), "Content-Type", "application/x-www-form-urlencoded").
			wantProblem(t, http.StatusUnsupportedMediaType, "UNSUPPORTED_MEDIA_TYPE")
		fixture.Equal(t, []string{"body"}, fields(p))
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
			b.store.promotion(t, promotion, reward.PromotionStatus(status))
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

func TestPromotionGet(t *testing.T) {
	t.Parallel()
	b := setup(t)
	expected := int64(10)
	b.store.promotion(t, 7, reward.Running)
	b.store.pay(t, 7, testTime, ended(1, rules.OutcomePaid, ""), ended(2, rules.OutcomePaid, ""))
	b.store.shown = func(v *store.PromotionView) {
		v.Type, v.Status, v.ExpectedCount, v.PauseReason = reward.Voucher, reward.Paused, &expected, "money.url answers 401"
		v.CreatedAt = time.Date(2026, 11, 21, 12, 0, 0, 0, time.FixedZone("KST", 9*3600))
		v.StartedAt = v.CreatedAt.Add(time.Hour)
		for i := range reward.StateCount {
			v.Counts.Payouts[i], v.Counts.Amounts[i] = int64(i)+1, reward.Amount(i+1)*100
		}
	}
	got := b.json(t, "GET", "/v1/promotions/7", "").object(t)
	n := func(i int) json.Number { return json.Number(fmt.Sprint(i)) }
	for field, want := range map[string]any{
		"totalCount": n(28), "expectedCount": n(10), "amountTotal": n(2800), "amountSucceeded": n(500), "pauseReason": "money.url answers 401",
		"createdAt": "2026-11-21T03:00:00Z", "startedAt": "2026-11-21T04:00:00Z", "finishedAt": nil, "etaSeconds": nil,
		"counts": map[string]any{"ready": n(1), "queued": n(2), "retrying": n(3), "unknown": n(4), "succeeded": n(5), "failed": n(6), "cancelled": n(7)},
		"summaries": []any{map[string]any{
			"promotionSummaryId": "3", "totalCount": n(2), "amountSucceeded": n(10),
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
