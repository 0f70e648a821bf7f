package largesse_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/largesse/largesse"
	"github.com/largesse/largesse/client"
)

// bank simulates the system that pays. It credits each key once.
type bank struct {
	mu    sync.Mutex
	paid  map[string]string // transaction key by idempotency key
	total int64
}

var errClosed = errors.New("the account is closed")

func (b *bank) credit(key, user string, amount int64) (string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if user == "mallory" {
		return "", errClosed
	}
	if b.paid == nil {
		b.paid = map[string]string{}
	}
	if b.paid[key] == "" {
		b.paid[key] = "tx-" + key
		b.total += amount
	}
	return b.paid[key], nil
}

func (b *bank) find(key string) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.paid[key]
}

// bankProvider pays through the bank.
type bankProvider struct{ bank *bank }

func (p bankProvider) Charge(_ context.Context, c largesse.Charge) (string, error) {
	tx, err := p.bank.credit(c.Key, c.UserID, c.Amount)
	if errors.Is(err, errClosed) {
		return "", &largesse.ProviderError{Err: largesse.ErrRefused, Code: "ACCOUNT_CLOSED"}
	}
	return tx, err // any other error: unknown, looked up
}

func (p bankProvider) Lookup(_ context.Context, key string) (string, error) {
	if tx := p.bank.find(key); tx != "" {
		return tx, nil
	}
	return "", largesse.ErrNotCharged
}

// dataDir is a folder for one example.
func dataDir() string {
	dir, err := os.MkdirTemp("", "largesse-example-")
	if err != nil {
		panic(err)
	}
	return dir
}

// A program pays two targets through its own provider.
func Example() {
	dir := dataDir()
	defer os.RemoveAll(dir)
	bank := &bank{}
	engine, err := largesse.New(largesse.Config{DataDir: dir}, largesse.WithProvider(bankProvider{bank}))
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- engine.Run(ctx) }()

	api := engine.Client()
	spring, err := api.CreatePromotion(ctx, client.NewPromotion{Name: "spring", Type: "POINT", Amount: 100})
	if err == nil {
		_, err = api.UploadTargets(ctx, spring.ID, strings.NewReader("targetId,userId\n1,ann\n2,bob\n"), client.UploadOptions{})
	}
	if err == nil {
		_, err = api.StartPromotion(ctx, spring.ID)
	}
	for p, err := range api.WatchPromotion(ctx, spring.ID, client.WatchOptions{}) {
		if err == nil && p.Ended() {
			fmt.Println(p.Status, p.Counts.Succeeded, "paid")
		}
	}
	stop()
	fmt.Println(errors.Join(err, <-ended), bank.total)
	// Output:
	// COMPLETED 2 paid
	// <nil> 200
}

// New reports everything that is wrong at once, and opens nothing.
func ExampleNew() {
	_, err := largesse.New(largesse.Config{
		DatabaseURL: "mysql://localhost/rewards",
		Settings:    map[string]string{"money.timeout": "soon"},
	})
	for problem := range strings.SplitSeq(err.Error(), "; ") {
		fmt.Println(problem)
	}
	// Output:
	// largesse: settings: money.timeout = "soon" (Config.Settings) must be a duration with a unit such as 500ms, 5s or 24h
	// database.url = "mysql://localhost/rewards" (Config.DatabaseURL) must start with postgres:// or postgresql:// and be a complete URL
	// money.url is not set and there is no WithProvider: use one of them
}

// The Money API that a provider runs needs no code.
func ExampleConfig() {
	_, err := largesse.New(largesse.Config{
		DataDir:  "/var/lib/rewards",
		MoneyURL: "https://money.example.com",
		Listen:   "127.0.0.1:8080",
		Settings: map[string]string{"money.rate-per-second": "500", "approval.above": "1000000"},
	})
	fmt.Println(err)
	// Output: <nil>
}

// Errors that the provider knows the meaning of are ProviderErrors; mallory's
// account is closed.
func ExampleWithProvider() {
	dir := dataDir()
	defer os.RemoveAll(dir)
	engine, err := largesse.New(largesse.Config{DataDir: dir}, largesse.WithProvider(bankProvider{&bank{}}))
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	ended := make(chan error)
	go func() { ended <- engine.Run(ctx) }()

	api := engine.Client()
	p, _ := api.CreatePromotion(ctx, client.NewPromotion{Name: "spring", Type: "POINT", Amount: 100})
	_, _ = api.UploadTargets(ctx, p.ID, strings.NewReader("targetId,userId\n1,ann\n2,mallory\n"), client.UploadOptions{})
	_, _ = api.StartPromotion(ctx, p.ID)
	for seen, err := range api.WatchPromotion(ctx, p.ID, client.WatchOptions{}) {
		if err != nil {
			fmt.Println(err)
			return
		}
		p = seen
	}
	for payout, err := range api.Payouts(ctx, p.ID, client.PayoutFilter{}) {
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Printf("%s %s %q\n", payout.UserID, payout.State, payout.ErrorCode)
	}
	stop()
	if err := <-ended; err != nil {
		fmt.Println(err)
	}
	// Output:
	// ann SUCCEEDED ""
	// mallory FAILED "ACCOUNT_CLOSED"
}

