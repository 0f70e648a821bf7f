package client_test

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
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/largesse/largesse/client"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serve starts a server with one handler and a client of it.
func serve(t *testing.T, o client.Options, handler http.HandlerFunc) *client.Client {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	transport := &http.Transport{ExpectContinueTimeout: 10 * time.Second}
	t.Cleanup(transport.CloseIdleConnections)
	o.Transport = transport
	c, err := client.New(server.URL, o)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

const promotionJSON = `{"id":"9007199254740993","name":"Spring","type":"POINT","status":"RUNNING","amount":1000,"currency":"EUR","maxRetries":5,
"closed":false,"totalCount":10,"expectedCount":12,"counts":{"ready":1,"queued":2,"retrying":0,"unknown":1,"succeeded":4,"failed":1,"cancelled":1},
"amountTotal":10000,"amountSucceeded":4000,"etaSeconds":3,"createdAt":"2026-11-21T10:00:00Z","startedAt":"2026-11-21T10:01:00Z",
"summaries":[{"promotionSummaryId":"1","totalCount":10,"counts":{"succeeded":4},"amountSucceeded":4000}]}`

func TestNew(t *testing.T) {
	t.Parallel()
	for server, good := range map[string]bool{
		"http://127.0.0.1:8080": true, "https://largesse.internal/base": true,
		"127.0.0.1:8080": false, "ftp://h": false, "http://": false, "http://h?a=b": false, "http://u:hunter2@h#f": false, "://u:hunter2@h": false,
	} {
		_, err := client.New(server, client.Options{})
		if (err == nil) != good {
			t.Errorf("New(%q): %v", server, err)
		}
		if err != nil && strings.Contains(err.Error(), "hunter2") {
			t.Errorf("New(%q) tells the password: %v", server, err)
		}
	}
}

func TestCalls(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	tenSharp := time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
	status := func(p client.Promotion, err error) (any, error) { return p.Status, err }
	for _, tc := range []struct {
		name, want string // method, URI and body of the request
		answer     string
		call       func(*client.Client) (any, error)
		result     any
	}{
		{"Create", `POST /v1/promotions {"id":"7","name":"Spring","type":"POINT","amount":5,"maxRetries":0}`, promotionJSON, func(c *client.Client) (any, error) {
			return status(c.CreatePromotion(ctx, client.NewPromotion{ID: "7", Name: "Spring", Type: "POINT", Amount: 5, MaxRetries: new(int)}))
		}, "RUNNING"},
		{"Get", "GET /v1/promotions/7 ", promotionJSON, func(c *client.Client) (any, error) { p, err := c.Promotion(ctx, "7"); return p.ID, err }, "9007199254740993"},
		{"GetWithAHostileID", "GET /v1/promotions/..%2F%3Fa=b%2F7 ", promotionJSON, func(c *client.Client) (any, error) { return status(c.Promotion(ctx, "../?a=b/7")) }, "RUNNING"},
		{"GetWithDotsForAnID", "GET /v1/promotions/%2E%2E ", promotionJSON, func(c *client.Client) (any, error) { return status(c.Promotion(ctx, "..")) }, "RUNNING"},
		{"Start", "POST /v1/promotions/7/start ", promotionJSON, func(c *client.Client) (any, error) { return status(c.StartPromotion(ctx, "7")) }, "RUNNING"},
		{"Pause", "POST /v1/promotions/7/pause ", promotionJSON, func(c *client.Client) (any, error) { return status(c.PausePromotion(ctx, "7")) }, "RUNNING"},
		{"Resume", "POST /v1/promotions/7/resume ", promotionJSON, func(c *client.Client) (any, error) { return status(c.ResumePromotion(ctx, "7")) }, "RUNNING"},
		{"Cancel", "POST /v1/promotions/7/cancel ", promotionJSON, func(c *client.Client) (any, error) { return status(c.CancelPromotion(ctx, "7")) }, "RUNNING"},
		{"Close", "POST /v1/promotions/7/close ", promotionJSON, func(c *client.Client) (any, error) { return status(c.ClosePromotion(ctx, "7")) }, "RUNNING"},
		{"Approve", "POST /v1/promotions/7/approve ", promotionJSON, func(c *client.Client) (any, error) { return status(c.ApprovePromotion(ctx, "7")) }, "RUNNING"},
		{"ApproveSeen", "POST /v1/promotions/7/approve ", promotionJSON, func(c *client.Client) (any, error) {
			return status(c.ApproveSeen(ctx, client.Promotion{ID: "7", ETag: `"v1-2-3-4"`}))
		}, "RUNNING"},
		{"Reject", `POST /v1/promotions/7/reject {"reason":"no"}`, promotionJSON, func(c *client.Client) (any, error) { return status(c.RejectPromotion(ctx, "7", "no")) }, "RUNNING"},
		{
			"Uploads", "GET /v1/promotions/7/uploads?limit=200 ", `{"items":[{"id":"5","state":"COMPLETED","createdBy":"kim","bytes":20,"accepted":1}]}`,
			func(c *client.Client) (any, error) {
				for u, err := range c.Uploads(ctx, "7") {
					return u, err
				}
				return nil, nil
			},
			client.Upload{ID: "5", State: "COMPLETED", CreatedBy: "kim", Bytes: 20, Accepted: 1},
		},
		{
			"CreateWithLevers", `POST /v1/promotions {"name":"S","type":"POINT","ratePerSecond":10,"weight":2,"maxAmount":500,"canary":{"targets":3,"maxFailureRate":0},` +
				`"startsAt":"2026-11-21T10:00:00Z","webhookUrl":"https://h/x"}`,
			`{"ratePerSecond":10,"weight":2,"maxAmount":500,"canary":{"targets":3,"maxFailureRate":0.5,"dispatched":1,"judged":true},"startsAt":"2026-11-21T10:00:00Z",
				"webhookUrl":"https://h/x","createdBy":"kim","approvedBy":"lee"}`,
			func(c *client.Client) (any, error) {
				return c.CreatePromotion(ctx, client.NewPromotion{
					Name: "S", Type: "POINT", RatePerSecond: 10, Weight: 2, MaxAmount: 500,
					Canary: &client.NewCanary{Targets: 3, MaxFailureRate: new(float64)}, StartsAt: &tenSharp, WebhookURL: "https://h/x",
				})
			},
			client.Promotion{
				RatePerSecond: 10, Weight: 2, MaxAmount: 500, Canary: &client.Canary{Targets: 3, MaxFailureRate: 0.5, Dispatched: 1, Judged: true},
				StartsAt: &tenSharp, WebhookURL: "https://h/x", CreatedBy: "kim", ApprovedBy: "lee",
			},
		},
		{
			"FindPromotions", "GET /v1/promotions?createdAfter=2026-11-21T10%3A00%3A00Z&createdBy=kim&limit=200&q=a%25&sort=-name&status=DRAFT ", `{"items":[{"id":"7"}]}`,
			func(c *client.Client) (any, error) {
				for p, err := range c.FindPromotions(ctx, client.PromotionFilter{Status: "DRAFT", Search: "a%", CreatedBy: "kim", CreatedAfter: tenSharp, Sort: "-name"}) {
					return p, err
				}
				return nil, nil
			},
			client.Promotion{ID: "7"},
		},
		{
			"ChangePromotion", `PATCH /v1/promotions/7 {"name":"N","ratePerSecond":null,"maxAmount":500,"metadata":{"a":"b","c":null}}`, `{"id":"7"}`,
			func(c *client.Client) (any, error) {
				return c.ChangePromotion(ctx, "7", client.PromotionChange{
					Name: new("N"), RatePerSecond: client.Clear[int](), MaxAmount: client.Set(int64(500)),
					Metadata: client.Set(map[string]*string{"a": new("b"), "c": nil}),
				})
			},
			client.Promotion{ID: "7"},
		},
		{
			"Retry", `POST /v1/promotions/7/payouts/retry {"state":"FAILED","code":"X"}`, `{"requeued":12}`,
			func(c *client.Client) (any, error) { return c.RetryPayouts(ctx, "7", "X") }, int64(12),
		},
		{
			"Resolve", `POST /v1/promotions/7/payouts/8/resolve {"outcome":"SUCCEEDED","transactionKey":"T","note":"n"}`, `{"state":"SUCCEEDED"}`,
			func(c *client.Client) (any, error) {
				p, err := c.ResolvePayout(ctx, "7", "8", client.Resolution{Outcome: "SUCCEEDED", TransactionKey: "T", Note: "n"})
				return p.State, err
			}, "SUCCEEDED",
		},
		{
			"DeadLetter", "GET /v1/dead-letters/7 ", `{"id":"7","status":"DISCARDED","settledAt":"2026-11-21T10:00:00Z","settledBy":"kim"}`,
			func(c *client.Client) (any, error) { return c.DeadLetter(ctx, "7") },
			client.DeadLetter{ID: "7", Status: "DISCARDED", SettledAt: &tenSharp, SettledBy: "kim"},
		},
		{
			"ReplayDeadLetter", "POST /v1/dead-letters/7/replay ", `{"status":"REPLAYED"}`,
			func(c *client.Client) (any, error) { d, err := c.ReplayDeadLetter(ctx, "7"); return d.Status, err }, "REPLAYED",
		},
		{
			"DiscardDeadLetter", "POST /v1/dead-letters/7/discard ", `{"status":"DISCARDED"}`,
			func(c *client.Client) (any, error) { d, err := c.DiscardDeadLetter(ctx, "7"); return d.Status, err }, "DISCARDED",
		},
		{
			"ReplayDeadLetters", `POST /v1/dead-letters/replay {"source":"s","reason":"r"}`, `{"count":5,"skipped":2}`,
			func(c *client.Client) (any, error) {
				return c.ReplayDeadLetters(ctx, client.DeadLetterSelection{Source: "s", Reason: "r"})
			},
			client.DeadLettersSettled{Count: 5, Skipped: 2},
		},
		{
			"DiscardDeadLetters", `POST /v1/dead-letters/discard {"ids":["1","2"]}`, `{"count":2,"skipped":0}`,
			func(c *client.Client) (any, error) {
				return c.DiscardDeadLetters(ctx, client.DeadLetterSelection{IDs: []string{"1", "2"}})
			},
			client.DeadLettersSettled{Count: 2},
		},
		{
			"Reconcile", `POST /v1/reconciliations {"promotionId":"7","repair":true}`,
			`{"id":"9","checked":1,"drifts":[{"promotionId":"7","what":"stream","store":5,"redis":4,"detail":"d","repaired":true},{"what":"charges.above","store":1,"redis":null,"provider":2}],"at":"2026-11-21T10:00:00Z"}`,
			func(c *client.Client) (any, error) {
				r, err := c.Reconcile(ctx, "7", true)
				return fmt.Sprintf("%s %d %d %d %v %d %d", r.ID, r.Checked, len(r.Drifts), *r.Drifts[0].Redis, r.Drifts[1].Redis, *r.Drifts[1].Provider, r.Left()), err
			}, "9 1 2 4 <nil> 2 1",
		},
		{
			"ReconcileAll", `POST /v1/reconciliations {"repair":false}`, `{"drifts":[]}`,
			func(c *client.Client) (any, error) { r, err := c.Reconcile(ctx, "", false); return r.Left(), err }, 0,
		},
		{
			"Reconciliation", "GET /v1/reconciliations/9 ", `{"skipped":["x"]}`,
			func(c *client.Client) (any, error) { r, err := c.Reconciliation(ctx, "9"); return r.Skipped[0], err }, "x",
		},
		{"Delete", "DELETE /v1/promotions/7 ", "", func(c *client.Client) (any, error) { return nil, c.DeletePromotion(ctx, "7") }, nil},
		{
			"Payout", "GET /v1/promotions/7/payouts/8 ", `{"targetId":"8","state":"FAILED","attempts":2,"attemptLog":[{"dispatch":1,"class":"FAILED","code":"HTTP_500"}]}`,
			func(c *client.Client) (any, error) {
				p, err := c.Payout(ctx, "7", "8")
				return fmt.Sprint(p.State, p.AttemptCount, p.Log[0].Code), err
			}, "FAILED2HTTP_500",
		},
		{
			"CreateWithConsumers", `POST /v1/promotions {"name":"S","type":"POINT","consumersPerInstance":3}`, `{"consumersPerInstance":3}`,
			func(c *client.Client) (any, error) {
				n := 3
				p, err := c.CreatePromotion(ctx, client.NewPromotion{Name: "S", Type: "POINT", ConsumersPerInstance: &n})
				return p.ConsumersPerInstance, err
			}, 3,
		},
		{
			"PromotionStream", "GET /v1/promotions/7/stream ", `{"key":"k","group":"g","exists":true,"length":5,"lag":3,"pending":2,"oldestPendingAt":"2026-11-21T10:00:00Z",
				"consumers":[{"name":"h-1-0","instance":"h-1","alive":true,"pending":2,"idleMillis":40}]}`,
			func(c *client.Client) (any, error) { return c.PromotionStream(ctx, "7") },
			client.PromotionStream{
				Key: "k", Group: "g", Exists: true, Length: 5, Lag: 3, Pending: 2, OldestPendingAt: &tenSharp,
				Consumers: []client.StreamConsumer{{Name: "h-1-0", Instance: "h-1", Alive: true, Pending: 2, IdleMillis: 40}},
			},
		},
		{
			"Instances", "GET /v1/instances ", `{"items":[{"name":"h-1","version":"v1","roles":["api"],"alive":true,"startedAt":"2026-11-21T10:00:00Z","seenAt":"2026-11-21T10:00:00Z",
				"aliveUntil":"2026-11-21T10:00:00Z","consumers":2,"pools":[{"promotionId":"7","type":"POINT","consumers":2,"inHand":1,"startedAt":"2026-11-21T10:00:00Z"}],
				"troubles":[{"part":"kafka","reason":"it does not answer","since":"2026-11-21T10:00:00Z"}]}],
				"streams":[{"promotionId":"7","type":"POINT","key":"k","length":5,"lag":3,"pending":2,"oldestPendingAgeMillis":9,"consumers":2}],"degraded":["queue"]}`,
			func(c *client.Client) (any, error) { return c.Instances(ctx) },
			client.Instances{
				Items: []client.Instance{{
					Name: "h-1", Version: "v1", Roles: []string{"api"}, Alive: true, StartedAt: tenSharp, SeenAt: tenSharp, AliveUntil: tenSharp, Consumers: 2,
					Pools:    []client.InstancePool{{PromotionID: "7", Type: "POINT", Consumers: 2, InHand: 1, StartedAt: tenSharp}},
					Troubles: []client.Trouble{{Part: "kafka", Reason: "it does not answer", Since: tenSharp}},
				}},
				Streams:  []client.WorkStream{{PromotionID: "7", Type: "POINT", Key: "k", Length: 5, Lag: 3, Pending: 2, OldestPendingAgeMillis: 9, Consumers: 2}},
				Degraded: []string{"queue"},
			},
		},
		{"Health", "GET /healthz ", `{"status":"ok"}`, func(c *client.Client) (any, error) { return nil, c.Health(ctx) }, nil},
		{"Ready", "GET /readyz ", `{"status":"ok","degraded":["redis"]}`, func(c *client.Client) (any, error) { r, err := c.Ready(ctx); return r.Degraded[0], err }, "redis"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			got := make(chan string, 1)
			c := serve(t, client.Options{APIKey: "k-1", Actor: "kim", UserAgent: "test/1"}, func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				if r.Header.Get("Authorization") != "Bearer k-1" || r.Header.Get("User-Agent") != "test/1" || r.Header.Get("Largesse-Actor") != "kim" {
					t.Errorf("headers %v", r.Header)
				}
				if len(body) > 0 && r.Header.Get("Content-Type") != "application/json" {
					t.Errorf("Content-Type %q", r.Header.Get("Content-Type"))
				}
				got <- r.Method + " " + r.RequestURI + " " + string(body)
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
}

func TestPromotionShape(t *testing.T) {
	t.Parallel()
	c := serve(t, client.Options{}, func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasPrefix(r.Header.Get("User-Agent"), "largesse-client/") || r.Header.Get("Authorization") != "" || len(r.Header.Values("Largesse-Actor")) > 0 {
			t.Errorf("headers %v", r.Header)
		}
		_, _ = io.WriteString(w, promotionJSON)
	})
	got, err := c.Promotion(context.Background(), "7")
	if err != nil {
		t.Fatal(err)
	}
	expected, eta := int64(12), 3.0
	started := time.Date(2026, 11, 21, 10, 1, 0, 0, time.UTC)
	want := client.Promotion{
		ID: "9007199254740993", Name: "Spring", Type: "POINT", Status: "RUNNING", Amount: 1000, Currency: "EUR", MaxRetries: 5,
		TotalCount: 10, ExpectedCount: &expected, AmountTotal: 10_000, AmountSucceeded: 4000, ETASeconds: &eta,
		Counts:    client.Counts{Ready: 1, Queued: 2, Unknown: 1, Succeeded: 4, Failed: 1, Cancelled: 1},
		CreatedAt: started.Add(-time.Minute), StartedAt: &started,
		Summaries: []client.Summary{{PromotionSummaryID: "1", TotalCount: 10, Counts: client.Counts{Succeeded: 4}, AmountSucceeded: 4000}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if got.Counts.Done() != 6 {
		t.Errorf("done %d", got.Counts.Done())
	}
}

func TestExportPayouts(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	rest := make(chan struct{})
	c := serve(t, client.Options{Timeout: time.Millisecond}, func(w http.ResponseWriter, r *http.Request) {
		if r.RequestURI != "/v1/promotions/7/payouts?code=X&state=FAILED" || r.Header.Get("Accept") != "text/csv" {
			t.Errorf("%s, accepting %s", r.RequestURI, r.Header.Get("Accept"))
		}
		w.Header().Set("Content-Type", "text/csv; charset=utf-8")
		_, _ = io.WriteString(w, "targetId\n")
		_ = http.NewResponseController(w).Flush()
		<-rest // an export may last longer than any other call
		_, _ = io.WriteString(w, "1\n")
	})
	read, write := io.Pipe()
	done := make(chan error, 1)
	go func() {
		done <- c.ExportPayouts(ctx, "7", client.PayoutFilter{State: "FAILED", Code: "X"}, write)
		_ = write.Close()
	}()
	head := make([]byte, 9)
	if _, err := io.ReadFull(read, head); err != nil || string(head) != "targetId\n" {
		t.Errorf("%q: %v", head, err)
	}
	close(rest)
	if tail, err := io.ReadAll(read); err != nil || string(tail) != "1\n" {
		t.Errorf("%q: %v", tail, err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}

	for name, answer := range map[string]http.HandlerFunc{
		"NoCSV": func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "{}") },
		"Problem": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/problem+json")
			w.WriteHeader(http.StatusNotFound)
			_, _ = io.WriteString(w, `{"code":"PROMOTION_NOT_FOUND"}`)
		},
		"Cut": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/csv")
			w.Header().Set("Content-Length", "100")
			_, _ = io.WriteString(w, "targetId\n")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := serve(t, client.Options{}, answer).ExportPayouts(ctx, "7", client.PayoutFilter{}, io.Discard)
			var p *client.Problem
			if err == nil || errors.As(err, &p) != (name == "Problem") {
				t.Errorf("error %v", err)
			}
		})
	}
}

func TestLists(t *testing.T) {
	t.Parallel()
	ctx := context.Background()

	t.Run("WalkOverAllPages", func(t *testing.T) {
		t.Parallel()
		asked := make(chan string, 3)
		c := serve(t, client.Options{}, func(w http.ResponseWriter, r *http.Request) {
			asked <- r.RequestURI
			switch r.URL.Query().Get("cursor") {
			case "":
				_, _ = io.WriteString(w, `{"items":[{"targetId":"1"},{"targetId":"2"}],"nextCursor":"a b"}`)
			case "a b":
				_, _ = io.WriteString(w, `{"items":[],"nextCursor":"c"}`)
			default:
				_, _ = io.WriteString(w, `{"items":[{"targetId":"3"}]}`)
			}
		})
		var got []string
		for p, err := range c.Payouts(ctx, "7", client.PayoutFilter{State: "FAILED", Code: "X"}) {
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, p.TargetID)
		}
		if diff := cmp.Diff([]string{"1", "2", "3"}, got); diff != "" {
			t.Error(diff)
		}
		for _, want := range []string{
			"/v1/promotions/7/payouts?code=X&limit=200&state=FAILED",
			"/v1/promotions/7/payouts?code=X&cursor=a+b&limit=200&state=FAILED",
			"/v1/promotions/7/payouts?code=X&cursor=c&limit=200&state=FAILED",
		} {
			if uri := <-asked; uri != want {
				t.Errorf("asked for %s, want %s", uri, want)
			}
		}
	})

	t.Run("StopWhenTheCallerDoes", func(t *testing.T) {
		t.Parallel()
		calls := make(chan string, 2)
		c := serve(t, client.Options{}, func(w http.ResponseWriter, r *http.Request) {
			calls <- r.RequestURI
			_, _ = io.WriteString(w, `{"items":[{"id":"1"},{"id":"2"}],"nextCursor":"n"}`)
		})
		for p, err := range c.Promotions(ctx, "RUNNING") {
			if err != nil || p.ID != "1" {
				t.Errorf("promotion %q, %v", p.ID, err)
			}
			break
		}
		if len(calls) != 1 || <-calls != "/v1/promotions?limit=200&status=RUNNING" {
			t.Error("more than the first page was asked for, or another one")
		}
	})

	t.Run("EndWithTheFirstError", func(t *testing.T) {
		t.Parallel()
		c := serve(t, client.Options{}, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Query().Get("cursor") != "" {
				w.WriteHeader(http.StatusServiceUnavailable)
				return
			}
			_, _ = io.WriteString(w, `{"items":[{"id":"1","key":"k","valueBase64":"/w=="}],"nextCursor":"n"}`)
		})
		items, failures := 0, 0
		for l, err := range c.DeadLetters(ctx, client.DeadLetterFilter{}) {
			if err != nil {
				failures++
				continue
			}
			items++
			if l.Key != "k" || !bytes.Equal(l.ValueBytes, []byte{0xff}) {
				t.Errorf("dead letter %+v", l)
			}
		}
		if items != 1 || failures != 1 {
			t.Errorf("%d items and %d errors", items, failures)
		}
	})

	t.Run("RefuseToGoRoundInCircles", func(t *testing.T) {
		t.Parallel()
		c := serve(t, client.Options{}, func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, `{"items":[{"id":"1"}],"nextCursor":"same"}`)
		})
		n := 0
		var last error
		for _, err := range c.Promotions(ctx, "") {
			n, last = n+1, err
		}
		if n != 3 || last == nil {
			t.Errorf("%d items, then %v", n, last)
		}
	})
}

