package gatekeeper

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/service"
	"github.com/largesse/largesse/internal/store"
)

const (
	refreshInterval = 500 * time.Millisecond // between two reads
	// hintDelay is the time from a hint to the read, so that one read covers a
	// burst of hints.
	hintDelay = 10 * time.Millisecond
	// inactiveMax limits the remembered templates that are not active.
	inactiveMax = 10_000
	inactiveTTL = time.Second
	readTimeout = 5 * time.Second
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
	reads    singleflight.Group // by ID
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
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
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
	if found, err := t.cached(id); found != nil || err != nil {
		return found, err
	}
	return t.Read(ctx, id)
}

// Cached returns a template if it is in memory, otherwise nil.
func (t *TemplateCache) Cached(id reward.TemplateID) *reward.CouponTemplate {
	found, _ := t.cached(id)
	return found
}

// cached returns what Get returns from memory: a template, or why there is none. Neither
// means that it must be read.
func (t *TemplateCache) cached(id reward.TemplateID) (*reward.CouponTemplate, error) {
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
	return nil, nil //nolint:nilnil // see above
}

// Read reads a template from the database. Concurrent callers share a read that begins after
// they have called: when a template opens, all of its requests read it.
func (t *TemplateCache) Read(ctx context.Context, id reward.TemplateID) (*reward.CouponTemplate, error) {
	if store.IsForViewer(ctx) { // its read has limits of its own
		s := t.readOne(ctx, id)
		return s.template, s.err
	}
	for joined := false; ; joined = true {
		begun := false // by this caller
		read := t.reads.DoChan(id.String(), func() (any, error) {
			begun = true
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), readTimeout) // a caller who gives up takes nobody along
			defer cancel()
			s := t.readOne(ctx, id)
			return s.template, s.err
		})
		select {
		case r := <-read:
			if begun || joined { // otherwise the read began before the call, and may lack what the caller has changed
				return r.Val.(*reward.CouponTemplate), r.Err
			}
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// readOne reads a template, and remembers it, also if it does not exist.
func (t *TemplateCache) readOne(ctx context.Context, id reward.TemplateID) inactiveTemplate {
	row, err := t.rows.TemplateGet(ctx, id)
	s := inactiveTemplate{err: err, readAt: time.Now()}
	switch {
	case err == nil:
		s.template = &row
	case !reward.HasCode(err, reward.CodeTemplateNotFound):
		return s
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.inactive) >= inactiveMax {
		clear(t.inactive)
	}
	t.inactive[id] = s
	return s
}
