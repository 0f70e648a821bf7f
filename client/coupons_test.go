package client_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/largesse/largesse/client"
)

const (
	templateJSON = `{"id":"42","name":"Spring","totalQuantity":100,"perUserLimit":2,"opensAt":"2026-11-21T10:00:00Z","validForSeconds":60,"holdSeconds":30,"mode":"STREAM",
		"reissueAfterCancel":true,"whenRedisAway":"DATABASE","path":"GATE","draw":{"from":"2026-11-21T10:00:00Z","state":"DONE","commitment":"ab","seed":"cd","listHash":"ef"},"importedCodes":{"imported":50,"left":19,"missing":3},
		"createdAt":"2026-11-21T10:00:00Z","counters":{"totalQuantity":100,"stock":60,"count":30,"issuedTotal":31,"waiting":10},"degraded":["gate"]}`
	couponJSON = `{"id":"2","code":"C","templateId":"42","userId":"u7","ticket":5,"status":"USED","heldUntil":"2026-11-21T10:00:00Z","reason":"R","issuedAt":"2026-11-21T10:00:00Z","usedAt":"2026-11-21T10:00:00Z"}`
)

func TestCouponCalls(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	at := time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
	template := client.Template{
		ID: "42", Name: "Spring", TotalQuantity: 100, PerUserLimit: 2, OpensAt: &at, ValidForSeconds: 60, HoldSeconds: 30, Mode: "STREAM", ReissueAfterCancel: true,
		WhenRedisAway: "DATABASE", Path: "GATE", Draw: &client.Draw{From: at, State: "DONE", Commitment: "ab", Seed: "cd", ListHash: "ef"}, CreatedAt: at,
		ImportedCodes: &client.ImportedCodes{Imported: 50, Left: 19, Missing: 3},
		Counters:      client.TemplateCounters{TotalQuantity: 100, Stock: 60, Count: 30, IssuedTotal: 31, Waiting: 10}, Degraded: []string{"gate"},
	}
	coupon := client.Coupon{ID: "2", Code: "C", TemplateID: "42", UserID: "u7", Ticket: 5, Status: "USED", HeldUntil: &at, Reason: "R", IssuedAt: at, UsedAt: &at}
	rank, name, quantity, no := int64(0), "N", int64(5), false
	for _, tc := range []struct {
		name, want string // method, URI, Prefer and body of the request
		answer     string
		call       func(*client.Client) (any, error)
		result     any
	}{
		{"CreateTemplate", `POST /v1/coupon-templates  {"name":"Spring","totalQuantity":100}`, templateJSON, func(c *client.Client) (any, error) {
			return c.CreateTemplate(ctx, client.NewTemplate{Name: "Spring", TotalQuantity: 100})
		}, template},
		{
			"CreateTemplateWithAll", `POST /v1/coupon-templates  {"id":"42","name":"Spring","totalQuantity":100,"perUserLimit":2,"opensAt":"2026-11-21T10:00:00Z",` +
				`"closesAt":"2026-11-21T10:00:00Z","validForSeconds":60,"holdSeconds":30,"mode":"KAFKA","reissueAfterCancel":false,"whenRedisAway":"WAIT","codes":{"prefix":"X-","length":9},"draw":{"from":"2026-11-21T10:00:00Z"}}`,
			templateJSON, func(c *client.Client) (any, error) {
				return c.CreateTemplate(ctx, client.NewTemplate{
					ID: "42", Name: "Spring", TotalQuantity: 100, PerUserLimit: 2, OpensAt: &at, ClosesAt: &at, ValidForSeconds: 60, HoldSeconds: 30, Mode: "KAFKA",
					ReissueAfterCancel: &no, WhenRedisAway: "WAIT", Codes: &client.CodeStyle{Prefix: "X-", Length: 9}, Draw: &client.NewDraw{From: at},
				})
			}, template,
		},
		{"Template", "GET /v1/coupon-templates/42  ", templateJSON, func(c *client.Client) (any, error) { return c.Template(ctx, "42") }, template},
		{
			"ImportCodes", "POST /v1/coupon-templates/42/codes  A\nB", `{"accepted":2,"importedCodes":{"imported":50,"left":19,"missing":3}}`, func(c *client.Client) (any, error) {
				return c.ImportCodes(ctx, "42", strings.NewReader("A\nB"), client.ImportOptions{})
			}, client.CodesResult{Accepted: 2, ImportedCodes: client.ImportedCodes{Imported: 50, Left: 19, Missing: 3}},
		},
		{"ReleasePlaces", "POST /v1/coupon-templates/42/release-places  ", `{"released":7}`, func(c *client.Client) (any, error) { return c.ReleasePlaces(ctx, "42") }, int64(7)},
		{"CloseTemplate", "POST /v1/coupon-templates/42/close  ", templateJSON, func(c *client.Client) (any, error) { return c.CloseTemplate(ctx, "42") }, template},
		{
			"ChangeTemplate", `PATCH /v1/coupon-templates/42  {"name":"N","totalQuantity":5,"opensAt":"2026-11-21T10:00:00Z","closesAt":null,"validForSeconds":null,"holdSeconds":null,"reissueAfterCancel":false}`,
			templateJSON, func(c *client.Client) (any, error) {
				return c.ChangeTemplate(ctx, "42", client.TemplateChange{
					Name: &name, TotalQuantity: &quantity, OpensAt: client.Set(at), ClosesAt: client.Clear[time.Time](), ValidForSeconds: client.Clear[int64](), HoldSeconds: client.Clear[int64](), ReissueAfterCancel: &no,
				})
			}, template,
		},
		{"Templates", "GET /v1/coupon-templates?limit=200  ", `{"items":[` + templateJSON + `]}`, func(c *client.Client) (any, error) {
			for t, err := range c.Templates(ctx) {
				return t, err
			}
			return nil, nil
		}, template},
		{"FindTemplates", "GET /v1/coupon-templates?limit=200&q=a%25  ", `{"items":[` + templateJSON + `]}`, func(c *client.Client) (any, error) {
			for t, err := range c.FindTemplates(ctx, "a%") {
				return t, err
			}
			return nil, nil
		}, template},
		{"TemplateCoupons", "GET /v1/coupon-templates/42/coupons?limit=200  ", `{"items":[` + couponJSON + `]}`, func(c *client.Client) (any, error) {
			for t, err := range c.TemplateCoupons(ctx, "42") {
				return t, err
			}
			return nil, nil
		}, coupon},
		{"TemplateEntrants", "GET /v1/coupon-templates/42/entrants?limit=200  ", `{"items":[{"userId":"u/7 ü"},{"userId":"u8"}]}`, func(c *client.Client) (any, error) {
			var users []string
			for user, err := range c.TemplateEntrants(ctx, "42") {
				if err != nil {
					return nil, err
				}
				users = append(users, user)
			}
			return users, nil
		}, []string{"u/7 ü", "u8"}},
		{"UserCoupons", "GET /v1/users/u%2F7%20%C3%BC/coupons?limit=200  ", `{"items":[` + couponJSON + `]}`, func(c *client.Client) (any, error) {
			for t, err := range c.UserCoupons(ctx, "u/7 ü") {
				return t, err
			}
			return nil, nil
		}, coupon},
		{"Coupon", "GET /v1/coupons/2  ", couponJSON, func(c *client.Client) (any, error) { return c.Coupon(ctx, "2") }, coupon},
		{"CouponsByCode", "GET /v1/coupons?code=C+1  ", `{"items":[` + couponJSON + `]}`, func(c *client.Client) (any, error) { return c.CouponsByCode(ctx, "C 1") }, []client.Coupon{coupon}},
		{"ConfirmCoupon", "POST /v1/coupons/2/confirm  ", couponJSON, func(c *client.Client) (any, error) { return c.ConfirmCoupon(ctx, "2") }, coupon},
		{"UseCoupon", "POST /v1/coupons/2/use  ", couponJSON, func(c *client.Client) (any, error) { return c.UseCoupon(ctx, "2") }, coupon},
		{"CancelCoupon", "POST /v1/coupons/2/cancel  ", couponJSON, func(c *client.Client) (any, error) { return c.CancelCoupon(ctx, "2") }, coupon},
		{
			"IssueCoupon", `POST /v1/coupons/42/issue  {"userId":"u7"}`, `{"requestId":"42:u7","status":"WAITING","ticket":9,"queueRank":0,"estimatedWaitMillis":7,"duplicate":true}`,
			func(c *client.Client) (any, error) { return c.IssueCoupon(ctx, "42", "u7", 0) },
			client.IssueRequest{ID: "42:u7", Status: "WAITING", Ticket: 9, QueueRank: &rank, EstimatedWaitMillis: 7, Duplicate: true},
		},
		{
			"IssueCouponAndWait", `POST /v1/coupons/42/issue wait=2 {"userId":"u7"}`, `{"requestId":"42:u7","status":"ISSUED","coupon":` + couponJSON + `}`,
			func(c *client.Client) (any, error) { return c.IssueCoupon(ctx, "42", "u7", 1500*time.Millisecond) },
			client.IssueRequest{ID: "42:u7", Status: "ISSUED", Coupon: &coupon},
		},
		{
			"IssueRequest", "GET /v1/issue-requests/42:u%2F7  ", `{"requestId":"42:u/7","status":"REJECTED","reason":"NOT_DRAWN"}`,
			func(c *client.Client) (any, error) { return c.IssueRequest(ctx, "42:u/7") },
			client.IssueRequest{ID: "42:u/7", Status: "REJECTED", Reason: "NOT_DRAWN"},
		},
		{"LeaveLine", "DELETE /v1/issue-requests/42:u%2F7  ", "", func(c *client.Client) (any, error) { return nil, c.LeaveLine(ctx, "42:u/7") }, nil},
		{
			"UserHistory", "GET /v1/users/u7/history?templateId=42&templateId=43  ", `{"userId":"u7","items":[{"requestId":"42:u7","templateId":"42","ticket":5,"status":"ISSUED","coupon":` + couponJSON + `,
				"at":"2026-11-21T10:00:00Z"}],"refusals":[{"templateId":"43","reason":"SOLD_OUT","since":"2026-11-21T10:00:00Z"}],
				"payouts":[{"promotionId":"12","promotionName":"Spring","promotionStatus":"PAUSED","pauseReason":"p","targetId":"7","amount":10,"voucherCode":"V","state":"FAILED",
				"attempts":3,"transactionKey":"t","errorCode":"E","errorMessage":"m","updatedAt":"2026-11-21T10:00:00Z",
				"attemptLog":[{"dispatch":2,"at":"2026-11-21T10:00:00Z","class":"RESOLVED","code":"eve","message":"why"}]}]}`,
			func(c *client.Client) (any, error) { return c.UserHistory(ctx, "u7", "42", "43") },
			client.History{
				UserID: "u7", Items: []client.HistoryItem{{RequestID: "42:u7", TemplateID: "42", Ticket: 5, Status: "ISSUED", Coupon: &coupon, At: at}},
				Refusals: []client.HistoryRefusal{{TemplateID: "43", Reason: "SOLD_OUT", Since: at}},
				Payouts: []client.HistoryPayout{{
					PromotionID: "12", PromotionName: "Spring", PromotionStatus: "PAUSED", PauseReason: "p", TargetID: "7", Amount: 10, VoucherCode: "V", State: "FAILED",
					AttemptCount: 3, TransactionKey: "t", ErrorCode: "E", ErrorMessage: "m", UpdatedAt: at,
					Log: []client.Attempt{{Dispatch: 2, At: at, Class: "RESOLVED", Code: "eve", Message: "why"}},
				}},
			},
		},
		{
			"ReconcileTemplate", `POST /v1/reconciliations  {"templateId":"42","repair":true}`, `{"id":"9","drifts":[{"templateId":"42","what":"user","userId":"u7","store":null,"redis":null}]}`,
			func(c *client.Client) (any, error) { return c.ReconcileTemplate(ctx, "42", true) },
			client.Reconciliation{ID: "9", Drifts: []client.Drift{{TemplateID: "42", What: "user", UserID: "u7"}}},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			got := make(chan string, 1)
			c := serve(t, client.Options{}, func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				got <- r.Method + " " + r.RequestURI + " " + r.Header.Get("Prefer") + " " + string(body)
				_, _ = io.WriteString(w, tc.answer)
			})
			result, err := tc.call(c)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, <-got); diff != "" {
				t.Errorf("request (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.result, result); diff != "" {
				t.Errorf("result (-want +got):\n%s", diff)
			}
		})
	}

	t.Run("AWaitMayBeLongerThanTheTimeout", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			w := &wires{answer: func(r *http.Request, _ int) (*http.Response, error) {
				select {
				case <-time.After(10 * time.Second):
					return answer(201, "application/json", `{"status":"ISSUED"}`), nil
				case <-r.Context().Done():
					return nil, r.Context().Err()
				}
			}}
			c, err := client.New("http://largesse.test", client.Options{Timeout: time.Second, Transport: w})
			if err != nil {
				t.Fatal(err)
			}
			if r, err := c.IssueCoupon(t.Context(), "42", "u7", 20*time.Second); err != nil || r.Status != "ISSUED" {
				t.Errorf("%+v, %v", r, err)
			}
			if _, err := c.IssueCoupon(t.Context(), "42", "u7", 0); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("error %v", err)
			}
		})
	})

	t.Run("ARefusalTellsWhenItOpens", func(t *testing.T) {
		t.Parallel()
		c := serve(t, client.Options{}, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/problem+json")
			w.WriteHeader(http.StatusConflict)
			_, _ = io.WriteString(w, `{"code":"NOT_OPEN","detail":"soon","opensAt":"2026-11-21T10:00:00Z"}`)
		})
		_, err := c.IssueCoupon(ctx, "42", "u7", 0)
		var p *client.Problem
		if !errors.As(err, &p) || p.Code != "NOT_OPEN" || !p.OpensAt.Equal(at) {
			t.Errorf("error %+v", err)
		}
	})
}

