package test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/config"
	"github.com/largesse/largesse/internal/engine"
	"github.com/largesse/largesse/internal/lab"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/lab/fleet"
	"github.com/largesse/largesse/internal/money/moneysim"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/store/postgres"
)

// The tests use paths from the root of the repository.
func TestMain(m *testing.M) {
	root, err := fleet.ModuleRoot()
	if err == nil {
		err = os.Chdir(root)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fixture.Main(m)
}

// world points the settings of an engine at where it runs, apart from all other tests.
type world func(t *testing.T, cfg *config.Config)

// embedded is the world of the embedded engines.
func embedded(*testing.T, *config.Config) {}

// servers is the world of real servers: a schema, a key prefix and a topic prefix for each
// test.
func servers(t *testing.T, cfg *config.Config) {
	t.Helper()
	cfg.Database.URL = fixture.Schema(t, migrate)
	cfg.Database.MaxConnections, cfg.Coupon.ConsumerConcurrency = 10, 4
	cfg.Redis.URL = fixture.Address(t, fleet.VariableRedis)
	cfg.Redis.KeyPrefix = fixture.Keys(t, cfg.Redis.URL)
	cfg.Kafka.Brokers, cfg.Kafka.TopicPrefix = fixture.Topics(t)
}

// migrate creates the tables of a schema.
func migrate(ctx context.Context, url string) error {
	s, err := postgres.Open(ctx, postgres.Config{URL: url, MaxConnections: 2})
	if err != nil {
		return err
	}
	defer s.Close()
	return s.Migrate(ctx)
}

// withoutStreams is a world in which each instance works from its own in-process queue.
func withoutStreams(w world) world {
	return func(t *testing.T, cfg *config.Config) {
		t.Helper()
		w(t, cfg)
		cfg.Redis.Stream.Enabled = false
	}
}

// rig is one running engine with its provider and its client.
type rig struct {
	t      *testing.T
	cfg    config.Config
	sim    *moneysim.Server
	simURL string
	engine *engine.Engine
	api    *client.Client
	lines  *fixture.Buffer // log of the engine since its latest start
}

func newRig(t *testing.T, w world, faults moneysim.Faults, change ...func(*config.Config)) *rig {
	t.Helper()
	sim, simURL := startSim(t, faults)
	cfg := config.Default()
	cfg.Data.Dir = t.TempDir()
	cfg.HTTP.Listen = "127.0.0.1:0"
	cfg.Money.URL = simURL
	cfg.Money.Timeout, cfg.Money.SettleAfter, cfg.Redis.Stream.LeaseSeconds = 2*time.Second, 2*time.Second, 6
	w(t, &cfg)
	for _, f := range change {
		f(&cfg)
	}
	r := &rig{t: t, cfg: cfg, sim: sim, simURL: simURL}
	r.start()
	t.Cleanup(func() { r.stop() })
	return r
}

// patient lets calls and leases end in time although the machine is busy. A test that
// counts calls needs it.
func patient(cfg *config.Config) {
	cfg.Money.Timeout, cfg.Money.SettleAfter, cfg.Redis.Stream.LeaseSeconds = 5*time.Second, 5*time.Second, 15
}

func (r *rig) start() {
	r.t.Helper()
	lines := &fixture.Buffer{}
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
	fixture.OK(r.t, r.engine.Start(r.t.Context()))
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
	workload := fixture.Must(lab.WriteTargets(&file, n, mistakes))(r.t)
	if p.Name == "" {
		p.Name = r.t.Name()
	}
	p.Type = "POINT"
	id, res := r.pay(p, &file)
	if res.Accepted != int64(workload.Good) || res.Rejected != int64(workload.Bad) || res.Duplicates != int64(workload.Repeat) || res.Amount != workload.Amount {
		r.t.Fatalf("upload said %+v for %+v", res, workload)
	}
	return id, workload
}

// pay makes a promotion with a file's targets, and starts it.
func (r *rig) pay(p client.NewPromotion, file io.Reader) (id string, res client.UploadResult) {
	r.t.Helper()
	made, err := r.api.CreatePromotion(r.t.Context(), p)
	if err != nil {
		r.t.Fatal(err)
	}
	if res, err = r.api.UploadTargets(r.t.Context(), made.ID, file, client.UploadOptions{}); err != nil {
		r.t.Fatal(err)
	}
	fixture.Must(r.api.StartPromotion(r.t.Context(), made.ID))(r.t)
	return made.ID, res
}

// until polls a promotion until the condition holds.
func (r *rig) until(id, what string, holds func(p client.Promotion) bool) (p client.Promotion) {
	r.t.Helper()
	fixture.Until(r.t, "promotion "+id+" is "+what, func() bool {
		var err error
		p, err = r.api.Promotion(r.t.Context(), id)
		var problem *client.Problem
		if err != nil && !errors.As(err, &problem) {
			r.t.Fatal(err)
		}
		return err == nil && holds(p)
	})
	return p
}

func settled(p client.Promotion) bool { return p.Status == "COMPLETED" && p.Counts.Unknown == 0 }

// balance waits for the end of a promotion and checks its books.
func (r *rig) balance(id string, workload lab.Workload) lab.Account {
	r.t.Helper()
	r.until(id, "settled", settled)
	ledger := fixture.Must(lab.ReadLedger(r.t.Context(), r.simURL))(r.t)
	account := fixture.Must(lab.CheckBooks(r.t.Context(), r.api, id, workload, ledger))(r.t)
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

// scrape reads /metrics.
func (r *rig) scrape() map[string]*dto.MetricFamily {
	r.t.Helper()
	return scrape(r.t, "http://"+r.engine.Addr())
}

// scrape reads the metrics of the instance at an address.
func scrape(t *testing.T, address string) map[string]*dto.MetricFamily {
	t.Helper()
	req := fixture.Must(http.NewRequestWithContext(t.Context(), http.MethodGet, address+"/metrics", nil))(t)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("status %d, %v", res.StatusCode, err)
	}
	return families
}

// value adds up a family's series whose label values include all of labels.
func value(families map[string]*dto.MetricFamily, name string, labels ...string) float64 {
	sum := 0.0
	for _, s := range families[name].GetMetric() {
		var has []string
		for _, l := range s.GetLabel() {
			has = append(has, l.GetValue())
		}
		if !slices.ContainsFunc(labels, func(l string) bool { return !slices.Contains(has, l) }) {
			sum += s.GetGauge().GetValue() + s.GetCounter().GetValue() + float64(s.GetHistogram().GetSampleCount())
		}
	}
	return sum
}

func startSim(t *testing.T, faults moneysim.Faults) (*moneysim.Server, string) {
	t.Helper()
	sim := fixture.Must(moneysim.New(moneysim.Config{Faults: faults, Seed: 7}))(t)
	addr := fixture.Must(sim.Start("127.0.0.1:0"))(t)
	t.Cleanup(sim.Close)
	return sim, "http://" + addr
}
