package lab

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/jackc/pgx/v5"
	"github.com/redis/rueidis"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/config"
	"github.com/largesse/largesse/internal/engine"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/service"
)

// Misuse is the error of an option that cannot be used.
type Misuse string

func (m Misuse) Error() string { return string(m) }

// Bench is where a benchmark runs.
type Bench struct {
	Database, Redis string   // URLs of PostgreSQL and Redis
	Brokers         []string // of Kafka; none: the embedded broker
	Log             io.Writer
	// Progress shows how much of an activity is done.
	Progress func(activity string, done, total int64)
}

// Figure is one measurement of a benchmark, or a statement about its run.
type Figure struct {
	Name string `json:"name"`
	// Value is the number, or nil without one. Text is the same for people,
	// with its unit.
	Value *float64 `json:"value,omitempty"`
	Text  string   `json:"text"`
	// Kept reports whether a limit was kept or a run was correct; nil: neither
	// applies.
	Kept *bool `json:"kept,omitempty"`
}

// Figures is the result of a benchmark.
type Figures []Figure

func (f *Figures) note(name, text string) { *f = append(*f, Figure{Name: name, Text: text}) }

func (f *Figures) add(name string, value float64, text string) {
	*f = append(*f, Figure{Name: name, Value: &value, Text: text})
}

// judge adds a measurement that has a limit.
func (f *Figures) judge(name string, value float64, text string, kept bool) {
	*f = append(*f, Figure{Name: name, Value: &value, Text: text, Kept: &kept})
}

// correct adds whether a run was correct.
func (f *Figures) correct(name, text string, correct bool) {
	*f = append(*f, Figure{Name: name, Text: text, Kept: &correct})
}

// Kept reports whether every limit was kept and every run was correct.
func (f Figures) Kept() bool {
	return !slices.ContainsFunc(f, func(one Figure) bool { return one.Kept != nil && !*one.Kept })
}

// stage is the part of the servers that one run has to itself.
type stage struct {
	Bench
	log      obs.Log
	name     string // of the schema or the database, and start of the prefixes
	database string // URL with the schema as search path, or of the database
	dir      string
}

// run runs a benchmark on a stage, and removes that again. With ownDatabase the stage
// has a database instead of a schema: the server counts the transactions of each.
func (b Bench) run(ctx context.Context, ownDatabase bool, measure func(s *stage) error) error {
	at, err := url.Parse(b.Database)
	if err != nil {
		return Misuse(fmt.Sprintf("--database-url is not a URL: %v", err))
	}
	s := &stage{Bench: b, name: "bench_" + strings.ToLower(rand.Text()[:8])}
	create, drop := "CREATE SCHEMA "+s.name, "DROP SCHEMA "+s.name+" CASCADE"
	if ownDatabase {
		create, drop = "CREATE DATABASE "+s.name, "DROP DATABASE "+s.name+" WITH (FORCE)"
		at.Path = "/" + s.name
	} else {
		q := at.Query()
		q.Set("search_path", s.name)
		at.RawQuery = q.Encode()
	}
	s.database = at.String()
	if s.log, err = obs.NewLog(b.Log, "warn", "text"); err != nil {
		return err
	}
	if s.dir, err = os.MkdirTemp("", "largesse-bench-"); err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(s.dir) }()
	if err := s.execute(ctx, create); err != nil {
		return fmt.Errorf("create the run's part of the database: %w", err)
	}
	defer func() {
		ctx := context.WithoutCancel(ctx)
		s.removeKeys(ctx)
		_ = s.execute(ctx, drop) // what is left does no harm
	}()
	return measure(s)
}

func (s *stage) execute(ctx context.Context, sql string) error {
	db, err := pgx.Connect(ctx, s.Bench.Database)
	if err != nil {
		return fmt.Errorf("connect to --database-url: %w", err)
	}
	defer func() { _ = db.Close(ctx) }()
	_, err = db.Exec(ctx, sql)
	return err
}

