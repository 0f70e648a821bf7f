package test

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/config"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/money/moneysim"
	"github.com/largesse/largesse/internal/queue"
	"github.com/largesse/largesse/internal/reward"
)

// TestPayouts runs the cases of the payout flow: all of them on the embedded engines, and
// in each other world those that it decides.
func TestPayouts(t *testing.T) {
	t.Parallel()
	withoutRedis := withoutStreams(servers)
	for name, tt := range map[string]struct {
		world world
		cases []string
	}{
		"Embedded": {embedded, slices.Collect(maps.Keys(payouts))},
		"EmbeddedWithoutStreams": {withoutStreams(embedded), []string{
			"AFileAndKafkaMessagesArePaidThroughEveryFault", "TheStreamIsBoundedAndNothingIsTrimmed", "PauseHoldsAndCancelLeavesWhatIsPaid",
		}},
		"Servers": {servers, []string{
			"AFileAndKafkaMessagesArePaidThroughEveryFault", "TheStreamIsBoundedAndNothingIsTrimmed", "PauseHoldsAndCancelLeavesWhatIsPaid",
			"KafkaInAnyOrder", "ARestartInTheMiddleLosesAndRepeatsNothing", "EntriesLostByTheQueueAreDispatchedAgain",
		}},
		"ServersWithoutRedis": {func(t *testing.T, cfg *config.Config) {
			t.Helper()
			withoutRedis(t, cfg)
			cfg.Redis = config.Redis{Stream: cfg.Redis.Stream}
		}, []string{"AFileAndKafkaMessagesArePaidThroughEveryFault", "ARestartInTheMiddleLosesAndRepeatsNothing"}},
	} {
		for _, one := range tt.cases {
			t.Run(name+"/"+one, func(t *testing.T) {
				t.Parallel()
				payouts[one](t, tt.world)
			})
		}
	}
}

// everyFault is all that moneysim can do at once, but for slowness.
var everyFault = moneysim.Faults{LatencyMs: 5, JitterMs: 5, ErrorRate: 0.05, RefuseRate: 0.02, TimeoutRate: 0.005, LostReplyRate: 0.03}

