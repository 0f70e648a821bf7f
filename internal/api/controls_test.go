package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/largesse/largesse/internal/bus"
	"github.com/largesse/largesse/internal/campaign"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/service"
)

// as sends a JSON request with an actor.
func (b *bundle) as(t *testing.T, who, method, path, body string) answer {
	t.Helper()
	headers := []string{ActorHeader, who}
	if body == "" {
		return b.do(t, method, path, nil, headers...)
	}
	return b.do(t, method, path, strings.NewReader(body), append(headers, "Content-Type", "application/json")...)
}

func TestControlsOfAPromotion(t *testing.T) {
	t.Parallel()
	b := setup(t)
	at := time.Now().Add(time.Hour).UTC().Truncate(time.Second).Format(time.RFC3339)
	a := b.as(t, "김 Kim", "POST", "/v1/promotions", `{"id":7,"name":"x","type":"POINT","ratePerSecond":1000000,"weight":100,"maxAmount":5,
		"canary":{"targets":3},"startsAt":"`+at+`","webhookUrl":"https://hooks.example/a?b=c"}`)
	a.want(t, http.StatusCreated)
	want := map[string]any{
		"ratePerSecond": json.Number("1000000"), "weight": json.Number("100"), "maxAmount": json.Number("5"), "startsAt": at,
		"canary":     map[string]any{"targets": json.Number("3"), "maxFailureRate": json.Number("0.5"), "dispatched": json.Number("0"), "judged": false},
		"webhookUrl": "https://hooks.example/a?b=c", "createdBy": "김 Kim", "approvedBy": nil,
	}
	for _, got := range []map[string]any{a.object(t), b.json(t, "GET", "/v1/promotions/7", "").object(t)} {
		for field, value := range want {
			if diff := cmp.Diff(value, got[field]); diff != "" {
				t.Errorf("%s (-want +got):\n%s", field, diff)
			}
		}
	}
	strict := b.json(t, "POST", "/v1/promotions", `{"name":"x","type":"POINT","canary":{"targets":1,"maxFailureRate":0}}`)
	if got := strict.object(t)["canary"].(map[string]any)["maxFailureRate"]; got != json.Number("0") {
		t.Errorf("a canary that may not fail at all has the rate %v", got)
	}
}

func TestWebhooksNeedASecret(t *testing.T) {
	t.Parallel()
	b := setup(t)
	bare := setup(t, func(c *Config) {
		c.Promotions = campaign.NewPromotions(campaign.PromotionsConfig{Store: b.store, IDs: service.NewIDs(), Hint: func(reward.PromotionID) {}})
	})
	const body = `{"name":"x","type":"POINT","webhookUrl":"https://h/x"}`
	p := bare.json(t, "POST", "/v1/promotions", body).wantProblem(t, http.StatusUnprocessableEntity, "INVALID")
	if diff := cmp.Diff([]string{"webhookUrl"}, fields(p)); diff != "" || !strings.Contains(p.Errors[0].Detail, "set webhook.secret") {
		t.Errorf("%+v", p)
	}
	b.json(t, "POST", "/v1/promotions", body).want(t, http.StatusCreated)
}

