package coupon

import (
	"sync"
	"time"

	"github.com/largesse/largesse/internal/reward"
)

const (
	refusalsMax = 100_000 // remembered in all
)

// refusals remembers whom the gate has refused a moment ago, so that a crowd
// that asks again and again stays off it. Only who was refused himself is
// refused: another may have a ticket or a coupon. It holds while the gate's
// generation and version do, and is dropped when a template's outcomes change.
type refusals struct {
	ttl time.Duration // longest that a refusal is repeated

	mu sync.Mutex // protects byTemplate
	// byTemplate holds, per template, whom its gate refused at one version.
	byTemplate map[reward.TemplateID]*refused
	count      int // of users in it
}

type refused struct {
	generation, version int64
	until               time.Time
	codes               map[string]string
}

func newRefusals(ttl time.Duration) *refusals {
	return &refusals{ttl: ttl, byTemplate: make(map[reward.TemplateID]*refused)}
}

// known returns the code that the user was refused with, "" = none.
func (r *refusals) known(t *reward.CouponTemplate, user string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	one := r.byTemplate[t.ID]
	if one == nil || t.Version > one.version || t.Generation > one.generation || time.Now().After(one.until) {
		return ""
	}
	return one.codes[user]
}

func (r *refusals) note(id reward.TemplateID, user string, a gateAnswer, code string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	one := r.byTemplate[id]
	now := time.Now()
	if r.count >= refusalsMax {
		clear(r.byTemplate)
		r.count, one = 0, nil
	}
	if one == nil || one.version != a.version || one.generation != a.generation || now.After(one.until) {
		r.forget(id)
		one = &refused{generation: a.generation, version: a.version, until: now.Add(r.ttl), codes: make(map[string]string)}
		r.byTemplate[id] = one
	}
	if _, known := one.codes[user]; !known {
		r.count++
	}
	one.codes[user] = code
}

func (r *refusals) drop(id reward.TemplateID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.forget(id)
}

// forget drops what is known of a template; r.mu is held.
func (r *refusals) forget(id reward.TemplateID) {
	if one := r.byTemplate[id]; one != nil {
		r.count -= len(one.codes)
		delete(r.byTemplate, id)
	}
}
