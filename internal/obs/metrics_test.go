package obs

import (
	"maps"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/largesse/largesse/internal/reward"
)

// gather reads the series of a family: label values, comma-separated, to
// value.
func gather(t *testing.T, m *Metrics, name string) map[string]float64 {
	t.Helper()
	families, err := m.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, s := range f.GetMetric() {
			var labels []string
			for _, l := range s.GetLabel() {
				labels = append(labels, l.GetValue())
			}
			value := s.GetCounter().GetValue() + s.GetGauge().GetValue()
			if h := s.GetHistogram(); h != nil {
				value = float64(h.GetSampleCount())
			}
			out[strings.Join(labels, ",")] = value
		}
	}
	return out
}

// useEverything calls every method once.
func useEverything(m *Metrics) {
	m.RequestAnswered("get-promotion", 200)
	m.RequestTook("get-promotion", 204, 30*time.Millisecond)
	m.RequestTook("get-promotion", 0, time.Minute)
	m.DatabaseCalled("list payouts", 30*time.Millisecond)
	m.DatabasePoolsFrom(func() []DatabasePool {
		return []DatabasePool{{Name: DatabaseWork, InUse: 4, Idle: 3, Max: 20, Waiting: 2, Waited: 1500 * time.Millisecond}}
	})
	m.Refused(401)
	now := time.Now()
	m.SetWaits(now.Add(-time.Hour), now.Add(time.Hour), time.Time{})
	m.PromotionsPaused(2)
	NewTroubles(m, Log{}).Set(PartProvider, "away")
	m.CouponAsked("WAITING")
	m.Built("1.2.3")
	m.InstancesAlive(3)
	m.CouponsIssued(7, 1)
	m.CouponRejected(7, reward.ReasonSoldOut)
	m.HoldsConfirmed(1)
	m.HoldsExpired(1)
	m.GateLoaded()
	m.SpansEnded(SpanDropped, 4)
	m.Claimed(2)
	m.Swept(3)
	m.PoolStarted()
	m.PoolIdleStopped()
	m.DeadLettered(reward.CodePoison, 2)
	for range 5 {
		m.Finished(1, reward.Succeeded, 7)
	}
	m.CallOpened()
	m.CallOpened()
	m.CallOpened()
	m.CallEnded(true, 40*time.Millisecond)
	m.CallEnded(false, time.Second)
	m.Charged(reward.AnswerPaid)
	m.LookedUp(LookupOpen)
	m.Breached()
	m.SetBalance(12345, true)
	m.SetBalance(6, true)
	m.SetBalance(6, false)
	m.WebhookAttempted(WebhookDelivered)
	m.PoolsFrom(func() (pools, consumers, pending int) { return 2, 9, 70 })
	m.GovernorFrom(func() GovernorFigures { return GovernorFigures{Limit: 64, Waiting: 12, BreakerOpen: true} })
	m.PartsFrom(func() map[string]bool { return map[string]bool{"store": true, "queue": false} })
	m.SetStream(reward.Voucher, 12345, 10, 7, 3, 1500*time.Millisecond)
}