// TestPayable: a promotion that the provider would pay as something else is refused at
// each door, and nothing changes.
func TestPayable(t *testing.T) {
	t.Parallel()
	b := setup(t)
	euros := setup(t, func(c *Config) {
		c.Rows = b.store
		c.Promotions = campaign.NewPromotions(campaign.PromotionsConfig{
			Store: b.store, IDs: service.NewIDs(), Hint: func(reward.PromotionID) {},
			Payable: reward.Payable{PointsOnly: true, Currencies: []string{"EUR"}},
		})
	})
	for body, want := range map[string]string{
		`{"name":"x","type":"POINT","currency":"JPY"}`:                     "currency",
		`{"name":"x","type":"POINT"}`:                                      "currency",
		`{"name":"x","type":"VOUCHER","voucherCode":"V","currency":"EUR"}`: "type",
	} {
		p := euros.json(t, "POST", "/v1/promotions", body).wantProblem(t, http.StatusUnprocessableEntity, "INVALID")
		if diff := cmp.Diff([]string{want}, fields(p)); diff != "" {
			t.Errorf("%s: %s", body, diff)
		}
	}
	euros.json(t, "POST", "/v1/promotions", `{"id":"5","name":"x","type":"POINT","currency":"EUR"}`).want(t, http.StatusCreated)
	p := euros.json(t, "PATCH", "/v1/promotions/5", `{"currency":"JPY"}`).wantProblem(t, http.StatusUnprocessableEntity, "INVALID")
	fixture.Equal(t, []string{"currency"}, fields(p))
	for id, move := range map[reward.PromotionID]string{6: "start", 7: "resume"} {
		status := map[string]reward.PromotionStatus{"start": reward.Draft, "resume": reward.Paused}[move]
		b.store.promotion(t, id, status, func(p *reward.Promotion) { p.Currency = "JPY" })
		p := euros.json(t, "POST", fmt.Sprintf("/v1/promotions/%d/%s", id, move), "").wantProblem(t, http.StatusConflict, "ILLEGAL_STATE")
		if !strings.Contains(p.Detail, "cannot "+move+": its currency must be one that the provider pays, not JPY") {
			t.Error(p.Detail)
		}
		if got := euros.json(t, "GET", fmt.Sprintf("/v1/promotions/%d", id), "").text(t, "status"); got != string(status) {
			t.Errorf("it is %s", got)
		}
	}
}

func TestActors(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const body = `{"name":"x","type":"POINT"}`
	for name, want := range map[string]string{"kim": "kim", "  kim ": "kim", strings.Repeat("é", 200): strings.Repeat("é", 200)} {
		if got := b.as(t, name, "POST", "/v1/promotions", body).text(t, "createdBy"); got != want {
			t.Errorf("%q became %q", name, got)
		}
	}
	for _, bad := range []string{"", "  ", strings.Repeat("é", 201), "k\xffm", "k\u0085m"} {
		p := b.as(t, bad, "POST", "/v1/promotions", body).wantProblem(t, http.StatusBadRequest, "MALFORMED")
		if diff := cmp.Diff([]string{ActorHeader}, fields(p)); diff != "" {
			t.Errorf("%q: %s", bad, diff)
		}
	}
}

func TestRetryPayouts(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for id, status := range map[reward.PromotionID]reward.PromotionStatus{1: reward.Running, 2: reward.PromotionCancelled, 3: reward.Draft} {
		b.store.promotion(t, id, status)
	}
	outcomes := make([]rules.Outcome, 2500)
	for i := range outcomes {
		code, kind := "A", rules.OutcomeRefused
		if i%5 == 0 {
			code = "B"
		}
		if i%100 == 1 {
			kind = rules.OutcomePaid
		}
		outcomes[i] = ended(reward.TargetID(i), kind, code)
	}
	b.store.pay(t, 1, testTime, outcomes...)
	b.store.complete(t, 1)
	for _, want := range []struct {
		body     string
		requeued int
	}{{`{"state":"FAILED","code":"B"}`, 500}, {`{"state":"FAILED"}`, 1975}, {`{"state":"FAILED"}`, 0}} {
		a := b.json(t, "POST", "/v1/promotions/1/payouts/retry", want.body)
		a.want(t, http.StatusAccepted)
		if got := a.object(t)["requeued"]; got != json.Number(fmt.Sprint(want.requeued)) {
			t.Errorf("%s requeued %v, want %d", want.body, got, want.requeued)
		}
	}
	for _, tt := range []struct {
		path, body string
		status     int
		code       string
	}{
		{"2", `{"state":"FAILED"}`, 409, "ILLEGAL_STATE"},
		{"3", `{"state":"FAILED"}`, 409, "ILLEGAL_STATE"},
		{"9", `{"state":"FAILED"}`, 404, "PROMOTION_NOT_FOUND"},
		{"x", `{"state":"FAILED"}`, 400, "MALFORMED"},
		{"1", `{"state":"UNKNOWN"}`, 422, "INVALID"},
		{"1", `{}`, 422, "INVALID"},
	} {
		b.json(t, "POST", "/v1/promotions/"+tt.path+"/payouts/retry", tt.body).wantProblem(t, tt.status, tt.code)
	}
}

