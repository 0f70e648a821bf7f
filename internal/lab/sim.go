package lab

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/bus"
	"github.com/largesse/largesse/internal/config"
	"github.com/largesse/largesse/internal/engine"
	"github.com/largesse/largesse/internal/money/moneysim"
	"github.com/largesse/largesse/internal/obs"
)

// Simulation is a seeded sequence of actions and faults on the embedded engines, whose
// books are checked at the end.
type Simulation struct {
	Seed  uint64
	Steps int
	// Dir is the directory for the data, the log and the trace of the run. Empty: a
	// temporary one, which is retained only if a check fails.
	Dir      string
	Version  string    // of the instance
	Out      io.Writer // receives a line about the run
	Progress func(activity string, done, total int64)

	// ledger returns the address at which to read the provider's books and set its
	// faults. Nil: that of the provider.
	ledger func(provider string) string
}

// Replay returns the command that repeats the run.
func (s *Simulation) Replay() string {
	return fmt.Sprintf("largesse sim --seed %d --steps %d", s.Seed, s.Steps)
}

// calm is a provider without faults. It is slow enough that other actions
// interrupt payouts.
var calm = Weather{LatencyMs: 30, JitterMs: 20}

const (
	simRest     = 2 * time.Minute // after the last step, until nothing is open
	simPoll     = 200 * time.Millisecond
	simCall     = 20 * time.Second // timeout of one call
	simAtOnce   = 64               // background calls at a time
	resumeMost  = 3                // resumes of one promotion before it is cancelled
	resumeEvery = time.Second
)

// running is the state of a simulation.
type running struct {
	*Simulation
	cfg   config.Config
	log   obs.Log
	money string // URL of the provider, whose faults are set, and whose ledger is read
	began time.Time

	up       atomic.Pointer[side]
	outages  atomic.Int64 // number of starts and ends of restarts
	inFlight sync.WaitGroup
	slots    chan struct{}

	mu    sync.Mutex // guards the fields below
	trail io.Writer  // receives a line for each action and its result
	acts  map[string]*ActCount
	note  notes
}

// side is an instance with the clients of the simulation.
type side struct {
	engine    *engine.Engine
	cut       context.CancelFunc // ends everything at once
	api       *client.Client
	transport *http.Transport

	// Guarded by the mutex of running:
	kafka   *bus.Client // nil before its first use
	stopped bool
}

// ActCount counts how often an action was done, and its results.
type ActCount struct {
	Done    int `json:"done"`
	Refused int `json:"refused"` // documented refusals: a 4xx, or 503
	Lost    int `json:"lost"`    // without a response, because of a restart or a crashed sender
}

// notes is what the callers know: the responses they got, and what they tried.
type notes struct {
	promotions map[int64]*sentPromotion
	templates  map[int64]*sentTemplate
	// malformed counts the malformed records that Kafka accepted;
	// malformedTried counts all that were sent.
	malformed, malformedTried int
	// unanswered describes calls that got no response, or an undocumented one,
	// while the engine was up.
	unanswered []string
	breaches   []string // breaches of what must hold at any moment
}

type sentPromotion struct {
	voucher   bool
	maxAmount int64
	// created reports that the promotion is known to exist.
	created bool
	// amounts holds the amounts that were sent for each target. known holds the
	// targets that were accepted.
	amounts map[int][]int64
	known   map[int]bool
}

type sentTemplate struct {
	stock   Stock
	created bool
	// promised holds the coupons that a response contained, by ID.
	promised map[string]client.Coupon
	final    map[string]string // final statuses that a response contained: CANCELLED, USED
	// waiting holds the users who were admitted since the last restart.
	waiting map[string]bool
	users   map[string]bool // users with a request
}

