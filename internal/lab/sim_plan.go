package lab

import (
	"encoding/json"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/largesse/largesse/client"
)

// The actions of a plan.
const (
	actCreate   = "create"   // create a promotion through the API
	actUpload   = "upload"   // upload a file of targets
	actCut      = "cut"      // an upload whose sender crashes half-way
	actPublish  = "publish"  // send targets through Kafka
	actAnnounce = "announce" // send the started event
	actStart    = "start"
	actPause    = "pause"
	actResume   = "resume"
	actCancel   = "cancel"
	actClose    = "close"
	actRetry    = "retry"
	actFaults   = "faults" // set faults of the provider
	actCalm     = "calm"   // remove the faults
	actRestart  = "restart"
	actCrash    = "crash" // restart without an orderly stop
	actWait     = "wait"
	actCheck    = "check" // check what must hold at any moment

	actTemplate      = "template" // create a coupon template
	actAsk           = "ask"      // send concurrent requests of users
	actCancelCoupon  = "cancelCoupon"
	actUseCoupon     = "useCoupon"
	actResize        = "resize"        // change the quantity
	actCloseTemplate = "closeTemplate" // close the template
)

// Step is one action of a plan. Fields that its action does not use are zero.
type Step struct {
	Do        string `json:"do"`
	Promotion int64  `json:"promotion,omitempty"` // promotion ID
	Template  int64  `json:"template,omitempty"`  // template ID
	// First and Count select targets or users; for an action on a coupon, First
	// selects it.
	First int `json:"first,omitempty"`
	Count int `json:"count,omitempty"`
	// Amount is the amount of the first target; see amountIn.
	Amount   int64     `json:"amount,omitempty"`
	Bad      int       `json:"bad,omitempty"`     // malformed lines or records mixed in
	Repeat   bool      `json:"repeat,omitempty"`  // whether it is sent twice
	Voucher  bool      `json:"voucher,omitempty"` // VOUCHER if true, otherwise POINT
	Controls *Controls `json:"levers,omitempty"`  // controls of a new promotion
	Stock    *Stock    `json:"stock,omitempty"`   // settings of a new template
	Quantity int64     `json:"quantity,omitempty"`
	Faults   *Weather  `json:"faults,omitempty"`
	Pause    Millis    `json:"pauseMillis,omitempty"` // pause after the action
	// Format is the format of a file of targets.
	Format client.Format `json:"format,omitempty"`
}

// Millis is a duration in milliseconds, as in JSON.
type Millis int

// Duration returns m as a time.Duration.
func (m Millis) Duration() time.Duration { return time.Duration(m) * time.Millisecond }

// Controls are the settings of a new promotion that control how it runs.
type Controls struct {
	MaxRetries    int   `json:"maxRetries"`
	RatePerSecond int   `json:"ratePerSecond,omitempty"`
	Weight        int   `json:"weight,omitempty"`
	MaxAmount     int64 `json:"maxAmount,omitempty"`
	Canary        int64 `json:"canary,omitempty"`
}

// Stock holds the settings of a new coupon template.
type Stock struct {
	Mode     string `json:"mode"`
	Quantity int64  `json:"quantity"`
	PerUser  int    `json:"perUser"`
	Reissue  bool   `json:"reissue"`
	OpensIn  Millis `json:"opensInMillis,omitempty"`
	ClosesIn Millis `json:"closesInMillis,omitempty"` // 0: it does not close
}

// Weather holds the faults of the provider, as PUT /faults of moneysim takes
// them.
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

// String returns the step as a line of JSON.
func (s Step) String() string {
	text, err := json.Marshal(s)
	if err != nil {
		return err.Error() // a NaN, which no plan contains
	}
	return string(text)
}

// weights holds the frequency of each action.
var weights = []struct {
	act    string
	weight int
	// always marks actions without which a run would do nothing.
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
	planTargets = 600 // number of target IDs of a promotion
	planUsers   = 40  // users with requests at about the same time
	planBatch   = 300 // maximum targets in a file or a batch of records
)

// plan is the state of the generator.
type plan struct {
	*rand.Rand
	weights    []int
	promotions []planned // index: ID - 1
	quantities []int64   // quantities of the templates; index: ID - 1
	step       int
}

// planned is the expected state of a promotion. In the run it may have ended or
// been paused because of the provider; the plan does not know.
type planned struct {
	voucher bool
	last    string // last action that changed its status; "" for a draft
}

// movers maps the actions that change the status of a promotion to the previous
// actions that they should follow.
var movers = map[string][]string{
	actStart:  {""},
	actPause:  {actStart, actResume},
	actResume: {actPause},
	actCancel: {actStart, actResume, actPause},
}

// NewPlan returns the steps of a run. The same seed and number of steps always
// give the same plan.
func NewPlan(seed uint64, steps int) []Step {
	p := &plan{Rand: rand.New(rand.NewPCG(seed, seed^0x9e3779b97f4a7c15))}
	// Each run leaves out some actions and prefers others, so that runs differ
	// in more than their order.
	for _, w := range weights {
		weight := w.weight * (2 + p.IntN(7)) // weight from a quarter to double, in eighths
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

// recent returns an index below n and prefers late ones, because early objects
// may have ended.
func (p *plan) recent(n int) int {
	if n > 3 && p.chance(0.75) {
		return n - 1 - p.IntN(3)
	}
	return p.IntN(n)
}

// fitting picks a promotion for an action, mostly one on which the action has
// an effect.
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
	// Kafka records can also register a promotion.
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
		s.Controls = p.controls()
	case actUpload, actCut, actPublish:
		s.First, s.Count = p.IntN(planTargets), 1+p.IntN(planBatch)
		s.Amount = 100 * s.Promotion
		if p.chance(0.1) {
			s.Amount++ // a known target with the other amount is a conflict
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

func (p *plan) controls() *Controls {
	l := &Controls{MaxRetries: p.IntN(3)}
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
	// Change the users over time, so that no user's history grows without
	// limit.
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

// amountIn returns the amount of a target in a step. Neighbors have different
// amounts, so that sums reveal mix-ups.
func (s Step) amountIn(target int) int64 { return s.Amount + 2*int64(target%5) }
