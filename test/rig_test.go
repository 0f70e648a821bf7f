package test

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/bus"
	"github.com/largesse/largesse/internal/config"
	"github.com/largesse/largesse/internal/engine"
	"github.com/largesse/largesse/internal/lab"
	"github.com/largesse/largesse/internal/lab/fleet"
	"github.com/largesse/largesse/internal/money/moneysim"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/queue"
	"github.com/largesse/largesse/internal/reward"
)

// The tests use the paths of the repository. In the Redis client, the refresher of
// Cluster slots outlives Close by up to a second, and the goroutine that closes spare
// Cluster connections by up to five. No other goroutine may be left.
func TestMain(m *testing.M) {
	root, err := fleet.ModuleRoot()
	if err == nil {
		err = os.Chdir(root)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m,
		goleak.IgnoreAnyFunction("github.com/redis/rueidis.(*call).DelayDo.func1"),
		goleak.IgnoreAnyFunction("github.com/redis/rueidis.(*clusterClient)._refresh.func2"))
}

// world is where an engine runs: embedded, or on real servers.
type world struct {
	name string
	// config points an engine's settings at the world, apart from all other
	// tests.
	config func(t *testing.T, cfg *config.Config)
}

var embedded = world{name: "embedded", config: func(*testing.T, *config.Config) {}}

// TestEngineEmbedded runs the payout suite on the embedded engines; the same
// suite runs on real servers in TestEngineServers.
func TestEngineEmbedded(t *testing.T) {
	t.Parallel()
	exercisePayouts(t, embedded)
}

// TestEngineWithoutStreams runs the same suite with redis.stream.enabled off.
func TestEngineWithoutStreams(t *testing.T) {
	t.Parallel()
	exercisePayouts(t, withoutStreams(embedded))
}

// withoutStreams returns a world in which each instance works from its own in-process
// queue.
func withoutStreams(w world) world {
	return world{name: w.name + " without streams", config: func(t *testing.T, cfg *config.Config) {
		t.Helper()
		w.config(t, cfg)
		cfg.Redis.Stream.Enabled = false
	}}
}

// rig is one running engine with its provider and its client.
type rig struct {
	t      *testing.T
	cfg    config.Config
	sim    *moneysim.Server
	simURL string
	engine *engine.Engine
	api    *client.Client
	lines  *lockedBuffer // log of the engine since its latest start
}

func newRig(t *testing.T, w world, faults moneysim.Faults, change ...func(*config.Config)) *rig {
	t.Helper()
	sim, simURL := startSim(t, faults)
	cfg := config.Default()
	cfg.Data.Dir = t.TempDir()
	cfg.HTTP.Listen = "127.0.0.1:0"
	cfg.Money.URL = simURL
	cfg.Money.Timeout = time.Second
	cfg.Money.SettleAfter = time.Second
	cfg.Redis.Stream.LeaseSeconds = 3
	w.config(t, &cfg)
	for _, f := range change {
		f(&cfg)
	}
	r := &rig{t: t, cfg: cfg, sim: sim, simURL: simURL}
	r.start()
	t.Cleanup(func() { r.stop() })
	return r
}

func (r *rig) start() {
	r.t.Helper()
	lines := &lockedBuffer{}
	r.t.Cleanup(func() {
		if r.t.Failed() {
			text := lines.String()
			r.t.Log(text[max(0, len(text)-8000):])
		}
	})
	r.lines = lines
	log, err := obs.NewLog(lines, "info", "text")
	if err != nil {
		r.t.Fatal(err)
	}
	r.engine, err = engine.New(r.cfg, log)
	if err != nil {
		r.t.Fatal(err)
	}
	if err := r.engine.Start(r.t.Context()); err != nil {
		r.t.Fatal(err)
	}
	r.api, err = client.New("http://"+r.engine.Addr(), client.Options{})
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) stop() {
	if r.engine == nil {
		return
	}
	r.engine.Stop()
	r.engine = nil
	http.DefaultTransport.(*http.Transport).CloseIdleConnections()
}