// Run runs the simulation. It returns an error if it could not be completed; the state of
// the books is in the report.
func (s *Simulation) Run(ctx context.Context) (report *SimReport, err error) {
	temporary := s.Dir == ""
	if temporary {
		s.Dir, err = os.MkdirTemp("", "largesse-sim-")
	} else {
		err = os.MkdirAll(s.Dir, 0o700)
	}
	if err != nil {
		return nil, fmt.Errorf("create the directory of the run: %w", err)
	}
	if left, err := os.ReadDir(s.Dir); err != nil || len(left) > 0 {
		return nil, errors.Join(err, Misuse(fmt.Sprintf("--data %s is not empty: use a new or empty directory", s.Dir)))
	}
	report, err = s.prepare(ctx)
	if temporary && (err == nil && report.Holds() || ctx.Err() != nil) {
		_ = os.RemoveAll(s.Dir)
	}
	if err != nil && ctx.Err() == nil {
		err = fmt.Errorf("%w; the engine's log and the trace are in %s; repeat the run with: %s", err, s.Dir, s.Replay())
	}
	return report, err
}

// prepare starts a provider, and runs the plan. The timeouts and intervals of the engine
// are short, so that the run takes seconds.
func (s *Simulation) prepare(ctx context.Context) (*SimReport, error) {
	logFile, err := os.Create(filepath.Join(s.Dir, "largesse.log"))
	if err != nil {
		return nil, fmt.Errorf("open the run's log: %w", err)
	}
	defer logFile.Close()
	trail, err := os.Create(filepath.Join(s.Dir, "trace.log"))
	if err != nil {
		return nil, fmt.Errorf("open the run's trace: %w", err)
	}
	defer trail.Close()
	log, err := obs.NewLog(logFile, "debug", "text")
	if err != nil {
		return nil, err
	}
	sim, money, err := startMoney(moneysim.Faults{}, s.Seed)
	if err != nil {
		return nil, err
	}
	defer sim.Close()
	cfg := config.Default()
	cfg.Data.Dir = filepath.Join(s.Dir, "data")
	cfg.HTTP.Listen = "127.0.0.1:0"
	cfg.Money.URL = money
	cfg.Money.Timeout = 300 * time.Millisecond
	cfg.Money.SettleAfter = 500 * time.Millisecond
	cfg.Redis.Stream.LeaseSeconds = 1
	cfg.Redis.Stream.InFlightPerConsumer = 4 // slow enough that faults interrupt something
	cfg.Reconcile.Interval = 2 * time.Second
	if s.ledger != nil {
		money = s.ledger(money)
	}
	if _, err := fmt.Fprintf(s.Out, "seed %d, %s\n", s.Seed, countOf(int64(s.Steps), "step")); err != nil {
		return nil, err
	}
	r := &running{
		Simulation: s, cfg: cfg, log: log, money: money, began: time.Now(), slots: make(chan struct{}, simAtOnce), trail: trail, acts: make(map[string]*ActCount),
		note: notes{promotions: make(map[int64]*sentPromotion), templates: make(map[int64]*sentTemplate)},
	}
	return r.run(ctx)
}

func (r *running) run(ctx context.Context) (report *SimReport, err error) {
	if err := r.weather(ctx, calm); err != nil {
		return nil, err
	}
	defer func() {
		r.stop(true)
		r.inFlight.Wait() // calls in flight fail now
	}()
	if err := r.start(ctx); err != nil {
		return nil, err
	}
	for i, step := range NewPlan(r.Seed, r.Steps) {
		if err := r.do(ctx, i, step); err != nil {
			return nil, fmt.Errorf("step %d (%s): %w", i+1, step.Do, err)
		}
		r.Progress("steps", int64(i+1), int64(r.Steps))
	}
	report = &SimReport{}
	if err := r.rest(ctx, report); err != nil {
		return nil, err
	}
	// Restart, so that the books come from the stored data, not from memory.
	if err := r.restart(ctx, true); err != nil {
		return nil, err
	}
	if err := r.books(ctx, report); err != nil {
		return nil, err
	}
	report.Took = time.Since(r.began)
	return report, nil
}

