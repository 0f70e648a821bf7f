package lab

import (
	"encoding/json"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/largesse/largesse/client"
)

// The acts of a plan.
const (
	actCreate   = "create"   // a promotion over the API
	actUpload   = "upload"   // a file of targets
	actCut      = "cut"      // an upload whose sender dies in the middle
	actPublish  = "publish"  // targets over Kafka
	actAnnounce = "announce" // the started event
	actStart    = "start"
	actPause    = "pause"
	actResume   = "resume"
	actCancel   = "cancel"
	actClose    = "close"
	actRetry    = "retry"
	actFaults   = "faults" // the provider behaves badly
	actCalm     = "calm"   // the provider behaves well
	actRestart  = "restart"
	actCrash    = "crash" // a restart without an orderly stop
	actWait     = "wait"
	actCheck    = "check" // what must hold at any moment

	actTemplate      = "template" // a new coupon template
	actAsk           = "ask"      // users ask at the same time
	actCancelCoupon  = "cancelCoupon"
	actUseCoupon     = "useCoupon"
	actResize        = "resize"        // another quantity
	actCloseTemplate = "closeTemplate" // no more asking
)

// Step is one act of a plan. Fields that an act does not need are zero.
type Step struct {
	Do        string `json:"do"`
	Promotion int64  `json:"promotion,omitempty"` // id
	Template  int64  `json:"template,omitempty"`  // id
	// First and Count are targets, or users; of coupons First says which one.
	First int `json:"first,omitempty"`
	Count int `json:"count,omitempty"`
	// Amount is what the first of the targets gets; see amountIn.
	Amount   int64    `json:"amount,omitempty"`
	Bad      int      `json:"bad,omitempty"`     // malformed lines or records strewn in
	Repeat   bool     `json:"repeat,omitempty"`  // sent twice
	Voucher  bool     `json:"voucher,omitempty"` // VOUCHER, else POINT
	Levers   *Levers  `json:"levers,omitempty"`  // of a new promotion
	Stock    *Stock   `json:"stock,omitempty"`   // of a new template
	Quantity int64    `json:"quantity,omitempty"`
	Faults   *Weather `json:"faults,omitempty"`
	Pause    Millis   `json:"pauseMillis,omitempty"` // after the act
	// Format of a file of targets.
	Format client.Format `json:"format,omitempty"`
}

// Millis is a duration that JSON has as a number of milliseconds.
type Millis int

// Duration is the same as time has it.
func (m Millis) Duration() time.Duration { return time.Duration(m) * time.Millisecond }

// Levers are the settings of a new promotion.
type Levers struct {
	MaxRetries    int   `json:"maxRetries"`
	RatePerSecond int   `json:"ratePerSecond,omitempty"`
	Weight        int   `json:"weight,omitempty"`
	MaxAmount     int64 `json:"maxAmount,omitempty"`
	Canary        int64 `json:"canary,omitempty"`
}

// Stock is the settings of a new coupon template.
type Stock struct {
	Mode     string `json:"mode"`
	Quantity int64  `json:"quantity"`
	PerUser  int    `json:"perUser"`
	Reissue  bool   `json:"reissue"`
	OpensIn  Millis `json:"opensInMillis,omitempty"`
	ClosesIn Millis `json:"closesInMillis,omitempty"` // 0: never
}

// Weather is how the provider behaves, as PUT /faults of moneysim takes it.
type Weather struct {
	LatencyMs           int     `json:"latencyMs,omitempty"`
	JitterMs            int     `json:"jitterMs,omitempty"`
	ErrorRate           float64 `json:"errorRate,omitempty"`
	RefuseRate          float64 `json:"refuseRate,omitempty"`
	TimeoutRate         float64 `json:"timeoutRate,omitempty"`
	LostReplyRate       float64 `json:"lostReplyRate,omitempty"`
	SlowDripRate        float64 `json:"slowDripRate,omitempty"`
	DuplicateRate       float64 `json:"duplicateRate,omitempty"`
	ThrottleRate        float64 `json:"throttleRate,omitempty"`
	ResetBeforeRate     float64 `json:"resetBeforeRate,omitempty"`
	ResetAfterRate      float64 `json:"resetAfterRate,omitempty"`
	UnavailableRate     float64 `json:"unavailableRate,omitempty"`
	MisconfiguredStatus int     `json:"misconfiguredStatus,omitempty"`
	Away                bool    `json:"away,omitempty"`
}

