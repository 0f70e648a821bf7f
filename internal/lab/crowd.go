package lab

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/coupon"
	"github.com/largesse/largesse/internal/engine"
	"github.com/largesse/largesse/internal/reward"
)

// crowd is users who request one coupon each, atOnce of them at a time.
type crowd struct {
	people, atOnce int
	request        request

	admitted, soldOut, askedAgain atomic.Int64
	took                          time.Duration // of run
}

// request requests the coupon of a user, from 0. It returns whether the user was refused with
// SOLD_OUT, or after which time the response asks to repeat the request.
type request func(ctx context.Context, user int64) (soldOut bool, again time.Duration, err error)

// retryMin is the time between a request and its repeat.
const retryMin = 10 * time.Millisecond

// run sends all requests, and repeats those whose response asks for it.
func (c *crowd) run(ctx context.Context) error {
	var (
		next atomic.Int64
		wg   sync.WaitGroup
		errs = make([]error, c.atOnce)
	)
	began := time.Now()
	for w := range c.atOnce {
		wg.Go(func() {
			for user := next.Add(1) - 1; user < int64(c.people) && errs[w] == nil; user = next.Add(1) - 1 {
				errs[w] = c.serve(ctx, user)
			}
		})
	}
	wg.Wait()
	c.took = time.Since(began)
	return errors.Join(errs...)
}

func (c *crowd) serve(ctx context.Context, user int64) error {
	for {
		soldOut, again, err := c.request(ctx, user)
		switch {
		case err != nil:
			return err
		case soldOut:
			c.soldOut.Add(1)
			return nil
		case again == 0:
			c.admitted.Add(1)
			return nil
		}
		c.askedAgain.Add(1)
		if err := pause(ctx, again); err != nil {
			return err
		}
	}
}

// inProcess requests coupons of a template from an engine in this process, for u0, u1, …
func inProcess(e *engine.Engine, template reward.TemplateID) request {
	intake := e.Coupons().Intake
	return func(ctx context.Context, user int64) (bool, time.Duration, error) {
		_, err := intake.Request(ctx, coupon.IssueCommand{TemplateID: template, UserID: fmt.Sprint("u", user)})
		switch {
		case reward.HasCode(err, reward.CodeSoldOut):
			return true, 0, nil
		case reward.HasCode(err, reward.CodeUnavailable):
			return false, retryMin, nil
		}
		return false, 0, err
	}
}

// overHTTP requests coupons of a template from a server.
func overHTTP(c *client.Client, template string) request {
	return func(ctx context.Context, user int64) (bool, time.Duration, error) {
		_, err := c.IssueCoupon(ctx, template, fmt.Sprintf("shopper-%05d", user+1), 0)
		p, ok := errors.AsType[*client.Problem](err)
		switch {
		case ok && p.Code == reward.CodeSoldOut:
			return true, 0, nil
		case ok && (p.Status == 503 || p.Status == 429):
			return false, max(p.RetryAfter, retryMin), nil
		}
		return false, 0, err
	}
}