// trace writes a line to the trace.
func (r *running) trace(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, _ = fmt.Fprintf(r.trail, "%8.3f "+format+"\n", append([]any{time.Since(r.began).Seconds()}, args...)...)
}

// launch starts an instance on the data so far. cut ends life, and with it everything in the
// instance at once, as a crash does.
func launch(ctx context.Context, cfg config.Config, log obs.Log, options ...engine.Option) (e *engine.Engine, life context.Context, cut context.CancelFunc, err error) {
	life, cut = context.WithCancel(context.WithoutCancel(ctx))
	if e, err = engine.New(cfg, log, options...); err == nil {
		err = e.Start(life)
	}
	if err != nil {
		cut()
	}
	return e, life, cut, err
}

func (r *running) start(ctx context.Context) error {
	e, _, cut, err := launch(ctx, r.cfg, r.log, engine.WithVersion(r.Version))
	if err != nil {
		return err
	}
	up := &side{engine: e, cut: cut, transport: &http.Transport{MaxIdleConnsPerHost: simAtOnce}}
	up.api, err = client.New("http://"+e.Addr(), client.Options{Transport: up.transport, Timeout: simCall, Actor: "sim"})
	r.up.Store(up) // calls in the background use it from here on
	return err
}

// stop stops the engine: in order, or as a crash does, which ends everything at once with
// work pending.
func (r *running) stop(orderly bool) {
	up := r.up.Load()
	if up == nil {
		return
	}
	defer up.cut()
	r.up.Store(nil)
	r.mu.Lock()
	up.stopped = true
	kafka := up.kafka
	r.mu.Unlock()
	if kafka != nil {
		kafka.Close()
	}
	// The server waits for connections that were opened but never used.
	up.transport.CloseIdleConnections()
	if !orderly {
		up.cut()
	}
	up.engine.Stop()
	up.transport.CloseIdleConnections()
}

// restart stops and starts the engine. Waiting users are lost with the gate,
// which is in memory.
func (r *running) restart(ctx context.Context, orderly bool) error {
	r.outages.Add(1)
	defer r.outages.Add(1)
	r.stop(orderly)
	r.mu.Lock()
	for _, t := range r.note.templates {
		clear(t.waiting)
	}
	r.mu.Unlock()
	if err := r.start(ctx); err != nil {
		return fmt.Errorf("restart the engine: %w", err)
	}
	return nil
}

