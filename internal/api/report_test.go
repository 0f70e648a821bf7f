package api

import (
	"archive/zip"
	"bytes"
	"maps"
	"net/http"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/console"
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
	b.upload(t, "/v1/promotions/7/targets", "targetId\n1\n2\n3\n4\n").want(t, http.StatusOK)
	b.as(t, "lee", "PATCH", "/v1/promotions/7", `{"name":"=Sale","maxAmount":500000,"endsAt":"2099-01-02T03:04:05Z","canary":{"targets":4,"maxFailureRate":0.025},"metadata":{"name":"a","old":null}}`).want(t, http.StatusOK)
	b.as(t, "lee", "POST", "/v1/promotions/7/start", "").want(t, http.StatusAccepted)
	b.as(t, "sue", "POST", "/v1/promotions/7/pause", `{"reason":"wrong amount"}`).want(t, http.StatusAccepted)
	b.as(t, "sue", "POST", "/v1/promotions/7/resume", "").want(t, http.StatusAccepted)
	rows := fixture.Must(b.store.PayoutDispatch(t.Context(), store.PayoutDispatchParams{PromotionID: 7, From: reward.Ready, Limit: 9, MaxLen: 9, Now: time.Now()}))(t)
	outcomes := []rules.Outcome{
		{Ref: rows[0].Ref(), Kind: rules.OutcomePaid, TransactionKey: "T1"},
		{Ref: rows[1].Ref(), Kind: rules.OutcomePaid, TransactionKey: "T2"},
		{Ref: rows[2].Ref(), Kind: rules.OutcomeRefused, Code: "NO_ACCOUNT", Message: "there is none"},
		{Ref: rows[3].Ref(), Kind: rules.OutcomeRefused},
	}
	fixture.Must(b.store.PayoutFinish(t.Context(), store.PayoutFinishParams{Outcomes: outcomes, Now: time.Now()}))(t)
	// The timeline has one of the two.
	at := time.Now().UTC().Truncate(store.TimelineStep)
	point := store.PromotionPoint{PromotionID: 7, At: at, Step: store.TimelineStep, PromotionSums: obs.PromotionSums{Succeeded: 1, Failed: 1, Amount: 1050}}
	point.Calls[3] = 2
	fixture.OK(t, b.store.TimelineWrite(t.Context(), "a", []store.PromotionPoint{point}, nil))

	api := fixture.Must(client.New(b.url, client.Options{Transport: b.http.Transport}))(t)
	r := fixture.Must(api.PromotionReport(t.Context(), "7", "Asia/Seoul"))(t)
	if r.Promotion.ID != "7" || r.Amounts.Succeeded != 2100 || r.Amounts.Failed != 2100 || r.Zone != "Asia/Seoul" || r.RunSeconds == nil {
		t.Errorf("%+v", r)
	}
	// One has no code.
	if len(r.Errors) != 2 || r.Errors[0].Code != "NO_ACCOUNT" || r.Errors[0].Failed != 1 || r.Errors[0].Amount == nil || *r.Errors[0].Amount != 1050 || r.Errors[1].Code != "" || r.Errors[1].Failed != 1 || *r.Errors[1].Amount != 1050 || !r.Counting {
		t.Errorf("errors %+v", r.Errors)
	}
	seoul := fixture.Must(time.LoadLocation("Asia/Seoul"))(t)
	if want := (client.ReportDay{Date: at.In(seoul).Format(time.DateOnly), Succeeded: 1, Amount: 1050, Failed: 1}); len(r.Days) != 1 || r.Days[0] != want {
		t.Errorf("days %+v, want %+v", r.Days, want)
	}
	if r.Undated != (client.ReportSum{Count: 1, Amount: 1050}) || r.Peak != nil || r.P50Millis == nil { // half of the points are slower than the mean
		t.Errorf("undated %+v, peak %+v", r.Undated, r.Peak)
	}
	var done []string
	for _, a := range r.Actions {
		done = append(done, strings.TrimSpace(a.Actor+" "+a.Action+" "+a.Reason))
	}
	if got := strings.Join(done, ", "); got != "kim create-promotion, anonymous upload-targets, lee change-promotion, lee start-promotion, sue pause-promotion wrong amount, sue resume-promotion" {
		t.Errorf("actions %s", got)
	}

	a := b.do(t, "GET", "/v1/promotions/7/report", nil, "Accept", "text/csv")
	for _, want := range []string{
		"section,item,count,amount,currency,detail\n", "promotion,name,,,,'=Sale\n", "totals,targets,4,42.00,EUR,\n", "totals,paid,2,21.00,EUR,\n",
		"errors,NO_ACCOUNT,1,10.50,EUR,there is none\n", "paid by day (UTC)," + at.Format(time.DateOnly) + ",1,10.50,EUR,\n", "lee: start-promotion\n",
		"errors,other,1,10.50,EUR,\n", "paid by day (UTC),being counted,1,10.50,EUR,\n", "sue: pause-promotion: wrong amount\n", "provider, 99 % below, in ms",
		`"lee: change-promotion: canary: 4 first, pause if more than 2.5 % fail, endsAt: 2099-01-02T03:04:05Z, maxAmount: 5,000.00 EUR, metadata: name: a, old: none, name: =Sale"`,
	} {
		if !strings.Contains(a.body, want) {
			t.Errorf("the CSV has no %q:\n%s", want, a.body)
		}
	}
	rest := store.PromotionPoint{PromotionID: 7, At: at, Step: store.TimelineStep, PromotionSums: obs.PromotionSums{Succeeded: 1, Failed: 1, Amount: 1050}}
	fixture.OK(t, b.store.TimelineWrite(t.Context(), "b", []store.PromotionPoint{rest}, nil))
	if r = fixture.Must(api.PromotionReport(t.Context(), "7", ""))(t); r.Peak == nil || r.Undated.Count != 0 {
		t.Errorf("undated %+v, peak %+v", r.Undated, r.Peak)
	}
	korean := b.json(t, "GET", "/v1/promotions/7/report?format=csv&language=ko&zone=Asia/Seoul", "").body
	for _, want := range []string{
		"구분,항목,건수,금액,통화,내용\n", "실패 사유,there is none,1,10.50,유로,\n", "프로모션,상태,,,,진행 중\n", "합계,지급됨,2,21.00,유로,\n", "날짜별 지급 (한국 시간)," + at.In(seoul).Format(time.DateOnly) + ",2,21.00,유로,\n", "lee: 프로모션 시작\n",
		"실패 사유,기타,1,10.50,유로,\n", "sue: 프로모션 일시중지: wrong amount\n", "100건 중 95건이 이보다 빠름(초)",
		"예산: 5,000.00유로, ", "종료 시각: 2099-01-02 12:04:05, ", "먼저 지급: 4명에게 먼저 지급하고, 2.5% 넘게 실패하면 일시중지, ", "추가 정보: name: a, old: 없음, 이름: =Sale\"\n",
	} {
		if !strings.Contains(korean, want) {
			t.Errorf("the CSV in Korean has no %q:\n%s", want, korean)
		}
	}
	b.json(t, "GET", "/v1/promotions/7/report?format=csv&language=fr", "").wantProblem(t, http.StatusBadRequest, "MALFORMED")
	x := b.json(t, "GET", "/v1/promotions/7/report?format=xlsx&language=ko", "")
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

// TestReportsInKorean checks that every text of a report file is there in Korean, and that
// there are no others.
func TestReportsInKorean(t *testing.T) {
	t.Parallel()
	source := string(fixture.Must(os.ReadFile("report.go"))(t))
	said := regexp.MustCompile(`(?:\bsay|\badd|\bsum|\bcount|\bnumber|\bdays)\("([^"]+)"(?:, "([^"]+)")?`)
	listed := regexp.MustCompile(`\{"([a-z ,]+)", &?[a-zA-Z]+\.[A-Za-z]+\}`)
	found := map[string]bool{}
	for _, m := range append(said.FindAllStringSubmatch(source, -1), listed.FindAllStringSubmatch(source, -1)...) {
		for _, text := range m[1:] {
			found[text] = text != ""
		}
	}
	for _, name := range append([]string{"being counted", "other", "none", "%v first, pause if more than %v %% fail"}, lineColumns...) {
		found[name] = true
	}
	delete(found, "")
	delete(found, "provider, 99 % below, in ms") // only in English
	fixture.Equal(t, slices.Sorted(maps.Keys(koreanReport)), slices.Sorted(maps.Keys(found)))
}

func TestTemplateReport(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.as(t, "kim", "POST", "/v1/coupon-templates", `{"id":42,"name":"Spring","totalQuantity":9}`).want(t, http.StatusCreated)
	stored := reward.CouponTemplate{
		ID: 42, Name: "Spring", TotalQuantity: 9, PerUserLimit: 1, Mode: reward.ModeStream, WhenRedisAway: reward.FallbackDatabase, CreatedAt: testTime,
	}
	fixture.Must(b.store.TemplateCreate(t.Context(), stored))(t)
	requests := []rules.CouponRequest{
		{UserID: "a", Ticket: 1, CouponID: 1, Code: "A"}, {UserID: "b", Ticket: 2, CouponID: 2, Code: "B"}, {UserID: "a", Ticket: 3, CouponID: 3, Code: "C"},
	}
	settle := store.CouponSettleParams{TemplateID: 42, Kind: rules.SettleInOrder, Requests: requests, Now: testTime}
	fixture.Must(b.store.CouponSettle(t.Context(), settle))(t)
	fixture.Must(b.store.CouponUse(t.Context(), 2, testTime))(t)
	fixture.Must(b.store.CouponCancel(t.Context(), store.CouponCancelParams{TemplateID: 42, IDs: []reward.CouponID{1}, By: "sue", Now: testTime}))(t)
	at := time.Now().UTC().Truncate(store.TimelineStep)
	point := store.TemplatePoint{TemplateID: 42, At: at, Step: store.TimelineStep, TemplateSums: obs.TemplateSums{Asked: 12, Issued: 3, Refused: 9}, Waiting: 8, Samples: 1}
	for reason, n := range map[string]int64{reward.CodeNotOpen: 2, reward.CodeSoldOut: 2, reward.CodeUnavailable: 3} {
		point.Reasons[slices.Index(obs.RefusalReasons[:], reason)] = n
	}
	fixture.OK(t, b.store.TimelineWrite(t.Context(), "a", nil, []store.TemplatePoint{point}))
	thousand := `{"ids":["` + strings.Repeat(`7319283746592837465","`, 999) + `7319283746592837465"]}` // the audit cuts it
	b.as(t, "lee", "POST", "/v1/coupon-templates/42/coupons/cancel", thousand).want(t, http.StatusOK)
	api := fixture.Must(client.New(b.url, client.Options{Transport: b.http.Transport}))(t)
	r := fixture.Must(api.TemplateReport(t.Context(), "42", ""))(t)
	if want := (client.TemplateDay{Date: at.Format(time.DateOnly), Asked: 12, Issued: 3, Refused: 9}); len(r.Days) != 1 || r.Days[0] != want || r.Asked != 12 || r.Refused != 9 {
		t.Errorf("%+v", r)
	}
	if want := []client.Rejections{{Reason: "UNAVAILABLE", Count: 3}, {Reason: "SOLD_OUT", Count: 2}, {Reason: "NOT_OPEN", Count: 2}}; !slices.Equal(r.RefusedReasons, want) {
		t.Errorf("reasons %+v, want %+v", r.RefusedReasons, want)
	}
	if r.WaitingPeak == nil || r.WaitingPeak.Waiting != 8 || r.Peak == nil {
		t.Errorf("peaks %+v, %+v", r.WaitingPeak, r.Peak)
	}
	minute := at.Truncate(time.Minute)
	if want := (client.TemplateStep{At: minute, StepSeconds: 60, Asked: 12, Issued: 3, Refused: 9}); len(r.FirstMinutes) != 1 || r.FirstMinutes[0] != want {
		t.Errorf("first minutes %+v", r.FirstMinutes)
	}
	if n := r.Coupons; n == nil || n.Used != 1 || *n.Unused != 0 || *n.HoldsExpired != 0 || !slices.Equal(n.CancelledBy, []client.Canceller{{Name: "sue", Count: 1}}) {
		t.Errorf("coupons %+v", n)
	}
	if want := (client.Rejections{Reason: reward.ReasonUserLimit, Count: 1}); len(r.Rejections) != 1 || r.Rejections[0] != want {
		t.Errorf("rejections %+v", r.Rejections)
	}
	if len(r.Actions) != 2 || r.Actions[0].Actor != "kim" || r.Actions[0].Action != "create-template" || r.Actions[0].Count != nil {
		t.Fatalf("actions %+v", r.Actions)
	}
	if a := r.Actions[1]; a.Actor != "lee" || a.Action != "cancel-coupons" || a.Count == nil || *a.Count != 1000 {
		t.Errorf("cancelled %+v", a)
	}
	a := b.json(t, "GET", "/v1/coupon-templates/42/report?format=csv", "")
	for _, want := range []string{
		"totals,quantity,9,,,\n", "coupons,used,1,,,\n", "admitted requests without a coupon,USER_LIMIT,1,,,\n", "requests by day (UTC)," + at.Format(time.DateOnly) + ",12,,,\n",
		"refused requests,UNAVAILABLE,3,,,\nrefused requests,SOLD_OUT,2,,,\nrefused requests,NOT_OPEN,2,,,\nrefused requests,reason not recorded,2,,,\n", ",1000,,,lee: cancel-coupons\n",
		"issued in the first minutes," + minute.Format(time.RFC3339) + `,3,,,"in 60 s, of 12 requests, 9 refused"` + "\n",
	} {
		if !strings.Contains(a.body, want) {
			t.Errorf("the CSV has no %q:\n%s", want, a.body)
		}
	}
	b.json(t, "GET", "/v1/coupon-templates/9/report", "").wantProblem(t, http.StatusNotFound, "TEMPLATE_NOT_FOUND")
}

func TestFirstMinutes(t *testing.T) {
	t.Parallel()
	hour := time.Date(2026, 11, 29, 10, 0, 0, 0, time.UTC)
	point := func(minutes int, step time.Duration, asked int64) store.TemplatePoint {
		return store.TemplatePoint{At: hour.Add(time.Duration(minutes) * time.Minute), Step: step, TemplateSums: obs.TemplateSums{Asked: asked}}
	}
	hours := []store.TemplatePoint{point(-60, time.Hour, 0), point(0, time.Hour, 9)}
	for name, c := range map[string]struct {
		points []store.TemplatePoint
		want   []int64 // asked, and the length of each step
	}{
		"young":            {[]store.TemplatePoint{point(3, 10*time.Second, 0), point(58, 10*time.Second, 4), point(60, time.Minute, 3), point(68, time.Minute, 2)}, []int64{4, 60, 3, 60}},
		"in longer steps":  {[]store.TemplatePoint{point(50, 10*time.Minute, 7), point(60, 10*time.Minute, 2)}, []int64{7, 600}},
		"nothing any more": {nil, nil},
	} {
		steps, err := firstMinutes(hours, func(s store.TimelineSpan) ([]store.TemplatePoint, error) {
			if !s.From.Equal(hour) {
				t.Errorf("%s: read from %v", name, s.From)
			}
			return c.points, nil
		})
		fixture.OK(t, err)
		var got []int64
		for _, s := range steps {
			got = append(got, s.Asked, s.StepSeconds)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
	steps, err := firstMinutes(hours[:1], nil)
	fixture.OK(t, err)
	if steps == nil || len(steps) > 0 {
		t.Errorf("without requests: %v", steps)
	}
}

func TestPeak(t *testing.T) {
	t.Parallel()
	ten := time.Date(2026, 11, 29, 10, 0, 0, 0, time.UTC)
	at := func(seconds float64) time.Time { return ten.Add(time.Duration(seconds * float64(time.Second))) }
	type counted struct {
		second float64
		n      int64
	}
	for name, c := range map[string]struct {
		from, to float64
		steps    []counted
		want     *client.ReportPeak
	}{
		"nothing":                  {0, 60, []counted{{0, 0}}, nil},
		"a whole step":             {0, 60, []counted{{0, 20}, {10, 50}, {20, 40}}, &client.ReportPeak{At: at(10), StepSeconds: 10, Count: 50, PerSecond: 5}},
		"a late start":             {8, 60, []counted{{0, 20}, {10, 50}}, &client.ReportPeak{At: at(8), StepSeconds: 2, Count: 20, PerSecond: 10}},
		"an early end":             {0, 15, []counted{{0, 20}, {10, 50}}, &client.ReportPeak{At: at(10), StepSeconds: 5, Count: 50, PerSecond: 10}},
		"a moment at the end":      {0, 10.01, []counted{{0, 20}, {10, 5}}, &client.ReportPeak{At: at(10), StepSeconds: 1, Count: 5, PerSecond: 5}},
		"half a second in all":     {2, 2.5, []counted{{0, 20}}, &client.ReportPeak{At: at(2), StepSeconds: 1, Count: 20, PerSecond: 40}},
		"a clock that is too slow": {30, 60, []counted{{10, 50}}, &client.ReportPeak{At: at(10), StepSeconds: 10, Count: 50, PerSecond: 5}},
	} {
		got := peakOf(c.steps, 10*time.Second, span{at(c.from), at(c.to)}, func(s counted) (time.Time, int64) { return at(s.second), s.n })
		if (got == nil) != (c.want == nil) || got != nil && *got != *c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

// TestActionsOfAPromotion checks what a promotion did by itself, and how fast it was.
func TestActionsOfAPromotion(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.create(t, `{"id":7,"name":"x","type":"POINT","amount":1}`)
	b.upload(t, "/v1/promotions/7/targets", "targetId\n1\n").want(t, http.StatusOK)
	b.json(t, "POST", "/v1/promotions/7/start", "").want(t, http.StatusAccepted)
	v := fixture.Must(b.store.PromotionGet(t.Context(), 7))(t)
	for name, c := range map[string]struct {
		status            reward.PromotionStatus
		started, finished time.Duration // after the request to start
		want              string
	}{
		"completed":            {reward.Completed, 0, time.Minute, "create-promotion upload-targets start-promotion complete-promotion"},
		"started on time":      {reward.Running, time.Hour, 0, "create-promotion upload-targets start-promotion start-promotion"},
		"settled after cancel": {reward.PromotionCancelled, 0, time.Minute, "create-promotion upload-targets start-promotion settle-promotion"},
	} {
		shown := v
		shown.Status, shown.CreatedBy = c.status, "kim"
		shown.CreatedAt, shown.StartedAt = v.CreatedAt.Add(-time.Minute), v.StartedAt.Add(c.started)
		if c.finished > 0 {
			shown.FinishedAt = v.StartedAt.Add(c.finished)
		}
		found := fixture.Must(b.api.promotionActions(t.Context(), shown))(t)
		if got := strings.Join(mapped(found, func(a client.ReportAction) string { return a.Action }), " "); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
		if last := found[len(found)-1]; name == "completed" && last.Actor != "" {
			t.Errorf("%+v", last)
		}
	}
}

// TestSettingsHaveNames checks that each setting that can change has a name in Korean.
func TestSettingsHaveNames(t *testing.T) {
	t.Parallel()
	texts := console.Texts("ko")
	for _, field := range reflect.VisibleFields(reflect.TypeFor[ChangePromotion]()) {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if name == "" || field.Type == reflect.TypeFor[immutable]() {
			continue
		}
		if texts[settingTexts[name]] == "" {
			t.Errorf("%s has no name", name)
		}
	}
}
