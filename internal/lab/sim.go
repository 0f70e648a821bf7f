package lab

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/bus"
)

// Instance is an engine that is up.
type Instance struct {
	Server  string   // http://host:port
	Brokers []string // where Kafka clients reach it
	// Stop ends it: orderly, or by cutting everything off at once.
	Stop func(orderly bool) error
	Lost <-chan error // delivers why it cannot go on
}

// Simulation runs a plan against an engine and a provider, and checks the
// books.
type Simulation struct {
	Plan []Step
	// Money is the address of the provider, a moneysim: its faults are set and
	// its ledger is read there.
	Money string
	// Start starts the engine, or starts it again on what it has kept.
	Start func(ctx context.Context) (Instance, error)
	// Trace takes a line for each act and what came of it; nil: nobody reads.
	Trace io.Writer
	// Progress hears how many steps are done; nil: nobody listens.
	Progress func(done int)
	// Rest is how long everything may take to come to rest after the last step;
	// 0: two minutes.
	Rest time.Duration
}

// calm is a provider that behaves well; it takes its time, so that there is
// something to interrupt.
var calm = Weather{LatencyMs: 30, JitterMs: 20}

const (
	simRest     = 2 * time.Minute
	simPoll     = 200 * time.Millisecond
	simCall     = 20 * time.Second // of one call
	simAtOnce   = 64               // calls in the background
	resumeMost  = 3                // of one promotion, before it is cancelled
	resumeEvery = time.Second
)

// running is a simulation under way.
type running struct {
	Simulation
	began time.Time

	up       atomic.Pointer[side]
	outages  atomic.Int64 // counts the beginning and the end of each restart
	inFlight sync.WaitGroup
	slots    chan struct{}

	mu   sync.Mutex // protects what follows, and Trace
	acts map[string]*ActCount
	note notes
}

// side is an instance as the simulation reaches it.
type side struct {
	Instance
	api       *client.Client
	transport *http.Transport

	// Under the lock of running:
	kafka   *bus.Client // nil before it is needed
	stopped bool
}

// ActCount is how often an act was done, and what became of it.
type ActCount struct {
	Done    int `json:"done"`
	Refused int `json:"refused"` // by the rules: a 4xx, or 503
	Lost    int `json:"lost"`    // without an answer, as by a restart or a sender that died
}

// notes is what the sender knows: what he was told, and what he has tried.
type notes struct {
	promotions map[int64]*sentPromotion
	templates  map[int64]*sentTemplate
	// malformed are the records that Kafka has taken, of those that were sent.
	malformed, malformedTried int
	// unanswered are calls that got no answer, or one that nobody documents,
	// while the engine was up.
	unanswered []string
	breaches   []string // of what holds at any moment
}

type sentPromotion struct {
	voucher   bool
	maxAmount int64
	// created says that it is known to be there.
	created bool
	// amounts are what was tried for each target, and known are the targets that
	// were taken.
	amounts map[int][]int64
	known   map[int]bool
}

type sentTemplate struct {
	stock   Stock
	created bool
	// promised are coupons that an answer told of, by id.
	promised map[string]client.Coupon
	final    map[string]string // statuses that an answer told of, which stay: CANCELLED, USED
	// waiting are users who were let in since the last restart.
	waiting map[string]bool
	users   map[string]bool // who have asked
}

// Run runs the plan. An error says that it could not be run to its end; what
// the books say is in the report.
func (s Simulation) Run(ctx context.Context) (report *SimReport, err error) {
	r := &running{
		Simulation: s, began: time.Now(), slots: make(chan struct{}, simAtOnce), acts: make(map[string]*ActCount),
		note: notes{promotions: make(map[int64]*sentPromotion), templates: make(map[int64]*sentTemplate)},
	}
	if r.Rest == 0 {
		r.Rest = simRest
	}
	if err := r.weather(ctx, calm); err != nil {
		return nil, err
	}
	if err := r.start(ctx); err != nil {
		return nil, err
	}
	defer func() {
		err = errors.Join(err, r.stop(true))
		r.inFlight.Wait() // what is under way fails now
	}()
	for i, step := range r.Plan {
		if err := r.do(ctx, i, step); err != nil {
			return nil, fmt.Errorf("step %d (%s): %w", i+1, step.Do, err)
		}
		if r.Progress != nil {
			r.Progress(i + 1)
		}
	}
	report = &SimReport{}
	if err := r.rest(ctx, report); err != nil {
		return nil, err
	}
	// What the books say has to be what is kept, not what is in memory.
	if err := r.restart(ctx, true); err != nil {
		return nil, err
	}
	if err := r.books(ctx, report); err != nil {
		return nil, err
	}
	report.Took = time.Since(r.began)
	return report, nil
}