// do performs one step. It returns an error only if the run cannot continue.
func (r *running) do(ctx context.Context, index int, s Step) error {
	r.trace("step %d: %s", index+1, s)
	var err error
	switch s.Do {
	case actFaults:
		err = r.weather(ctx, *s.Faults)
	case actCalm:
		err = r.weather(ctx, calm)
	case actRestart:
		err = r.restart(ctx, true)
	case actCrash:
		err = r.restart(ctx, false)
	case actCheck:
		err = r.check(ctx)
	case actUpload, actCut, actPublish, actAnnounce, actAsk:
		r.background(func() { r.act(ctx, index, s) })
	case actWait:
	default:
		r.act(ctx, index, s)
	}
	if err != nil {
		return err
	}
	switch s.Do {
	case actFaults, actCalm, actRestart, actCrash, actCheck, actWait:
		r.count(s.Do, nil)
	}
	select {
	case <-time.After(s.Pause.Duration()):
		return nil
	case err := <-r.up.Load().engine.Lost():
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// background runs do concurrently with the next steps.
func (r *running) background(do func()) {
	r.slots <- struct{}{}
	r.inFlight.Go(func() {
		defer func() { <-r.slots }()
		do()
	})
}

var (
	errCut  = errors.New("the sender crashed")
	errDown = errors.New("the engine is down")
)

// act performs a step that calls the engine, and records its result.
func (r *running) act(ctx context.Context, index int, s Step) {
	outage := r.outages.Load()
	said, err := r.call(ctx, s)
	excused := outage%2 == 1 || r.outages.Load() != outage || errors.Is(err, errCut) || ctx.Err() != nil
	what := fmt.Sprintf("step %d, %s", index+1, s.Do)
	r.judge(s.Do, what, err, excused)
	if err != nil {
		said = err.Error()
	}
	r.trace("%s: %s", what, said)
}

// judge records the result of a call. excused reports that a missing response
// is allowed.
func (r *running) judge(act, what string, err error, excused bool) {
	r.count(act, err)
	if err == nil || excused || refused(err) {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.note.unanswered = append(r.note.unanswered, fmt.Sprintf("%s: %v", what, err))
}

// refused reports whether an error is a documented response.
func refused(err error) bool {
	var p *client.Problem
	if !errors.As(err, &p) || p.Code == "" {
		return false
	}
	return p.Status < http.StatusInternalServerError || p.Status == http.StatusServiceUnavailable
}

func (r *running) count(act string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := r.acts[act]
	if n == nil {
		n = &ActCount{}
		r.acts[act] = n
	}
	switch {
	case err == nil:
		n.Done++
	case refused(err):
		n.Refused++
	default:
		n.Lost++
	}
}

// call performs a step that calls the engine. said describes the result.
func (r *running) call(ctx context.Context, s Step) (said string, err error) {
	up := r.up.Load()
	if up == nil {
		return "", errDown
	}
	id := strconv.FormatInt(max(s.Promotion, s.Template), 10)
	moved := func(move func(context.Context, string) (client.Promotion, error)) (string, error) {
		p, err := move(ctx, id)
		return p.Status, err
	}
	switch s.Do {
	case actCreate:
		return r.create(ctx, up.api, id, s)
	case actUpload, actCut:
		return r.upload(ctx, up.api, id, s)
	case actPublish, actAnnounce:
		return r.publish(ctx, up, s)
	case actStart:
		return moved(up.api.StartPromotion)
	case actPause:
		return moved(up.api.PausePromotion)
	case actResume:
		return moved(up.api.ResumePromotion)
	case actCancel:
		return moved(up.api.CancelPromotion)
	case actClose:
		return moved(up.api.ClosePromotion)
	case actRetry:
		n, err := up.api.RetryPayouts(ctx, id, "")
		return fmt.Sprint(n, " requeued"), err
	case actTemplate:
		return r.template(ctx, up.api, id, s)
	case actAsk:
		return r.ask(ctx, up.api, id, s), nil
	case actCancelCoupon:
		return r.settleCoupon(ctx, up.api, id, s, up.api.CancelCoupon)
	case actUseCoupon:
		return r.settleCoupon(ctx, up.api, id, s, up.api.UseCoupon)
	case actResize:
		t, err := up.api.ChangeTemplate(ctx, id, client.TemplateChange{TotalQuantity: &s.Quantity})
		return fmt.Sprint("quantity ", t.TotalQuantity), err
	case actCloseTemplate:
		t, err := up.api.CloseTemplate(ctx, id)
		return fmt.Sprint(t.Counters.Waiting, " wait"), err
	}
	return "", fmt.Errorf("unknown action %q", s.Do)
}

// weather sets the faults of the provider.
func (r *running) weather(ctx context.Context, w Weather) error {
	text, err := json.Marshal(w)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, r.money+"/faults", bytes.NewReader(text))
	if err != nil {
		return err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("set the provider's faults: %w", err)
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("set the provider's faults: %s", res.Status)
	}
	return nil
}

// promotion returns what was sent for the promotion of a step. The caller holds
// mu.
func (n *notes) promotion(s Step) *sentPromotion {
	p := n.promotions[s.Promotion]
	if p == nil {
		p = &sentPromotion{voucher: s.Voucher, amounts: make(map[int][]int64), known: make(map[int]bool)}
		n.promotions[s.Promotion] = p
	}
	return p
}

func (r *running) create(ctx context.Context, api *client.Client, id string, s Step) (string, error) {
	r.mu.Lock()
	r.note.promotion(s)
	r.mu.Unlock()
	p := client.NewPromotion{
		ID: id, Name: "sim " + id, Type: "POINT", MaxRetries: &s.Controls.MaxRetries,
		RatePerSecond: s.Controls.RatePerSecond, Weight: s.Controls.Weight, MaxAmount: s.Controls.MaxAmount,
	}
	if s.Voucher {
		p.Type, p.VoucherCode = "VOUCHER", voucherCode
	}
	if s.Controls.Canary > 0 {
		p.Canary = &client.NewCanary{Targets: s.Controls.Canary}
	}
	made, err := api.CreatePromotion(ctx, p)
	if err == nil {
		r.mu.Lock()
		sent := r.note.promotion(s)
		sent.created, sent.maxAmount = true, made.MaxAmount
		r.mu.Unlock()
	}
	return made.Status, err
}

// try records targets before they are sent: they may be accepted even without a
// response.
func (r *running) try(s Step) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.note.promotion(s)
	for target := s.First; target < s.First+s.Count; target++ {
		p.amounts[target] = append(p.amounts[target], s.amountIn(target))
	}
}

// taken records that targets were accepted.
func (r *running) taken(s Step) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.note.promotion(s)
	p.created = true
	for target := s.First; target < s.First+s.Count; target++ {
		p.known[target] = true
	}
}