// String is the step as a line of JSON.
func (s Step) String() string {
	text, err := json.Marshal(s)
	if err != nil {
		return err.Error() // a NaN, which no plan holds
	}
	return string(text)
}

// weights is how often each act comes up.
var weights = []struct {
	act    string
	weight int
	// always: a run without it would do nothing.
	always bool
}{
	{actCreate, 6, true},
	{actUpload, 18, true},
	{actCut, 4, false},
	{actPublish, 8, false},
	{actAnnounce, 3, false},
	{actStart, 9, true},
	{actPause, 7, false},
	{actResume, 6, false},
	{actCancel, 4, false},
	{actClose, 3, false},
	{actRetry, 5, false},
	{actFaults, 10, false},
	{actCalm, 6, false},
	{actRestart, 2, false},
	{actCrash, 2, false},
	{actWait, 5, false},
	{actCheck, 4, true},
	{actTemplate, 3, true},
	{actAsk, 26, true},
	{actCancelCoupon, 10, false},
	{actUseCoupon, 4, false},
	{actResize, 4, false},
	{actCloseTemplate, 1, false},
}

const (
	planTargets = 600 // ids of targets that a promotion draws from
	planUsers   = 40  // users that ask at about the same time
	planBatch   = 300 // targets in a file or a batch of records, at most
)

// plan is what the generator remembers.
type plan struct {
	*rand.Rand
	weights    []int
	promotions []planned // by id - 1
	quantities []int64   // of the templates, by id - 1
	step       int
}

// planned is what should have become of a promotion so far. It may be over by
// then, or have been paused by its provider; the plan does not look.
type planned struct {
	voucher bool
	last    string // the last act that moves it, "" for a draft
}

// movers are the acts that move a promotion, and what each should find as the
// last one.
var movers = map[string][]string{
	actStart:  {""},
	actPause:  {actStart, actResume},
	actResume: {actPause},
	actCancel: {actStart, actResume, actPause},
}

// NewPlan makes the steps of a run. They follow from the seed and the number of
// steps alone: the same ones, the same steps.
func NewPlan(seed uint64, steps int) []Step {
	p := &plan{Rand: rand.New(rand.NewPCG(seed, seed^0x9e3779b97f4a7c15))}
	// Each run leaves some acts out and favours others, so that runs differ in
	// more than the order of the same things.
	for _, w := range weights {
		weight := w.weight * (2 + p.IntN(7)) // a quarter to double, in eighths
		if !w.always && p.chance(0.15) {
			weight = 0
		}
		p.weights = append(p.weights, weight)
	}
	out := make([]Step, 0, steps)
	for p.step = range steps {
		var s Step
		switch p.step {
		case 0:
			s = p.promotion(actCreate)
		case 1:
			s = p.template()
		default:
			s = p.make(p.pick())
		}
		s.Pause = Millis(p.IntN(40))
		if s.Do == actWait {
			s.Pause = Millis(200 + p.IntN(500))
		}
		out = append(out, s)
	}
	return out
}

func (p *plan) chance(share float64) bool { return p.Float64() < share }

func (p *plan) pick() string {
	total := 0
	for _, w := range p.weights {
		total += w
	}
	n := p.IntN(total)
	for i, w := range p.weights {
		if n < w {
			return weights[i].act
		}
		n -= w
	}
	panic("lab: the weights do not add up")
}

func (p *plan) make(act string) Step {
	switch act {
	case actCreate, actUpload, actCut, actPublish, actAnnounce, actStart, actPause, actResume, actCancel, actClose, actRetry:
		return p.promotion(act)
	case actTemplate:
		return p.template()
	case actAsk, actCancelCoupon, actUseCoupon, actResize, actCloseTemplate:
		return p.coupons(act)
	case actFaults:
		return Step{Do: act, Faults: p.weather()}
	}
	return Step{Do: act}
}

// recent picks one of n, the later ones more often: the earlier ones may be
// long over.
func (p *plan) recent(n int) int {
	if n > 3 && p.chance(0.75) {
		return n - 1 - p.IntN(3)
	}
	return p.IntN(n)
}

// fitting picks a promotion for an act: mostly one that it should do something
// to.
func (p *plan) fitting(act string) int {
	var fit []int
	for i, one := range p.promotions {
		if slices.Contains(movers[act], one.last) {
			fit = append(fit, i)
		}
	}
	if len(fit) == 0 || p.chance(0.15) {
		return p.recent(len(p.promotions))
	}
	return fit[p.recent(len(fit))]
}

