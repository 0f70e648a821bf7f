package lab

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/largesse/largesse/internal/money"
	"github.com/largesse/largesse/internal/reward"
)

// provider is an in-process provider that charges every call after a latency and
// counts the calls.
type provider struct {
	latency time.Duration
	total   int64 // expected calls, for middleRate

	calls, open, openMax atomic.Int64
	tenth, ninetieth     atomic.Int64 // when those calls ended, in Unix nanoseconds
}

func (p *provider) pay(ctx context.Context, c money.Charge, check money.CheckFunc) money.Answer {
	if err := check(); err != nil {
		return money.Answer{Class: reward.AnswerNotSent, Err: err}
	}
	if p.latency > 0 {
		open := p.open.Add(1)
		for highest := p.openMax.Load(); open > highest && !p.openMax.CompareAndSwap(highest, open); highest = p.openMax.Load() {
		}
		time.Sleep(p.latency)
		p.open.Add(-1)
	}
	switch n := p.calls.Add(1); n {
	case p.total / 10:
		p.tenth.Store(time.Now().UnixNano())
	case p.total * 9 / 10:
		p.ninetieth.Store(time.Now().UnixNano())
	}
	if ctx.Err() != nil {
		return money.Answer{Class: reward.AnswerUnknown, Err: ctx.Err()}
	}
	return money.Answer{Class: reward.AnswerPaid, Status: 200, TransactionKey: "B-" + c.TargetID.String()}
}

// ChargePoint charges after the latency.
func (p *provider) ChargePoint(ctx context.Context, c money.Charge, check money.CheckFunc) money.Answer {
	return p.pay(ctx, c, check)
}

// ChargeVoucher charges after the latency.
func (p *provider) ChargeVoucher(ctx context.Context, c money.Charge, check money.CheckFunc) money.Answer {
	return p.pay(ctx, c, check)
}

// Lookup is inconclusive: no outcome of this provider is unknown.
func (p *provider) Lookup(context.Context, reward.PromotionID, reward.TargetID) money.LookupResult {
	return money.LookupResult{}
}

// middleRate returns the calls per second between the first and the last tenth.
func (p *provider) middleRate() float64 {
	took := time.Duration(p.ninetieth.Load() - p.tenth.Load())
	if took <= 0 {
		return 0
	}
	return 0.8 * float64(p.total) / took.Seconds()
}