// payouts are the cases of the payout flow, from end to end.
var payouts = map[string]func(t *testing.T, w world){
	"AFileAndKafkaMessagesArePaidThroughEveryFault": func(t *testing.T, w world) {
		r := newRig(t, w, everyFault)
		points, file := r.create(600, true, client.NewPromotion{})
		p := r.publishing(811, 600)
		p.Voucher, p.Malformed = true, 2
		records, err := p.Publish(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		r.balance(points, file)
		vouchers := r.balance("811", records)
		if len(vouchers.Promotion.Summaries) != 2 {
			t.Errorf("summaries: %+v", vouchers.Promotion.Summaries)
		}
		if got := vouchers.Promotion.ExpectedCount; got == nil || *got != 600 {
			t.Errorf("expectedCount = %v", got)
		}
		for _, letter := range r.letters(2) {
			if letter.Reason != "MALFORMED" || len(letter.Value) == 0 {
				t.Errorf("dead letter %+v", letter)
			}
		}
		if n := r.sim.MaxChargesPerKey(); n != 1 {
			t.Errorf("a key was charged %d times", n)
		}
	},
	"TheStreamIsBoundedAndNothingIsTrimmed": func(t *testing.T, w world) {
		r := newRig(t, w, moneysim.Faults{LatencyMs: 2}, func(c *config.Config) { c.Redis.Stream.MaxLen = 50 })
		id, workload := r.create(1000, false, client.NewPromotion{})
		r.until(id, "settled", func(p client.Promotion) bool {
			if p.Counts.Queued > 50 {
				t.Errorf("%d queued, max-len is 50", p.Counts.Queued)
			}
			return settled(p)
		})
		r.balance(id, workload)
	},
	"PauseHoldsAndCancelLeavesWhatIsPaid": func(t *testing.T, w world) {
		r := newRig(t, w, moneysim.Faults{LatencyMs: 30}, func(c *config.Config) { c.Redis.Stream.InFlightPerConsumer = 2 })
		id, workload := r.create(2000, false, client.NewPromotion{})
		r.until(id, "under way", func(p client.Promotion) bool { return p.Counts.Succeeded > 20 })
		fixture.Must(r.api.PausePromotion(t.Context(), id))(t)
		// A promotion without a pool and without an open call stays so while it is paused.
		fixture.Until(t, "nothing works any more", func() bool {
			now := r.scrape()
			return value(now, "largesse_pools") == 0 && value(now, "largesse_provider_calls_open") == 0
		})
		before := r.sim.Stats().Requests
		fixture.Must(r.api.CancelPromotion(t.Context(), id))(t)
		p := r.until(id, "cancelled whole", func(p client.Promotion) bool {
			return p.Status == "CANCELLED" && p.FinishedAt != nil && p.Counts.Unknown == 0
		})
		stats := r.sim.Stats()
		if stats.Requests != before {
			t.Errorf("%d calls after the pause", stats.Requests-before)
		}
		if p.Counts.Succeeded != stats.Charges || p.AmountSucceeded != stats.Amount || p.Counts.Succeeded+p.Counts.Cancelled != int64(workload.Good) {
			t.Errorf("counts %+v, provider %+v", p.Counts, stats)
		}
	},
	"KafkaInAnyOrder": func(t *testing.T, w world) {
		r := newRig(t, w, moneysim.Faults{}, patient)
		publish := r.publishing(900, 500)
		workload := fixture.Must(publish.Publish(t.Context()))(t)
		r.balance("900", workload)
		// Publish the whole campaign again: every record is known, and no payout runs again.
		fixture.Must(publish.Publish(t.Context()))(t)
		marker := r.publishing(901, 1)
		more := fixture.Must(marker.Publish(t.Context()))(t)
		r.balance("901", more)
		r.balance("900", workload)
		if n := r.sim.Stats().Requests; n != 501 {
			t.Errorf("%d calls for 501 targets", n)
		}
	},
	"ARestartInTheMiddleLosesAndRepeatsNothing": func(t *testing.T, w world) {
		r := newRig(t, w, moneysim.Faults{LatencyMs: 10, JitterMs: 10, LostReplyRate: 0.02}, func(c *config.Config) { c.Redis.Stream.InFlightPerConsumer = 16 })
		id, workload := r.create(1500, false, client.NewPromotion{RatePerSecond: 500})
		for _, share := range []int64{150, 600} {
			r.until(id, "under way", func(p client.Promotion) bool { return p.Counts.Succeeded > share })
			r.stop()
			r.start()
		}
		r.balance(id, workload)
	},
	"EntriesLostByTheQueueAreDispatchedAgain": func(t *testing.T, w world) {
		r := newRig(t, w, moneysim.Faults{LatencyMs: 500}, func(c *config.Config) { c.Redis.Stream.InFlightPerConsumer = 4 })
		id, workload := r.create(1200, false, client.NewPromotion{})
		r.until(id, "under way", func(p client.Promotion) bool { return p.Counts.Succeeded > 20 })
		promotion := fixture.Must(reward.ParsePromotionID(id))(t)
		// Everything that waits in the stream vanishes, as with a lost Redis.
		s := queue.Stream{Type: reward.Point, PromotionID: promotion}
		entries, err := r.engine.Queue().Range(t.Context(), s, 2000)
		if err != nil || len(entries) == 0 {
			t.Fatalf("Range = %d entries, %v", len(entries), err)
		}
		ids := make([]string, len(entries))
		for i, e := range entries {
			ids[i] = e.ID
		}
		fixture.OK(t, r.engine.Queue().Ack(t.Context(), s, ids))
		fixture.OK(t, r.sim.SetFaults(moneysim.Faults{}))
		r.balance(id, workload)
	},
	"AForeignEntryIsADeadLetter": func(t *testing.T, w world) {
		r := newRig(t, w, moneysim.Faults{LatencyMs: 50}, func(c *config.Config) { c.Redis.Stream.InFlightPerConsumer = 1 })
		id, workload := r.create(30, false, client.NewPromotion{})
		promotion := fixture.Must(reward.ParsePromotionID(id))(t)
		added, err := r.engine.Queue().Add(t.Context(), queue.AddParams{
			Stream: queue.Stream{Type: reward.Point, PromotionID: promotion}, MaxLen: 1000, Deadline: time.Now().Add(time.Minute),
			Entries: []queue.NewEntry{{TargetID: 5, Dispatch: 1, Message: []byte(`{"targetId":5}`)}},
		})
		if err != nil || added != 1 {
			t.Fatalf("Add = %d, %v", added, err)
		}
		r.balance(id, workload)
		if letters := r.letters(1); letters[0].Reason != "NO_ROW" {
			t.Errorf("an entry without a row became %+v", letters[0])
		}
	},
}

// letters waits for so many dead letters and returns them.
func (r *rig) letters(count int) (all []client.DeadLetter) {
	r.t.Helper()
	fixture.Until(r.t, fmt.Sprintf("%d dead letters", count), func() bool {
		all = nil
		for d, err := range r.api.DeadLetters(r.t.Context(), client.DeadLetterFilter{}) {
			if err != nil {
				r.t.Fatal(err)
			}
			all = append(all, d)
		}
		return len(all) == count
	})
	return all
}