func (p *plan) promotion(act string) Step {
	s := Step{Do: act}
	most := 4 + p.step/20
	// A promotion can also be registered by what Kafka brings first.
	if len(p.promotions) < most && (act == actCreate || (act == actPublish || act == actAnnounce) && p.chance(0.2)) {
		p.promotions = append(p.promotions, planned{voucher: p.chance(0.3)})
		s.Promotion = int64(len(p.promotions))
	} else {
		s.Promotion = int64(1 + p.fitting(act))
	}
	one := &p.promotions[s.Promotion-1]
	s.Voucher = one.voucher
	if movers[act] != nil {
		one.last = act
	}
	switch act {
	case actCreate:
		s.Levers = p.levers()
	case actUpload, actCut, actPublish:
		s.First, s.Count = p.IntN(planTargets), 1+p.IntN(planBatch)
		s.Amount = 100 * s.Promotion
		if p.chance(0.1) {
			s.Amount++ // whoever is known with the other amount is a conflict
		}
		if p.chance(0.2) {
			s.Bad = 1 + p.IntN(3)
		}
		s.Repeat = p.chance(0.15)
		if act != actPublish && p.chance(0.3) {
			s.Format = client.NDJSON
		}
	case actAnnounce:
		s.Count = p.IntN(planTargets)
		if one.last == "" {
			one.last = actStart
		}
	}
	return s
}

func (p *plan) levers() *Levers {
	l := &Levers{MaxRetries: p.IntN(3)}
	if p.chance(0.15) {
		l.RatePerSecond = 100 + p.IntN(400)
	}
	if p.chance(0.3) {
		l.Weight = 1 + p.IntN(10)
	}
	if p.chance(0.2) {
		l.MaxAmount = 10_000 + p.Int64N(100_000)
	}
	if p.chance(0.2) {
		l.Canary = 1 + p.Int64N(50)
	}
	return l
}

func (p *plan) weather() *Weather {
	w := &Weather{}
	if p.chance(0.7) {
		w.LatencyMs, w.JitterMs = p.IntN(80), p.IntN(60)
	}
	for _, r := range []struct {
		to   *float64
		most float64
	}{
		{&w.ErrorRate, 0.3},
		{&w.RefuseRate, 0.3},
		{&w.TimeoutRate, 0.1},
		{&w.LostReplyRate, 0.2},
		{&w.SlowDripRate, 0.05},
		{&w.DuplicateRate, 0.3},
		{&w.ThrottleRate, 0.05},
		{&w.ResetBeforeRate, 0.2},
		{&w.ResetAfterRate, 0.2},
		{&w.UnavailableRate, 0.1},
	} {
		if p.chance(0.4) {
			*r.to = p.Float64() * r.most
		}
	}
	switch {
	case p.chance(0.07):
		w.Away = true
	case p.chance(0.07):
		w.MisconfiguredStatus = []int{401, 403, 404, 405, 407, 413, 415}[p.IntN(7)]
	}
	return w
}

func (p *plan) template() Step {
	s := Step{Do: actTemplate, Stock: &Stock{
		Mode:     []string{"STREAM", "STREAM", "STREAM", "KAFKA", "SYNC"}[p.IntN(5)],
		Quantity: 1 + p.Int64N(60), PerUser: 1 + p.IntN(3), Reissue: p.chance(0.7),
	}}
	if p.chance(0.2) {
		s.Stock.OpensIn = Millis(p.IntN(1500))
	}
	if p.chance(0.2) {
		s.Stock.ClosesIn = s.Stock.OpensIn + Millis(500+p.IntN(4000))
	}
	p.quantities = append(p.quantities, s.Stock.Quantity)
	s.Template = int64(len(p.quantities))
	return s
}

func (p *plan) coupons(act string) Step {
	n := p.recent(len(p.quantities))
	s := Step{Do: act, Template: int64(n + 1)}
	// Users come and go, so that none of them has a history without end.
	s.First = p.step/100*planUsers/2 + p.IntN(planUsers)
	switch act {
	case actAsk:
		s.Count = 1 + p.IntN(planUsers/2)
		s.Repeat = p.chance(0.2)
	case actResize:
		s.First = 0
		s.Quantity = max(1, p.quantities[n]+p.Int64N(41)-20)
		p.quantities[n] = s.Quantity
	case actCloseTemplate:
		s.First = 0
	}
	return s
}

// amountIn is what a target gets in a step: its neighbours get other amounts, so
// that sums tell them apart.
func (s Step) amountIn(target int) int64 { return s.Amount + 2*int64(target%5) }
