package api

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/web"
)

// Events of a promotion.
const (
	eventProgress = "progress"
	eventState    = "state"
	eventDone     = "done"
)

type promotionEventsInput struct {
	PromotionPath
	LastEventID string `header:"Last-Event-ID" doc:"id of the last event received"`
}

func (a *API) addPromotionEvents() {
	const path = "/v1/promotions/{id}/events"
	call(a, operation{
		id: "watch-promotion", method: http.MethodGet, path: path, tag: "promotions", roles: readers, unlimited: true, long: true,
		summary: "Follow a promotion (SSE)",
		description: "state: sent first, and when the status changes. progress: other changes, at most 4 times per second. " +
			"done: COMPLETED, or CANCELLED and finished; the stream ends, though later targets or retries reopen it. " +
			"Without summaries.",
		errors: []string{reward.CodeNotFound},
	}, func(ctx context.Context, in *promotionEventsInput) (*huma.StreamResponse, error) {
		return streamProgress(ctx, a, a.progress, in.id, in.LastEventID)
	})
	answers := describeEvents[client.Promotion](a, path, eventState, eventProgress, eventDone)
	answers["204"] = &huma.Response{Description: "Last-Event-ID is that of done, nothing has changed"}
}

func newPromotionHub(a *API) *progressHub[reward.PromotionID, store.PromotionView] {
	return newProgressHub(progressSource[reward.PromotionID, store.PromotionView]{
		what: "promotion", interval: progressInterval,
		read: func(ctx context.Context, ids []reward.PromotionID) ([]store.PromotionView, error) {
			return a.cfg.Rows.PromotionViews(store.ForViewer(ctx), ids)
		},
		idOf:  func(v store.PromotionView) reward.PromotionID { return v.ID },
		frame: func(v store.PromotionView) *progressFrame { return promotionFrame(&v, a.promotionForAll(v)) },
		missing: func(id reward.PromotionID) error {
			return reward.NewError(reward.KindNotFound, reward.CodeNotFound, "promotion %s does not exist", id)
		},
	}, a.log)
}

func promotionFrame(v *store.PromotionView, p *client.Promotion) *progressFrame {
	// The remaining time changes all the time. Only whether it is known counts.
	eta := p.ETASeconds
	if eta != nil {
		p.ETASeconds = new(int64)
	}
	id := frameID(string(v.Status), p)
	p.ETASeconds = eta
	f := &progressFrame{
		id: id, status: string(v.Status),
		done: v.Status == reward.Completed || v.Status == reward.PromotionCancelled && !v.FinishedAt.IsZero(),
	}
	text := web.EncodeEvent(p)
	if f.done {
		f.state = web.EventText(eventDone, f.id, text)
		f.progress = f.state
	} else {
		f.state, f.progress = web.EventText(eventState, f.id, text), web.EventText(eventProgress, f.id, text)
	}
	return f
}
