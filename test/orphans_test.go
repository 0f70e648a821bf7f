package test

import (
	"testing"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/config"
	"github.com/largesse/largesse/internal/money"
	"github.com/largesse/largesse/internal/money/moneysim"
	"github.com/largesse/largesse/internal/queue"
	"github.com/largesse/largesse/internal/queue/redisstream"
	"github.com/largesse/largesse/internal/reward"
)

// TestEntriesThatNobodyHoldsAreMadeGood: an instance has 20 pending entries and
// has charged them all. Somebody deletes its consumer, and it crashes before it
// records an outcome. A later entry is lost, which the sweeper must notice
// although those 20 are the oldest.
func TestEntriesThatNobodyHoldsAreMadeGood(t *testing.T) {
	t.Parallel()
	const targets, orphans = 60, 20
	for server, variable := range map[string]string{"Redis": "LARGESSE_TEST_REDIS", "Valkey": "LARGESSE_TEST_VALKEY", "Cluster": "LARGESSE_TEST_REDIS_CLUSTER"} {
		t.Run(server, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, servers(variable), moneysim.Faults{LatencyMs: 200}, func(c *config.Config) {
				c.Redis.Stream.InFlightPerConsumer = 1
			})
			raw := plainRedis(t, r.cfg.Redis.URL)
			provider, err := money.New(money.Config{URL: r.simURL, Timeout: r.cfg.Money.Timeout})
			if err != nil {
				t.Fatal(err)
			}
			defer provider.Close()
			one := 1
			id, workload := r.create(targets, false, client.NewPromotion{ConsumersPerInstance: &one})
			promotion, err := reward.ParsePromotionID(id)
			if err != nil {
				t.Fatal(err)
			}
			s := queue.Stream{Type: reward.Point, PromotionID: promotion}
			key, group := redisstream.StreamKey(r.cfg.Redis.KeyPrefix, s), redisstream.ConsumerGroup(r.cfg.Redis.KeyPrefix, s)
			r.until(id, "under way", func(p client.Promotion) bool { return p.Counts.Succeeded > 0 })

			const dead = "host-0-0"
			held, err := r.engine.Queue().Read(t.Context(), s, []queue.ReadParams{{Consumer: dead, Count: orphans}})
			if err != nil || len(held) != orphans {
				t.Fatalf("read %d entries, %v", len(held), err)
			}
			for _, e := range held {
				m, err := reward.ParsePublishMessage(reward.Point, e.Message)
				if err != nil {
					t.Fatal(err)
				}
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
			if err := raw.Do(t.Context(), raw.B().Xdel().Key(key).Id(lost[0].ID).Build()).Error(); err != nil {
				t.Fatal(err)
			}
			if err := raw.Do(t.Context(), raw.B().XgroupDelconsumer().Key(key).Group(group).Consumername(dead).Build()).Error(); err != nil {
				t.Fatal(err)
			}
			checkCharges(t, r.sim, r.balance(id, workload))
		})
	}
}
