package coupon

import (
	"sync"
	"time"

	"github.com/largesse/largesse/internal/reward"
)

// refusalsMax limits the remembered users of all templates; at the limit all of
// them are forgotten.
const refusalsMax = 100_000

// refusals remembers the users that a gate has just refused, so that repeated
// requests of a crowd do not reach the gate. It never refuses a user that the
// gate has not refused: that user may have a ticket or a coupon. A refusal
// counts while the gate's generation and version stay the same, at most for ttl,
// and until the template's outcomes change. It is safe for concurrent use.
type refusals struct {
	ttl time.Duration

	mu sync.Mutex // protects byTemplate and count
	// byTemplate holds, per template, the users refused at one version of its
	// gate.
	byTemplate map[reward.TemplateID]*refused
	count      int // users in byTemplate
}

type refused struct {
	generation, version int64
	until               time.Time
	codes               map[string]string // by user
}

func newRefusals(ttl time.Duration) *refusals {
	return &refusals{ttl: ttl, byTemplate: make(map[reward.TemplateID]*refused)}
}

// known returns the code that the user was refused with, or "" for none.
func (r *refusals) known(t *reward.CouponTemplate, user string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	one := r.byTemplate[t.ID]
	if one == nil || t.Version > one.version || t.Generation > one.generation || time.Now().After(one.until) {
		return ""
	}
	return one.codes[user]
}

// remember stores the code that the gate's answer a refused the user with.
func (r *refusals) remember(id reward.TemplateID, user string, a gateAnswer, code string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	one := r.byTemplate[id]
	now := time.Now()
	if r.count >= refusalsMax {
		clear(r.byTemplate)
		r.count, one = 0, nil
	}
	if one == nil || one.version != a.version || one.generation != a.generation || now.After(one.until) {
		r.forgetLocked(id)
		one = &refused{generation: a.generation, version: a.version, until: now.Add(r.ttl), codes: make(map[string]string)}
		r.byTemplate[id] = one
	}
	if _, known := one.codes[user]; !known {
		r.count++
	}
	one.codes[user] = code
}

// forget removes the refusals of a template.
func (r *refusals) forget(id reward.TemplateID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.forgetLocked(id)
}

func (r *refusals) forgetLocked(id reward.TemplateID) {
	if one := r.byTemplate[id]; one != nil {
		r.count -= len(one.codes)
		delete(r.byTemplate, id)
	}
}
