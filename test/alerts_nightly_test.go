//go:build nightly

package test

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	dto "github.com/prometheus/client_model/go"
	"github.com/redis/rueidis"
	"go.yaml.in/yaml/v3"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/config"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/lab/fleet"
	"github.com/largesse/largesse/internal/money/moneysim"
	"github.com/largesse/largesse/internal/queue"
	"github.com/largesse/largesse/internal/queue/redisstream"
	"github.com/largesse/largesse/internal/reward"
)

// Each half second of a fault stands for half a minute of an alert's time.
const (
	scrapes      = 32
	scrapeEvery  = 500 * time.Millisecond
	scrapeStands = 30 * time.Second
)

// recording has the values of each series, by its name with labels, at each scrape.
type recording struct {
	values map[string][]string
	taken  int
}

func (rec *recording) note(series, value string) {
	if rec.values[series] == nil {
		rec.values[series] = slices.Repeat([]string{"_"}, rec.taken)
	}
	rec.values[series] = append(rec.values[series], value)
}

// add records one scrape; nil families are an instance that does not answer.
func (rec *recording) add(families map[string]*dto.MetricFamily) {
	up := "0"
	if families != nil {
		up = "1"
	}
	rec.note(`up{instance="a",job="largesse"}`, up)
	for name, family := range families {
		if !strings.HasPrefix(name, "largesse_") {
			continue
		}
		for _, m := range family.GetMetric() {
			labels := []string{`instance="a"`, `job="largesse"`}
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName()+"="+strconv.Quote(l.GetValue()))
			}
			number := func(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }
			series := func(name string, more ...string) string {
				all := slices.Sorted(slices.Values(append(slices.Clone(labels), more...)))
				return name + "{" + strings.Join(all, ",") + "}"
			}
			if h := m.GetHistogram(); h != nil {
				for _, b := range h.GetBucket() {
					rec.note(series(name+"_bucket", fmt.Sprintf("le=%q", number(b.GetUpperBound()))), number(float64(b.GetCumulativeCount())))
				}
				continue
			}
			rec.note(series(name), number(m.GetGauge().GetValue()+m.GetCounter().GetValue()))
		}
	}
	rec.taken++
	for series, values := range rec.values { // series that ended
		if len(values) < rec.taken {
			rec.values[series] = append(values, "stale")
		}
	}
}

// fired returns the alerts that fired at any time of the recording, as Prometheus
// evaluates the rules.
func (rec *recording) fired(t *testing.T, promtool string, names []string) []string {
	t.Helper()
	rules := fixture.Must(filepath.Abs(alertsFile))(t)
	type series struct {
		Series string `yaml:"series"`
		Values string `yaml:"values"`
	}
	var input []series
	for _, name := range slices.Sorted(maps.Keys(rec.values)) {
		input = append(input, series{name, strings.Join(rec.values[name], " ")})
	}
	var checks []any
	for _, name := range names {
		// The expectation "none" fails for the alerts that fired.
		checks = append(checks, map[string]any{
			"expr":      fmt.Sprintf(`count(last_over_time(ALERTS{alertname=%q,alertstate="firing"}[1h])) or vector(0)`, name),
			"eval_time": (scrapeStands * scrapes).String(), "exp_samples": []any{map[string]any{"labels": "{}", "value": 0}},
		})
	}
	text := fixture.Must(yaml.Marshal(map[string]any{
		"rule_files": []string{rules}, "evaluation_interval": scrapeStands.String(),
		"tests": []any{map[string]any{"interval": scrapeStands.String(), "input_series": input, "promql_expr_test": checks}},
	}))(t)
	path := filepath.Join(t.TempDir(), "test.yaml")
	fixture.OK(t, os.WriteFile(path, text, 0o600))
	out, err := exec.CommandContext(t.Context(), promtool, "test", "rules", path).CombinedOutput()
	var fired []string
	for _, m := range firedName.FindAllStringSubmatch(string(out), -1) {
		fired = append(fired, m[1])
	}
	if err != nil && len(fired) == 0 {
		t.Fatalf("%v\n%s", err, out)
	}
	return fired
}

