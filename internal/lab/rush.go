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

// Rush is a crowd of users in this process, each with one coupon request.
type Rush struct {
	Issuing    *coupon.Intake
	TemplateID reward.TemplateID
	Users      int // u0, u1, …
	Workers    int // concurrent requests
}

// RushResult is the result of a Rush.
type RushResult struct {
	Took         time.Duration
	In, SoldOut  int64 // admitted (or issued at once), and refused with SOLD_OUT
	AskedAgain   int64 // responses that asked to retry
	FirstRefusal error // first refusal with another code
}

// Run sends all requests, and repeats those whose response asks to retry.
func (r Rush) Run(ctx context.Context) RushResult {
	var (
		in, soldOut, again, next atomic.Int64
		wg                       sync.WaitGroup
		mu                       sync.Mutex // guards first
		first                    error
	)
	began := time.Now()
	for range r.Workers {
		wg.Go(func() {
			for ctx.Err() == nil {
				n := next.Add(1) - 1
				if n >= int64(r.Users) {
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
	return RushResult{Took: time.Since(began), In: in.Load(), SoldOut: soldOut.Load(), AskedAgain: again.Load(), FirstRefusal: first}
}

func (r Rush) ask(ctx context.Context, user string, again *atomic.Int64) error {
	for {
		_, err := r.Issuing.Request(ctx, coupon.IssueCommand{TemplateID: r.TemplateID, UserID: user})
		if !reward.HasCode(err, reward.CodeUnavailable) || ctx.Err() != nil {
			return err
		}
		again.Add(1)
		time.Sleep(10 * time.Millisecond) // the retry interval that the response asks for
	}
}
