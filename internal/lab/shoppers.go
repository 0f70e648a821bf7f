package lab

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/largesse/largesse/client"
)

// Shoppers are users who request a coupon over HTTP, each once, in random
// order. They repeat a request if the response asks them to.
type Shoppers struct {
	Client     *client.Client
	TemplateID string
	People     int
	AtOnce     int
}

// ShopperCounts is the progress of Shoppers.
type ShopperCounts struct {
	Answered, LetIn, SoldOut int64
}

// Crowd is a run of Shoppers.
type Crowd struct {
	letIn, soldOut atomic.Int64
	done           chan error
}

// Counts returns the progress.
func (c *Crowd) Counts() ShopperCounts {
	n := ShopperCounts{LetIn: c.letIn.Load(), SoldOut: c.soldOut.Load()}
	n.Answered = n.LetIn + n.SoldOut
	return n
}

// Done delivers the result: nil if every shopper was admitted or refused with
// SOLD_OUT.
func (c *Crowd) Done() <-chan error { return c.done }

// Start starts the requests.
func (s Shoppers) Start(ctx context.Context) *Crowd {
	c := &Crowd{done: make(chan error, 1)}
	var (
		next atomic.Int64
		wg   sync.WaitGroup
		errs = make([]error, s.AtOnce)
	)
	for w := range s.AtOnce {
		wg.Go(func() {
			for n := next.Add(1); n <= int64(s.People) && errs[w] == nil; n = next.Add(1) {
				errs[w] = s.shop(ctx, c, fmt.Sprintf("shopper-%05d", n))
			}
		})
	}
	go func() {
		wg.Wait()
		c.done <- errors.Join(errs...)
	}()
	return c
}

func (s Shoppers) shop(ctx context.Context, c *Crowd, user string) error {
	for {
		_, err := s.Client.IssueCoupon(ctx, s.TemplateID, user, 0)
		var p *client.Problem
		switch {
		case err == nil:
			c.letIn.Add(1)
			return nil
		case !errors.As(err, &p):
			return fmt.Errorf("request of %s: %w", user, err)
		case p.Code == "SOLD_OUT":
			c.soldOut.Add(1)
			return nil
		case p.Status != 503 && p.Status != 429:
			return fmt.Errorf("request of %s: %w", user, err)
		}
		select {
		case <-time.After(max(p.RetryAfter, 10*time.Millisecond)):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
