package coupon

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/gatekeeper"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
)

// TestModeIsChanged checks that a request right after a change of the mode is served,
// although the issuer may still use the old mode.
func TestModeIsChanged(t *testing.T) {
	t.Parallel()
	each(t, func(r *rig) {
		i := r.start()
		kafka, stream := reward.ModeKafka, reward.ModeStream
		for n := range 4 {
			from, to := stream, &kafka
			if n%2 == 1 {
				from, to = kafka, &stream
			}
			id := r.create(reward.CouponTemplate{TotalQuantity: 5, Mode: from})
			fixture.Must(i.Catalog.Change(r.Context(), rules.TemplateChange{ID: id, Mode: to}))(r)
			r.take(i, id, "ann")
			r.take(i, id, "bob")
			r.balanced(id)
		}
	})
}

// TestDrawAfterTheEpochWasTaken checks that the assigned instance takes a template back
// from another one, even without requests.
func TestDrawAfterTheEpochWasTaken(t *testing.T) {
	t.Parallel()
	each(t, func(r *rig) {
		i := r.start()
		id := r.create(reward.CouponTemplate{
			TotalQuantity: 3, OpensAt: time.Now().Add(2 * time.Second), Draw: reward.Draw{From: time.Now().Add(-time.Second)},
		})
		r.want(i, id, "ann", "")
		r.until("it is assigned", func() bool { return len(i.issuers.Epochs()) == 1 })
		fixture.Must(r.rows.TemplateAssign(r.Context(), []reward.TemplateID{id}, "another"))(r)
		if s := r.outcome(i, id, "ann"); s.Kind != StatusIssued {
			r.Errorf("%+v", s)
		}
	})
}

// TestAnOlderOutcomeIsNotThePresentOne checks that a user who may have several coupons
// does not get the status of an earlier one while the line cannot be read.
func TestAnOlderOutcomeIsNotThePresentOne(t *testing.T) {
	t.Parallel()
	each(t, func(r *rig) {
		issuer := r.start()
		requester := r.start(func(c *FlowConfig) { c.Issue = false })
		id := r.create(reward.CouponTemplate{TotalQuantity: 5, PerUserLimit: 2, WhenRedisAway: reward.FallbackWait})
		first := r.take(requester, id, "ann")
		issuer.stop()
		s, code := r.request(requester, id, "ann")
		if code != "" || s.Kind != StatusWaiting || s.Ticket <= first.Ticket {
			r.Fatalf("%q %+v", code, s)
		}
		w, stop := requester.Notifier.Watch(id, "ann", s)
		defer stop()
		requester.gate.set(func(g *faultyGate) { g.down = true })
		if got, err := requester.Intake.Status(r.Context(), id, "ann"); !reward.HasCode(err, reward.CodeUnavailable) {
			r.Errorf("%+v, %v", got, err)
		}
		requester.gate.set(func(g *faultyGate) { g.down = false })
		r.start()
		for got := range w.Updates() {
			if got.Ticket < s.Ticket {
				r.Errorf("got an update of ticket %d", got.Ticket)
			}
			if got.Kind == StatusIssued {
				break
			}
		}
	})
}

// TestATopicWithHistory checks that a database without offsets of the topic, as after a
// restore or a migration, continues where the consumer group has read to.
func TestATopicWithHistory(t *testing.T) {
	t.Parallel()
	each(t, func(r *rig) {
		i := r.start()
		id := r.create(reward.CouponTemplate{TotalQuantity: 50, Mode: reward.ModeKafka})
		for n := range 20 {
			r.take(i, id, fmt.Sprint("u", n))
		}
		i.stop()
		others := *r
		others.instances = nil
		others.servers = openEmbedded(r)
		others.rows = others.servers.rows(r)
		others.brokers, others.dial, others.prefix = r.brokers, r.dial, r.prefix
		j := others.start()
		id = others.create(reward.CouponTemplate{TotalQuantity: 50, Mode: reward.ModeKafka})
		others.take(j, id, "ann")
	})
}

