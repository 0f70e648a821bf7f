package test

import (
	"testing"

	"github.com/redis/rueidis"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/config"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/money"
	"github.com/largesse/largesse/internal/money/moneysim"
	"github.com/largesse/largesse/internal/queue"
	"github.com/largesse/largesse/internal/queue/redisstream"
	"github.com/largesse/largesse/internal/reward"
)

// TestWhatIsDeletedInRedisIsMadeGood: somebody deletes the stream of a running
// promotion, its group, or all of its consumers. It finishes automatically, pays
// everybody once, and leaves nothing.
func TestWhatIsDeletedInRedisIsMadeGood(t *testing.T) {
	t.Parallel()
	const targets = 1000
	for name, spoil := range map[string]func(raw rueidis.Client, key, group, consumer string) rueidis.Completed{
		"TheStream": func(raw rueidis.Client, key, _, _ string) rueidis.Completed { return raw.B().Del().Key(key).Build() },
		"TheGroup": func(raw rueidis.Client, key, group, _ string) rueidis.Completed {
			return raw.B().XgroupDestroy().Key(key).Group(group).Build()
		},
		"AConsumerWithWhatItHasInHand": func(raw rueidis.Client, key, group, consumer string) rueidis.Completed {
			return raw.B().XgroupDelconsumer().Key(key).Group(group).Consumername(consumer).Build()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, servers, moneysim.Faults{LatencyMs: 50}, func(c *config.Config) { c.Redis.Stream.InFlightPerConsumer = 16 })
			raw := fixture.RedisClient(t, r.cfg.Redis.URL)
			defer raw.Close()
			id, workload := r.create(targets, false, client.NewPromotion{RatePerSecond: 300})
			promotion := fixture.Must(reward.ParsePromotionID(id))(t)
			s := queue.Stream{Type: reward.Point, PromotionID: promotion}
			key, group := redisstream.StreamKey(r.cfg.Redis.KeyPrefix, s), redisstream.ConsumerGroup(r.cfg.Redis.KeyPrefix, s)
			for _, share := range []int64{targets / 4, targets / 2} {
				r.until(id, "under way", func(p client.Promotion) bool { return p.Counts.Succeeded > share })
				consumers, err := r.engine.Queue().Consumers(t.Context(), s)
				if err != nil || len(consumers) == 0 {
					t.Fatalf("Consumers = %v, %v", consumers, err)
				}
				fixture.OK(t, raw.Do(t.Context(), spoil(raw, key, group, consumers[0].Name)).Error())
			}
			checkCharges(t, r.sim, r.balance(id, workload))
			fixture.Until(t, "the stream is gone", func() bool {
				there := fixture.Must(raw.Do(t.Context(), raw.B().Exists().Key(key).Build()).AsBool())(t)
				return !there
			})
		})
	}
}

// TestEntriesThatNobodyHoldsAreMadeGood: an instance has 20 pending entries and
// has charged them all. Somebody deletes its consumer, and it crashes before it
// records an outcome. A later entry is lost, which the sweeper must notice
// although those 20 are the oldest.
func TestEntriesThatNobodyHoldsAreMadeGood(t *testing.T) {
	t.Parallel()
	const targets, orphans = 60, 20
	r := newRig(t, servers, moneysim.Faults{LatencyMs: 200}, func(c *config.Config) { c.Redis.Stream.InFlightPerConsumer = 1 })
	raw := fixture.RedisClient(t, r.cfg.Redis.URL)
	defer raw.Close()
	provider := fixture.Must(money.New(money.Config{URL: r.simURL, Timeout: r.cfg.Money.Timeout}))(t)
	defer provider.Close()
	one := 1
	id, workload := r.create(targets, false, client.NewPromotion{ConsumersPerInstance: &one})
	promotion := fixture.Must(reward.ParsePromotionID(id))(t)
	s := queue.Stream{Type: reward.Point, PromotionID: promotion}
	key, group := redisstream.StreamKey(r.cfg.Redis.KeyPrefix, s), redisstream.ConsumerGroup(r.cfg.Redis.KeyPrefix, s)
	r.until(id, "under way", func(p client.Promotion) bool { return p.Counts.Succeeded > 0 })

	const dead = "host-0-0"
	held, err := r.engine.Queue().Read(t.Context(), s, []queue.ReadParams{{Consumer: dead, Count: orphans}})
	if err != nil || len(held) != orphans {
		t.Fatalf("read %d entries, %v", len(held), err)
	}
	for _, e := range held {
		m := fixture.Must(reward.ParsePublishMessage(reward.Point, e.Message))(t)
		answer := provider.ChargePoint(t.Context(), money.Charge{
			PromotionID: m.PromotionID, TargetID: m.TargetID, UserID: m.UserID, Amount: m.Amount,
		}, func() error { return nil })
		if answer.Class != reward.AnswerPaid {
			t.Fatalf("the charge of %s is answered %+v", m.TargetID, answer)
		}
	}
	lost, err := r.engine.Queue().Read(t.Context(), s, []queue.ReadParams{{Consumer: dead, Count: 1}})
	if err != nil || len(lost) != 1 {
		t.Fatalf("read %d entries, %v", len(lost), err)
	}
	fixture.OK(t, raw.Do(t.Context(), raw.B().Xdel().Key(key).Id(lost[0].ID).Build()).Error())
	fixture.OK(t, raw.Do(t.Context(), raw.B().XgroupDelconsumer().Key(key).Group(group).Consumername(dead).Build()).Error())
	checkCharges(t, r.sim, r.balance(id, workload))
}