// TestWatchIssueRequest: what TestWatchPromotion does not show.
func TestWatchIssueRequest(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	const (
		stream = "retry: 100\n\nevent: rank\nid: 9.3\ndata: {\"status\":\"WAITING\",\"queueRank\":3}\n\n: beat\n\n" +
			"event: rank\nid: 9.0\ndata: {\"status\":\"WAITING\",\ndata: \"queueRank\":0}\n\n"
		result = "event: result\nid: 9.ISSUED\ndata: {\"status\":\"ISSUED\"}\n\n"
	)
	// Over a real connection, which is cut once.
	var calls []string
	c := serve(t, client.Options{Timeout: time.Nanosecond}, func(w http.ResponseWriter, r *http.Request) {
		calls = append(calls, r.RequestURI+" "+r.Header.Get("Accept")+" "+r.Header.Get("Last-Event-ID"))
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, map[bool]string{true: stream, false: result}[len(calls) == 1])
	})
	var statuses []string
	for r, err := range c.WatchIssueRequest(ctx, "42:u7", client.WatchOptions{}) {
		if err != nil {
			t.Fatal(err)
		}
		statuses = append(statuses, r.Status)
	}
	want(t, "heard", []string{"WAITING", "WAITING", "ISSUED"}, statuses)
	want(t, "asked", []string{"/v1/issue-requests/42:u7/events text/event-stream ", "/v1/issue-requests/42:u7/events text/event-stream 9.0"}, calls)

	t.Run("Lost", func(t *testing.T) {
		t.Parallel()
		c := serve(t, client.Options{}, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/problem+json")
			w.WriteHeader(http.StatusNotFound)
			_, _ = io.WriteString(w, `{"code":"REQUEST_UNKNOWN"}`)
		})
		for _, err := range c.WatchIssueRequest(ctx, "42:u7", client.WatchOptions{}) {
			var p *client.Problem
			if !errors.As(err, &p) || p.Code != "REQUEST_UNKNOWN" {
				t.Errorf("error %v", err)
			}
		}
	})

	t.Run("Looks", func(t *testing.T) {
		t.Parallel()
		c := serve(t, client.Options{}, func(w http.ResponseWriter, r *http.Request) {
			if strings.HasSuffix(r.URL.Path, "/events") {
				w.WriteHeader(http.StatusNotImplemented)
				return
			}
			_, _ = io.WriteString(w, `{"requestId":"42:u7","status":"REJECTED","reason":"SOLD_OUT"}`)
		})
		for r, err := range c.WatchIssueRequest(ctx, "42:u7", client.WatchOptions{}) {
			if err != nil || r.Status != "REJECTED" || r.Reason != "SOLD_OUT" {
				t.Errorf("%+v, %v", r, err)
			}
		}
	})

	t.Run("EndsWithTheCaller", func(t *testing.T) {
		t.Parallel()
		gone := make(chan struct{})
		c := serve(t, client.Options{}, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, stream)
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
			close(gone)
		})
		for r, err := range c.WatchIssueRequest(ctx, "42:u7", client.WatchOptions{}) {
			if err != nil || r.QueueRank == nil || *r.QueueRank != 3 {
				t.Errorf("%+v, %v", r, err)
			}
			break
		}
		<-gone
	})
}