func (r *running) upload(ctx context.Context, api *client.Client, id string, s Step) (string, error) {
	r.try(s)
	times := 1
	if s.Repeat {
		times = 2
	}
	var said string
	for range times {
		file := s.file()
		var body io.Reader = strings.NewReader(file)
		if s.Do == actCut {
			body = io.MultiReader(strings.NewReader(file[:len(file)/2]), failingReader{})
		}
		res, err := api.UploadTargets(ctx, id, body, client.UploadOptions{Format: s.Format})
		if err != nil {
			if s.Do == actCut && !refused(err) {
				err = fmt.Errorf("%w: %w", errCut, err)
			}
			return "", err
		}
		said = fmt.Sprintf("accepted %d, duplicates %d, conflicts %d, rejected %d", res.Accepted, res.Duplicates, res.Conflicts, res.Rejected)
		if got := res.Accepted + res.Duplicates + res.Conflicts; got != int64(s.Count) || res.Rejected != int64(s.Bad) {
			return "", fmt.Errorf("%d targets and %d invalid lines gave: %s", s.Count, s.Bad, said)
		}
		r.taken(s)
	}
	return said, nil
}

// failingReader is the end of a file whose sender crashes.
type failingReader struct{}

func (failingReader) Read([]byte) (int, error) { return 0, errCut }

// file returns the targets of a step, with its invalid lines mixed in.
func (s Step) file() string {
	var b strings.Builder
	line, code := "%d,user-%d,%d,%s\n", ""
	if s.Voucher {
		code = voucherCode // a promotion that Kafka records registered has no default
	}
	if s.Format == client.NDJSON {
		line = `{"targetId":"%d","userId":"user-%d","amount":%d,"voucherCode":"%s"}` + "\n"
	} else {
		b.WriteString("targetId,userId,amount,voucherCode\n")
	}
	for i := range s.Count {
		target := s.First + i
		fmt.Fprintf(&b, line, target, target, s.amountIn(target), code)
		if i >= s.Count-s.Bad { // mix them in after the last targets
			s.badLine(&b)
		}
	}
	for range s.Bad - s.Count {
		s.badLine(&b)
	}
	return b.String()
}

func (s Step) badLine(b *strings.Builder) {
	if s.Format == client.NDJSON {
		b.WriteString(`{"targetId":"x"}` + "\n")
		return
	}
	b.WriteString("x,nobody,1,\n")
}

