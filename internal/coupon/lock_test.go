package coupon

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/gate"
	"github.com/largesse/largesse/internal/reward"
)

// TestALostLockReply checks a thousand concurrent requests in SYNC mode while every
// tenth reply of the lock is lost: all get their coupon at the first request.
func TestALostLockReply(t *testing.T) {
	t.Parallel()
	each(t, func(r *rig) {
		const people = 1000
		i := r.start()
		id := r.create(reward.CouponTemplate{TotalQuantity: people, Mode: reward.ModeSync})
		r.take(i, id, "first") // loads the gate
		i.gate.set(func(g *faultyGate) { g.loseLock = 10 })
		var all sync.WaitGroup
		var mu sync.Mutex // protects refused
		refused := make(map[string]int)
		slots := make(chan struct{}, 20)
		for n := range people - 1 {
			slots <- struct{}{}
			all.Go(func() {
				defer func() { <-slots }()
				_, err := i.Intake.Request(r.Context(), IssueCommand{TemplateID: id, UserID: fmt.Sprint("u", n)})
				if err != nil {
					mu.Lock()
					defer mu.Unlock()
					refused[err.Error()]++
				}
			})
		}
		all.Wait()
		if len(refused) > 0 {
			r.Errorf("refused: %v", refused)
		}
		r.balanced(id)
	})
}

// TestTheLockAfterAClockStep checks that a lock is good for a transaction although the
// fencing tokens before were from a clock an hour ahead, and the server forgot them.
func TestTheLockAfterAClockStep(t *testing.T) {
	t.Parallel()
	eachServer(t, func(r *rig) {
		a := r.start()
		b := r.start(func(c *FlowConfig) { c.Issue = false })
		id := r.create(reward.CouponTemplate{TotalQuantity: 5, Mode: reward.ModeSync})
		r.take(b, id, "zoe") // b knows the row from before
		a.gate.set(func(g *faultyGate) { g.clockAhead = time.Hour })
		r.take(a, id, "ann")
		a.gate.set(func(g *faultyGate) { g.clockAhead = 0 })
		r.flush(r)
		for n, i := range []*instance{b, a, b} {
			if _, err := i.Intake.Request(r.Context(), IssueCommand{TemplateID: id, UserID: fmt.Sprint("u", n)}); err != nil {
				r.Errorf("u%d: %v", n, err)
			}
		}
		r.balanced(id)
	})
}

// TestLockRouteOfPromisedPlaces checks that a request in SYNC mode that finds only places
// of users in line may be repeated, as on the other routes.
func TestLockRouteOfPromisedPlaces(t *testing.T) {
	t.Parallel()
	i := &Intake{
		checks: newBatcher(1, callTimeout, func(context.Context, reward.TemplateID, []string) ([]gateAnswer, error) {
			return []gateAnswer{{Answer: gate.Answer{Verdict: gate.Admitted}}}, nil
		}),
		locked: newBatcher(1, callTimeout, func(context.Context, reward.TemplateID, []string) ([]Status, error) {
			return []Status{{Kind: StatusRejected, Reason: reward.ReasonPromised}}, nil
		}),
	}
	defer i.checks.open.Wait()
	defer i.locked.open.Wait()
	_, err := i.requestLocked(t.Context(), &reward.CouponTemplate{ID: 42, Mode: reward.ModeSync}, "u7")
	if e, ok := errors.AsType[*reward.Error](err); !ok || e.Code != reward.CodeUnavailable || e.Kind != reward.KindUnavailable || e.Detail == "" {
		t.Errorf("%v", err)
	}
}
