package client_test

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"time"

	"github.com/largesse/largesse"
	"github.com/largesse/largesse/client"
)

// payer pays everybody, but refuses the user mallory.
type payer struct{}

func (payer) Charge(_ context.Context, c largesse.Charge) (string, error) {
	if c.UserID == "mallory" {
		return "", &largesse.ProviderError{Err: largesse.ErrRefused, Code: "ACCOUNT_CLOSED"}
	}
	return "tx-" + c.Key, nil
}

func (payer) Lookup(context.Context, string) (string, error) { return "", largesse.ErrNotCharged }

// exampleServer starts a server for one example.
func exampleServer() (url string, stop func()) {
	dir, err := os.MkdirTemp("", "largesse-client-")
	if err != nil {
		panic(err)
	}
	engine, err := largesse.New(largesse.Config{DataDir: dir}, largesse.WithProvider(payer{}))
	if err != nil {
		panic(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- engine.Run(ctx) }()
	_, _ = engine.Client().Ready(ctx) // waits until it is up
	server := httptest.NewServer(engine.Handler())
	return server.URL, func() {
		cancel()
		if err := <-ended; err != nil {
			fmt.Println(err)
		}
		server.Close()
		_ = os.RemoveAll(dir)
	}
}

// Pay everybody of a file, and watch until all are done.
func Example() {
	url, stop := exampleServer()
	defer stop()
	ctx := context.Background()
	api, err := client.New(url, client.Options{APIKey: os.Getenv("LARGESSE_API_KEY")})
	if err != nil {
		fmt.Println(err)
		return
	}
	p, err := api.CreatePromotion(ctx, client.NewPromotion{Name: "spring", Type: "POINT", Amount: 100})
	if err != nil {
		fmt.Println(err)
		return
	}
	file := strings.NewReader("targetId,userId\n1,ann\n2,bob\n")
	if _, err := api.UploadTargets(ctx, p.ID, file, client.UploadOptions{}); err != nil {
		fmt.Println(err)
		return
	}
	if _, err := api.StartPromotion(ctx, p.ID); err != nil {
		fmt.Println(err)
		return
	}
	for p, err = range api.WatchPromotion(ctx, p.ID, client.WatchOptions{}) {
		if err != nil {
			fmt.Println(err)
			return
		}
	}
	fmt.Println(p.Status, p.Counts.Succeeded, p.AmountSucceeded)
	// Output: COMPLETED 2 200
}

// An idempotency key makes a repeated call create nothing new.
func ExampleWithIdempotencyKey() {
	url, stop := exampleServer()
	defer stop()
	api, _ := client.New(url, client.Options{})
	ctx := client.WithIdempotencyKey(context.Background(), "spring-2026")
	first, err := api.CreatePromotion(ctx, client.NewPromotion{Name: "spring", Type: "POINT", Amount: 100})
	if err != nil {
		fmt.Println(err)
		return
	}
	again, err := api.CreatePromotion(ctx, client.NewPromotion{Name: "spring", Type: "POINT", Amount: 100})
	fmt.Println(first.ID == again.ID, err)
	// Output: true <nil>
}

// The answer to an upload says how each line ended. Known targets are
// duplicates, so the same file may be sent again.
func ExampleClient_UploadTargets() {
	url, stop := exampleServer()
	defer stop()
	api, _ := client.New(url, client.Options{})
	ctx := context.Background()
	p, err := api.CreatePromotion(ctx, client.NewPromotion{Name: "spring", Type: "POINT", Amount: 100})
	if err != nil {
		fmt.Println(err)
		return
	}
	const file = "targetId,userId,amount\n1,ann,100\n2,bob,50\nthree,eve,10\n"
	for range 2 {
		res, err := api.UploadTargets(ctx, p.ID, strings.NewReader(file), client.UploadOptions{})
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println("accepted", res.Accepted, "duplicates", res.Duplicates, "rejected", res.Rejected, "line", res.Errors[0].Line)
	}
	// Output:
	// accepted 2 duplicates 0 rejected 1 line 4
	// accepted 0 duplicates 2 rejected 1 line 4
}

// Payouts lists who was paid and who was not, and why.
func ExampleClient_Payouts() {
	url, stop := exampleServer()
	defer stop()
	api, _ := client.New(url, client.Options{})
	ctx := context.Background()
	p, err := api.CreatePromotion(ctx, client.NewPromotion{Name: "spring", Type: "POINT", Amount: 100})
	if err != nil {
		fmt.Println(err)
		return
	}
	_, _ = api.UploadTargets(ctx, p.ID, strings.NewReader("targetId,userId\n1,ann\n2,mallory\n"), client.UploadOptions{})
	_, _ = api.StartPromotion(ctx, p.ID)
	for _, err := range api.WatchPromotion(ctx, p.ID, client.WatchOptions{}) { // until it is done
		if err != nil {
			fmt.Println(err)
			return
		}
	}
	for payout, err := range api.Payouts(ctx, p.ID, client.PayoutFilter{State: "FAILED"}) {
		fmt.Println(payout.TargetID, payout.State, payout.ErrorCode, err)
	}
	// Output: 2 FAILED ACCOUNT_CLOSED <nil>
}

// Coupons go to those who come first. A refusal is a Problem with a code.
func ExampleClient_IssueCoupon() {
	url, stop := exampleServer()
	defer stop()
	api, _ := client.New(url, client.Options{})
	ctx := context.Background()
	drop, err := api.CreateTemplate(ctx, client.NewTemplate{Name: "first one", TotalQuantity: 1})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, user := range []string{"ann", "bob"} {
		request, err := api.IssueCoupon(ctx, drop.ID, user, 5*time.Second)
		var problem *client.Problem
		switch {
		case errors.As(err, &problem):
			fmt.Println(user, problem.Code)
		case err != nil:
			fmt.Println(err)
		default:
			fmt.Println(user, request.Status, request.Coupon.Status)
		}
	}
	// Output:
	// ann ISSUED ISSUED
	// bob SOLD_OUT
}

// Problems have a code for programs and a detail for people.
func ExampleProblem() {
	url, stop := exampleServer()
	defer stop()
	api, _ := client.New(url, client.Options{})
	_, err := api.CreatePromotion(context.Background(), client.NewPromotion{Name: "spring", Type: "POINT", Amount: -1})
	if problem, ok := errors.AsType[*client.Problem](err); ok {
		fmt.Println(problem.Status, problem.Code, problem.Errors[0].Field)
	}
	// Output: 422 INVALID amount
}

// A receiver of webhooks verifies each before it reads it.
func ExampleVerifyWebhook() {
	const secret = "the setting webhook.secret"
	receive := func(w http.ResponseWriter, r *http.Request) {
		body := new(bytes.Buffer)
		if _, err := body.ReadFrom(http.MaxBytesReader(w, r.Body, 64<<10)); err != nil {
			return
		}
		if err := client.VerifyWebhook(secret, r.Header, body.Bytes()); err != nil {
			http.Error(w, err.Error(), http.StatusForbidden)
			return
		}
		fmt.Println(r.Header.Get("Largesse-Event"), body)
	}

	// What a server sends.
	const body = `{"id":"17","event":"promotion.finished"}`
	req := httptest.NewRequest(http.MethodPost, "/hook", strings.NewReader(body))
	stamp := fmt.Sprint(time.Now().Unix())
	mac := hmac.New(sha256.New, []byte(secret))
	fmt.Fprintf(mac, "%s.%s", stamp, body)
	req.Header.Set("Largesse-Event", "promotion.finished")
	req.Header.Set("Largesse-Signature", "t="+stamp+",v1="+hex.EncodeToString(mac.Sum(nil)))
	answer := httptest.NewRecorder()
	receive(answer, req)
	fmt.Println(answer.Code)
	// Output:
	// promotion.finished {"id":"17","event":"promotion.finished"}
	// 200
}
