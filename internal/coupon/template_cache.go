package coupon

import (
	"context"
	"sync"
	"time"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/service"
)

const (
	refreshInterval = 500 * time.Millisecond // between two reads
	hintInterval    = 10 * time.Millisecond  // between two reads because of hints
	// inactiveMax limits the templates that are held although they are not active.
	inactiveMax = 10_000
	inactiveTTL = time.Second
)

// TemplateCache holds the active templates as of the latest read. It reads all of
// them with one query, every refreshInterval and sooner on a hint. Its templates may
// be slightly out of date, so a write that depends on them names the generation, epoch
// or path that it expects. It is safe for concurrent use.
type TemplateCache struct {
	rows  templateRows
	log   obs.Log
	hints chan struct{}
	// closedRetention is how long a template stays active after its close.
	closedRetention time.Duration

	mu   sync.Mutex // protects the fields below
	list []*reward.CouponTemplate
	byID map[reward.TemplateID]*reward.CouponTemplate
	// inactive holds the templates read by id: closed long ago, newer than the
	// latest read, or missing.
	inactive map[reward.TemplateID]inactiveTemplate
}

type inactiveTemplate struct {
	template *reward.CouponTemplate // nil if it does not exist
	err      error
	readAt   time.Time
}

type templateRows interface {
	TemplateActive(ctx context.Context, closedAfter time.Time) ([]reward.CouponTemplate, error)
	TemplateGet(ctx context.Context, id reward.TemplateID) (reward.CouponTemplate, error)
}

func newTemplateCache(rows templateRows, closedRetention time.Duration, log obs.Log) *TemplateCache {
	return &TemplateCache{
		rows: rows, closedRetention: closedRetention, log: log, hints: make(chan struct{}, 1),
		byID: make(map[reward.TemplateID]*reward.CouponTemplate), inactive: make(map[reward.TemplateID]inactiveTemplate),
	}
}

// hint requests a read before the interval has passed.
func (t *TemplateCache) hint() {
	select {
	case t.hints <- struct{}{}:
	default:
	}
}

// run reads the templates until ctx ends.
func (t *TemplateCache) run(ctx context.Context) {
	failures := 0
	for ctx.Err() == nil {
		switch err := t.refresh(ctx); {
		case err != nil && ctx.Err() == nil:
			failures++
			if failures&(failures-1) == 0 {
				t.log.Warn("template cache unavailable", err, "failures", failures)
			}
		case failures > 0:
			t.log.Info("template cache available again", "failures", failures)
			failures = 0
		}
		timer := time.NewTimer(service.Jitter(refreshInterval, 0.1))
		select {
		case <-timer.C:
		case <-t.hints:
			service.Sleep(ctx, hintInterval)
		case <-ctx.Done():
		}
		timer.Stop()
	}
}

func (t *TemplateCache) refresh(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	readAt := time.Now()
	rows, err := t.rows.TemplateActive(ctx, readAt.Add(-t.closedRetention))
	if err != nil {
		return err
	}
	list := make([]*reward.CouponTemplate, len(rows))
	byID := make(map[reward.TemplateID]*reward.CouponTemplate, len(rows))
	for i := range rows {
		list[i] = &rows[i]
		byID[rows[i].ID] = &rows[i]
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.list, t.byID = list, byID
	for id, s := range t.inactive {
		if readAt.Sub(s.readAt) > inactiveTTL {
			delete(t.inactive, id)
		}
	}
	return nil
}

// active returns the active templates as of the latest read. The caller must not
// change them.
func (t *TemplateCache) active() []*reward.CouponTemplate {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.list
}

// get returns a template, from memory if possible.
func (t *TemplateCache) get(ctx context.Context, id reward.TemplateID) (*reward.CouponTemplate, error) {
	t.mu.Lock()
	found := t.byID[id]
	s, known := t.inactive[id]
	t.mu.Unlock()
	switch {
	case found != nil && (s.template == nil || s.template.Version <= found.Version && s.template.Generation <= found.Generation):
		return found, nil
	case known && time.Since(s.readAt) < inactiveTTL:
		return s.template, s.err
	}
	return t.read(ctx, id)
}

// read reads a template from the database.
func (t *TemplateCache) read(ctx context.Context, id reward.TemplateID) (*reward.CouponTemplate, error) {
	row, err := t.rows.TemplateGet(ctx, id)
	if err != nil && !reward.HasCode(err, reward.CodeTemplateNotFound) {
		return nil, err
	}
	s := inactiveTemplate{err: err, readAt: time.Now()}
	if err == nil {
		s.template = &row
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.inactive) >= inactiveMax {
		clear(t.inactive)
	}
	t.inactive[id] = s
	return s.template, s.err
}
