package api

import (
	"archive/zip"
	"bytes"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
)

func TestPromotionReport(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.as(t, "kim", "POST", "/v1/promotions", `{"id":7,"name":"=Spring","type":"POINT","amount":1050,"currency":"EUR"}`).want(t, http.StatusCreated)
	b.upload(t, "/v1/promotions/7/targets", "targetId\n1\n2\n3\n").want(t, http.StatusOK)
	b.as(t, "lee", "POST", "/v1/promotions/7/start", "").want(t, http.StatusAccepted)
	rows := fixture.Must(b.store.PayoutDispatch(t.Context(), store.PayoutDispatchParams{PromotionID: 7, From: reward.Ready, Limit: 9, MaxLen: 9, Now: time.Now()}))(t)
	outcomes := []rules.Outcome{
		{Ref: rows[0].Ref(), Kind: rules.OutcomePaid, TransactionKey: "T1"},
		{Ref: rows[1].Ref(), Kind: rules.OutcomePaid, TransactionKey: "T2"},
		{Ref: rows[2].Ref(), Kind: rules.OutcomeRefused, Code: "NO_ACCOUNT", Message: "there is none"},
	}
	fixture.Must(b.store.PayoutFinish(t.Context(), store.PayoutFinishParams{Outcomes: outcomes, Now: time.Now()}))(t)
	// The timeline has one of the two.
	at := time.Now().UTC().Truncate(store.TimelineStep)
	point := store.PromotionPoint{PromotionID: 7, At: at, Step: store.TimelineStep, PromotionSums: obs.PromotionSums{Succeeded: 1, Failed: 1, Amount: 1050}}
	point.Calls[3] = 2
	fixture.OK(t, b.store.TimelineWrite(t.Context(), "a", []store.PromotionPoint{point}, nil))

	api := fixture.Must(client.New(b.url, client.Options{Transport: b.http.Transport}))(t)
	r := fixture.Must(api.PromotionReport(t.Context(), "7", "Asia/Seoul"))(t)
	if r.Promotion.ID != "7" || r.Amounts.Succeeded != 2100 || r.Amounts.Failed != 1050 || r.Zone != "Asia/Seoul" || r.RunSeconds == nil {
		t.Errorf("%+v", r)
	}
	if len(r.Errors) != 1 || r.Errors[0].Code != "NO_ACCOUNT" || r.Errors[0].Failed != 1 {
		t.Errorf("errors %+v", r.Errors)
	}
	seoul := fixture.Must(time.LoadLocation("Asia/Seoul"))(t)
	if want := (client.ReportDay{Date: at.In(seoul).Format(time.DateOnly), Succeeded: 1, Amount: 1050, Failed: 1}); len(r.Days) != 1 || r.Days[0] != want {
		t.Errorf("days %+v, want %+v", r.Days, want)
	}
	if r.Undated != (client.ReportSum{Count: 1, Amount: 1050}) || r.Peak == nil || r.P50Millis == nil {
		t.Errorf("undated %+v, peak %+v", r.Undated, r.Peak)
	}
	var done []string
	for _, a := range r.Actions {
		done = append(done, a.Actor+" "+a.Action)
	}
	if got := strings.Join(done, ", "); got != "kim create-promotion, anonymous upload-targets, lee start-promotion" {
		t.Errorf("actions %s", got)
	}

	a := b.do(t, "GET", "/v1/promotions/7/report", nil, "Accept", "text/csv")
	for _, want := range []string{
		"section,item,count,amount,currency,detail\n", "promotion,name,,,,'=Spring\n", "totals,targets,3,31.50,EUR,\n", "totals,paid,2,21.00,EUR,\n",
		"errors,NO_ACCOUNT,1,,,there is none\n", "paid by day (UTC)," + at.Format(time.DateOnly) + ",1,10.50,EUR,\n", "lee: start-promotion\n",
	} {
		if !strings.Contains(a.body, want) {
			t.Errorf("the CSV has no %q:\n%s", want, a.body)
		}
	}
	x := b.json(t, "GET", "/v1/promotions/7/report?format=xlsx", "")
	z := fixture.Must(zip.NewReader(bytes.NewReader([]byte(x.body)), int64(len(x.body))))(t)
	if len(z.File) == 0 || !strings.Contains(x.header.Get("Content-Disposition"), "report-7.xlsx") {
		t.Errorf("%v", x.header)
	}
	b.json(t, "GET", "/v1/promotions/7/report?zone=Mars", "").wantProblem(t, http.StatusUnprocessableEntity, "INVALID")
	b.json(t, "GET", "/v1/promotions/7/report?format=csv&zone=Mars", "").wantProblem(t, http.StatusUnprocessableEntity, "INVALID")
	b.json(t, "GET", "/v1/promotions/7/report?format=pdf", "").wantProblem(t, http.StatusUnprocessableEntity, "INVALID")
	b.json(t, "GET", "/v1/promotions/9/report?format=csv", "").wantProblem(t, http.StatusNotFound, "PROMOTION_NOT_FOUND")
	b.create(t, `{"id":8,"name":"draft","type":"POINT"}`)
	b.json(t, "GET", "/v1/promotions/8/report", "").want(t, http.StatusOK)
}

func TestTemplateReport(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.json(t, "POST", "/v1/coupon-templates", `{"id":42,"name":"Spring","totalQuantity":9}`).want(t, http.StatusCreated)
	at := time.Now().UTC().Truncate(store.TimelineStep)
	fixture.OK(t, b.store.TimelineWrite(t.Context(), "a", nil, []store.TemplatePoint{
		{TemplateID: 42, At: at, Step: store.TimelineStep, TemplateSums: obs.TemplateSums{Asked: 5, Issued: 3, Refused: 2}, Waiting: 8, Samples: 1},
	}))
	api := fixture.Must(client.New(b.url, client.Options{Transport: b.http.Transport}))(t)
	r := fixture.Must(api.TemplateReport(t.Context(), "42", ""))(t)
	if want := (client.TemplateDay{Date: at.Format(time.DateOnly), Asked: 5, Issued: 3, Refused: 2}); len(r.Days) != 1 || r.Days[0] != want || r.Asked != 5 {
		t.Errorf("%+v", r)
	}
	if r.WaitingPeak == nil || r.WaitingPeak.Waiting != 8 {
		t.Errorf("peak %+v", r.WaitingPeak)
	}
	if a := b.json(t, "GET", "/v1/coupon-templates/42/report?format=csv", ""); !strings.Contains(a.body, "totals,quantity,9,,,\n") {
		t.Errorf("%s", a.body)
	}
	b.json(t, "GET", "/v1/coupon-templates/9/report", "").wantProblem(t, http.StatusNotFound, "TEMPLATE_NOT_FOUND")
}
