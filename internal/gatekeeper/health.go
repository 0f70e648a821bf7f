package gatekeeper

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/service"
)

// gateSilentFor is how long the gates' server must not respond before the instance counts
// as degraded. A single call may be slow.
const gateSilentFor = time.Second

// gateHealth knows which gates do not work, and reports it: all, because their server is
// unavailable, or single ones, because it refuses what they need. Its zero value is usable
// and reports nothing. It is safe for concurrent use.
type gateHealth struct {
	troubles *obs.Troubles

	mu      sync.Mutex // protects the fields below
	down    string     // why all gates are unavailable; empty: they are not
	refused map[reward.TemplateID]*gateRefusal
}

// gateRefusal is what is known of a gate of which a command was refused.
type gateRefusal struct {
	since time.Time
	err   error // of the latest gate.Gate.Try; nil: it was not tried yet
}

// suspect notes that a call to a gate failed that began at a time, if the server refused
// it.
func (h *gateHealth) suspect(id reward.TemplateID, began time.Time, err error) {
	if service.Words(err) == "" {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.refused == nil {
		h.refused = make(map[reward.TemplateID]*gateRefusal)
	}
	if h.refused[id] == nil {
		h.refused[id] = &gateRefusal{since: began}
	}
}

// suspects returns the gates of which a command was refused, without those of templates
// that are not active any more.
func (h *gateHealth) suspects(active map[reward.TemplateID]*reward.CouponTemplate) []reward.TemplateID {
	h.mu.Lock()
	defer h.mu.Unlock()
	var ids []reward.TemplateID
	for id := range h.refused {
		if active[id] != nil {
			ids = append(ids, id)
		} else {
			delete(h.refused, id)
		}
	}
	h.report()
	return ids
}

// tried notes the result of a Try of a gate, and returns since when the server has refused
// what the gate needs; zero if it does not.
func (h *gateHealth) tried(id reward.TemplateID, err error) (since time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := h.refused[id]
	switch {
	case r == nil:
		return time.Time{}
	case err == nil:
		delete(h.refused, id)
	case service.Words(err) != "":
		r.err, since = err, r.since
	}
	h.report()
	return since
}

// server notes whether the gates' server is available, or why it is not since a time.
func (h *gateHealth) server(err error, since time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch refusal := service.Refusal(err, "Redis", "the gates of coupons need", gateEffect); {
	case err == nil:
		h.down = ""
	case refusal != "":
		h.down = refusal
	case time.Since(since) >= gateSilentFor:
		h.down = "Redis does not answer the gates of coupons: " + gateEffect
	}
	h.report()
}

const gateEffect = "users who request get 503, then coupons through the database, unless whenRedisAway is WAIT; users in line wait"

// report reports what does not work. h.mu is held.
func (h *gateHealth) report() {
	if h.down != "" {
		h.troubles.Set(obs.PartGate, h.down)
		return
	}
	var ids []reward.TemplateID
	for id, r := range h.refused {
		if r.err != nil {
			ids = append(ids, id)
		}
	}
	if len(ids) == 0 {
		h.troubles.Clear(obs.PartGate)
		return
	}
	first := slices.Min(ids)
	more := ""
	if len(ids) > 1 {
		more = fmt.Sprintf(" and of %d more", len(ids)-1)
	}
	h.troubles.Set(obs.PartGate, service.Refusal(h.refused[first].err, "Redis", fmt.Sprintf("the gate of template %s%s needs", first, more), gateEffect))
}
