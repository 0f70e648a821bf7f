package moneysim

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"
)

// Faults is how the simulator misbehaves on charges. Rates are independent
// shares from 0 to 1. If several apply to one request, the first in the table
// of the package comment wins. The zero value is a provider that always pays at
// once. Lookups and lists have only the latency, MisconfiguredStatus and Away,
// because callers use them to learn what happened.
type Faults struct {
	LatencyMs int `json:"latencyMs"` // milliseconds before a response
	JitterMs  int `json:"jitterMs"`  // milliseconds by which the latency varies, both ways
	// ErrorRate is the share of requests that get a 500 and charge nothing.
	ErrorRate float64 `json:"errorRate"`
	// RefuseRate is the share of keys that are refused (422). The key decides,
	// so a refused key stays refused while the rate stays the same.
	RefuseRate float64 `json:"refuseRate"`
	// TimeoutRate is the share of requests without a response until the caller
	// gives up. One half of them is charged.
	TimeoutRate float64 `json:"timeoutRate"`
	// LostReplyRate is the share of requests that are charged and whose
	// connection is then closed without a response.
	LostReplyRate float64 `json:"lostReplyRate"`
	// RatePerSecond is the number of requests per second that the simulator
	// accepts, with bursts of a tenth of a second. Further requests get a 429.
	// Zero means no limit.
	RatePerSecond float64 `json:"ratePerSecond"`

	// SlowDripRate is the share of requests that are charged and get a response
	// of ten bytes per second that never ends.
	SlowDripRate float64 `json:"slowDripRate"`
	// DuplicateRate is the share of requests that arrive twice at the same
	// time, as through a proxy that repeats them. Both copies get the same
	// fault: if one is charged, both ask the ledger for it.
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
	// Retry-After, like from a gateway that does not know their outcome. One
	// half of them is charged.
	UnavailableRate float64 `json:"unavailableRate"`
	// MisconfiguredStatus is the status of every call, lookups included, as if
	// the key, path or host were wrong: 401, 403, 404, 405, 407, 413 or 415.
	// The body has a JSON code, except for 404, which is a page. Nothing is
	// charged. Zero means none.
	MisconfiguredStatus int `json:"misconfiguredStatus"`
	// Away resets the connection of each new call; calls in flight continue.
	// The simulator's own endpoints still work.
	Away bool `json:"away"`
}

// misconfigured lists the statuses that concern credentials, paths and sizes.
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
		if !(r.rate >= 0 && r.rate <= 1) { // also rejects NaN
			return fmt.Errorf("%s must be from 0 to 1", r.name)
		}
	}
	return nil
}

// draw identifies a decision that is made at random.
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

// chance returns a number in [0, 1) that depends only on the seed, the key, the
// number of the key's attempt and the decision. So a run gets the same faults
// again, however its requests interleave.
func chance(seed uint64, k key, try uint32, d draw) float64 {
	h := seed
	for _, v := range [...]uint64{uint64(k.promotion), uint64(k.target), uint64(try), uint64(d)} { //nolint:gosec // the bits are mixed, not counted
		h = mix(h ^ v)
	}
	return float64(h>>11) / (1 << 53)
}

// mix is the finalizer of SplitMix64: each bit of x affects every bit of the
// result.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// latency returns the pause before the response to an attempt.
func (f Faults) latency(seed uint64, k key, try uint32) time.Duration {
	spread := float64(f.JitterMs) * (2*chance(seed, k, try, drawJitter) - 1)
	return time.Duration(max(float64(f.LatencyMs)+spread, 0) * float64(time.Millisecond))
}
