package test

import (
	"bytes"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/bus"
	"github.com/largesse/largesse/internal/config"
	"github.com/largesse/largesse/internal/lab"
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

// announce publishes only the started event of a promotion.
func announce(t *testing.T, p lab.Publishing, promotion int64, targets int) {
	t.Helper()
	c, err := bus.Open(t.Context(), bus.Config{Brokers: p.Brokers, TopicPrefix: p.TopicPrefix, ClientID: "largesse-test"})
	if err != nil {
		t.Error(err)
		return
	}
	defer c.Close()
	value := fmt.Sprintf(`{"promotionId":%d,"promotionType":"POINT","totalCount":%d}`, promotion, targets)
	if err := bus.NewPublisher(c).Publish(t.Context(), []bus.Record{{Topic: bus.TopicStarted, Value: []byte(value)}}); err != nil {
		t.Error(err)
	}
}

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
		for _, letter := range r.letters(client.DeadLetterFilter{}, 2) {
			if letter.Reason != "MALFORMED" || len(letter.Value) == 0 {
				t.Errorf("dead letter %+v", letter)
			}
		}
		if n := r.sim.MaxChargesPerKey(); n != 1 {
			t.Errorf("a key was charged %d times", n)
		}
	},
	"TheSameFileTwicePaysNobodyTwice": func(t *testing.T, w world) {
		r := newRig(t, w, moneysim.Faults{}, patient)
		id, workload := r.create(300, false, client.NewPromotion{})
		r.balance(id, workload)
		var again bytes.Buffer
		fixture.Must(lab.WriteTargets(&again, 300, false))(t)
		res, err := r.api.UploadTargets(t.Context(), id, &again, client.UploadOptions{})
		if err != nil || res.Accepted != 0 || res.Duplicates != 300 {
			t.Fatalf("second upload: %+v, %v", res, err)
		}
		r.balance(id, workload)
		if stats := r.sim.Stats(); stats.Charges != 300 || stats.Requests != 300 {
			t.Errorf("the provider saw %+v", stats)
		}
	},
	"ADryRunAcceptsNothingAndTotalsRight": func(t *testing.T, w world) {
		r := newRig(t, w, moneysim.Faults{})
		p, err := r.api.CreatePromotion(t.Context(), client.NewPromotion{Name: "dry", Type: "POINT"})
		if err != nil {
			t.Fatal(err)
		}
		var file bytes.Buffer
		workload, err := lab.WriteTargets(&file, 2000, true)
		if err != nil {
			t.Fatal(err)
		}
		res, err := r.api.UploadTargets(t.Context(), p.ID, &file, client.UploadOptions{DryRun: true})
		if err != nil {
			t.Fatal(err)
		}
		if res.Accepted != 2000 || res.Amount != workload.Amount || res.Rejected != int64(workload.Bad) || res.Duplicates != int64(workload.Repeat) {
			t.Errorf("dry run: %+v for %+v", res, workload)
		}
		if p, err = r.api.Promotion(t.Context(), p.ID); err != nil || p.TotalCount != 0 {
			t.Errorf("after a dry run: %+v, %v", p, err)
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
	"AnErrorEveryTimeEndsKnownNotPaid": func(t *testing.T, w world) {
		r := newRig(t, w, moneysim.Faults{ErrorRate: 1}, patient)
		retries := 2
		id, workload := r.create(6, false, client.NewPromotion{MaxRetries: &retries})
		account := r.balance(id, workload)
		if account.Promotion.Counts.Failed != 6 || account.Attempts != 18 || account.Charges != 0 {
			t.Errorf("counts %+v, %d attempts, %d charges", account.Promotion.Counts, account.Attempts, account.Charges)
		}
		detail, err := r.api.Payout(t.Context(), id, "1000000")
		if err != nil || len(detail.Log) != 3 || detail.ErrorCode == "" {
			t.Errorf("payout: %+v, %v", detail, err)
		}
	},
	"EveryReplyLostIsLookedUpAndPaidOnce": func(t *testing.T, w world) {
		r := newRig(t, w, moneysim.Faults{LostReplyRate: 1})
		id, workload := r.create(15, false, client.NewPromotion{})
		account := r.balance(id, workload)
		if account.Promotion.Counts.Succeeded != 15 || r.sim.Stats().Charges != 15 {
			t.Errorf("counts %+v, provider %+v", account.Promotion.Counts, r.sim.Stats())
		}
	},
	"WrongSettingsPauseAndAResumePays": func(t *testing.T, w world) {
		var denied atomic.Bool
		denied.Store(true)
		front := httptest.NewUnstartedServer(nil)
		r := newRig(t, w, moneysim.Faults{}, func(c *config.Config) {
			back := fixture.Must(url.Parse(c.Money.URL))(t)
			proxy := httputil.NewSingleHostReverseProxy(back)
			transport := &http.Transport{}
			proxy.Transport = transport
			t.Cleanup(transport.CloseIdleConnections)
			front.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
				if denied.Load() {
					http.Error(w, `{"code":"BAD_KEY"}`, http.StatusUnauthorized)
					return
				}
				proxy.ServeHTTP(w, q)
			})
			front.Start()
			t.Cleanup(front.Close)
			c.Money.URL = front.URL
		}, patient)
		id, workload := r.create(50, false, client.NewPromotion{})
		p := r.until(id, "paused", func(p client.Promotion) bool { return p.Status == "PAUSED" })
		if !strings.Contains(p.PauseReason, "401") || p.Counts.Failed != 0 {
			t.Errorf("paused with %q, counts %+v", p.PauseReason, p.Counts)
		}
		denied.Store(false)
		fixture.Must(r.api.ResumePromotion(t.Context(), id))(t)
		account := r.balance(id, workload)
		if account.Attempts != 50 {
			t.Errorf("%d attempts counted, want 50: a 401 is none", account.Attempts)
		}
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
	"AnAnnouncedPromotionWaitsForItsTargets": func(t *testing.T, w world) {
		r := newRig(t, w, moneysim.Faults{})
		first := r.publishing(77, 10)
		workload := fixture.Must(first.Publish(t.Context()))(t)
		r.balance("77", workload)
		// A bigger campaign, of which only a part has come, stays open.
		announce(t, first, 78, 25)
		second := r.publishing(78, 10)
		second.Unannounced = true
		part := fixture.Must(second.Publish(t.Context()))(t)
		r.until("78", "paid as far as it came", func(p client.Promotion) bool { return p.Counts.Succeeded == 10 })
		if p, err := r.api.Promotion(t.Context(), "78"); err != nil || p.Status != "RUNNING" {
			t.Errorf("below its expected count: %+v, %v", p, err)
		}
		fixture.Must(r.api.ClosePromotion(t.Context(), "78"))(t)
		r.balance("78", part)
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
		if letters := r.letters(client.DeadLetterFilter{}, 1); letters[0].Reason != "NO_ROW" {
			t.Errorf("an entry without a row became %+v", letters[0])
		}
	},
}