// kafka returns the client of an instance's broker. It is closed with the
// instance.
func (r *running) kafka(ctx context.Context, up *side) (*bus.Client, error) {
	r.mu.Lock()
	open := up.kafka
	r.mu.Unlock()
	if open != nil {
		return open, nil
	}
	c, err := bus.Open(ctx, bus.Config{Brokers: up.engine.Brokers(), ClientID: "largesse-sim"})
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case up.stopped:
		c.Close()
		return nil, errDown
	case up.kafka != nil: // another goroutine was first
		c.Close()
	default:
		up.kafka = c
	}
	return up.kafka, nil
}

// publish sends targets or the started event through Kafka.
func (r *running) publish(ctx context.Context, up *side, s Step) (string, error) {
	kafka, err := r.kafka(ctx, up)
	if err != nil {
		return "", err
	}
	r.mu.Lock()
	r.note.promotion(s)
	r.mu.Unlock()
	var records []bus.Record
	if s.Do == actAnnounce {
		records = append(records, startedRecord(s.Promotion, s.Voucher, s.Count))
	} else {
		r.try(s)
		records = s.records()
		r.mu.Lock()
		r.note.malformedTried += s.Bad
		r.mu.Unlock()
	}
	ctx, cancel := context.WithTimeout(ctx, simCall)
	defer cancel()
	if err := kafka.Publish(ctx, records); err != nil {
		return "", err
	}
	r.mu.Lock()
	r.note.promotion(s).created = true
	if s.Do == actPublish {
		r.note.malformed += s.Bad
	}
	r.mu.Unlock()
	if s.Do == actPublish {
		r.taken(s)
	}
	return fmt.Sprint(len(records), " records"), nil
}

func (s Step) records() []bus.Record {
	var out []bus.Record
	for target := s.First; target < s.First+s.Count; target++ {
		record := targetRecord(s.Promotion, s.Voucher, target, 1+target%2, s.amountIn(target))
		out = append(out, record)
		if s.Repeat {
			out = append(out, record)
		}
	}
	for range s.Bad {
		out = append(out, malformedRecord(publishTopic(s.Voucher)))
	}
	return out
}

func (r *running) template(ctx context.Context, api *client.Client, id string, s Step) (string, error) {
	r.mu.Lock()
	sent := &sentTemplate{
		stock: *s.Stock, promised: make(map[string]client.Coupon), final: make(map[string]string),
		waiting: make(map[string]bool), users: make(map[string]bool),
	}
	r.note.templates[s.Template] = sent
	r.mu.Unlock()
	t := client.NewTemplate{
		ID: id, Name: "sim " + id, TotalQuantity: s.Stock.Quantity, PerUserLimit: s.Stock.PerUser,
		Mode: s.Stock.Mode, ReissueAfterCancel: &s.Stock.Reissue,
	}
	now := time.Now()
	if s.Stock.OpensIn > 0 {
		at := now.Add(s.Stock.OpensIn.Duration())
		t.OpensAt = &at
	}
	if s.Stock.ClosesIn > 0 {
		at := now.Add(s.Stock.ClosesIn.Duration())
		t.ClosesAt = &at
	}
	_, err := api.CreateTemplate(ctx, t)
	if err == nil {
		r.mu.Lock()
		sent.created = true
		r.mu.Unlock()
	}
	return s.Stock.Mode, err
}

func userName(n int) string { return "u" + strconv.Itoa(n) }

