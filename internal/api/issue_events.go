package api

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/coupon"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/web"
)

// Events of a coupon request.
const (
	eventRank   = "rank"
	eventResult = "result"
)

type issueEventsInput struct {
	RequestPath
	LastEventID string `header:"Last-Event-ID" doc:"id of the last event received"`
}

func (a *API) addIssueEvents() {
	const path = "/v1/issue-requests/{requestId}/events"
	call(a, operation{
		id: "watch-issue-request", method: http.MethodGet, path: path, tag: "coupons", roles: everyRole, unlimited: true, long: true,
		summary:     "Follow a user's latest request for a template (SSE)",
		description: "rank: sent first, and when the rank has changed: at most once per second, far behind at least every 12 s. result: the request has ended, and the stream ends. A lost request ends the stream, too.",
		errors:      []string{reward.CodeTemplateNotFound, reward.CodeRequestUnknown, reward.CodeArchived},
	}, a.watchIssueRequest)
	answers := describeEvents[client.IssueRequest](a, path, eventRank, eventResult)
	answers["204"] = &huma.Response{Description: "Last-Event-ID is the result"}
}

func (a *API) watchIssueRequest(ctx context.Context, in *issueEventsInput) (*huma.StreamResponse, error) {
	status, err := a.cfg.Issuing.Status(ctx, in.template, in.user)
	if err != nil {
		return nil, err
	}
	leave, err := a.hold(ctx)
	if err != nil {
		return nil, err
	}
	id, user, lastEventID := in.template, in.user, in.LastEventID // the stream outlives in
	return &huma.StreamResponse{Body: func(hc huma.Context) {
		if status.Kind != coupon.StatusWaiting && lastEventID == eventID(status) {
			leave()
			hc.SetStatus(http.StatusNoContent)
			return
		}
		reader := caller{Principal: callerOf(ctx).Principal} // the stream outlives ctx
		send := func(ctx context.Context, out *web.Stream) {
			a.sendIssueEvents(context.WithValue(ctx, callerKey{}, reader), out, id, user, status)
		}
		a.StreamEvents(ctx, hc, a.alive(ctx), send, leave)
	}}, nil
}

func eventID(s coupon.Status) string {
	if s.Kind == coupon.StatusWaiting {
		return fmt.Sprintf("%d.%d", s.Ticket, s.Rank)
	}
	return fmt.Sprintf("%d.%s", s.Ticket, s.Kind)
}

func (a *API) sendIssueEvents(ctx context.Context, out *web.Stream, id reward.TemplateID, user string, status coupon.Status) {
	if sendIssueEvent(ctx, out, status); status.Kind != coupon.StatusWaiting {
		return
	}
	updates, stop := a.cfg.Watch(id, user, status)
	defer stop()
	beat := time.NewTicker(web.HeartbeatInterval)
	defer beat.Stop()
	for silent := false; out.Err() == nil; {
		select {
		case s := <-updates:
			silent = false
			if s.Kind == coupon.StatusWaiting && s.Ticket == status.Ticket && s.Rank >= status.Rank {
				continue // not new: the rank of a ticket never rises
			}
			if sendIssueEvent(ctx, out, s); s.Kind != coupon.StatusWaiting {
				return
			}
			status = s
		case <-beat.C:
			if silent && a.requestLost(ctx, id, user, status.Ticket) {
				return
			}
			silent = true
			out.Heartbeat()
		case <-ctx.Done():
			return
		case <-a.DrainBegins():
			return
		}
	}
}

func sendIssueEvent(ctx context.Context, out *web.Stream, s coupon.Status) {
	event := eventResult
	if s.Kind == coupon.StatusWaiting {
		event = eventRank
	}
	out.Send(event, eventID(s), issueRequestFor(ctx, s))
}

// requestLost reports whether a request no longer exists, or has lost its ticket. There
// are no updates in these cases.
func (a *API) requestLost(ctx context.Context, id reward.TemplateID, user string, ticket int64) bool {
	s, err := a.cfg.Issuing.Status(ctx, id, user)
	return reward.HasCode(err, reward.CodeRequestUnknown) || err == nil && s.Kind != coupon.StatusWaiting && s.Ticket < ticket
}
