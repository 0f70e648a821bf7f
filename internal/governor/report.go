package governor

import (
	"fmt"
	"time"

	"github.com/largesse/largesse/internal/obs"
)

const (
	// throttleLinger is how long after its end a provider that throttles is still
	// reported, so that short ends are no news.
	throttleLinger = 5 * time.Second
	// throttlesToReport is the number of responses in a row that throttle, without a
	// Retry-After, after which it is reported.
	throttlesToReport = 20
)

// report holds what to report about the provider. The governor's mutex protects it.
type report struct {
	reason    string        // reported reason; empty: none
	last      Outcome       // of the call that opened the breaker, or the latest probe
	throttles int           // responses in a row that throttle
	until     time.Duration // end of the report that the provider throttles; 0: none
	block     string        // reason while a Retry-After blocks all calls, and until then; empty: none
}

// tell reports the state of the provider if it has changed.
func (g *Governor) tell(now time.Duration) {
	r := &g.report
	reason := ""
	switch {
	case g.breaker.opened && g.breaker.adopted:
		reason = "another instance found that the provider does not respond, or fails: only one probe call is sent every few seconds; check the provider"
	case g.breaker.opened:
		reason = fmt.Sprintf("the provider does not respond, or fails (%s): only one probe call is sent every few seconds; check money.url and the provider", r.last)
	case now < r.until && r.block != "":
		reason = r.block
	case now < r.until:
		reason = "the provider asks for fewer calls (429 or 503), so calls wait; set money.rate-per-second to what it accepts"
	default:
		r.until, r.block = 0, ""
	}
	if reason == r.reason {
		return
	}
	r.reason = reason
	if reason == "" {
		g.cfg.Troubles.Clear(obs.PartProvider)
	} else {
		g.cfg.Troubles.Set(obs.PartProvider, reason)
	}
}

// String describes an outcome in a reason.
func (o Outcome) String() string {
	if o.Status != 0 {
		return fmt.Sprintf("the latest response was %d", o.Status)
	}
	if o.unanswered() {
		return "the latest call got no response"
	}
	return "the latest call got no connection"
}