// firedName finds the names of alerts that fired in what promtool prints.
var firedName = regexp.MustCompile(`alertname=\\*"(\w+)`)

// TestNightlyAlertsFire fires each alert with a real fault, and none without one. promtool,
// which also checks the syntax of the rules, evaluates what an instance reported. It runs
// next to no other test, because it needs much of the machine.
func TestNightlyAlertsFire(t *testing.T) {
	promtool := installedPromtool(t)
	var names []string
	for _, rule := range alertRules(t) {
		names = append(names, rule.Alert)
	}

	work := client.NewPromotion{RatePerSecond: 100}
	onRedis := servers
	// scenario starts a rig, and returns what happens before each scrape.
	scenarios := map[string]struct {
		alerts   []string
		scenario func(t *testing.T) (r *rig, before func(scrape int))
	}{
		"Healthy": {nil, func(t *testing.T) (*rig, func(int)) {
			r := newRig(t, embedded, moneysim.Faults{LatencyMs: 20})
			r.create(3000, false, work)
			return r, nil
		}},
		"InstanceDown": {[]string{"LargesseInstanceDown"}, func(t *testing.T) (*rig, func(int)) {
			r := newRig(t, embedded, moneysim.Faults{})
			return r, func(scrape int) {
				if scrape == 5 {
					r.stop()
				}
			}
		}},
		"RedisAway": {[]string{"LargessePartDown", "LargesseDegraded", "LargesseCouponsUnavailable", "LargesseApiFails"}, func(t *testing.T) (*rig, func(int)) {
			relay := fixture.Must(fleet.NewRelay(t.Context(), strings.TrimPrefix(fixture.Address(t, fleet.VariableRedis), "redis://")))(t)
			t.Cleanup(relay.Close)
			r := newRig(t, onRedis, moneysim.Faults{}, func(cfg *config.Config) { cfg.Redis.URL = "redis://" + relay.Addr() })
			made := fixture.Must(r.api.CreateTemplate(t.Context(), client.NewTemplate{Name: "wait", TotalQuantity: 1000, WhenRedisAway: "WAIT"}))(t)
			t.Cleanup(relay.Resume) // before the stop
			return r, func(scrape int) {
				if scrape == 5 {
					relay.Hang()
				}
				_, _ = r.api.IssueCoupon(t.Context(), made.ID, fmt.Sprintf("u%d", scrape), 0) // most are refused
			}
		}},
		"NothingIsConsumed": {[]string{"LargesseNothingIsConsumed"}, func(t *testing.T) (*rig, func(int)) {
			r := newRig(t, onRedis, moneysim.Faults{LatencyMs: 500}, func(cfg *config.Config) { cfg.Redis.Stream.MaxConsumerPerInstance = 1 })
			id, _ := r.create(3000, false, client.NewPromotion{})
			r.until(id, "dispatched", func(p client.Promotion) bool { return p.Counts.Queued > 500 })
			r.stop()
			r.cfg.Roles = slices.DeleteFunc(slices.Clone(r.cfg.Roles), func(role string) bool { return role == config.RolePayout })
			r.start()
			return r, nil
		}},
		"ProviderDown": {[]string{"LargesseProviderDown", "LargesseDegraded"}, func(t *testing.T) (*rig, func(int)) {
			r := newRig(t, embedded, moneysim.Faults{Away: true})
			r.create(3000, false, work)
			return r, nil
		}},
		"ProviderRefusesUs": {[]string{"LargesseProviderRefusesUs"}, func(t *testing.T) (*rig, func(int)) {
			r := newRig(t, embedded, moneysim.Faults{})
			return r, func(scrape int) {
				if scrape == 4 {
					if err := r.sim.SetFaults(moneysim.Faults{MisconfiguredStatus: http.StatusUnauthorized}); err != nil {
						t.Error(err)
					}
					r.create(100, false, work)
				}
			}
		}},
		"PromotionPaused": {[]string{"LargessePromotionPaused"}, func(t *testing.T) (*rig, func(int)) {
			r := newRig(t, embedded, moneysim.Faults{MisconfiguredStatus: http.StatusUnauthorized})
			id, _ := r.create(100, false, client.NewPromotion{})
			r.until(id, "paused", func(p client.Promotion) bool { return p.Status == "PAUSED" })
			r.stop() // paused promotions are counted at the start, and every 15 s
			r.start()
			fixture.Until(t, "the promotion is counted", func() bool { return value(r.scrape(), "largesse_promotions_paused") == 1 })
			return r, nil
		}},
		"ProviderSlow": {[]string{"LargesseProviderSlow"}, func(t *testing.T) (*rig, func(int)) {
			r := newRig(t, embedded, moneysim.Faults{LatencyMs: 3000}, func(cfg *config.Config) {
				cfg.Money.Timeout, cfg.Redis.Stream.LeaseSeconds = 5*time.Second, 8
			})
			r.create(3000, false, work)
			return r, nil
		}},
		"ChargesFail": {[]string{"LargesseChargesFail"}, func(t *testing.T) (*rig, func(int)) {
			r := newRig(t, embedded, moneysim.Faults{ErrorRate: 0.4})
			r.create(3000, false, work)
			return r, nil
		}},
		"PayoutsFail": {[]string{"LargessePayoutsFail"}, func(t *testing.T) (*rig, func(int)) {
			r := newRig(t, embedded, moneysim.Faults{RefuseRate: 0.4})
			r.create(3000, false, work)
			return r, nil
		}},
		"Books": {[]string{"LargesseBooksDoNotBalance"}, func(t *testing.T) (*rig, func(int)) {
			r := newRig(t, embedded, moneysim.Faults{}, func(cfg *config.Config) { cfg.Reconcile.Interval = time.Second })
			id, _ := r.create(3000, false, work)
			// Somebody else charges a target of the promotion that does not exist.
			body := fmt.Sprintf(`{"promotionId":%q,"targetId":"999999","userId":"stranger","amount":1}`, id)
			req := fixture.Must(http.NewRequestWithContext(t.Context(), http.MethodPost, r.simURL+"/v1/points/charge", strings.NewReader(body)))(t)
			req.Header.Set("Content-Type", "application/json")
			req.Header.Set("Idempotency-Key", id+":999999")
			res, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			_ = res.Body.Close()
			if res.StatusCode != http.StatusOK {
				t.Fatal(res.Status)
			}
			fixture.Until(t, "the reconciler finds the charge", func() bool { return value(r.scrape(), "largesse_balance_broken") > 0 })
			return r, nil
		}},
		"DeadLetters": {[]string{"LargesseDeadLetters"}, func(t *testing.T) (*rig, func(int)) {
			return lossy(t, func(_ *redisstream.Queue, _ queue.Stream, key string, raw rueidis.Client) {
				// An entry of another program, without a dispatch number.
				_ = raw.Do(t.Context(), raw.B().Xadd().Key(key).Id("*").FieldValue().FieldValue("key", "1").Build()).Error()
			})
		}},
		"EntriesClaimed": {[]string{"LargesseEntriesClaimed"}, func(t *testing.T) (*rig, func(int)) {
			return lossy(t, func(q *redisstream.Queue, s queue.Stream, _ string, _ rueidis.Client) {
				// A consumer that takes entries and dies.
				_, _ = q.Read(t.Context(), s, []queue.ReadParams{{Consumer: "dead-1-0", Count: 20}})
			})
		}},
		"EntriesLost": {[]string{"LargesseEntriesLost"}, func(t *testing.T) (*rig, func(int)) {
			return lossy(t, func(_ *redisstream.Queue, _ queue.Stream, key string, raw rueidis.Client) {
				_ = raw.Do(t.Context(), raw.B().Del().Key(key).Build()).Error()
			})
		}},
		"PayoutsWait": {[]string{"LargessePayoutsWait"}, func(t *testing.T) (*rig, func(int)) {
			r := newRig(t, onRedis, moneysim.Faults{LatencyMs: 200}, func(cfg *config.Config) { cfg.Redis.Stream.MaxLen = 20 })
			id, _ := r.create(3000, false, client.NewPromotion{})
			r.until(id, "dispatched", func(p client.Promotion) bool { return p.Counts.Queued > 0 })
			r.stop()
			// The rows become an hour old. Then somebody's session holds the promotion's counts.
			somebody := session(t, r.cfg.Database.URL)
			execute(t, somebody, `UPDATE payouts SET due_at = due_at - interval '1 hour' WHERE state = 0`)
			execute(t, somebody, `UPDATE promotions SET last_dispatched_at = last_dispatched_at - interval '1 hour'`)
			execute(t, somebody, `BEGIN`)
			execute(t, somebody, `SELECT 1 FROM summaries WHERE promotion_id = $1 FOR UPDATE`, id)
			r.start()
			return r, nil
		}},
		"UnknownPayouts": {[]string{"LargesseUnknownPayouts"}, func(t *testing.T) (*rig, func(int)) {
			// Each charge fails, and "not found" counts an hour later only.
			r := newRig(t, onRedis, moneysim.Faults{ErrorRate: 1}, func(cfg *config.Config) {
				cfg.Money.MaxRetries, cfg.Money.SettleAfter = 0, time.Hour
			})
			id, _ := r.create(20, false, client.NewPromotion{})
			r.until(id, "unknown", func(p client.Promotion) bool { return p.Counts.Unknown > 0 })
			r.stop()
			execute(t, session(t, r.cfg.Database.URL), `UPDATE payouts SET updated_at = updated_at - interval '25 hours' WHERE state = 3`)
			r.start()
			return r, nil
		}},
		"Database": {[]string{"LargesseDatabaseSlow", "LargesseDatabaseBusy"}, func(t *testing.T) (*rig, func(int)) {
			r := newRig(t, onRedis, moneysim.Faults{})
			r.create(3000, false, work)
			draft := fixture.Must(r.api.CreatePromotion(t.Context(), client.NewPromotion{Name: "draft", Type: "POINT", Amount: 1}))(t)
			somebody := session(t, r.cfg.Database.URL)
			ctx, cancel := context.WithCancel(t.Context())
			var uploads sync.WaitGroup
			t.Cleanup(func() { cancel(); _ = somebody.Close(context.Background()); uploads.Wait() })
			return r, func(scrape int) {
				if scrape != 4 {
					return
				}
				execute(t, somebody, `BEGIN`)
				execute(t, somebody, `LOCK TABLE payouts IN ACCESS EXCLUSIVE MODE`)
				for n := range 3 * r.cfg.Database.MaxConnections {
					uploads.Go(func() {
						for ctx.Err() == nil {
							_, _ = r.api.UploadTargets(ctx, draft.ID, strings.NewReader(fmt.Sprintf("targetId\n%d\n", n)), client.UploadOptions{}) // most fail
						}
					})
				}
			}
		}},
		"TracesLost": {[]string{"LargesseTracesLost"}, func(t *testing.T) (*rig, func(int)) {
			collector := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadRequest) }))
			t.Cleanup(collector.Close)
			r := newRig(t, embedded, moneysim.Faults{LatencyMs: 20}, func(cfg *config.Config) {
				cfg.Otel.Endpoint, cfg.Otel.SampleOneIn = collector.URL, 1
			})
			return r, func(int) {
				_, _ = r.api.Overview(t.Context()) // has a span
			}
		}},
		"WebhookBacklog": {[]string{"LargesseWebhookBacklog"}, func(t *testing.T) (*rig, func(int)) {
			away := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) }))
			t.Cleanup(away.Close)
			r := newRig(t, embedded, moneysim.Faults{RefuseRate: 0.4}, func(cfg *config.Config) { cfg.Webhook.AllowPrivate = true })
			fixture.Must(r.api.CreateWebhookEndpoint(t.Context(), client.NewWebhookEndpoint{URL: away.URL, Events: []string{"payout.failed"}}))(t)
			id, _ := r.create(28_000, false, client.NewPromotion{})
			r.until(id, "refused", func(p client.Promotion) bool { return p.Counts.Failed > 10_500 })
			r.stop() // the backlog is measured at the start, and once a minute
			r.start()
			fixture.Until(t, "the backlog is measured", func() bool { return value(r.scrape(), "largesse_webhook_backlog") > 10_000 })
			return r, nil
		}},
		"Webhooks": {[]string{"LargesseWebhooksAbandoned"}, func(t *testing.T) (*rig, func(int)) {
			gone := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusGone) }))
			t.Cleanup(gone.Close)
			r := newRig(t, embedded, moneysim.Faults{}, func(cfg *config.Config) {
				cfg.Webhook.Secret, cfg.Webhook.AllowPrivate = "a secret of more than sixteen", true
			})
			return r, func(scrape int) {
				if scrape == 4 {
					r.create(10, false, client.NewPromotion{WebhookURL: gone.URL})
				}
			}
		}},
	}
	tried := map[string]bool{}
	for name, s := range scenarios {
		for _, alert := range s.alerts {
			tried[alert] = true
		}
		t.Run(name, func(t *testing.T) {
			if len(s.alerts) > 0 {
				t.Parallel() // the others would make the database of an instance without a fault slow
			}
			r, before := s.scenario(t)
			rec := &recording{values: map[string][]string{}}
			tick := time.NewTicker(scrapeEvery)
			defer tick.Stop()
			for n := range scrapes {
				if before != nil {
					before(n)
				}
				var families map[string]*dto.MetricFamily
				if r.engine != nil {
					families = r.scrape()
				}
				rec.add(families)
				<-tick.C
			}
			fired := rec.fired(t, promtool, names)
			t.Logf("fired: %v", fired)
			for _, alert := range s.alerts {
				if !slices.Contains(fired, alert) {
					t.Errorf("%s did not fire", alert)
				}
			}
			if len(s.alerts) == 0 && len(fired) > 0 {
				t.Errorf("%v fired without a fault", fired)
			}
		})
	}
	for _, name := range names {
		if !tried[name] {
			t.Errorf("no fault of this test fires %s", name)
		}
	}
}