func TestResolve(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.store.promotion(t, 1, reward.Running)
	b.store.pay(t, 1, testTime, ended(1, rules.OutcomeNoLookup, ""), ended(2, rules.OutcomeNoLookup, ""), ended(3, queued, ""))
	a := b.as(t, "kim", "POST", "/v1/promotions/1/payouts/1/resolve", `{"outcome":"SUCCEEDED","transactionKey":"T-9","note":"on the statement"}`)
	a.want(t, http.StatusOK)
	got := a.object(t)
	log := got["attemptLog"].([]any)[0].(map[string]any)
	if got["state"] != "SUCCEEDED" || got["transactionKey"] != "T-9" || log["class"] != "RESOLVED" || log["code"] != "kim" || log["message"] != "on the statement" {
		t.Errorf("%s", a.body)
	}
	if got := b.json(t, "POST", "/v1/promotions/1/payouts/2/resolve", `{"outcome":"FAILED","note":"never received"}`).text(t, "state"); got != "FAILED" {
		t.Errorf("state %s", got)
	}
	for _, tt := range []struct {
		path, body string
		status     int
		code       string
		fields     []string
	}{
		{"1/payouts/1", `{"outcome":"FAILED","note":"n"}`, 409, "ILLEGAL_STATE", nil},
		{"1/payouts/3", `{"outcome":"FAILED","note":"n"}`, 409, "ILLEGAL_STATE", nil},
		{"1/payouts/4", `{"outcome":"FAILED","note":"n"}`, 404, "PAYOUT_NOT_FOUND", nil},
		{"9/payouts/1", `{"outcome":"FAILED","note":"n"}`, 404, "PROMOTION_NOT_FOUND", nil},
		{"1/payouts/01", `{"outcome":"FAILED","note":"n"}`, 400, "MALFORMED", []string{"targetId"}},
		{"1/payouts/2", `{"outcome":"FAILED"}`, 422, "INVALID", []string{"note"}},
		{"1/payouts/2", `{"outcome":"FAILED","note":" "}`, 422, "INVALID", []string{"note"}},
		{"1/payouts/2", `{"outcome":"FAILED","note":"` + strings.Repeat("x", 1001) + `"}`, 422, "INVALID", []string{"note"}},
		{"1/payouts/2", `{"outcome":"SUCCEEDED","note":"n"}`, 422, "INVALID", []string{"transactionKey"}},
		{"1/payouts/2", `{"outcome":"FAILED","transactionKey":"T","note":"n"}`, 422, "INVALID", []string{"transactionKey"}},
		{"1/payouts/2", `{"outcome":"SUCCEEDED","transactionKey":"T\u0001","note":"n"}`, 422, "INVALID", []string{"transactionKey"}},
		{"1/payouts/2", `{"outcome":"PAID","note":"n"}`, 422, "INVALID", []string{"outcome"}},
	} {
		p := b.json(t, "POST", "/v1/promotions/"+tt.path+"/resolve", tt.body).wantProblem(t, tt.status, tt.code)
		if diff := cmp.Diff(tt.fields, fields(p)); diff != "" {
			t.Errorf("%s %s (-want +got):\n%s", tt.path, tt.body, diff)
		}
	}
}