// trace notes what was done.
func (r *running) trace(format string, args ...any) {
	if r.Trace == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	_, _ = fmt.Fprintf(r.Trace, "%8.3f "+format+"\n", append([]any{time.Since(r.began).Seconds()}, args...)...)
}

func (r *running) start(ctx context.Context) error {
	in, err := r.Simulation.Start(ctx)
	if err != nil {
		return err
	}
	transport := &http.Transport{MaxIdleConnsPerHost: simAtOnce}
	api, err := client.New(in.Server, client.Options{Transport: transport, Timeout: simCall, Actor: "sim"})
	if err != nil {
		return errors.Join(err, in.Stop(true))
	}
	r.up.Store(&side{Instance: in, api: api, transport: transport})
	return nil
}

func (r *running) stop(orderly bool) error {
	up := r.up.Load()
	if up == nil {
		return nil
	}
	r.up.Store(nil)
	r.mu.Lock()
	up.stopped = true
	kafka := up.kafka
	r.mu.Unlock()
	if kafka != nil {
		kafka.Close()
	}
	// The server waits for connections that were opened and never used.
	up.transport.CloseIdleConnections()
	err := up.Stop(orderly)
	up.transport.CloseIdleConnections()
	return err
}

// restart stops the engine and starts it again. Who waited for a coupon is
// forgotten with the gate, which lives in its memory.
func (r *running) restart(ctx context.Context, orderly bool) error {
	r.outages.Add(1)
	defer r.outages.Add(1)
	if err := r.stop(orderly); err != nil {
		return fmt.Errorf("stop the engine: %w", err)
	}
	r.mu.Lock()
	for _, t := range r.note.templates {
		clear(t.waiting)
	}
	r.mu.Unlock()
	if err := r.start(ctx); err != nil {
		return fmt.Errorf("start the engine again: %w", err)
	}
	return nil
}

// do does one step. It fails only when the run cannot go on.
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
	case err := <-r.up.Load().Lost:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// background does something beside the next steps.
func (r *running) background(do func()) {
	r.slots <- struct{}{}
	r.inFlight.Go(func() {
		defer func() { <-r.slots }()
		do()
	})
}

var (
	errCut  = errors.New("the sender died")
	errDown = errors.New("the engine is down")
)

// act does what talks to the engine, and notes what became of it.
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

// judge notes what became of a call; excused says that it may be without an
// answer.
func (r *running) judge(act, what string, err error, excused bool) {
	r.count(act, err)
	if err == nil || excused || refused(err) {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.note.unanswered = append(r.note.unanswered, fmt.Sprintf("%s: %v", what, err))
}

// refused says that an error is an answer by the rules.
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

// call does what talks to the engine; said tells what came of it.
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
	return "", fmt.Errorf("no such act: %q", s.Do)
}

// weather sets the provider's faults.
func (r *running) weather(ctx context.Context, w Weather) error {
	text, err := json.Marshal(w)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, r.Money+"/faults", bytes.NewReader(text))
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

// promotion is what was sent for a promotion; the caller holds mu.
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
		ID: id, Name: "sim " + id, Type: "POINT", MaxRetries: &s.Levers.MaxRetries,
		RatePerSecond: s.Levers.RatePerSecond, Weight: s.Levers.Weight, MaxAmount: s.Levers.MaxAmount,
	}
	if s.Voucher {
		p.Type, p.VoucherCode = "VOUCHER", voucherCode
	}
	if s.Levers.Canary > 0 {
		p.Canary = &client.NewCanary{Targets: s.Levers.Canary}
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

// try notes targets before they are sent: they may be taken whatever is heard.
func (r *running) try(s Step) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.note.promotion(s)
	for target := s.First; target < s.First+s.Count; target++ {
		p.amounts[target] = append(p.amounts[target], s.amountIn(target))
	}
}