// The log goes to the logger of the program; its handler decides what is kept.
func ExampleWithLogger() {
	dir := dataDir()
	defer os.RemoveAll(dir)
	logger := slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{
		Level: slog.LevelWarn,
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		},
	}))
	engine, err := largesse.New(largesse.Config{
		DataDir: dir, Settings: map[string]string{"money.settle-after": "1s", "money.idempotency-window": "1h"},
	}, largesse.WithProvider(bankProvider{&bank{}}), largesse.WithLogger(logger))
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		_, _ = engine.Client().Ready(ctx) // waits until Run has started the instance
		stop()
	}()
	fmt.Println(engine.Run(ctx))
	// Output:
	// level=WARN msg="setting is probably a mistake" setting="money.settle-after 1s is below money.timeout 5s, so a lookup may count as final while the charge is still in flight; raise it outside of tests"
	// <nil>
}

// Serve the API in the server of the program, below /rewards/ and behind its own
// middleware.
func ExampleEngine_Handler() {
	dir := dataDir()
	defer os.RemoveAll(dir)
	engine, err := largesse.New(largesse.Config{DataDir: dir}, largesse.WithProvider(bankProvider{&bank{}}))
	if err != nil {
		fmt.Println(err)
		return
	}
	requireStaff := func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if _, password, _ := r.BasicAuth(); password != "staff" {
				http.Error(w, "staff only", http.StatusForbidden)
				return
			}
			next.ServeHTTP(w, r)
		})
	}
	mux := http.NewServeMux()
	mux.Handle("/rewards/", http.StripPrefix("/rewards", requireStaff(engine.Handler())))
	server := httptest.NewServer(mux)
	defer server.Close()
	get := func(password string) int {
		req, _ := http.NewRequest(http.MethodGet, server.URL+"/rewards/v1/promotions", http.NoBody)
		req.SetBasicAuth("ann", password)
		res, err := server.Client().Do(req)
		if err != nil {
			return 0
		}
		_ = res.Body.Close()
		return res.StatusCode
	}

	fmt.Println("before Run:", get("staff"))
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- engine.Run(ctx) }()
	_, _ = engine.Client().Ready(ctx) // waits until Run has started the instance
	fmt.Println("staff:", get("staff"))
	fmt.Println("others:", get("guess"))
	stop()
	if err := <-ended; err != nil {
		fmt.Println(err)
	}
	// Output:
	// before Run: 503
	// staff: 200
	// others: 403
}

// Calls in process wait until Run is up.
func ExampleEngine_Client() {
	dir := dataDir()
	defer os.RemoveAll(dir)
	engine, err := largesse.New(largesse.Config{DataDir: dir}, largesse.WithProvider(bankProvider{&bank{}}))
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		defer stop()
		api := engine.Client()
		drop, err := api.CreateTemplate(ctx, client.NewTemplate{Name: "first two", TotalQuantity: 2})
		if err != nil {
			fmt.Println(err)
			return
		}
		for _, user := range []string{"ann", "bob", "eve"} {
			request, err := api.IssueCoupon(ctx, drop.ID, user, 5*time.Second)
			var problem *client.Problem
			if errors.As(err, &problem) {
				fmt.Println(user, problem.Code)
			} else {
				fmt.Println(user, request.Status)
			}
		}
	}()
	if err := engine.Run(ctx); err != nil {
		fmt.Println(err)
	}
	// Output:
	// ann ISSUED
	// bob ISSUED
	// eve SOLD_OUT
}

// A ProviderError says what an error means, and what people should read.
func ExampleProviderError() {
	err := error(&largesse.ProviderError{
		Err: largesse.ErrThrottled, Code: "QUOTA", Message: "500 calls a minute", RetryAfter: time.Minute,
	})
	fmt.Println(err)
	fmt.Println(errors.Is(err, largesse.ErrThrottled))
	// Output:
	// throttled: QUOTA: 500 calls a minute
	// true
}

// slowBank waits for a connection before it sends.
type slowBank struct{ bankProvider }

func (p slowBank) Charge(ctx context.Context, c largesse.Charge) (string, error) {
	// … wait for a connection …
	if err := c.Confirm(); err != nil {
		return "", err // the promotion was paused meanwhile: nothing is sent
	}
	return p.bankProvider.Charge(ctx, c)
}

// A provider that waits before it sends confirms the charge again.
func ExampleCharge_Confirm() {
	tx, err := slowBank{bankProvider{&bank{}}}.Charge(context.Background(), largesse.Charge{Key: "1:7", UserID: "ann", Amount: 100})
	fmt.Println(tx, err)
	// Output: tx-1:7 <nil>
}