func TestUploadTargets(t *testing.T) {
	t.Parallel()
	ctx := context.Background()

	t.Run("StreamsTheFileAndReadsTheResult", func(t *testing.T) {
		t.Parallel()
		type seen struct{ URI, Type, Encoding, Body string }
		got := make(chan seen, 1)
		c := serve(t, client.Options{Timeout: time.Nanosecond}, func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			got <- seen{r.RequestURI, r.Header.Get("Content-Type"), r.Header.Get("Content-Encoding"), string(body)}
			_, _ = io.WriteString(w, `{"uploadId":"5","accepted":1,"duplicates":2,"conflicts":3,"rejected":4,"amount":6,
				"errors":[{"line":2,"code":"BAD_ID","detail":"no"}],"reportUrl":"/v1/promotions/7/uploads/5/report"}`)
		})
		result, err := c.UploadTargets(ctx, "7", strings.NewReader("x"), client.UploadOptions{Format: client.NDJSON, Gzip: true, DryRun: true})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(seen{"/v1/promotions/7/targets?dryRun=true", "application/x-ndjson", "gzip", "x"}, <-got); diff != "" {
			t.Error(diff)
		}
		want := client.UploadResult{
			UploadID: "5", Accepted: 1, Duplicates: 2, Conflicts: 3, Rejected: 4, Amount: 6,
			Errors: []client.LineError{{Line: 2, Code: "BAD_ID", Detail: "no"}}, ReportURL: c.Server() + "/v1/promotions/7/uploads/5/report",
		}
		if diff := cmp.Diff(want, result); diff != "" {
			t.Error(diff)
		}
	})

	t.Run("RefusesAnUnknownFormat", func(t *testing.T) {
		t.Parallel()
		c := serve(t, client.Options{}, func(http.ResponseWriter, *http.Request) { t.Error("it called") })
		if _, err := c.UploadTargets(ctx, "7", strings.NewReader(""), client.UploadOptions{Format: "xml"}); err == nil {
			t.Error("it was taken")
		}
	})

	t.Run("HearsARefusalBeforeTheFileIsSent", func(t *testing.T) {
		t.Parallel()
		c := serve(t, client.Options{}, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/problem+json")
			w.WriteHeader(http.StatusNotFound)
			_, _ = io.WriteString(w, `{"code":"PROMOTION_NOT_FOUND","detail":"there is no promotion 7"}`)
		})
		file := &endless{}
		_, err := c.UploadTargets(ctx, "7", file, client.UploadOptions{})
		var p *client.Problem
		if !errors.As(err, &p) || p.Code != "PROMOTION_NOT_FOUND" {
			t.Errorf("error %v", err)
		}
	})

	t.Run("TellsWhyTheFileCouldNotBeRead", func(t *testing.T) {
		t.Parallel()
		c := serve(t, client.Options{}, func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })
		broken := errors.New("the disk is gone")
		_, err := c.UploadTargets(ctx, "7", io.MultiReader(strings.NewReader("targetId\n"), failing{broken}), client.UploadOptions{})
		if !errors.Is(err, broken) {
			t.Errorf("error %v", err)
		}
	})

	t.Run("EndsWithItsContext", func(t *testing.T) {
		t.Parallel()
		begun := make(chan struct{})
		c := serve(t, client.Options{}, func(_ http.ResponseWriter, r *http.Request) {
			close(begun)
			_, _ = io.Copy(io.Discard, r.Body)
		})
		ctx, cancel := context.WithCancel(ctx)
		go func() {
			<-begun
			cancel()
		}()
		if _, err := c.UploadTargets(ctx, "7", &endless{}, client.UploadOptions{}); !errors.Is(err, context.Canceled) {
			t.Errorf("error %v", err)
		}
	})
}