// connectRedis opens a connection of the benchmark itself. It returns the addresses of
// the servers.
func connectRedis(url string) (rueidis.Client, []string, error) {
	option, err := rueidis.ParseURL(url)
	if err != nil {
		return nil, nil, Misuse(fmt.Sprintf("--redis-url is not a URL of Redis: %v", err))
	}
	option.DisableCache = true
	c, err := rueidis.NewClient(option)
	if err != nil {
		return nil, nil, fmt.Errorf("connect to --redis-url: %w", err)
	}
	return c, option.InitAddress, nil
}

// removeKeys removes the keys of the run.
func (s *stage) removeKeys(ctx context.Context) {
	c, _, err := connectRedis(s.Redis)
	if err != nil {
		return
	}
	defer c.Close()
	for cursor := uint64(0); ; {
		page, err := c.Do(ctx, c.B().Scan().Cursor(cursor).Match(s.name+"*").Count(1000).Build()).AsScanEntry()
		if err != nil {
			return
		}
		if len(page.Elements) > 0 {
			_ = c.Do(ctx, c.B().Unlink().Key(page.Elements...).Build()).Error() // what is left does no harm
		}
		if cursor = page.Cursor; cursor == 0 {
			return
		}
	}
}

// start starts instances that share a run's data and a provider. edit changes their
// settings. They run until stop.
func (s *stage) start(ctx context.Context, run string, n int, provider *provider, edit func(*config.Config)) (all []*engine.Engine, stop func(), err error) {
	stop = func() {
		for _, e := range all {
			e.Stop()
		}
	}
	for range n {
		e, err := s.instance(ctx, run, n > 1, provider, edit)
		if err != nil {
			stop()
			return nil, nil, err
		}
		all = append(all, e)
	}
	return all, stop, nil
}

func (s *stage) instance(ctx context.Context, run string, shares bool, provider *provider, edit func(*config.Config)) (*engine.Engine, error) {
	cfg := config.Default()
	cfg.Database.URL, cfg.Redis.URL, cfg.Kafka.Brokers = s.database, s.Redis, s.Brokers
	cfg.Redis.KeyPrefix, cfg.Kafka.TopicPrefix = s.name+"-"+run+":", s.name+"-"+run+"-"
	cfg.HTTP.Listen = "127.0.0.1:0"
	if shares {
		cfg.Database.MaxConnections, cfg.Coupon.ConsumerConcurrency = 5, 2 // many instances share one server
	}
	edit(&cfg)
	var err error
	if cfg.Data.Dir, err = os.MkdirTemp(s.dir, run); err != nil {
		return nil, err
	}
	e, err := engine.New(cfg, s.log, engine.WithProvider(provider))
	if err != nil {
		return nil, err
	}
	return e, e.Start(ctx)
}

// targets writes a file of targets, and opens it.
func (s *stage) targets(n int) (*os.File, Workload, error) {
	file, err := os.CreateTemp(s.dir, "targets-")
	if err != nil {
		return nil, Workload{}, err
	}
	workload, err := WriteTargets(file, n, false)
	if err == nil {
		_, err = file.Seek(0, io.SeekStart)
	}
	return file, workload, err
}

// upload creates a promotion with targets as a DRAFT.
func (s *stage) upload(ctx context.Context, api *client.Client, p client.NewPromotion, targets int) (id string, w Workload, err error) {
	file, w, err := s.targets(targets)
	if err != nil {
		return "", w, err
	}
	defer func() { _ = file.Close() }()
	p.Type = "POINT"
	made, err := api.CreatePromotion(ctx, p)
	if err != nil {
		return "", w, err
	}
	_, err = api.UploadTargets(ctx, made.ID, file, client.UploadOptions{})
	return made.ID, w, err
}

// benchPoll separates two reads of a promotion.
const benchPoll = 250 * time.Millisecond

// until waits until a promotion fulfils a condition.
func until(ctx context.Context, api *client.Client, id string, so func(client.Promotion) bool) error {
	for {
		p, err := api.Promotion(ctx, id)
		if err != nil || so(p) {
			return err
		}
		if err := pause(ctx, benchPoll); err != nil {
			return err
		}
	}
}

