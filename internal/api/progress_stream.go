package api

import (
	"context"
	"fmt"
	"hash/fnv"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/largesse/largesse/internal/web"
)

// streamProgress answers with the updates of a promotion or template. lastEventID is
// the Last-Event-ID of the request.
func streamProgress[ID comparable, V any](ctx context.Context, a *API, h *progressHub[ID, V], id ID, lastEventID string) (*huma.StreamResponse, error) {
	release, err := a.holdProgress(ctx)
	if err != nil {
		return nil, err
	}
	w := h.watch(id)
	leave := func() {
		h.leave(w)
		release()
	}
	draining := a.DrainBegins()
	first, err := w.firstUpdate(ctx, draining)
	if err != nil {
		leave()
		return nil, err
	}
	seen := parseEventID(lastEventID)
	return &huma.StreamResponse{Body: func(hc huma.Context) {
		if first.done && seen == first.id {
			leave()
			hc.SetStatus(http.StatusNoContent)
			return
		}
		w.first = first
		send := func(ctx context.Context, out *web.Stream) { w.send(ctx, out, seen, h.interval, draining) }
		a.StreamEvents(ctx, hc, a.alive(ctx), send, leave)
	}}, nil
}

func (w *progressWatcher[ID]) firstUpdate(ctx context.Context, draining <-chan struct{}) (*progressFrame, error) {
	select {
	case n := <-w.updates:
		return n.progressFrame, n.err
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-draining:
		return nil, web.NewProblem(http.StatusServiceUnavailable, CodeDraining, "this instance is shutting down")
	}
}

// send sends updates, at least interval apart, until there are no more. seen is the
// ID of the last event that the client received, or "".
func (w *progressWatcher[ID]) send(ctx context.Context, out *web.Stream, seen string, interval time.Duration, draining <-chan struct{}) {
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
			timer.Reset(interval)
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
	if status, _, _ := strings.Cut(seen, "."); status == f.status {
		return f.progress
	}
	return f.state
}

// frameID returns the ID of an event with a status. Equal data have equal IDs.
func frameID(status string, data any) string {
	sum := fnv.New64a()
	_, _ = sum.Write(web.EncodeEvent(data)) // writing to a hash never fails
	return fmt.Sprintf("%s.%016x", status, sum.Sum64())
}

// parseEventID returns s if it can be the ID of a progressFrame, or "".
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
