// Command embed runs Largesse in a program. It pays 1,000 targets through its own
// provider, issues 100 coupons in order of arrival, and prints the books.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"time"

	"github.com/largesse/largesse"
	"github.com/largesse/largesse/client"
)

const (
	targets = 1000
	amount  = 25 // each, in minor units
	coupons = 100
	users   = 130 // each requests one coupon
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run runs the engine until both jobs are done.
func run(ctx context.Context, out io.Writer) error {
	dir, err := os.MkdirTemp("", "largesse-embed-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	bank := &ledger{paid: map[string]int64{}}
	logger := slog.New(slog.NewTextHandler(os.Stderr, nil)).With("program", "embed")
	engine, err := largesse.New(largesse.Config{DataDir: dir}, largesse.WithProvider(bankProvider{bank}), largesse.WithLogger(logger))
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	jobs := make(chan error, 1)
	go func() {
		defer stop()
		jobs <- errors.Join(payTargets(ctx, engine.Client(), bank, out), giveCoupons(ctx, engine.Client(), out))
	}()
	return errors.Join(engine.Run(ctx), <-jobs)
}

// payTargets pays the targets of a file and compares the books of both sides.
func payTargets(ctx context.Context, api *client.Client, bank *ledger, out io.Writer) error {
	p, err := api.CreatePromotion(ctx, client.NewPromotion{Name: "spring", Type: "POINT", Amount: amount})
	if err != nil {
		return err
	}
	file, lines := io.Pipe()
	go func() {
		_, err := io.WriteString(lines, "targetId,userId\n")
		for i := 1; i <= targets && err == nil; i++ {
			_, err = fmt.Fprintf(lines, "%d,user-%d\n", i, i)
		}
		lines.CloseWithError(err)
	}()
	uploaded, err := api.UploadTargets(ctx, p.ID, file, client.UploadOptions{})
	if err != nil {
		return err
	}
	if _, err := api.StartPromotion(ctx, p.ID); err != nil {
		return err
	}
	for p, err = range api.WatchPromotion(ctx, p.ID, client.WatchOptions{}) {
		if err != nil {
			return err
		}
	}
	keys, total := bank.books()
	fmt.Fprintf(out, "payouts: %s, %d of %d paid, %d in all\n", p.Status, p.Counts.Succeeded, uploaded.Accepted, p.AmountSucceeded)
	fmt.Fprintf(out, "bank:    %d keys, %d in all\n", keys, total)
	if p.Counts.Succeeded != targets || keys != targets || total != p.AmountSucceeded {
		return errors.New("the books do not balance")
	}
	return nil
}

// giveCoupons sends requests of more users than there are coupons.
func giveCoupons(ctx context.Context, api *client.Client, out io.Writer) error {
	drop, err := api.CreateTemplate(ctx, client.NewTemplate{Name: "first come", TotalQuantity: coupons})
	if err != nil {
		return err
	}
	var asking sync.WaitGroup
	var mu sync.Mutex // protects the counts
	issued, soldOut := 0, 0
	for i := range users {
		asking.Go(func() {
			request, err := api.IssueCoupon(ctx, drop.ID, "user-"+strconv.Itoa(i), 20*time.Second)
			var problem *client.Problem
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil && request.Status == "ISSUED":
				issued++
			case errors.As(err, &problem) && problem.Code == "SOLD_OUT":
				soldOut++
			}
		})
	}
	asking.Wait()
	fmt.Fprintf(out, "coupons: %d issued, %d sold out\n", issued, soldOut)
	if issued != coupons || soldOut != users-coupons {
		return errors.New("the coupons do not add up")
	}
	return nil
}

// bankProvider pays into the ledger.
type bankProvider struct{ bank *ledger }

// Charge implements largesse.Provider.
func (p bankProvider) Charge(_ context.Context, c largesse.Charge) (string, error) {
	p.bank.credit(c.Key, c.Amount)
	return "tx-" + c.Key, nil
}

// Lookup implements largesse.Provider.
func (p bankProvider) Lookup(_ context.Context, key string) (string, error) {
	if !p.bank.has(key) {
		return "", largesse.ErrNotCharged
	}
	return "tx-" + key, nil
}

// ledger simulates the bank of the program. It credits each key once.
type ledger struct {
	mu   sync.Mutex
	paid map[string]int64 // by key
}

func (l *ledger) credit(key string, amount int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.paid[key] = amount
}

func (l *ledger) has(key string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, ok := l.paid[key]
	return ok
}

func (l *ledger) books() (keys int, total int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, amount := range l.paid {
		total += amount
	}
	return len(l.paid), total
}
