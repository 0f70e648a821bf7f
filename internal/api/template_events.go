package api

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/coupon"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/web"
)

const eventCounters = "counters"

type templateEventsInput struct {
	TemplatePath
	LastEventID string `header:"Last-Event-ID" doc:"id of the last event received"`
}

func (a *API) addTemplateEvents() {
	const path = "/v1/coupon-templates/{id}/events"
	call(a, operation{
		id: "watch-template", method: http.MethodGet, path: path, tag: "coupon templates", roles: readers, unlimited: true, long: true,
		summary:     "Follow a template (SSE)",
		description: "counters: sent first, and on changes, at most twice per second.",
		errors:      []string{reward.CodeTemplateNotFound},
	}, func(ctx context.Context, in *templateEventsInput) (*huma.StreamResponse, error) {
		return streamProgress(ctx, a, a.counters, in.id, in.LastEventID)
	})
	describeEvents[client.TemplateProgress](a, path, eventCounters)
}

func newTemplateHub(a *API) *progressHub[reward.TemplateID, coupon.View] {
	rates := make(rateTracks[reward.TemplateID])
	return newProgressHub(progressSource[reward.TemplateID, coupon.View]{
		what: "template", interval: countersInterval,
		read: func(ctx context.Context, ids []reward.TemplateID) ([]coupon.View, error) {
			return a.cfg.Templates.GetMany(store.ForViewer(ctx), ids)
		},
		idOf: func(v coupon.View) reward.TemplateID { return v.ID },
		frame: func(v coupon.View) *progressFrame {
			now := time.Now()
			p := templateProgressOf(&v, now)
			track := rates.add(v.ID, rateSample{now, v.IssuedTotal})
			if rate, ok := track.recent(now); ok {
				p.IssuedPerSecond = rounded(rate)
			}
			f := &progressFrame{id: frameID(p.State, p), status: p.State}
			p.At = now.UTC()
			f.state = web.EventText(eventCounters, f.id, web.EncodeEvent(p))
			f.progress = f.state
			return f
		},
		missing: store.NoTemplate,
	}, a.log)
}

// recent returns the rate over the samples. It reports false while there is only one.
func (t *rateTrack) recent(now time.Time) (float64, bool) {
	first, last := t.samples[0], t.samples[len(t.samples)-1]
	return perSecond(first, last), len(t.samples) > 1 || now.Sub(t.moved) >= standstillAfter
}

func templateProgressOf(v *coupon.View, now time.Time) *client.TemplateProgress {
	t := templateOf(*v)
	p := &client.TemplateProgress{ID: t.ID, State: templateState(v, now), Path: t.Path, Counters: t.Counters, Degraded: t.Degraded}
	if v.Wait > 0 {
		p.EstimatedWaitMillis = new(v.Wait.Milliseconds())
	}
	return p
}

// templateState returns the state of a template, which is the same at every door.
func templateState(v *coupon.View, now time.Time) string {
	switch {
	case now.Before(v.OpensAt):
		return "UPCOMING"
	case !v.ClosesAt.IsZero() && !now.Before(v.ClosesAt):
		return "CLOSED"
	case v.Stock == 0:
		return "SOLD_OUT"
	}
	return "OPEN"
}
