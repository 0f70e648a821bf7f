package coupon

import (
	"fmt"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

// TestModeIsChanged: who asks right after a change of the mode is served, though
// the issuer may still think of the mode before.
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
			if _, err := i.Catalog.Change(r.Context(), store.TemplateChangeParams{ID: id, Mode: to}); err != nil {
				r.Fatal(err)
			}
			r.take(i, id, "ann")
			r.take(i, id, "bob")
			r.balanced(id)
		}
	})
}

// TestDrawAfterTheEpochWasTaken: the instance that a template belongs to takes
// it back from one that has it no more, also when nobody asks.
func TestDrawAfterTheEpochWasTaken(t *testing.T) {
	t.Parallel()
	each(t, func(r *rig) {
		i := r.start()
		id := r.create(reward.CouponTemplate{
			TotalQuantity: 3, OpensAt: time.Now().Add(2 * time.Second), Draw: reward.Draw{From: time.Now().Add(-time.Second)},
		})
		r.want(i, id, "ann", "")
		r.until("it is somebody's", func() bool { return len(i.issuers.epochs()) == 1 })
		if _, err := r.rows.TemplateOwn(r.Context(), []reward.TemplateID{id}, "a stranger"); err != nil {
			r.Fatal(err)
		}
		if s := r.outcome(i, id, "ann"); s.Kind != StatusIssued {
			r.Errorf("%+v", s)
		}
	})
}

// TestAnOlderOutcomeIsNotThePresentOne: while the line cannot be looked at, who
// may have several is not told of an earlier coupon.
func TestAnOlderOutcomeIsNotThePresentOne(t *testing.T) {
	t.Parallel()
	each(t, func(r *rig) {
		issuer := r.start()
		asker := r.start(func(c *FlowConfig) { c.Issue = false })
		id := r.create(reward.CouponTemplate{TotalQuantity: 5, PerUserLimit: 2, WhenRedisAway: reward.AwayWait})
		first := r.take(asker, id, "ann")
		issuer.stop()
		s, code := r.ask(asker, id, "ann")
		if code != "" || s.Kind != StatusWaiting || s.Ticket <= first.Ticket {
			r.Fatalf("%q %+v", code, s)
		}
		w, stop := asker.Notifier.Watch(id, "ann", s.Ticket)
		defer stop()
		asker.gate.set(func(g *faultyGate) { g.away = true })
		if got, err := asker.Intake.Status(r.Context(), id, "ann"); !reward.HasCode(err, reward.CodeUnavailable) {
			r.Errorf("%+v, %v", got, err)
		}
		asker.gate.set(func(g *faultyGate) { g.away = false })
		r.start()
		for got := range w.Updates() {
			if got.Ticket < s.Ticket {
				r.Errorf("told of ticket %d", got.Ticket)
			}
			if got.Kind == StatusIssued {
				break
			}
		}
	})
}

// TestATopicWithHistory: rows that never saw the topic, as after a restore or a
// migration, take up where the group has read to.
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
		others.servers = r.open(r)
		others.rows = others.servers.rows(r)
		others.brokers, others.prefix = r.brokers, r.prefix
		j := others.start()
		id = others.create(reward.CouponTemplate{TotalQuantity: 50, Mode: reward.ModeKafka})
		others.take(j, id, "ann")
	})
}

// TestManyForeignRecords: a flood of other systems' records to a template that
// nobody has asked for yet.
func TestManyForeignRecords(t *testing.T) {
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

// TestStopDoesNotWaitForALoad: a load of a KAFKA template waits for records that
// nobody reads any more.
func TestStopDoesNotWaitForALoad(t *testing.T) {
	t.Parallel()
	each(t, func(r *rig) {
		i := r.start(func(c *FlowConfig) { c.Issue = false })
		id := r.create(reward.CouponTemplate{TotalQuantity: 5, Mode: reward.ModeKafka})
		r.publish(`{"nobody":"reads this"}`)
		if _, err := i.Intake.Request(r.Context(), IssueCommand{TemplateID: id, UserID: "ann"}); !reward.HasCode(err, reward.CodeUnavailable) {
			r.Errorf("%v", err)
		}
		began := time.Now()
		i.stop()
		if took := time.Since(began); took > 4*time.Second {
			r.Errorf("the stop took %v", took)
		}
	})
}
