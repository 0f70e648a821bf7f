package test

import (
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/config"
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
	const targets = 2000
	for name, spoil := range map[string]func(raw rueidis.Client, key, group, consumer string) rueidis.Completed{
		"TheStream": func(raw rueidis.Client, key, _, _ string) rueidis.Completed { return raw.B().Del().Key(key).Build() },
		"TheGroup": func(raw rueidis.Client, key, group, _ string) rueidis.Completed {
			return raw.B().XgroupDestroy().Key(key).Group(group).Build()
		},
		"AConsumerWithWhatItHasInHand": func(raw rueidis.Client, key, group, consumer string) rueidis.Completed {
			return raw.B().XgroupDelconsumer().Key(key).Group(group).Consumername(consumer).Build()
		},
	} {
		for server, variable := range map[string]string{"Redis": "LARGESSE_TEST_REDIS", "Valkey": "LARGESSE_TEST_VALKEY", "Cluster": "LARGESSE_TEST_REDIS_CLUSTER"} {
			t.Run(name+"/"+server, func(t *testing.T) {
				t.Parallel()
				r := newRig(t, servers(variable), moneysim.Faults{LatencyMs: 50}, func(c *config.Config) { c.Redis.Stream.InFlightPerConsumer = 16 })
				raw := plainRedis(t, r.cfg.Redis.URL)
				id, workload := r.create(targets, false, client.NewPromotion{})
				promotion, err := reward.ParsePromotionID(id)
				if err != nil {
					t.Fatal(err)
				}
				s := queue.Stream{Type: reward.Point, PromotionID: promotion}
				key, group := redisstream.StreamKey(r.cfg.Redis.KeyPrefix, s), redisstream.ConsumerGroup(r.cfg.Redis.KeyPrefix, s)
				for _, share := range []int64{targets / 4, targets / 2} {
					r.until(id, "under way", func(p client.Promotion) bool { return p.Counts.Succeeded > share })
					consumers, err := r.engine.Queue().Consumers(t.Context(), s)
					if err != nil || len(consumers) == 0 {
						t.Fatalf("Consumers = %v, %v", consumers, err)
					}
					if err := raw.Do(t.Context(), spoil(raw, key, group, consumers[0].Name)).Error(); err != nil {
						t.Fatal(err)
					}
				}
				checkCharges(t, r.sim, r.balance(id, workload))
				for wait := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) { // polls a condition
					there, err := raw.Do(t.Context(), raw.B().Exists().Key(key).Build()).AsBool()
					if err != nil {
						t.Fatal(err)
					}
					if !there {
						break
					}
					if time.Now().After(wait) {
						t.Fatal("the stream is left")
					}
				}
			})
		}
	}
}

// plainRedis is a client as anybody may have one.
func plainRedis(t *testing.T, urls string) rueidis.Client {
	t.Helper()
	option := rueidis.ClientOption{DisableCache: true}
	for address := range strings.SplitSeq(urls, ",") {
		option.InitAddress = append(option.InitAddress, strings.TrimPrefix(address, "redis://"))
	}
	c, err := rueidis.NewClient(option)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}