// letters returns dead letters of every kind, with IDs from 1.
func (b *bundle) letters(t *testing.T) {
	t.Helper()
	message := []byte(`{"promotionId":1,"targetId":7,"userId":"u7","amount":5}`)
	other := []byte(`{"promotionId":1,"targetId":8,"userId":"u8","amount":5}`)
	const stream = "campaign-promotion-stream:POINT:1"
	b.store.promotion(t, 1, reward.Running)
	b.store.pay(t, 1, testTime, ended(7, rules.OutcomeRefused, ""), ended(8, rules.OutcomeNoLookup, ""))
	b.store.complete(t, 1)
	for i, l := range []reward.DeadLetter{
		{Source: bus.TopicPointPublish, Key: []byte("7"), Value: []byte("{\xff"), Reason: "MALFORMED"},
		{Source: stream, Value: message, Reason: "POISON"},
		{Source: stream, Value: other, Reason: "POISON"},
		{Source: stream, Value: message, Reason: "NO_ROW"},
		{Source: "topic-of-yore", Value: message, Reason: "MALFORMED"},
		{Source: stream, Value: []byte("x"), Reason: "POISON"},
		{Source: bus.TopicStarted, Value: message, Reason: "TYPE_MISMATCH"},
	} {
		l.Offset, l.At = fmt.Sprint(i), testTime
		fixture.OK(t, b.store.DeadLetterAdd(t.Context(), []reward.DeadLetter{l})) // several would be sorted
	}
}

func TestDeadLetterReplay(t *testing.T) {
	t.Parallel()

	t.Run("PublishesTheRawRecordOnce", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.letters(t)
		a := b.as(t, "kim", "POST", "/v1/dead-letters/1/replay", "")
		a.want(t, http.StatusAccepted)
		if got := a.object(t); got["status"] != "REPLAYED" || got["settledBy"] != "kim" || got["settledAt"] == nil {
			t.Errorf("%s", a.body)
		}
		b.json(t, "POST", "/v1/dead-letters/1/replay", "").wantProblem(t, http.StatusConflict, "ILLEGAL_STATE")
		b.json(t, "POST", "/v1/dead-letters/1/discard", "").wantProblem(t, http.StatusConflict, "ILLEGAL_STATE")
		want := []bus.Record{{Topic: bus.TopicPointPublish, Key: []byte("7"), Value: []byte("{\xff")}}
		fixture.Equal(t, want, b.kafka.records)
	})

	t.Run("StaysOpenWhenKafkaIsAway", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.letters(t)
		b.kafka.away = errors.New("hunter2")
		a := b.json(t, "POST", "/v1/dead-letters/1/replay", "")
		a.wantProblem(t, http.StatusServiceUnavailable, "NOT_PUBLISHED")
		if strings.Contains(a.body, "hunter2") {
			t.Errorf("leaked: %s", a.body)
		}
		// The poisonous one is requeued before that.
		b.json(t, "POST", "/v1/dead-letters/replay", `{"all":true}`).wantProblem(t, http.StatusServiceUnavailable, "PARTLY_DONE")
		if got := b.json(t, "GET", "/v1/dead-letters/1", "").text(t, "status"); got != "OPEN" {
			t.Errorf("status %s", got)
		}
		if got := b.json(t, "GET", "/v1/dead-letters/2", "").text(t, "status"); got != "REPLAYED" {
			t.Errorf("status %s", got)
		}
	})

	t.Run("RequeuesAPoisonousPayout", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.letters(t)
		b.json(t, "POST", "/v1/dead-letters/2/replay", "").want(t, http.StatusAccepted)
		if got := b.json(t, "GET", "/v1/promotions/1/payouts/7", "").text(t, "state"); got != "READY" {
			t.Errorf("state %s", got)
		}
		p := b.json(t, "POST", "/v1/dead-letters/3/replay", "").wantProblem(t, http.StatusConflict, "ILLEGAL_STATE")
		if !strings.Contains(p.Detail, "is UNKNOWN, not FAILED") || !strings.Contains(p.Detail, "resolve the payout") {
			t.Errorf("%q", p.Detail)
		}
	})

	t.Run("SaysWhyNot", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.letters(t)
		for id, why := range map[string]string{"4": "nothing to replay", "5": "Largesse does not read", "6": "names no payout"} {
			p := b.json(t, "POST", "/v1/dead-letters/"+id+"/replay", "").wantProblem(t, http.StatusConflict, "NOT_REPLAYABLE")
			if !strings.Contains(p.Detail, why) || !strings.HasSuffix(p.Detail, "discard it") {
				t.Errorf("%s: %q", id, p.Detail)
			}
			b.json(t, "POST", "/v1/dead-letters/"+id+"/discard", "").want(t, http.StatusAccepted)
		}
		b.json(t, "POST", "/v1/dead-letters/77/replay", "").wantProblem(t, http.StatusNotFound, "DEAD_LETTER_NOT_FOUND")
		b.json(t, "POST", "/v1/dead-letters/x/replay", "").wantProblem(t, http.StatusBadRequest, "MALFORMED")
	})
}

