package web

import (
	"sync"
	"time"

	"github.com/largesse/largesse/internal/obs"
)

// outageQuiet is the time without a failed request after which an outage has ended.
const outageQuiet = time.Minute

// outage logs requests that failed because a service was unavailable: of each outage
// the first, second, fourth, eighth and so on, and each at the level debug. It is safe
// for concurrent use.
type outage struct {
	log    obs.Log
	streak func(err error, attrs ...any)

	mu   sync.Mutex // protects last
	last time.Time  // when a request failed
}

func newOutage(log obs.Log) *outage {
	return &outage{log: log, streak: log.Streak("requests failing: service unavailable", "")}
}

// report logs a failed request.
func (o *outage) report(err error, requestID string) {
	o.mu.Lock()
	now := time.Now()
	over := now.Sub(o.last) > outageQuiet
	o.last = now
	o.mu.Unlock()
	if over {
		o.streak(nil)
	}
	o.streak(err, "request_id", requestID)
	o.log.Debug("request failed: service unavailable", "request_id", requestID, "error", err)
}