// taken notes that targets are known now.
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
			return "", fmt.Errorf("of %d targets and %d bad lines: %s", s.Count, s.Bad, said)
		}
		r.taken(s)
	}
	return said, nil
}

// failingReader is the end of a sender that dies.
type failingReader struct{}

func (failingReader) Read([]byte) (int, error) { return 0, errCut }

// file is the targets of a step, with its bad lines strewn in.
func (s Step) file() string {
	var b strings.Builder
	line, code := "%d,user-%d,%d,%s\n", ""
	if s.Voucher {
		code = voucherCode // a promotion that Kafka has registered has none of its own
	}
	if s.Format == client.NDJSON {
		line = `{"targetId":"%d","userId":"user-%d","amount":%d,"voucherCode":"%s"}` + "\n"
	} else {
		b.WriteString("targetId,userId,amount,voucherCode\n")
	}
	for i := range s.Count {
		target := s.First + i
		fmt.Fprintf(&b, line, target, target, s.amountIn(target), code)
		if i >= s.Count-s.Bad { // as many of them as there are lines
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

// kafka is the client of an instance's broker, which is closed with it.
func (r *running) kafka(ctx context.Context, up *side) (*bus.Client, error) {
	r.mu.Lock()
	open := up.kafka
	r.mu.Unlock()
	if open != nil {
		return open, nil
	}
	c, err := bus.Open(ctx, bus.Config{Brokers: up.Brokers, ClientID: "largesse-sim"})
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case up.stopped:
		c.Close()
		return nil, errDown
	case up.kafka != nil: // somebody else was first
		c.Close()
	default:
		up.kafka = c
	}
	return up.kafka, nil
}

// publish sends targets, or the started event, over Kafka.
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
		kind := Publishing{Voucher: s.Voucher}.kind()
		records = append(records, startedRecord(s.Promotion, kind, s.Count))
	} else {
		r.try(s)
		records = s.records()
		r.mu.Lock()
		r.note.malformedTried += s.Bad
		r.mu.Unlock()
	}
	ctx, cancel := context.WithTimeout(ctx, simCall)
	defer cancel()
	if err := bus.NewPublisher(kafka).Publish(ctx, records); err != nil {
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
	topic := bus.TopicPointPublish
	if s.Voucher {
		topic = bus.TopicVoucherPublish
	}
	var out []bus.Record
	for target := s.First; target < s.First+s.Count; target++ {
		value := fmt.Sprintf(`{"promotionId":%d,"promotionSummaryId":%d,"targetId":%d,"userId":"user-%d","amount":%d`,
			s.Promotion, 1+target%2, target, target, s.amountIn(target))
		if s.Voucher {
			value += fmt.Sprintf(`,"voucherCode":%q`, voucherCode)
		}
		record := bus.Record{Topic: topic, Key: strconv.AppendInt(nil, int64(target), 10), Value: []byte(value + "}")}
		out = append(out, record)
		if s.Repeat {
			out = append(out, record)
		}
	}
	for range s.Bad {
		out = append(out, malformedRecord(topic))
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

// ask lets the users of a step ask, all at once, and tells what they heard.
func (r *running) ask(ctx context.Context, api *client.Client, id string, s Step) string {
	r.mu.Lock()
	sent := r.note.templates[s.Template]
	r.mu.Unlock()
	if sent == nil {
		return "no such template"
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
		r.judge("asking", "user "+user+" asks at template "+id, err, !same || ctx.Err() != nil)
		var p *client.Problem
		if errors.As(err, &p) && p.Code != "" {
			return p.Code
		}
		return "no answer"
	}
	r.count("asking", nil)
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case answer.Coupon != nil:
		sent.promised[answer.Coupon.ID] = *answer.Coupon
	case same:
		// Should the engine have been restarted since, it was forgotten; see
		// restart, which clears this under the same lock.
		if r.outages.Load() == outage {
			sent.waiting[user] = true
		}
	}
	return answer.Status
}

// settleCoupon uses or cancels one of the coupons that are ISSUED.
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
		return "there is none", nil
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

// check notes what must hold at any moment and does not.
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
			r.breach("template %s: %d coupons live of %d", t.ID, t.Counters.Count, t.TotalQuantity)
		}
	}
	// Read after the counts: whoever was SUCCEEDED then had been charged.
	ledger, err := ReadLedger(ctx, r.Money)
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