// TestManyExternalRecords checks a flood of external records for a template without
// requests so far.
func TestManyExternalRecords(t *testing.T) {
	t.Parallel()
	each(t, func(r *rig) {
		r.start()
		id := r.create(reward.CouponTemplate{TotalQuantity: 3000, Mode: reward.ModeKafka})
		values := make([]string, 2000)
		for n := range values {
			values[n] = fmt.Sprintf(`{"couponId":%s,"username":"u%d"}`, id, n)
		}
		r.publish(values...)
		r.until("all have one", func() bool {
			v, err := r.rows.TemplateGet(r.Context(), id)
			return err == nil && v.Live == int64(len(values))
		})
		r.balanced(id)
	})
}

// TestStopDoesNotWaitForALoad checks that Stop ends a load in KAFKA mode that waits for
// records which no consumer reads.
func TestStopDoesNotWaitForALoad(t *testing.T) {
	t.Parallel()
	each(t, func(r *rig) {
		i := r.start(func(c *FlowConfig) { c.Issue, c.FallbackAfter = false, fixture.Patience })
		id := r.create(reward.CouponTemplate{TotalQuantity: 5, Mode: reward.ModeKafka})
		r.publish(`{"nobody":"reads this"}`)
		if _, err := i.Intake.Request(r.Context(), IssueCommand{TemplateID: id, UserID: "ann"}); !reward.HasCode(err, reward.CodeUnavailable) {
			r.Errorf("%v", err)
		}
		began := time.Now()
		i.stop()
		if took := r.since(began); took > 4*time.Second {
			r.Errorf("the stop took %v", took)
		}
	})
}

// TestReadersDoNotDelayTheReturnToTheGate checks that a call that needs a gate, which must
// not be loaded during a Redis outage, does not set the marker of a load. Frequent readers
// would hold it all the time, and nobody could load the gate after the outage.
func TestReadersDoNotDelayTheReturnToTheGate(t *testing.T) {
	t.Parallel()
	each(t, func(r *rig) {
		i := r.start(func(c *FlowConfig) { c.Issue = false })
		id := r.create(reward.CouponTemplate{TotalQuantity: 5})
		if _, moved, err := r.rows.TemplateNewGeneration(r.Context(), store.TemplateNewGenerationParams{ID: id, Path: reward.PathDatabase}); err != nil || !moved {
			r.Fatal(moved, err)
		}
		if err := i.Intake.loader.Ensure(r.Context(), id); !errors.Is(err, gatekeeper.ErrNotNow) {
			r.Errorf("the gate was loaded: %v", err)
		}
		if begun, err := i.gate.LoadBegin(r.Context(), id, "the return"); err != nil || !begun.Held {
			r.Errorf("the marker is set: %+v, %v", begun, err)
		}
	})
}

// TestAnOutcomeUnderALowerTicket checks that a watcher learns the outcome of a request that
// got a lower ticket in another numbering, after a loss or an outage of Redis, and not that
// of an earlier request.
func TestAnOutcomeUnderALowerTicket(t *testing.T) {
	t.Parallel()
	each(t, func(r *rig) {
		i := r.start()
		id := r.create(reward.CouponTemplate{TotalQuantity: 5, PerUserLimit: 2})
		got := r.take(i, id, "ann")
		watch := func(generation int64) *Watcher {
			w, stop := i.Notifier.Watch(id, "ann", Status{Kind: StatusWaiting, Ticket: got.Ticket + 1, Generation: generation})
			r.Cleanup(stop)
			return w
		}
		renumbered, lost := watch(got.Generation-1), watch(got.Generation)
		time.Sleep(2 * rankIntervalMax)
		if len(renumbered.Updates()) == 0 || (<-renumbered.Updates()).Coupon.ID != got.ID {
			r.Error("the outcome is missing")
		}
		if len(lost.Updates()) > 0 {
			r.Errorf("the outcome of an earlier request: %+v", <-lost.Updates())
		}
	})
}