// session connects to the database as somebody else does.
func session(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	db := fixture.Must(pgx.Connect(t.Context(), url))(t)
	t.Cleanup(func() { _ = db.Close(context.Background()) })
	return db
}

// execute runs a statement.
func execute(t *testing.T, db *pgx.Conn, sql string, args ...any) {
	t.Helper()
	if _, err := db.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// lossy starts a rig whose stream, which has the key, somebody harms before each scrape.
func lossy(t *testing.T, harm func(q *redisstream.Queue, s queue.Stream, key string, raw rueidis.Client)) (*rig, func(int)) {
	t.Helper()
	r := newRig(t, servers, moneysim.Faults{LatencyMs: 100}, func(cfg *config.Config) {
		cfg.Redis.Stream.MaxConsumerPerInstance = 1
	})
	id, _ := r.create(20_000, false, client.NewPromotion{})
	number := fixture.Must(reward.ParsePromotionID(id))(t)
	q := fixture.Must(redisstream.Open(t.Context(), redisstream.Config{URL: r.cfg.Redis.URL, KeyPrefix: r.cfg.Redis.KeyPrefix}))(t)
	t.Cleanup(q.Close)
	s := queue.Stream{Type: reward.Point, PromotionID: number}
	raw := fixture.RedisClient(t, r.cfg.Redis.URL)
	t.Cleanup(raw.Close)
	return r, func(int) {
		harm(q, s, redisstream.StreamKey(r.cfg.Redis.KeyPrefix, s), raw)
	}
}