func completed(p client.Promotion) bool { return p.Status == "COMPLETED" }

// settled waits for the end of a promotion, and reports whether every target was paid
// once, and what was compared.
func (s *stage) settled(ctx context.Context, activity string, api *client.Client, e *engine.Engine, id string, want Workload, provider *provider) (
	last client.Promotion, correct bool, detail string, err error,
) {
	err = until(ctx, api, id, func(p client.Promotion) bool {
		last = p
		s.Progress(activity, p.Counts.Done(), int64(want.Good))
		return completed(p) && p.TotalCount == int64(want.Good)
	})
	if err != nil {
		return last, false, "", err
	}
	promotion, err := reward.ParsePromotionID(id)
	if err != nil {
		return last, false, "", err
	}
	rows, err := e.Store().SummaryRecount(ctx, promotion)
	if err != nil {
		return last, false, "", err
	}
	succeeded, calls := rows.Payouts[reward.Succeeded], provider.calls.Load()
	correct = succeeded == int64(want.Good) && calls == succeeded && rows.AmountTotal() == reward.Amount(want.Amount)
	return last, correct, fmt.Sprintf("%s rows succeeded, %s calls", number(succeeded), number(calls)), nil
}

// drop creates a template, has users request its coupons, and waits until all that were
// admitted have one. It took from the first request to the last coupon.
func (s *stage) drop(ctx context.Context, e *engine.Engine, t reward.CouponTemplate, people, atOnce int) (*crowd, []Verdict, error) {
	id, err := openTemplate(ctx, e, t)
	if err != nil {
		return nil, nil, err
	}
	users := &crowd{people: people, atOnce: atOnce, request: inProcess(e, id)}
	began := time.Now()
	if err := users.run(ctx); err != nil {
		return nil, nil, err
	}
	if err := untilIssued(ctx, e, id, users.admitted.Load()); err != nil {
		return nil, nil, err
	}
	users.took = time.Since(began)
	verdicts, err := CheckDrop(ctx, e.Store(), id, t.TotalQuantity)
	return users, verdicts, err
}

// openTemplate creates a template whose gate is loaded: u0 is in line, or has a coupon.
func openTemplate(ctx context.Context, e *engine.Engine, t reward.CouponTemplate) (reward.TemplateID, error) {
	id, err := newTemplate(ctx, e, t)
	if err != nil {
		return 0, err
	}
	first := &crowd{people: 1, atOnce: 1, request: inProcess(e, id)}
	return id, first.run(ctx)
}

// untilIssued waits until coupons of a template are issued.
func untilIssued(ctx context.Context, e *engine.Engine, id reward.TemplateID, coupons int64) error {
	for {
		now, err := e.Store().TemplateGet(ctx, id)
		if err != nil || now.IssuedTotal >= coupons {
			return err
		}
		if err := pause(ctx, 5*time.Millisecond); err != nil {
			return err
		}
	}
}

// newTemplate creates a template whose users get one coupon each.
func newTemplate(ctx context.Context, e *engine.Engine, t reward.CouponTemplate) (reward.TemplateID, error) {
	t.Name, t.PerUserLimit = "Bench", 1
	v, err := e.Coupons().Catalog.Create(ctx, t)
	return v.ID, err
}

// summarize reports whether all verdicts hold, with their details.
func summarize(verdicts []Verdict, show func(Verdict) string) (holds bool, detail string) {
	holds = true
	var details []string
	for _, v := range verdicts {
		holds = holds && v.Holds
		details = append(details, show(v))
	}
	return holds, strings.Join(details, "; ")
}

// pause waits, or returns the error of ctx.
func pause(ctx context.Context, d time.Duration) error {
	if !service.Sleep(ctx, d) {
		return context.Cause(ctx)
	}
	return nil
}

// number formats 1234567 as 1,234,567.
func number(n int64) string { return humanize.Comma(n) }

// countOf formats a count: "1 row", "2,000 rows".
func countOf(n int64, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return number(n) + " " + thing + "s"
}
