package api

import (
	"context"
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/largesse/largesse/internal/web"
)

// The events of a promotion.
const (
	eventProgress = "progress"
	eventState    = "state"
	eventDone     = "done"
)

type promotionEventsInput struct {
	ID          string `path:"id" doc:"Promotion id"`
	LastEventID string `header:"Last-Event-ID" doc:"Of the last event seen: what it told is not told again, and when that was done and still is so, the answer is 204 and a reader stops. One that is none of ours counts for nothing"`
}

func (a *API) addPromotionEvents() {
	const path = "/v1/promotions/{id}/events"
	call(a, huma.Operation{
		OperationID: "watch-promotion", Method: http.MethodGet, Path: path, Tags: []string{"promotions"},
		Summary: "Follow a promotion by server-sent events",
		Description: "state: sent at first, and when the status has changed. progress: the counts or anything else that is shown has changed, at most 4 a second; " +
			"steps in between are left out. done: it is COMPLETED, or CANCELLED and finished, and so is the stream. " +
			"The data of all is the promotion, without its summaries. A stream also ends when the instance stops, the promotion is deleted, or it could not be read for some 10 s; " +
			"a reader connects again and hears where it stands, or why that is not known. A COMPLETED promotion can go on later, when targets or retries come.",
	}, a.watchPromotion)
	answers := a.OpenAPI().Paths[path].Get.Responses
	promotion := a.OpenAPI().Components.Schemas.Schema(reflect.TypeFor[Promotion](), true, "")
	answers["200"].Content = map[string]*huma.MediaType{web.StreamType: {Schema: eventSchema(map[string]*huma.Schema{
		eventState: promotion, eventProgress: promotion, eventDone: promotion,
	})}}
	answers["204"] = &huma.Response{Description: "Last-Event-ID is that of done, and nothing has changed since"}
}

func (a *API) watchPromotion(ctx context.Context, in *promotionEventsInput) (*huma.StreamResponse, error) {
	id, err := promotionID(in.ID)
	if err != nil {
		return nil, err
	}
	w := a.progress.watch(id)
	first, err := a.firstNews(ctx, w)
	if err != nil {
		a.progress.leave(w)
		return nil, err
	}
	seen := parseEventID(in.LastEventID)
	return &huma.StreamResponse{Body: func(hc huma.Context) {
		if first.done && seen == first.id {
			a.progress.leave(w)
			hc.SetStatus(http.StatusNoContent)
			return
		}
		w.first = first
		send := func(ctx context.Context, out *web.Stream) { a.sendProgress(ctx, out, w, seen) }
		a.StreamEvents(ctx, hc, a.alive(ctx), send, func() { a.progress.leave(w) })
	}}, nil
}

// firstNews waits for what a watcher hears first.
func (a *API) firstNews(ctx context.Context, w *progressWatcher) (*progressFrame, error) {
	select {
	case n := <-w.news:
		return n.progressFrame, n.err
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-a.DrainBegins():
		return nil, web.NewProblem(http.StatusServiceUnavailable, CodeDraining, "this instance is stopping")
	}
}

// sendProgress sends what a watcher hears, until that is done. seen is the id of
// the event that its reader has seen last, "" = none.
func (a *API) sendProgress(ctx context.Context, out *web.Stream, w *progressWatcher, seen string) {
	draining := a.DrainBegins()
	f := w.first
	w.first = nil // it would be kept as long as the stream
	news := w.news
	// One timer for both: while news is nil it says when there may be another
	// event, otherwise when to show that the stream is alive.
	timer := time.NewTimer(web.HeartbeatInterval)
	defer timer.Stop()
	for out.Err() == nil {
		if f != nil && f.id != seen {
			out.Write(f.eventAfter(seen))
			if f.done {
				return
			}
			seen, news = f.id, nil
			timer.Reset(progressEvery)
		}
		f = nil
		select {
		case n := <-news:
			if n.err != nil {
				return
			}
			f = n.progressFrame
		case <-timer.C:
			if news != nil {
				out.Beat()
			}
			news = w.news
			timer.Reset(web.HeartbeatInterval)
		case <-ctx.Done():
			return
		case <-draining:
			return
		}
	}
}

// eventAfter is the event that tells a view to a reader who has seen another;
// "" = none.
func (f *progressFrame) eventAfter(seen string) []byte {
	if status, _, _ := strings.Cut(seen, "."); status == string(f.status) {
		return f.progress
	}
	return f.state
}

// parseEventID returns the id of an event of a promotion, or "" when it is none.
func parseEventID(s string) string {
	status, sum, _ := strings.Cut(s, ".")
	if len(status) > 16 || len(sum) != 16 {
		return ""
	}
	if _, err := strconv.ParseUint(sum, 16, 64); err != nil {
		return ""
	}
	return s
}
