package lab

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/largesse/largesse/internal/coupon"
	"github.com/largesse/largesse/internal/reward"
)

// rush is a crowd of users in this process, each with one coupon request.
type rush struct {
	issuing  *coupon.Intake
	template reward.TemplateID
	users    int // u0, u1, …
	workers  int // concurrent requests
}

// rushResult is the result of a rush.
type rushResult struct {
	took         time.Duration
	in, soldOut  int64 // admitted (or issued at once), and refused with SOLD_OUT
	askedAgain   int64 // responses that asked to retry
	firstRefusal error // first refusal with another code
}

// run sends all requests, and repeats those whose response asks to retry.
func (r rush) run(ctx context.Context) rushResult {
	var (
		in, soldOut, again, next atomic.Int64
		wg                       sync.WaitGroup
		mu                       sync.Mutex // guards first
		first                    error
	)
	began := time.Now()
	for range r.workers {
		wg.Go(func() {
			for ctx.Err() == nil {
				n := next.Add(1) - 1
				if n >= int64(r.users) {
					return
				}
				err := r.ask(ctx, fmt.Sprint("u", n), &again)
				switch {
				case err == nil:
					in.Add(1)
				case reward.HasCode(err, reward.CodeSoldOut):
					soldOut.Add(1)
				default:
					mu.Lock()
					if first == nil {
						first = err
					}
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	return rushResult{took: time.Since(began), in: in.Load(), soldOut: soldOut.Load(), askedAgain: again.Load(), firstRefusal: first}
}

func (r rush) ask(ctx context.Context, user string, again *atomic.Int64) error {
	for {
		_, err := r.issuing.Request(ctx, coupon.IssueCommand{TemplateID: r.template, UserID: user})
		if !reward.HasCode(err, reward.CodeUnavailable) || ctx.Err() != nil {
			return err
		}
		again.Add(1)
		time.Sleep(10 * time.Millisecond) // the retry interval that the response asks for
	}
}