func TestMetrics(t *testing.T) {
	t.Parallel()

	t.Run("CountsWhatItIsTold", func(t *testing.T) {
		t.Parallel()
		m := NewMetrics()
		useEverything(m)
		zeroed := func(some map[string]float64, rest ...string) map[string]float64 {
			for _, name := range rest {
				some[name] = 0
			}
			return some
		}
		for name, want := range map[string]map[string]float64{
			"largesse_claims_total":      {"": 2},
			"largesse_sweeps_total":      {"": 3},
			"largesse_pool_starts_total": {"": 1},
			"largesse_idle_stops_total":  {"": 1},
			"largesse_dead_letters_total": zeroed(map[string]float64{"POISON": 2},
				"MALFORMED", "TYPE_MISMATCH", "CONFLICT", "INVALID", "NEVER_GIVEN", "AMOUNT_OVERFLOW", "ARCHIVED", "TEMPLATE_NOT_FOUND"),
			"largesse_payouts_total": zeroed(map[string]float64{"SUCCEEDED": 5}, "FAILED", "RETRYING", "UNKNOWN", "CANCELLED"),
			"largesse_provider_calls_total": zeroed(map[string]float64{"PAID": 1, "LOOKUP_OPEN": 1},
				"REFUSED", "FAILED", "UNKNOWN", "THROTTLED", "MISSET", "UNSENT", "LOOKUP_FOUND", "LOOKUP_NOT_FOUND"),
			"largesse_provider_call_seconds":                  {"": 1},
			"largesse_http_request_seconds":                   {"2xx,get-promotion": 1, "0,get-promotion": 1},
			"largesse_database_call_seconds":                  {"list payouts": 1},
			"largesse_database_connections_in_use":            {"work": 4},
			"largesse_database_connections_idle":              {"work": 3},
			"largesse_database_connections_max":               {"work": 20},
			"largesse_database_connections_waiting":           {"work": 2},
			"largesse_database_connection_wait_seconds_total": {"work": 1.5},
			"largesse_provider_calls_open":                    {"": 1},
			"largesse_balance_breaches_total":                 {"": 1},
			"largesse_balance_broken":                         {"12345": 1},
			"largesse_webhook_backlog":                        {"": 0}, "largesse_webhook_endpoints_disabled": {"": 0}, "largesse_webhook_events_dropped_total": {"": 0},
			"largesse_webhooks_total":                    zeroed(map[string]float64{"HEARD": 1}, "LATER", "GIVEN_UP"),
			"largesse_pools":                             {"": 2},
			"largesse_consumers":                         {"": 9},
			"largesse_entries_in_hand":                   {"": 70},
			"largesse_governor_limit":                    {"": 64},
			"largesse_governor_waiting":                  {"": 12},
			"largesse_governor_breaker_open":             {"": 1},
			"largesse_governor_rates_away":               {"": 0},
			"largesse_up":                                {"store": 1, "queue": 0},
			"largesse_stream_length":                     {"12345,VOUCHER": 10},
			"largesse_stream_lag":                        {"12345,VOUCHER": 7},
			"largesse_stream_pending":                    {"12345,VOUCHER": 3},
			"largesse_stream_oldest_pending_age_seconds": {"12345,VOUCHER": 1.5},
		} {
			if diff := cmp.Diff(want, gather(t, m, name)); diff != "" {
				t.Errorf("%s (-want +got):\n%s", name, diff)
			}
		}
	})

	t.Run("StreamsThatAreGoneEndTheirSeries", func(t *testing.T) {
		t.Parallel()
		m := NewMetrics()
		m.SetStream(reward.Point, 1, 1, 1, 0, 0)
		m.SetStream(reward.Point, 2, 2, 2, 0, -time.Second)
		m.SetStream(reward.Point, 2, 5, 2, 3, -time.Second)
		m.KeepStreams([]reward.PromotionID{2, 3})
		if diff := cmp.Diff(map[string]float64{"2,POINT": 5}, gather(t, m, "largesse_stream_length")); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(map[string]float64{"2,POINT": 0}, gather(t, m, "largesse_stream_oldest_pending_age_seconds")); diff != "" {
			t.Errorf("a clock ahead of ours (-want +got):\n%s", diff)
		}
		m.KeepStreams(nil)
		if got := gather(t, m, "largesse_stream_length"); len(got) > 0 {
			t.Errorf("still there: %v", got)
		}
	})

	t.Run("NilAndZeroCountNothing", func(t *testing.T) {
		t.Parallel()
		for _, m := range []*Metrics{nil, {}} {
			useEverything(m)
			m.KeepStreams(nil)
			w := httptest.NewRecorder()
			m.Handler().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "GET", "/metrics", nil))
			if w.Code != 200 || w.Body.Len() != 0 {
				t.Errorf("%d %s", w.Code, w.Body.String())
			}
		}
	})

	t.Run("WaitsGrowUntilTheNextMeasurement", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			m := NewMetrics()
			names := []string{"largesse_oldest_ready_age_seconds", "largesse_dispatch_stalled_seconds", "largesse_oldest_unknown_age_seconds"}
			is := func(what string, want ...float64) {
				t.Helper()
				var got []float64
				for _, name := range names {
					for _, v := range gather(t, m, name) {
						got = append(got, v)
					}
				}
				if !slices.Equal(got, want) {
					t.Errorf("%s: %v, want %v", what, got, want)
				}
			}
			is("not measured")
			now := time.Now()
			m.SetWaits(now.Add(-90*time.Second), now.Add(time.Second), time.Time{})
			is("a clock ahead of ours, and no UNKNOWN payout", 90, 0, 0)
			time.Sleep(5 * time.Second)
			is("later", 95, 4, 0)
			m.SetWaits(time.Time{}, time.Time{}, now.Add(-24*time.Hour))
			is("measured again", 0, 0, 86405)
		})
	})
}

var (
	describedName = regexp.MustCompile(`fqName: "([^"]+)"`)
	pageRow       = regexp.MustCompile("^\\| `(largesse_[a-z_]+)` \\| ([a-z]+) \\|([^|]*)\\|")
	pageLabel     = regexp.MustCompile("`([a-z_]+)`")
)

// TestMetricsPage holds docs/metrics.md to what is registered, name, type and
// labels.
func TestMetricsPage(t *testing.T) {
	t.Parallel()
	const page = "../../docs/metrics.md"
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	written := map[string]string{}
	for line := range strings.SplitSeq(string(text), "\n") {
		row := pageRow.FindStringSubmatch(line)
		if row == nil {
			continue
		}
		var labels []string
		for _, l := range pageLabel.FindAllStringSubmatch(row[3], -1) {
			labels = append(labels, l[1])
		}
		if _, twice := written[row[1]]; twice {
			t.Errorf("%s has two rows for %s", page, row[1])
		}
		written[row[1]] = row[2] + " " + strings.Join(labels, ",")
	}

	m := NewMetrics()
	useEverything(m)
	families, err := m.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	registered := map[string]string{}
	for _, f := range families {
		if !strings.HasPrefix(f.GetName(), "largesse_") {
			continue
		}
		if f.GetHelp() == "" {
			t.Errorf("%s has no help", f.GetName())
		}
		var labels []string
		for _, l := range f.GetMetric()[0].GetLabel() {
			labels = append(labels, l.GetName())
		}
		registered[f.GetName()] = strings.ToLower(dto.MetricType_name[int32(f.GetType())]) + " " + strings.Join(labels, ",")
	}
	if diff := cmp.Diff(registered, written); diff != "" {
		t.Errorf("%s is not what is registered (-registered +page):\n%s", page, diff)
	}

	// A family without a series would have escaped both.
	descs := make(chan *prometheus.Desc)
	go func() {
		defer close(descs)
		m.registry.Describe(descs)
	}()
	described := 0
	for d := range descs {
		name := describedName.FindStringSubmatch(d.String())
		if name == nil {
			t.Fatalf("no name in %s", d)
		}
		if strings.HasPrefix(name[1], "largesse_") {
			described++
			if _, seen := registered[name[1]]; !seen {
				t.Errorf("%s has no series: let useEverything give it one", name[1])
			}
		}
	}
	if described != len(registered) {
		t.Errorf("%d are described, %d have series: %v", described, len(registered), slices.Sorted(maps.Keys(registered)))
	}
}
