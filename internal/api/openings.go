package api

import (
	"context"
	"sync"
	"time"

	"github.com/largesse/largesse/internal/reward"
)

const (
	// openingAge is for how long the opening of a template is taken from memory:
	// a crowd that asks too early must not fall on the database.
	openingAge  = time.Second
	openingsMax = 1000 // templates remembered
	openingWait = 2 * time.Second
)

// openings tells those who are too early when a template opens.
type openings struct {
	templates Templates

	mu    sync.Mutex // protects known
	known map[reward.TemplateID]opening
}

type opening struct {
	until time.Time
	at    func() time.Time // reads once, for all who ask meanwhile
}

func newOpenings(t Templates) *openings {
	return &openings{templates: t, known: make(map[reward.TemplateID]opening)}
}

// at returns when a template opens; zero = that is not known.
func (o *openings) at(ctx context.Context, id reward.TemplateID) time.Time {
	now := time.Now()
	o.mu.Lock()
	one, ok := o.known[id]
	if !ok || now.After(one.until) {
		if len(o.known) >= openingsMax {
			clear(o.known)
		}
		one = opening{until: now.Add(openingAge), at: sync.OnceValue(func() time.Time {
			// It is for others too, so it does not end with this caller.
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), openingWait)
			defer cancel()
			v, err := o.templates.Get(ctx, id)
			if err != nil {
				return time.Time{}
			}
			return v.OpensAt.UTC()
		})}
		o.known[id] = one
	}
	o.mu.Unlock()
	return one.at()
}