// create makes a promotion of points with a file's targets, and starts it.
func (r *rig) create(n int, mistakes bool, p client.NewPromotion) (string, lab.Workload) {
	r.t.Helper()
	var file bytes.Buffer
	workload, err := lab.WriteTargets(&file, n, mistakes)
	if err != nil {
		r.t.Fatal(err)
	}
	if p.Name == "" {
		p.Name = r.t.Name()
	}
	p.Type = "POINT"
	made, err := r.api.CreatePromotion(r.t.Context(), p)
	if err != nil {
		r.t.Fatal(err)
	}
	res, err := r.api.UploadTargets(r.t.Context(), made.ID, &file, client.UploadOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	if res.Accepted != int64(workload.Good) || res.Rejected != int64(workload.Bad) || res.Duplicates != int64(workload.Repeat) || res.Amount != workload.Amount {
		r.t.Fatalf("upload said %+v for %+v", res, workload)
	}
	if _, err := r.api.StartPromotion(r.t.Context(), made.ID); err != nil {
		r.t.Fatal(err)
	}
	return made.ID, workload
}

// patience is how long a promotion may take to come where a test wants it, on a
// machine that runs other tests under the race detector.
const patience = 4 * time.Minute

// until polls a promotion until the condition holds.
func (r *rig) until(id, what string, holds func(p client.Promotion) bool) client.Promotion {
	r.t.Helper()
	deadline := time.Now().Add(patience)
	var p client.Promotion
	for time.Now().Before(deadline) {
		var err error
		p, err = r.api.Promotion(r.t.Context(), id)
		var problem *client.Problem
		if err != nil && !errors.As(err, &problem) {
			r.t.Fatal(err)
		}
		if err == nil && holds(p) {
			return p
		}
		time.Sleep(20 * time.Millisecond) // polls a condition
	}
	r.t.Fatalf("promotion %s: not %s within %v: %+v", id, what, patience, p)
	return p
}

func settled(p client.Promotion) bool { return p.Status == "COMPLETED" && p.Counts.Unknown == 0 }

// balance waits for the end of a promotion and checks its books.
func (r *rig) balance(id string, workload lab.Workload) lab.Account {
	r.t.Helper()
	r.until(id, "settled", settled)
	ledger, err := lab.ReadLedger(r.t.Context(), r.simURL)
	if err != nil {
		r.t.Fatal(err)
	}
	account, err := lab.CheckBooks(r.t.Context(), r.api, id, workload, ledger)
	if err != nil {
		r.t.Fatal(err)
	}
	for _, v := range account.Verdicts {
		if !v.Holds {
			r.t.Errorf("promotion %s: %s: %s", id, v.Invariant, v.Detail)
		}
	}
	return account
}

// checkCharges compares the charges of the provider with the rows.
func checkCharges(t *testing.T, sim *moneysim.Server, account lab.Account) {
	t.Helper()
	if n := sim.MaxChargesPerKey(); n != 1 {
		t.Errorf("a key was charged %d times", n)
	}
	if stats := sim.Stats(); stats.Charges != account.Charges {
		t.Errorf("the provider made %d charges, our books say %d", stats.Charges, account.Charges)
	}
}

func (r *rig) publishing(id int64, targets int) lab.Publishing {
	return lab.Publishing{Brokers: r.engine.Brokers(), TopicPrefix: r.cfg.Kafka.TopicPrefix, PromotionID: id, Targets: targets}
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

// exercisePayouts is the end-to-end suite of the payout flow.
func exercisePayouts(t *testing.T, w world) {
	t.Run("AFileAndKafkaMessagesArePaidThroughEveryFault", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, w, everyFault)
		points, file := r.create(1500, true, client.NewPromotion{})
		p := r.publishing(811, 1500)
		p.Voucher, p.Malformed = true, 3
		records, err := p.Publish(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		r.balance(points, file)
		vouchers := r.balance("811", records)
		if len(vouchers.Promotion.Summaries) != 2 {
			t.Errorf("summaries: %+v", vouchers.Promotion.Summaries)
		}
		if got := vouchers.Promotion.ExpectedCount; got == nil || *got != 1500 {
			t.Errorf("expectedCount = %v", got)
		}
		dead := 0
		for letter, err := range r.api.DeadLetters(t.Context(), client.DeadLetterFilter{}) {
			if err != nil {
				t.Fatal(err)
			}
			if letter.Reason != "MALFORMED" || len(letter.Value) == 0 {
				t.Errorf("dead letter %+v", letter)
			}
			dead++
		}
		if dead != 3 {
			t.Errorf("%d dead letters, want 3", dead)
		}
		if n := r.sim.MaxChargesPerKey(); n != 1 {
			t.Errorf("a key was charged %d times", n)
		}
	})
	t.Run("TheSameFileTwicePaysNobodyTwice", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, w, moneysim.Faults{})
		id, workload := r.create(300, false, client.NewPromotion{})
		r.balance(id, workload)
		var again bytes.Buffer
		if _, err := lab.WriteTargets(&again, 300, false); err != nil {
			t.Fatal(err)
		}
		res, err := r.api.UploadTargets(t.Context(), id, &again, client.UploadOptions{})
		if err != nil || res.Accepted != 0 || res.Duplicates != 300 {
			t.Fatalf("second upload: %+v, %v", res, err)
		}
		r.balance(id, workload)
		if stats := r.sim.Stats(); stats.Charges != 300 || stats.Requests != 300 {
			t.Errorf("the provider saw %+v", stats)
		}
	})
	t.Run("ADryRunAcceptsNothingAndTotalsRight", func(t *testing.T) {
		t.Parallel()
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
	})
	t.Run("TheStreamIsBoundedAndNothingIsTrimmed", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, w, moneysim.Faults{LatencyMs: 2}, func(c *config.Config) { c.Redis.Stream.MaxLen = 50 })
		id, workload := r.create(2000, false, client.NewPromotion{})
		r.until(id, "settled", func(p client.Promotion) bool {
			if p.Counts.Queued > 50 {
				t.Errorf("%d queued, max-len is 50", p.Counts.Queued)
			}
			return settled(p)
		})
		r.balance(id, workload)
	})
	t.Run("AnErrorEveryTimeEndsKnownNotPaid", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, w, moneysim.Faults{ErrorRate: 1})
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
	})
	t.Run("EveryReplyLostIsLookedUpAndPaidOnce", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, w, moneysim.Faults{LostReplyRate: 1})
		id, workload := r.create(15, false, client.NewPromotion{})
		account := r.balance(id, workload)
		if account.Promotion.Counts.Succeeded != 15 || r.sim.Stats().Charges != 15 {
			t.Errorf("counts %+v, provider %+v", account.Promotion.Counts, r.sim.Stats())
		}
	})
	t.Run("WrongSettingsPauseAndAResumePays", func(t *testing.T) {
		t.Parallel()
		var denied atomic.Bool
		denied.Store(true)
		front := httptest.NewUnstartedServer(nil)
		r := newRig(t, w, moneysim.Faults{}, func(c *config.Config) {
			back, err := url.Parse(c.Money.URL)
			if err != nil {
				t.Fatal(err)
			}
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
		})
		id, workload := r.create(50, false, client.NewPromotion{})
		p := r.until(id, "paused", func(p client.Promotion) bool { return p.Status == "PAUSED" })
		if !strings.Contains(p.PauseReason, "401") || p.Counts.Failed != 0 {
			t.Errorf("paused with %q, counts %+v", p.PauseReason, p.Counts)
		}
		denied.Store(false)
		if _, err := r.api.ResumePromotion(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		account := r.balance(id, workload)
		if account.Attempts != 50 {
			t.Errorf("%d attempts counted, want 50: a 401 is none", account.Attempts)
		}
	})
	t.Run("PauseHoldsAndCancelLeavesWhatIsPaid", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, w, moneysim.Faults{LatencyMs: 30}, func(c *config.Config) { c.Redis.Stream.InFlightPerConsumer = 2 })
		id, workload := r.create(2000, false, client.NewPromotion{})
		r.until(id, "under way", func(p client.Promotion) bool { return p.Counts.Succeeded > 20 })
		if _, err := r.api.PausePromotion(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		time.Sleep(1500 * time.Millisecond) // the promise: within 1 s, and a call of 30 ms
		before := r.sim.Stats().Requests
		time.Sleep(500 * time.Millisecond) // nothing must happen in it
		if after := r.sim.Stats().Requests; after != before {
			t.Errorf("%d calls while paused", after-before)
		}
		if _, err := r.api.CancelPromotion(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		p := r.until(id, "cancelled whole", func(p client.Promotion) bool {
			return p.Status == "CANCELLED" && p.FinishedAt != nil && p.Counts.Unknown == 0
		})
		stats := r.sim.Stats()
		if p.Counts.Succeeded != stats.Charges || p.AmountSucceeded != stats.Amount || p.Counts.Succeeded+p.Counts.Cancelled != int64(workload.Good) {
			t.Errorf("counts %+v, provider %+v", p.Counts, stats)
		}
	})
	t.Run("KafkaInAnyOrder", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, w, moneysim.Faults{})
		publish := r.publishing(900, 500)
		workload, err := publish.Publish(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		r.balance("900", workload)
		// Publish the whole campaign again: every record is known, and no payout runs again.
		if _, err := publish.Publish(t.Context()); err != nil {
			t.Fatal(err)
		}
		marker := r.publishing(901, 1)
		more, err := marker.Publish(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		r.balance("901", more)
		r.balance("900", workload)
		if n := r.sim.Stats().Requests; n != 501 {
			t.Errorf("%d calls for 501 targets", n)
		}
	})
	t.Run("AnAnnouncedPromotionWaitsForItsTargets", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, w, moneysim.Faults{})
		first := r.publishing(77, 10)
		workload, err := first.Publish(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		r.balance("77", workload)
		// A bigger campaign, of which only a part has come, stays open.
		announce(t, first, 78, 25)
		second := r.publishing(78, 10)
		second.Unannounced = true
		part, err := second.Publish(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		r.until("78", "paid as far as it came", func(p client.Promotion) bool { return p.Counts.Succeeded == 10 })
		if p, err := r.api.Promotion(t.Context(), "78"); err != nil || p.Status != "RUNNING" {
			t.Errorf("below its expected count: %+v, %v", p, err)
		}
		if _, err := r.api.ClosePromotion(t.Context(), "78"); err != nil {
			t.Fatal(err)
		}
		r.balance("78", part)
	})
	t.Run("ARestartInTheMiddleLosesAndRepeatsNothing", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, w, moneysim.Faults{LatencyMs: 10, JitterMs: 10, LostReplyRate: 0.02}, func(c *config.Config) { c.Redis.Stream.InFlightPerConsumer = 16 })
		id, workload := r.create(3000, false, client.NewPromotion{})
		for _, share := range []int64{300, 1200} {
			r.until(id, "under way", func(p client.Promotion) bool { return p.Counts.Succeeded > share })
			r.stop()
			r.start()
		}
		r.balance(id, workload)
	})
	t.Run("EntriesLostByTheQueueAreDispatchedAgain", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, w, moneysim.Faults{LatencyMs: 500}, func(c *config.Config) { c.Redis.Stream.InFlightPerConsumer = 4 })
		id, workload := r.create(1200, false, client.NewPromotion{})
		r.until(id, "under way", func(p client.Promotion) bool { return p.Counts.Succeeded > 20 })
		promotion, err := reward.ParsePromotionID(id)
		if err != nil {
			t.Fatal(err)
		}
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
		if err := r.engine.Queue().Ack(t.Context(), s, ids); err != nil {
			t.Fatal(err)
		}
		if err := r.sim.SetFaults(moneysim.Faults{}); err != nil {
			t.Fatal(err)
		}
		r.balance(id, workload)
	})
	t.Run("AForeignEntryIsADeadLetter", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, w, moneysim.Faults{LatencyMs: 50}, func(c *config.Config) { c.Redis.Stream.InFlightPerConsumer = 1 })
		id, workload := r.create(30, false, client.NewPromotion{})
		promotion, err := reward.ParsePromotionID(id)
		if err != nil {
			t.Fatal(err)
		}
		added, err := r.engine.Queue().Add(t.Context(), queue.AddParams{
			Stream: queue.Stream{Type: reward.Point, PromotionID: promotion}, MaxLen: 1000, Deadline: time.Now().Add(time.Minute),
			Entries: []queue.NewEntry{{TargetID: 5, Dispatch: 1, Message: []byte(`{"targetId":5}`)}},
		})
		if err != nil || added != 1 {
			t.Fatalf("Add = %d, %v", added, err)
		}
		r.balance(id, workload)
		found := false
		for letter, err := range r.api.DeadLetters(t.Context(), client.DeadLetterFilter{}) {
			if err != nil {
				t.Fatal(err)
			}
			found = found || letter.Reason == "NO_ROW"
		}
		if !found {
			t.Error("no dead letter for an entry without a row")
		}
	})
}