// endless is a file without an end.
type endless struct{}

func (*endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = '\n'
	}
	return len(p), nil
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

func TestProblem(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, contentType, body string
		status                  int
		header                  map[string]string
		want                    client.Problem
		text                    string
	}{
		{
			"IsReadFromTheDocument", "application/problem+json; charset=utf-8",
			`{"type":"about:blank","title":"Unprocessable Entity","status":422,"code":"INVALID","detail":"two fields are wrong","requestId":"r1","errors":[{"field":"name","detail":"is missing"},{"field":"amount","detail":"must not be negative"}]}`,
			422, nil,
			client.Problem{
				Status: 422, Code: "INVALID", Title: "Unprocessable Entity", Detail: "two fields are wrong", RequestID: "r1",
				Errors: []client.FieldError{{Field: "name", Detail: "is missing"}, {Field: "amount", Detail: "must not be negative"}},
			},
			"two fields are wrong: name is missing, amount must not be negative (INVALID)",
		},
		{
			"TellsASingleFieldOnce", "application/problem+json",
			`{"code":"MALFORMED","detail":"id: must be above 0","errors":[{"field":"id","detail":"must be above 0"}]}`, 400, nil,
			client.Problem{Status: 400, Code: "MALFORMED", Title: "Bad Request", Detail: "id: must be above 0", Errors: []client.FieldError{{Field: "id", Detail: "must be above 0"}}},
			"id: must be above 0 (MALFORMED)",
		},
		{
			"TakesIDAndPauseFromHeaders", "application/problem+json", `{"code":"UNAVAILABLE","detail":"the database is away"}`, 503,
			map[string]string{"X-Request-Id": "r2", "Retry-After": "3"},
			client.Problem{Status: 503, Code: "UNAVAILABLE", Title: "Service Unavailable", Detail: "the database is away", RequestID: "r2", RetryAfter: 3 * time.Second},
			"the database is away (UNAVAILABLE)",
		},
		{
			"ShowsThePageOfAProxy", "text/html", "<h1>Bad\n  Gateway</h1>\xff", 502,
			map[string]string{"Retry-After": "soon"},
			client.Problem{Status: 502, Title: "Bad Gateway", Detail: "the server responded with 502: <h1>Bad Gateway</h1>"},
			"the server responded with 502: <h1>Bad Gateway</h1> (HTTP 502)",
		},
		{"SurvivesABrokenDocument", "application/problem+json", "{", 500, nil, client.Problem{Status: 500, Title: "Internal Server Error", Detail: "the server responded with 500: {"}, "the server responded with 500: { (HTTP 500)"},
		{"SurvivesAnEmptyAnswer", "", "", 404, nil, client.Problem{Status: 404, Title: "Not Found"}, "Not Found (HTTP 404)"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			c := serve(t, client.Options{}, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", tc.contentType)
				for name, value := range tc.header {
					w.Header().Set(name, value)
				}
				w.WriteHeader(tc.status)
				_, _ = io.WriteString(w, tc.body)
			})
			_, err := c.Promotion(context.Background(), "7")
			var got *client.Problem
			if !errors.As(err, &got) {
				t.Fatalf("error %v", err)
			}
			if diff := cmp.Diff(tc.want, *got); diff != "" {
				t.Error(diff)
			}
			if err.Error() != tc.text {
				t.Errorf("text %q, want %q", err, tc.text)
			}
		})
	}
}

