package gatekeeper

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
	// hintDelay is the time from a hint to the read, so that one read covers a
	// burst of hints.
	hintDelay = 10 * time.Millisecond
	// inactiveMax limits the remembered templates that are not active.
	inactiveMax = 10_000
	inactiveTTL = time.Second
)

// TemplateCache holds the active templates as of the latest read. It reads all of
// them with one query, every refreshInterval and sooner on a hint. Its templates may
// be slightly out of date, so a write that depends on them names the generation, epoch
// or path that it expects. It is safe for concurrent use.
type TemplateCache struct {
	rows templateRows
	view *service.View[activeTemplates]
	// ClosedRetention is how long a template stays active after its close.
	ClosedRetention time.Duration

	mu sync.Mutex // protects inactive
	// inactive holds the templates read by id: closed long ago, newer than the
	// latest read, or missing.
	inactive map[reward.TemplateID]inactiveTemplate
}

type activeTemplates struct {
	list []*reward.CouponTemplate
	byID map[reward.TemplateID]*reward.CouponTemplate
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

// NewTemplateCache returns a TemplateCache that reads nothing by itself. Templates stay
// active for closedRetention after their close.
func NewTemplateCache(rows templateRows, closedRetention time.Duration, log obs.Log) *TemplateCache {
	t := &TemplateCache{rows: rows, ClosedRetention: closedRetention, inactive: make(map[reward.TemplateID]inactiveTemplate)}
	report := log.Streak("template cache unavailable", "template cache available again")
	t.view = service.NewView(refreshInterval, hintDelay, t.readActive, func(err error) { report(err) })
	return t
}

// Hint requests a read before the interval has passed.
func (t *TemplateCache) Hint() { t.view.Hint() }

// Refresh reads the templates at once.
func (t *TemplateCache) Refresh(ctx context.Context) error { return t.view.Read(ctx) }

// Run reads the templates until ctx ends.
func (t *TemplateCache) Run(ctx context.Context) { t.view.Run(ctx) }

func (t *TemplateCache) readActive(ctx context.Context) (activeTemplates, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	readAt := time.Now()
	rows, err := t.rows.TemplateActive(ctx, readAt.Add(-t.ClosedRetention))
	if err != nil {
		return activeTemplates{}, err
	}
	now := activeTemplates{
		list: make([]*reward.CouponTemplate, len(rows)), byID: make(map[reward.TemplateID]*reward.CouponTemplate, len(rows)),
	}
	for i := range rows {
		now.list[i] = &rows[i]
		now.byID[rows[i].ID] = &rows[i]
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for id, s := range t.inactive {
		if readAt.Sub(s.readAt) > inactiveTTL {
			delete(t.inactive, id)
		}
	}
	return now, nil
}

// Active returns the active templates as of the latest read. The caller must not
// change them.
func (t *TemplateCache) Active() []*reward.CouponTemplate {
	now, _ := t.view.Get()
	return now.list
}

// Get returns a template, from memory if possible.
func (t *TemplateCache) Get(ctx context.Context, id reward.TemplateID) (*reward.CouponTemplate, error) {
	now, _ := t.view.Get()
	found := now.byID[id]
	t.mu.Lock()
	s, known := t.inactive[id]
	t.mu.Unlock()
	switch {
	case found != nil && (s.template == nil || s.template.Version <= found.Version && s.template.Generation <= found.Generation):
		return found, nil
	case known && time.Since(s.readAt) < inactiveTTL:
		return s.template, s.err
	}
	return t.Read(ctx, id)
}

// Read reads a template from the database.
func (t *TemplateCache) Read(ctx context.Context, id reward.TemplateID) (*reward.CouponTemplate, error) {
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
