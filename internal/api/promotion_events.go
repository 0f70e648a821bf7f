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

// Events of a promotion.
const (
	eventProgress = "progress"
	eventState    = "state"
	eventDone     = "done"
)

type promotionEventsInput struct {
	ID          string `path:"id" doc:"Promotion ID"`
	LastEventID string `header:"Last-Event-ID" doc:"ID of the last event received; that state is not sent again. If it was done and nothing has changed since, the response is 204 and clients stop. Unknown IDs are ignored"`
}

func (a *API) addPromotionEvents() {
	const path = "/v1/promotions/{id}/events"
	call(a, huma.Operation{
		OperationID: "watch-promotion", Method: http.MethodGet, Path: path, Tags: []string{"promotions"},
		Summary: "Follow a promotion through server-sent events",
		Description: "state: sent first, and when the status changes. progress: sent when the counts or other fields change, at most 4 times per second; " +
			"intermediate steps are left out. done: the promotion is COMPLETED, or CANCELLED and finished; the stream ends. " +
			"The data of each event is the promotion without its summaries. The stream also ends if the instance stops, the promotion is deleted, or it cannot be read for about 10 s. " +
			"Clients then connect again and get the current state or an error. A COMPLETED promotion runs again if targets or retries are added.",
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
	release, err := a.holdPromotion(ctx)
	if err != nil {
		return nil, err
	}
	w := a.progress.watch(id)
	leave := func() {
		a.progress.leave(w)
		release()
	}
	first, err := a.firstUpdate(ctx, w)
	if err != nil {
		leave()
		return nil, err
	}
	seen := parseEventID(in.LastEventID)
	return &huma.StreamResponse{Body: func(hc huma.Context) {
		if first.done && seen == first.id {
			leave()
			hc.SetStatus(http.StatusNoContent)
			return
		}
		w.first = first
		send := func(ctx context.Context, out *web.Stream) { a.sendProgress(ctx, out, w, seen) }
		a.StreamEvents(ctx, hc, a.alive(ctx), send, leave)
	}}, nil
}

// firstUpdate waits for the first update of a watcher.
func (a *API) firstUpdate(ctx context.Context, w *progressWatcher) (*progressFrame, error) {
	select {
	case n := <-w.updates:
		return n.progressFrame, n.err
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-a.DrainBegins():
		return nil, web.NewProblem(http.StatusServiceUnavailable, CodeDraining, "this instance is shutting down")
	}
}

// sendProgress sends the updates of a watcher until the promotion is done. seen is
// the ID of the last event that the client received, or "".
func (a *API) sendProgress(ctx context.Context, out *web.Stream, w *progressWatcher, seen string) {
	draining := a.DrainBegins()
	f := w.first
	w.first = nil // otherwise it stays in memory as long as the stream
	updates := w.updates
	// One timer serves two purposes. While updates is nil, it fires when the next
	// event may be sent, otherwise when a heartbeat is due.
	timer := time.NewTimer(web.HeartbeatInterval)
	defer timer.Stop()
	for out.Err() == nil {
		if f != nil && f.id != seen {
			out.Write(f.eventAfter(seen))
			if f.done {
				return
			}
			seen, updates = f.id, nil
			timer.Reset(progressInterval)
		}
		f = nil
		select {
		case n := <-updates:
			if n.err != nil {
				return
			}
			f = n.progressFrame
		case <-timer.C:
			if updates != nil {
				out.Heartbeat()
			}
			updates = w.updates
			timer.Reset(web.HeartbeatInterval)
		case <-ctx.Done():
			return
		case <-draining:
			return
		}
	}
}

// eventAfter returns the event for a client that last saw the event seen; "" means
// none.
func (f *progressFrame) eventAfter(seen string) []byte {
	if status, _, _ := strings.Cut(seen, "."); status == string(f.status) {
		return f.progress
	}
	return f.state
}

// parseEventID returns s if it can be the ID of an event of a promotion, or "".
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