func TestFailures(t *testing.T) {
	t.Parallel()

	t.Run("AServerThatHangsMeetsTheTimeout", func(t *testing.T) {
		t.Parallel()
		// The test ends only when the server has: the client hung up on each request that arrived.
		c := serve(t, client.Options{Timeout: 20 * time.Millisecond}, func(_ http.ResponseWriter, r *http.Request) {
			<-r.Context().Done()
		})
		if _, err := c.Promotion(context.Background(), "7"); !errors.Is(err, context.DeadlineExceeded) || !strings.HasPrefix(err.Error(), "calling GET /v1/promotions/7: ") {
			t.Errorf("error %v", err)
		}
	})

	t.Run("AnAnswerThatIsNotOurs", func(t *testing.T) {
		t.Parallel()
		c := serve(t, client.Options{}, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>") })
		_, err := c.Promotion(context.Background(), "7")
		var syntax *json.SyntaxError
		if !errors.As(err, &syntax) || !strings.Contains(err.Error(), "a Largesse server") {
			t.Errorf("error %v", err)
		}
	})

	t.Run("AnAnswerThatIsCutOff", func(t *testing.T) {
		t.Parallel()
		c := serve(t, client.Options{}, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			_, _ = io.WriteString(w, "{")
		})
		if _, err := c.Promotion(context.Background(), "7"); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("error %v", err)
		}
	})

	t.Run("NoServerAtAll", func(t *testing.T) {
		t.Parallel()
		server := httptest.NewServer(http.NotFoundHandler())
		server.Close()
		c, err := client.New(server.URL, client.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Health(context.Background()); err == nil || !strings.HasPrefix(err.Error(), "calling GET /healthz: dial tcp") {
			t.Errorf("error %v", err)
		}
	})
}

// TestRedirectsAreRefused checks that the API key goes to the address of the API only.
func TestRedirectsAreRefused(t *testing.T) {
	t.Parallel()
	elsewhere := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("%s %s with the key %q", r.Method, r.URL, r.Header.Get("Authorization"))
	}))
	defer elsewhere.Close()
	for _, status := range []int{301, 302, 303, 307, 308} {
		c := serve(t, client.Options{APIKey: "lgs_x"}, func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, elsewhere.URL+r.URL.Path+"?token=secret", status)
		})
		_, err := c.Promotion(t.Context(), "1")
		if err == nil || !strings.Contains(err.Error(), elsewhere.URL) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%d: %v", status, err)
		}
		if _, err := c.StartPromotion(t.Context(), "1"); err == nil {
			t.Errorf("%d: a POST succeeds", status)
		}
	}
}