func TestDeadLettersInBulk(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, verb, body string
		count, skipped   string
		published        int
	}{
		{"ReplayAll", "replay", `{"all":true}`, "3", "4", 2},
		{"ReplayByReason", "replay", `{"reason":"MALFORMED"}`, "1", "1", 1},
		{"ReplayBySourceAndReason", "replay", `{"source":"campaign-promotion-stream:POINT:1","reason":"POISON"}`, "1", "2", 0},
		{"ReplayIDs", "replay", `{"ids":["1",7,"7","99"]}`, "2", "1", 2},
		{"DiscardAll", "discard", `{"all":true}`, "7", "0", 0},
		{"DiscardIDs", "discard", `{"ids":[4,5,6,99]}`, "3", "1", 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.letters(t)
			a := b.as(t, "kim", "POST", "/v1/dead-letters/"+tt.verb, tt.body)
			a.want(t, http.StatusAccepted)
			want := map[string]any{"count": json.Number(tt.count), "skipped": json.Number(tt.skipped)}
			fixture.Equal(t, want, a.object(t))
			if n := len(b.kafka.records); n != tt.published {
				t.Errorf("%d records published, want %d", n, tt.published)
			}
			if again := b.json(t, "POST", "/v1/dead-letters/"+tt.verb, tt.body).object(t); again["count"] != json.Number("0") {
				t.Errorf("again: %v", again)
			}
		})
	}

	t.Run("OfManyBatches", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		letters := make([]reward.DeadLetter, 250)
		for i := range letters {
			letters[i] = reward.DeadLetter{Source: bus.TopicPointPublish, Offset: fmt.Sprint(i), At: testTime}
		}
		fixture.OK(t, b.store.DeadLetterAdd(t.Context(), letters))
		if got := b.json(t, "POST", "/v1/dead-letters/replay", `{"all":true}`).object(t)["count"]; got != json.Number("250") || len(b.kafka.records) != 250 {
			t.Errorf("count %v, %d published", got, len(b.kafka.records))
		}
	})

	b := setup(t)
	for body, field := range map[string]string{
		`{}`: "all", `{"all":false}`: "all", `{"all":true,"reason":"X"}`: "all", `{"ids":["1"],"source":"x"}`: "all",
		`{"ids":["x"]}`: "ids", `{"ids":[0]}`: "ids", `{"ids":[` + strings.Repeat("1,", 1000) + `1]}`: "ids", `{"everything":true}`: "everything",
	} {
		p := b.json(t, "POST", "/v1/dead-letters/discard", body).wantProblem(t, http.StatusUnprocessableEntity, "INVALID")
		if !strings.Contains(fmt.Sprint(fields(p)), field) {
			t.Errorf("%.40s: %v", body, fields(p))
		}
	}
}