// TestATakenPortIsFoundOutFirst: nothing is begun, and nothing left open.
func TestATakenPortIsFoundOutFirst(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	cfg := config.Default()
	cfg.Data.Dir, cfg.HTTP.Listen, cfg.Money.URL = filepath.Join(t.TempDir(), "data"), taken.Addr().String(), "http://127.0.0.1:1"
	var log lockedBuffer
	lines, err := obs.NewLog(&log, "info", "text")
	if err != nil {
		t.Fatal(err)
	}
	e, err := engine.New(cfg, lines)
	if err != nil {
		t.Fatal(err)
	}
	err = e.Start(t.Context())
	if !errors.Is(err, syscall.EADDRINUSE) || !strings.Contains(err.Error(), cfg.HTTP.Listen) || !strings.Contains(err.Error(), "http.listen") {
		t.Errorf("Start = %v", err)
	}
	// The folder of the embedded broker is made and closed to others before anything is in it.
	left, err := os.ReadDir(cfg.Data.Dir)
	if err != nil || len(left) != 2 || left[0].Name() != "kafka" || left[1].Name() != "lock" || log.String() != "" {
		t.Errorf("%v, %v; log:\n%s", left, err, log.String())
	}
	if inside, err := os.ReadDir(filepath.Join(cfg.Data.Dir, "kafka")); err != nil || len(inside) != 0 {
		t.Errorf("%v, %v", inside, err)
	}
	taken.Close()
	if err := e.Start(t.Context()); err != nil {
		t.Fatalf("once the port is free: %v", err)
	}
	e.Stop()
}

// TestASecondProcessIsRefused holds the sole possession of a data folder.
func TestASecondProcessIsRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t, embedded, moneysim.Faults{})
	second, err := engine.New(r.cfg, obs.Log{})
	if err != nil {
		t.Fatal(err)
	}
	err = second.Start(t.Context())
	if !errors.Is(err, engine.ErrInUse) {
		t.Fatalf("Start = %v, want ErrInUse", err)
	}
	if name := fmt.Sprintf("-%d", os.Getpid()); !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), r.cfg.Data.Dir) {
		t.Errorf("the refusal %q names neither the holder nor the folder", err)
	}
	r.stop()
	if err := second.Start(t.Context()); err != nil {
		t.Fatalf("after the first has gone: %v", err)
	}
	second.Stop()
	if _, err := os.Stat(filepath.Join(r.cfg.Data.Dir, "largesse.db")); err != nil {
		t.Error(err)
	}
}
