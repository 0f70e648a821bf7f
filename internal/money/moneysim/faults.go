package moneysim

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"
)

// Faults is how badly the simulator behaves towards charges. Rates are shares
// from 0 to 1 and independent of each other; where several strike one request,
// the first in the table of the package comment has its way. The zero value is
// a provider that always pays at once. Look-ups and lists take only the latency,
// MisconfiguredStatus and Away: they are how a caller gets certainty back.
type Faults struct {
	LatencyMs int `json:"latencyMs"` // milliseconds before an answer
	JitterMs  int `json:"jitterMs"`  // the latency varies by so much, either way
	// ErrorRate is the share of requests that get a 500 and charge nothing.
	ErrorRate float64 `json:"errorRate"`
	// RefuseRate is the share of keys that are refused (422). It is decided by
	// the key, so a refused one stays refused for as long as the rate stands.
	RefuseRate float64 `json:"refuseRate"`
	// TimeoutRate is the share of requests that get no answer until the caller
	// gives up; one half of them is charged.
	TimeoutRate float64 `json:"timeoutRate"`
	// LostReplyRate is the share of requests that are charged and whose
	// connection is then closed without an answer.
	LostReplyRate float64 `json:"lostReplyRate"`
	// RatePerSecond is how many requests a second are let in, a tenth of a
	// second's worth at once; the rest get a 429. 0 = no limit.
	RatePerSecond float64 `json:"ratePerSecond"`

	// SlowDripRate is the share of requests that are charged and answered byte
	// by byte, ten bytes a second, until the caller gives up: the answer never
	// becomes whole.
	SlowDripRate float64 `json:"slowDripRate"`
	// DuplicateRate is the share of requests that reach the provider twice at
	// the same time, as through a proxy that repeats. The copy meets the same
	// fate as the request: when one is charged, both ask the ledger for it.
	DuplicateRate float64 `json:"duplicateRate"`
	// ThrottleRate is the share of requests that get a 429 with Retry-After: 1
	// and charge nothing.
	ThrottleRate float64 `json:"throttleRate"`
	// ResetBeforeRate is the share of requests whose connection is reset before
	// anything is charged.
	ResetBeforeRate float64 `json:"resetBeforeRate"`
	// ResetAfterRate is the share of requests that are charged and whose
	// connection is then reset.
	ResetAfterRate float64 `json:"resetAfterRate"`
	// UnavailableRate is the share of requests that get a 503 without a
	// Retry-After, as from a gateway that does not know what became of them;
	// one half of them is charged.
	UnavailableRate float64 `json:"unavailableRate"`
	// MisconfiguredStatus is what each call gets, look-ups among them, as if our
	// key, path or host were wrong: 401, 403, 404, 405, 407, 413 or 415, with a
	// JSON code but for 404, which is a page. 0 = none. Nothing is charged.
	MisconfiguredStatus int `json:"misconfiguredStatus"`
	// Away resets the connection of each call as soon as it comes; what is
	// under way goes on. The endpoints of the simulator itself stay up.
	Away bool `json:"away"`
}

// misconfigured are the statuses that speak of credentials, paths and sizes.
var misconfigured = []int{
	http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound, http.StatusMethodNotAllowed,
	http.StatusProxyAuthRequired, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType,
}

func (f Faults) validate() error {
	if f.LatencyMs < 0 || f.JitterMs < 0 {
		return errors.New("latencyMs and jitterMs must not be below 0")
	}
	if !(f.RatePerSecond >= 0) {
		return errors.New("ratePerSecond must not be below 0")
	}
	if f.MisconfiguredStatus != 0 && !slices.Contains(misconfigured, f.MisconfiguredStatus) {
		return fmt.Errorf("misconfiguredStatus must be 0 or one of %v", misconfigured)
	}
	for _, r := range []struct {
		name string
		rate float64
	}{
		{"errorRate", f.ErrorRate},
		{"refuseRate", f.RefuseRate},
		{"timeoutRate", f.TimeoutRate},
		{"lostReplyRate", f.LostReplyRate},
		{"slowDripRate", f.SlowDripRate},
		{"duplicateRate", f.DuplicateRate},
		{"throttleRate", f.ThrottleRate},
		{"resetBeforeRate", f.ResetBeforeRate},
		{"resetAfterRate", f.ResetAfterRate},
		{"unavailableRate", f.UnavailableRate},
	} {
		if !(r.rate >= 0 && r.rate <= 1) { // NaN is neither
			return fmt.Errorf("%s must be from 0 to 1", r.name)
		}
	}
	return nil
}

// draw names what is decided by chance.
type draw uint64

const (
	drawRefuse draw = iota + 1
	drawRefuseReason
	drawJitter
	drawError
	drawTimeout
	drawTimeoutCharged
	drawLostReply
	drawSlowDrip
	drawDuplicate
	drawThrottle
	drawResetBefore
	drawResetAfter
	drawUnavailable
	drawUnavailableCharged
)

// chance is a number in [0, 1) that depends on nothing but the seed, the key,
// which try of the key it is and what is decided. So a run meets the same
// faults again, however its requests interleave.
func chance(seed uint64, k key, try uint32, d draw) float64 {
	h := seed
	for _, v := range [...]uint64{uint64(k.promotion), uint64(k.target), uint64(try), uint64(d)} { //nolint:gosec // the bits are mixed, not counted
		h = mix(h ^ v)
	}
	return float64(h>>11) / (1 << 53)
}

// mix is the finaliser of SplitMix64: each bit of x decides over each bit of
// the result.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// latency is the pause before the answer to a try.
func (f Faults) latency(seed uint64, k key, try uint32) time.Duration {
	spread := float64(f.JitterMs) * (2*chance(seed, k, try, drawJitter) - 1)
	return time.Duration(max(float64(f.LatencyMs)+spread, 0) * float64(time.Millisecond))
}
