package coupon

import (
	"context"
	"time"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

// drawRoute records the entrants of a draw before the template opens.
type drawRoute struct {
	templates *TemplateCache
	entries   *batcher[drawEntry]
}

// drawEntry tells whether a user takes part in a draw, and did so before.
type drawEntry struct{ entered, repeated bool }

func newDrawRoute(templates *TemplateCache, rows Store) *drawRoute {
	save := func(ctx context.Context, id reward.TemplateID, users []string) ([]drawEntry, error) {
		added, takes, err := rows.EntrantSave(ctx, id, users)
		out := make([]drawEntry, len(users))
		for n, user := range users {
			out[n] = drawEntry{entered: takes, repeated: !added[user]}
			delete(added, user) // a second request in the same batch is a repeat
		}
		return out, err
	}
	return &drawRoute{templates: templates, entries: newBatcher(store.BatchMax, callTimeout, save)}
}

func (r *drawRoute) request(ctx context.Context, t *reward.CouponTemplate, user string) (Status, error) {
	if t.Draw.State == reward.DrawOpen {
		entry, err := r.entries.do(ctx, t.ID, user)
		if err != nil {
			return Status{}, err
		}
		if entry.entered {
			return Status{Kind: StatusWaiting, Wait: drawWait(t), Duplicate: entry.repeated}, nil
		}
	}
	now := time.Now()
	switch fresh, err := r.templates.read(ctx, t.ID); {
	case err != nil:
		return Status{}, err
	case fresh.Draw.State == reward.DrawDone:
		return Status{}, errTemplateChanged
	case now.Before(fresh.Draw.From):
		e := refuse(fresh, reward.CodeNotOpen)
		e.Detail += "; users may enter its draw from " + fresh.Draw.From.UTC().Format(time.RFC3339)
		return Status{}, e
	}
	return Status{}, unavailable(nil, "the draw among the users who entered before the opening is running; repeat the request in a moment")
}

func (r *drawRoute) wait() { r.entries.open.Wait() }