// ask sends the requests of a step's users, all at once, and describes the
// results.
func (r *running) ask(ctx context.Context, api *client.Client, id string, s Step) string {
	r.mu.Lock()
	sent := r.note.templates[s.Template]
	r.mu.Unlock()
	if sent == nil {
		return "the template does not exist"
	}
	heard := make(map[string]int)
	var wg sync.WaitGroup
	for n := s.First; n < s.First+s.Count; n++ {
		wg.Go(func() {
			user := userName(n)
			times := 1
			if s.Repeat {
				times = 2
			}
			for range times {
				said := r.askOnce(ctx, api, id, user, sent)
				r.mu.Lock()
				heard[said]++
				r.mu.Unlock()
			}
		})
	}
	wg.Wait()
	text, err := json.Marshal(heard)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

func (r *running) askOnce(ctx context.Context, api *client.Client, id, user string, sent *sentTemplate) string {
	r.mu.Lock()
	sent.users[user] = true
	r.mu.Unlock()
	outage := r.outages.Load()
	answer, err := api.IssueCoupon(ctx, id, user, 0)
	same := r.outages.Load() == outage && outage%2 == 0
	if err != nil {
		r.judge("asking", "request of user "+user+" at template "+id, err, !same || ctx.Err() != nil)
		var p *client.Problem
		if errors.As(err, &p) && p.Code != "" {
			return p.Code
		}
		return "no response"
	}
	r.count("asking", nil)
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case answer.Coupon != nil:
		sent.promised[answer.Coupon.ID] = *answer.Coupon
	case same:
		// If the engine has restarted since, the request is lost; restart
		// clears this map under the same mutex.
		if r.outages.Load() == outage {
			sent.waiting[user] = true
		}
	}
	return answer.Status
}

// settleCoupon uses or cancels one of the ISSUED coupons.
func (r *running) settleCoupon(ctx context.Context, api *client.Client, id string, s Step, settle func(context.Context, string) (client.Coupon, error)) (string, error) {
	var issued []string
	for c, err := range api.TemplateCoupons(ctx, id) {
		if err != nil {
			return "", err
		}
		if c.Status == "ISSUED" {
			issued = append(issued, c.ID)
		}
	}
	if len(issued) == 0 {
		return "no such coupon", nil
	}
	settled, err := settle(ctx, issued[s.First%len(issued)])
	if err != nil {
		return "", err
	}
	r.mu.Lock()
	if sent := r.note.templates[s.Template]; sent != nil {
		sent.promised[settled.ID] = settled
		sent.final[settled.ID] = settled.Status
	}
	r.mu.Unlock()
	return "coupon " + settled.ID + " is " + settled.Status, nil
}

// check records breaches of what must hold at any moment.
func (r *running) check(ctx context.Context) error {
	up := r.up.Load()
	succeeded := make(map[string]int64)
	for p, err := range up.api.Promotions(ctx, "") {
		if err != nil {
			return err
		}
		succeeded[p.ID] = p.Counts.Succeeded
		if sum := p.Counts.Done() + p.Counts.Ready + p.Counts.Queued + p.Counts.Retrying + p.Counts.Unknown; sum != p.TotalCount {
			r.breach("promotion %s: its counts add up to %d of %d", p.ID, sum, p.TotalCount)
		}
	}
	for t, err := range up.api.Templates(ctx) {
		if err != nil {
			return err
		}
		if t.Counters.Count > t.TotalQuantity {
			r.breach("template %s: %d live coupons of %d", t.ID, t.Counters.Count, t.TotalQuantity)
		}
	}
	// Read the ledger after the counts: every payout counted as SUCCEEDED was
	// charged before.
	ledger, err := ReadLedger(ctx, r.money)
	if err != nil {
		return err
	}
	for id, targets := range ledger {
		for target, e := range targets {
			if e.Charges > 1 {
				r.breach("promotion %s, target %s: charged %d times", id, target, e.Charges)
			}
		}
	}
	for id, n := range succeeded {
		if n > int64(len(ledger[id])) {
			r.breach("promotion %s: %d succeeded, %d charged", id, n, len(ledger[id]))
		}
	}
	return nil
}

func (r *running) breach(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	r.trace("BREACH %s", text)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.note.breaches = append(r.note.breaches, text)
}