// TestWatchTemplate: what TestWatchPromotion does not show.
func TestWatchTemplate(t *testing.T) {
	t.Parallel()
	counters := func(state string, stock int) string {
		return fmt.Sprintf("event: counters\nid: %s.%d\ndata: {\"id\":\"42\",\"state\":%q,\"counters\":{\"stock\":%d},\"issuedPerSecond\":2.5}\n\n", state, stock, state, stock)
	}
	var calls []string
	c := serve(t, client.Options{}, func(w http.ResponseWriter, r *http.Request) {
		calls = append(calls, r.RequestURI+" "+r.Header.Get("Last-Event-ID"))
		if len(calls) == 3 { // a proxy that knows no events
			w.WriteHeader(http.StatusNotImplemented)
			return
		}
		if !strings.HasSuffix(r.URL.Path, "/events") {
			_, _ = io.WriteString(w, `{"id":"42","name":"Drop","counters":{"stock":1}}`)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, []string{"retry: 100\n\n" + counters("OPEN", 2), counters("SOLD_OUT", 0)}[len(calls)-1])
	})
	var got []string
	for p, err := range c.WatchTemplate(t.Context(), "42", client.WatchOptions{}) {
		if err != nil {
			t.Fatal(err)
		}
		if got = append(got, fmt.Sprint(p.State, " ", p.Counters.Stock, " ", p.IssuedPerSecond != nil)); len(got) == 3 {
			break
		}
	}
	want(t, "heard", []string{"OPEN 2 true", "SOLD_OUT 0 true", " 1 false"}, got)
	const events = "/v1/coupon-templates/42/events"
	want(t, "asked", []string{events + " ", events + " OPEN.2", events + " SOLD_OUT.0", "/v1/coupon-templates/42 "}, calls)
}
