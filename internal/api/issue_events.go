package api

import (
	"context"
	"fmt"
	"net/http"
	"reflect"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/largesse/largesse/internal/coupon"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/web"
)

// The events of a request.
const (
	eventRank   = "rank"
	eventResult = "result"
)

type issueEventsInput struct {
	RequestID   string `path:"requestId" doc:"{templateId}:{userId}, percent-encoded; it splits at its first colon" example:"42:u7"`
	LastEventID string `header:"Last-Event-ID" doc:"Of the last event seen: when that was the result, the answer is 204 and a reader stops"`
}

func (a *API) addIssueEvents() {
	const path = "/v1/issue-requests/{requestId}/events"
	call(a, huma.Operation{
		OperationID: "watch-issue-request", Method: http.MethodGet, Path: path, Tags: []string{"coupons"},
		Summary: "Follow the latest request of a user at a template by server-sent events",
		Description: "rank: the request waits, sent at first and each time that it has moved; result: it has ended, and so does the stream. " +
			"The data of both is the request. A stream also ends when the instance stops or the request is lost; a reader connects again, and hears where it stands, in the latter case 404 REQUEST_UNKNOWN or the request before it.",
	}, a.watchIssueRequest)
	answers := a.OpenAPI().Paths[path].Get.Responses
	request := a.OpenAPI().Components.Schemas.Schema(reflect.TypeFor[IssueRequest](), true, "")
	answers["200"].Content = map[string]*huma.MediaType{web.StreamType: {Schema: eventSchema(map[string]*huma.Schema{eventRank: request, eventResult: request})}}
	answers["204"] = &huma.Response{Description: "Last-Event-ID is the result: nothing more will come"}
}

func (a *API) watchIssueRequest(ctx context.Context, in *issueEventsInput) (*huma.StreamResponse, error) {
	id, user, err := requestParts(in.RequestID)
	if err != nil {
		return nil, err
	}
	if err := onlyOwn(ctx, user); err != nil {
		return nil, err
	}
	status, err := a.cfg.Issuing.Status(ctx, id, user)
	if err != nil {
		return nil, err
	}
	return &huma.StreamResponse{Body: func(hc huma.Context) {
		if status.Kind != coupon.Waiting && in.LastEventID == eventID(status) {
			hc.SetStatus(http.StatusNoContent)
			return
		}
		send := func(ctx context.Context, out *web.Stream) { a.sendIssueEvents(ctx, out, id, user, status) }
		a.StreamEvents(ctx, hc, a.alive(ctx), send, func() {})
	}}, nil
}

// eventID tells one state of a request from another.
func eventID(s coupon.Status) string {
	if s.Kind == coupon.Waiting {
		return fmt.Sprintf("%d.%d", s.Ticket, s.Rank)
	}
	return fmt.Sprintf("%d.%s", s.Ticket, s.Kind)
}

func (a *API) sendIssueEvents(ctx context.Context, out *web.Stream, id reward.TemplateID, user string, status coupon.Status) {
	if sendIssueEvent(out, status); status.Kind != coupon.Waiting {
		return
	}
	news, stop := a.cfg.Watch(id, user, status.Ticket)
	defer stop()
	beat := time.NewTicker(web.HeartbeatInterval)
	defer beat.Stop()
	for silent := false; out.Err() == nil; {
		select {
		case s := <-news:
			if s.Kind != coupon.Waiting && s.Ticket < status.Ticket {
				continue // of an earlier request of his
			}
			silent = false
			if s.Kind == coupon.Waiting && s.Ticket == status.Ticket && s.Rank >= status.Rank {
				continue // told already; who is in front never become more
			}
			if sendIssueEvent(out, s); s.Kind != coupon.Waiting {
				return
			}
			status = s
		case <-beat.C:
			if silent && a.lost(ctx, id, user, status.Ticket) {
				return
			}
			silent = true
			out.Beat()
		case <-ctx.Done():
			return
		case <-a.DrainBegins():
			return
		}
	}
}

func sendIssueEvent(out *web.Stream, s coupon.Status) {
	event := eventResult
	if s.Kind == coupon.Waiting {
		event = eventRank
	}
	out.Send(event, eventID(s), issueRequestOf(s))
}

// lost says that a request of which nothing was heard is not there any more, or
// not under its ticket: of neither do news come.
func (a *API) lost(ctx context.Context, id reward.TemplateID, user string, ticket int64) bool {
	s, err := a.cfg.Issuing.Status(ctx, id, user)
	return reward.HasCode(err, reward.CodeRequestUnknown) || err == nil && s.Kind != coupon.Waiting && s.Ticket < ticket
}
