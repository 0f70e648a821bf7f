package client_test

import (
	"encoding/json"
	"io"
	"iter"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/lab/fixture"
)

var tenSharp = time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)

// document returns a value as clients read it from JSON.
func document(t *testing.T, v any) (text []byte, read any) {
	t.Helper()
	text, err := json.Marshal(v)
	if err == nil {
		err = json.Unmarshal(text, &read)
	}
	if err != nil {
		t.Fatal(err)
	}
	return text, read
}

// first returns what a list begins with.
func first[T any](list iter.Seq2[T, error]) (any, error) {
	for item, err := range list {
		return item, err
	}
	return nil, io.EOF
}

// TestCalls checks the request of each call, and that it returns what it reads.
func TestCalls(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	type c = client.Client
	promotion, template, coupon, letter := client.Promotion{ID: "7"}, client.Template{ID: "42"}, client.Coupon{ID: "2"}, client.DeadLetter{ID: "7"}
	report, detail, request := client.Reconciliation{ID: "9"}, client.PayoutDetail{Log: []client.Attempt{{Code: "X"}}}, client.IssueRequest{ID: "42:u7"}
	no := false
	for _, tc := range []struct {
		name, want string // method, URI, Prefer and body of the request
		response   any    // [1]T is the first page of a list
		call       func(*c) (any, error)
	}{
		{"Get", "GET /v1/promotions/7  ", promotion, func(c *c) (any, error) { return c.Promotion(ctx, "7") }},
		{"GetWithAHostileID", "GET /v1/promotions/..%2F%3Fa=b%2F7  ", promotion, func(c *c) (any, error) { return c.Promotion(ctx, "../?a=b/7") }},
		{"GetWithDotsForAnID", "GET /v1/promotions/%2E%2E  ", promotion, func(c *c) (any, error) { return c.Promotion(ctx, "..") }},
		{"Start", "POST /v1/promotions/7/start  ", promotion, func(c *c) (any, error) { return c.StartPromotion(ctx, "7") }},
		{"Pause", "POST /v1/promotions/7/pause  ", promotion, func(c *c) (any, error) { return c.PausePromotion(ctx, "7") }},
		{"PauseBecause", `POST /v1/promotions/7/pause  {"reason":"why"}`, promotion, func(c *c) (any, error) { return c.PauseBecause(ctx, "7", "why") }},
		{"Duplicate", "POST /v1/promotions/7/duplicate  {}", promotion, func(c *c) (any, error) { return c.DuplicatePromotion(ctx, "7", "") }},
		{"DuplicateAs", `POST /v1/promotions/7/duplicate  {"name":"n"}`, promotion, func(c *c) (any, error) { return c.DuplicatePromotion(ctx, "7", "n") }},
		{"PayTest", `POST /v1/promotions/7/test-payment  {"userId":"u7"}`, promotion, func(c *c) (any, error) {
			return c.PayTest(ctx, "7", client.TestPayment{UserID: "u7"})
		}},
		{"Report", "GET /v1/promotions/7/report?zone=Asia%2FSeoul  ", client.PromotionReport{Promotion: promotion}, func(c *c) (any, error) {
			return c.PromotionReport(ctx, "7", "Asia/Seoul")
		}},
		{"TemplateReport", "GET /v1/coupon-templates/42/report  ", client.TemplateReport{Template: template}, func(c *c) (any, error) {
			return c.TemplateReport(ctx, "42", "")
		}},
		{"DuplicateTemplate", `POST /v1/coupon-templates/42/duplicate  {"opensAt":"2026-11-21T10:00:00Z"}`, template, func(c *c) (any, error) {
			return c.DuplicateTemplate(ctx, "42", client.TemplateCopy{OpensAt: &tenSharp})
		}},
		{"Resume", "POST /v1/promotions/7/resume  ", promotion, func(c *c) (any, error) { return c.ResumePromotion(ctx, "7") }},
		{"Cancel", "POST /v1/promotions/7/cancel  ", promotion, func(c *c) (any, error) { return c.CancelPromotion(ctx, "7") }},
		{"Close", "POST /v1/promotions/7/close  ", promotion, func(c *c) (any, error) { return c.ClosePromotion(ctx, "7") }},
		{"Approve", "POST /v1/promotions/7/approve  ", promotion, func(c *c) (any, error) { return c.ApprovePromotion(ctx, "7") }},
		{"ApproveSeen", "POST /v1/promotions/7/approve  ", promotion, func(c *c) (any, error) {
			return c.ApproveSeen(ctx, client.Promotion{ID: "7", ETag: `"v1-2-3-4"`})
		}},
		{"AskApproval", "POST /v1/promotions/7/ask-approval  ", promotion, func(c *c) (any, error) { return c.AskApproval(ctx, "7") }},
		{"Reject", `POST /v1/promotions/7/reject  {"reason":"no"}`, promotion, func(c *c) (any, error) { return c.RejectPromotion(ctx, "7", "no") }},
		{"Delete", "DELETE /v1/promotions/7  ", nil, func(c *c) (any, error) { return nil, c.DeletePromotion(ctx, "7") }},
		{"Create", `POST /v1/promotions  {"id":"7","name":"Spring","type":"POINT","amount":5,"maxRetries":0}`, promotion, func(c *c) (any, error) {
			return c.CreatePromotion(ctx, client.NewPromotion{ID: "7", Name: "Spring", Type: "POINT", Amount: 5, MaxRetries: new(int)})
		}},
		{
			"CreateWithLevers", `POST /v1/promotions  {"name":"S","type":"POINT","consumersPerInstance":3,"ratePerSecond":10,"weight":2,"maxAmount":500,"canary":{"targets":3,"maxFailureRate":0},` +
				`"startsAt":"2026-11-21T10:00:00Z","webhookUrl":"https://h/x"}`, promotion, func(c *c) (any, error) {
				return c.CreatePromotion(ctx, client.NewPromotion{
					Name: "S", Type: "POINT", ConsumersPerInstance: new(3), RatePerSecond: 10, Weight: 2, MaxAmount: 500,
					Canary: &client.NewCanary{Targets: 3, MaxFailureRate: new(float64)}, StartsAt: &tenSharp, WebhookURL: "https://h/x",
				})
			},
		},
		{"ChangePromotion", `PATCH /v1/promotions/7  {"name":"N","ratePerSecond":null,"maxAmount":500,"metadata":{"a":"b","c":null}}`, promotion, func(c *c) (any, error) {
			return c.ChangePromotion(ctx, "7", client.PromotionChange{
				Name: new("N"), RatePerSecond: client.Clear[int](), MaxAmount: client.Set(int64(500)), Metadata: client.Set(map[string]*string{"a": new("b"), "c": nil}),
			})
		}},
		{
			"FindPromotions", "GET /v1/promotions?createdAfter=2026-11-21T10%3A00%3A00Z&createdBy=kim&limit=200&q=a%25&sort=-name&status=DRAFT  ", [1]client.Promotion{promotion}, func(c *c) (any, error) {
				return first(c.FindPromotions(ctx, client.PromotionFilter{Status: "DRAFT", Search: "a%", CreatedBy: "kim", CreatedAfter: tenSharp, Sort: "-name"}))
			},
		},
		{"PaidBefore", "GET /v1/promotions/7/already-paid  ", client.PaidBefore{Targets: 3}, func(c *c) (any, error) { return c.PaidBefore(ctx, "7") }},
		{"Uploads", "GET /v1/promotions/7/uploads?limit=200  ", [1]client.Upload{{ID: "9"}}, func(c *c) (any, error) { return first(c.Uploads(ctx, "7")) }},
		{"Payouts", "GET /v1/promotions/7/payouts?code=X&limit=200&state=FAILED  ", [1]client.Payout{{TargetID: "8"}}, func(c *c) (any, error) {
			return first(c.Payouts(ctx, "7", client.PayoutFilter{State: "FAILED", Code: "X"}))
		}},
		{"Payout", "GET /v1/promotions/7/payouts/8  ", detail, func(c *c) (any, error) { return c.Payout(ctx, "7", "8") }},
		{"Retry", `POST /v1/promotions/7/payouts/retry  {"state":"FAILED","code":"X"}`, map[string]any{"requeued": 7}, func(c *c) (any, error) {
			n, err := c.RetryPayouts(ctx, "7", "X")
			return map[string]any{"requeued": n}, err
		}},
		{"Resolve", `POST /v1/promotions/7/payouts/8/resolve  {"outcome":"SUCCEEDED","transactionKey":"T","note":"n"}`, detail, func(c *c) (any, error) {
			return c.ResolvePayout(ctx, "7", "8", client.Resolution{Outcome: "SUCCEEDED", TransactionKey: "T", Note: "n"})
		}},
		{"DeadLetters", "GET /v1/dead-letters?limit=200&status=OPEN  ", [1]client.DeadLetter{letter}, func(c *c) (any, error) {
			return first(c.DeadLetters(ctx, client.DeadLetterFilter{Status: "OPEN"}))
		}},
		{"DeadLetter", "GET /v1/dead-letters/7  ", letter, func(c *c) (any, error) { return c.DeadLetter(ctx, "7") }},
		{"ReplayDeadLetter", "POST /v1/dead-letters/7/replay  ", letter, func(c *c) (any, error) { return c.ReplayDeadLetter(ctx, "7") }},
		{"DiscardDeadLetter", "POST /v1/dead-letters/7/discard  ", letter, func(c *c) (any, error) { return c.DiscardDeadLetter(ctx, "7") }},
		{"ReplayDeadLetters", `POST /v1/dead-letters/replay  {"source":"s","reason":"r"}`, client.DeadLettersSettled{Count: 5, Skipped: 2}, func(c *c) (any, error) {
			return c.ReplayDeadLetters(ctx, client.DeadLetterSelection{Source: "s", Reason: "r"})
		}},
		{"DiscardDeadLetters", `POST /v1/dead-letters/discard  {"ids":["1","2"]}`, client.DeadLettersSettled{Count: 5, Skipped: 2}, func(c *c) (any, error) {
			return c.DiscardDeadLetters(ctx, client.DeadLetterSelection{IDs: []string{"1", "2"}})
		}},
		{"Reconcile", `POST /v1/reconciliations  {"promotionId":"7","repair":true}`, report, func(c *c) (any, error) { return c.Reconcile(ctx, "7", true) }},
		{"ReconcileAll", `POST /v1/reconciliations  {"repair":false}`, report, func(c *c) (any, error) { return c.Reconcile(ctx, "", false) }},
		{"ReconcileTemplate", `POST /v1/reconciliations  {"templateId":"42","repair":true}`, report, func(c *c) (any, error) { return c.ReconcileTemplate(ctx, "42", true) }},
		{"Reconciliation", "GET /v1/reconciliations/9  ", report, func(c *c) (any, error) { return c.Reconciliation(ctx, "9") }},
		{"PromotionStream", "GET /v1/promotions/7/stream  ", client.PromotionStream{Key: "k"}, func(c *c) (any, error) { return c.PromotionStream(ctx, "7") }},
		{"Instances", "GET /v1/instances  ", client.Instances{Items: []client.Instance{{Name: "a"}}}, func(c *c) (any, error) {
			return c.Instances(ctx)
		}},
		{"UnblockProvider", "POST /v1/provider/unblock  ", nil, func(c *c) (any, error) { return nil, c.UnblockProvider(ctx) }},
		{"Overview", "GET /v1/overview  ", client.Overview{Running: 7}, func(c *c) (any, error) { return c.Overview(ctx) }},
		{"Health", "GET /healthz  ", nil, func(c *c) (any, error) { return nil, c.Health(ctx) }},
		{"Ready", "GET /readyz  ", client.Readiness{Degraded: []string{"redis"}}, func(c *c) (any, error) { return c.Ready(ctx) }},

		{"CreateTemplate", `POST /v1/coupon-templates  {"name":"Spring","totalQuantity":100}`, template, func(c *c) (any, error) {
			return c.CreateTemplate(ctx, client.NewTemplate{Name: "Spring", TotalQuantity: 100})
		}},
		{
			"CreateTemplateWithAll", `POST /v1/coupon-templates  {"id":"42","name":"Spring","totalQuantity":100,"perUserLimit":2,"opensAt":"2026-11-21T10:00:00Z",` +
				`"closesAt":"2026-11-21T10:00:00Z","validForSeconds":60,"holdSeconds":30,"mode":"KAFKA","reissueAfterCancel":false,"whenRedisAway":"WAIT","codes":{"prefix":"X-","length":9},"draw":{"from":"2026-11-21T10:00:00Z"}}`,
			template, func(c *c) (any, error) {
				return c.CreateTemplate(ctx, client.NewTemplate{
					ID: "42", Name: "Spring", TotalQuantity: 100, PerUserLimit: 2, OpensAt: &tenSharp, ClosesAt: &tenSharp, ValidForSeconds: 60, HoldSeconds: 30, Mode: "KAFKA",
					ReissueAfterCancel: &no, WhenRedisAway: "WAIT", Codes: &client.CodeStyle{Prefix: "X-", Length: 9}, Draw: &client.NewDraw{From: tenSharp},
				})
			},
		},
		{
			"ChangeTemplate", `PATCH /v1/coupon-templates/42  {"name":"N","totalQuantity":5,"opensAt":"2026-11-21T10:00:00Z","closesAt":null,"validForSeconds":null,"holdSeconds":null,"reissueAfterCancel":false}`,
			template, func(c *c) (any, error) {
				return c.ChangeTemplate(ctx, "42", client.TemplateChange{
					Name: new("N"), TotalQuantity: new(int64(5)), OpensAt: client.Set(tenSharp), ClosesAt: client.Clear[time.Time](), ValidForSeconds: client.Clear[int64](),
					HoldSeconds: client.Clear[int64](), ReissueAfterCancel: &no,
				})
			},
		},
		{"Template", "GET /v1/coupon-templates/42  ", template, func(c *c) (any, error) { return c.Template(ctx, "42") }},
		{"CloseTemplate", "POST /v1/coupon-templates/42/close  ", template, func(c *c) (any, error) { return c.CloseTemplate(ctx, "42") }},
		{"ApproveTemplate", "POST /v1/coupon-templates/42/approve  ", template, func(c *c) (any, error) {
			return c.ApproveTemplate(ctx, client.Template{ID: "42", ETag: `"t"`})
		}},
		{"RejectTemplate", "POST /v1/coupon-templates/42/reject  ", template, func(c *c) (any, error) { return c.RejectTemplate(ctx, "42") }},
		{"ImportCodes", "POST /v1/coupon-templates/42/codes  A\nB", client.CodesResult{Accepted: 7}, func(c *c) (any, error) {
			return c.ImportCodes(ctx, "42", strings.NewReader("A\nB"), client.ImportOptions{})
		}},
		{"ReleasePlaces", "POST /v1/coupon-templates/42/release-places  ", map[string]any{"released": 7}, func(c *c) (any, error) {
			n, err := c.ReleasePlaces(ctx, "42")
			return map[string]any{"released": n}, err
		}},
		{"Templates", "GET /v1/coupon-templates?limit=200  ", [1]client.Template{template}, func(c *c) (any, error) { return first(c.Templates(ctx)) }},
		{"FindTemplates", "GET /v1/coupon-templates?limit=200&q=a%25  ", [1]client.Template{template}, func(c *c) (any, error) { return first(c.FindTemplates(ctx, "a%")) }},
		{"TemplateCoupons", "GET /v1/coupon-templates/42/coupons?limit=200  ", [1]client.Coupon{coupon}, func(c *c) (any, error) { return first(c.TemplateCoupons(ctx, "42")) }},
		{"TemplateEntrants", "GET /v1/coupon-templates/42/entrants?limit=200  ", [1]map[string]any{{"userId": "u7"}}, func(c *c) (any, error) {
			user, err := first(c.TemplateEntrants(ctx, "42"))
			return map[string]any{"userId": user}, err
		}},
		{"UserCoupons", "GET /v1/users/u%2F7%20%C3%BC/coupons?limit=200  ", [1]client.Coupon{coupon}, func(c *c) (any, error) { return first(c.UserCoupons(ctx, "u/7 ü")) }},
		{"Coupon", "GET /v1/coupons/2  ", coupon, func(c *c) (any, error) { return c.Coupon(ctx, "2") }},
		{"CouponsByCode", "GET /v1/coupons?code=C+1  ", [1]client.Coupon{coupon}, func(c *c) (any, error) {
			list, err := c.CouponsByCode(ctx, "C 1")
			return list[0], err
		}},
		{"ConfirmCoupon", "POST /v1/coupons/2/confirm  ", coupon, func(c *c) (any, error) { return c.ConfirmCoupon(ctx, "2") }},
		{"UseCoupon", "POST /v1/coupons/2/use  ", coupon, func(c *c) (any, error) { return c.UseCoupon(ctx, "2") }},
		{"FindTemplateCoupons", "GET /v1/coupon-templates/42/coupons?code=C&limit=200&sort=-ticket&status=USED&userId=u7  ", [1]client.Coupon{coupon}, func(c *c) (any, error) {
			return first(c.FindTemplateCoupons(ctx, "42", client.CouponFilter{Status: "USED", UserID: "u7", Code: "C", Newest: true}))
		}},
		{"CancelCoupons", `POST /v1/coupon-templates/42/coupons/cancel  {"ids":["2"]}`, client.CancelledCoupons{Cancelled: 1, NotFound: []string{}}, func(c *c) (any, error) { return c.CancelCoupons(ctx, "42", []string{"2"}) }},
		{"CancelCoupon", "POST /v1/coupons/2/cancel  ", coupon, func(c *c) (any, error) { return c.CancelCoupon(ctx, "2") }},
		{"IssueCoupon", `POST /v1/coupons/42/issue  {"userId":"u7"}`, request, func(c *c) (any, error) { return c.IssueCoupon(ctx, "42", "u7", 0) }},
		{"IssueCouponAndWait", `POST /v1/coupons/42/issue wait=2 {"userId":"u7"}`, request, func(c *c) (any, error) {
			return c.IssueCoupon(ctx, "42", "u7", 1500*time.Millisecond)
		}},
		{"IssueRequest", "GET /v1/issue-requests/42:u%2F7  ", request, func(c *c) (any, error) { return c.IssueRequest(ctx, "42:u/7") }},
		{"LeaveLine", "DELETE /v1/issue-requests/42:u%2F7  ", nil, func(c *c) (any, error) { return nil, c.LeaveLine(ctx, "42:u/7") }},
		{"UserHistory", "GET /v1/users/u7/history?templateId=42&templateId=43  ", client.History{UserID: "u7"}, func(c *c) (any, error) { return c.UserHistory(ctx, "u7", "42", "43") }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			response, want := tc.response, tc.response
			if v := reflect.ValueOf(response); v.Kind() == reflect.Array {
				response, want = map[string]any{"items": response}, v.Index(0).Interface()
			}
			answer, _ := document(t, response)
			got := make(chan string, 1)
			c := serve(t, client.Options{APIKey: "k-1", Actor: "kim", UserAgent: "test/1"}, func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				if r.Header.Get("Authorization") != "Bearer k-1" || r.Header.Get("User-Agent") != "test/1" || r.Header.Get("Largesse-Actor") != "kim" {
					t.Errorf("headers %v", r.Header)
				}
				if kind := r.Header.Get("Content-Type"); strings.HasPrefix(string(body), "{") && kind != "application/json" {
					t.Errorf("Content-Type %q", kind)
				}
				got <- r.Method + " " + r.RequestURI + " " + r.Header.Get("Prefer") + " " + string(body)
				_, _ = w.Write(answer)
			})
			result := fixture.Must(tc.call(c))(t)
			fixture.Equal(t, tc.want, <-got)
			_, sent := document(t, want)
			_, read := document(t, result)
			fixture.Equal(t, sent, read)
		})
	}
}
