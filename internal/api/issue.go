package api

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/largesse/largesse/internal/coupon"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/web"
)

// Issuing answers who asks for a coupon.
type Issuing interface {
	Request(ctx context.Context, cmd coupon.IssueCommand) (coupon.Status, error)
	Status(ctx context.Context, id reward.TemplateID, user string) (coupon.Status, error)
}

// WatchFunc begins to watch the request of a user at a template that has a
// ticket, 0 = before a draw, or a later one: news come on the channel, each time
// that there are any, and none after how it has ended. stop ends the watching.
type WatchFunc func(id reward.TemplateID, user string, ticket int64) (news <-chan coupon.Status, stop func())

// IssueRequest is where the request for a coupon stands.
type IssueRequest struct {
	RequestID           string  `json:"requestId" doc:"{templateId}:{userId}; names the latest request of the user" example:"42:u7"`
	Status              string  `json:"status" enum:"WAITING,ISSUED,REJECTED"`
	Ticket              int64   `json:"ticket,omitempty" doc:"Place in the order of issue; absent before a draw"`
	QueueRank           *int64  `json:"queueRank,omitempty" doc:"People in front, 0 is next; for one ticket it never rises. Of WAITING; absent before a draw"`
	EstimatedWaitMillis int64   `json:"estimatedWaitMillis,omitempty" doc:"Of WAITING; absent when it is not known"`
	Coupon              *Coupon `json:"coupon,omitempty" doc:"Of ISSUED"`
	Reason              string  `json:"reason,omitempty" doc:"Of REJECTED: SOLD_OUT, USER_LIMIT, NOT_DRAWN, ERROR" example:"SOLD_OUT"`
	Duplicate           bool    `json:"duplicate,omitempty" doc:"The user had asked before: this is that request"`
}

func issueRequestOf(s coupon.Status) *IssueRequest {
	r := &IssueRequest{RequestID: s.RequestID, Status: string(s.Kind), Ticket: s.Ticket, Duplicate: s.Duplicate}
	switch s.Kind {
	case coupon.Waiting:
		if s.Ticket != 0 {
			r.QueueRank, r.EstimatedWaitMillis = &s.Rank, s.Wait.Milliseconds()
		}
	case coupon.Issued:
		r.Coupon = couponOf(&s.Coupon)
	case coupon.Rejected:
		r.Reason = s.Reason
	}
	return r
}

// rejections say what a reason means.
var rejections = map[string]string{
	reward.ReasonSoldOut:   "every coupon of this template was taken before this request's turn; one that is cancelled becomes free again",
	reward.ReasonUserLimit: "this user has had as many coupons of this template as one may have",
	reward.ReasonNotDrawn:  "the draw has gone to others; ask again in case a coupon becomes free",
	reward.ReasonError:     "the coupon could not be issued, however often it was tried; ask again",
}

// IssueCoupon is the body of POST /v1/coupons/{templateId}/issue.
type IssueCoupon struct {
	UserID string `json:"userId,omitempty" minLength:"1" doc:"Who gets the coupon; may be left out with a shopper's token, which says it"`
}

// Resolve adds what the schema cannot say.
func (b *IssueCoupon) Resolve(ctx huma.Context) []error {
	if b.UserID == "" {
		if b.UserID = callerOf(ctx.Context()).User; b.UserID == "" {
			return fieldErrors([]reward.FieldError{{Field: "userId", Detail: "is missing"}})
		}
	}
	if err := reward.CheckUserID(b.UserID); err != nil {
		return fieldErrors([]reward.FieldError{{Field: "userId", Detail: strings.TrimPrefix(err.Error(), "userId ")}})
	}
	return nil
}

type issueInput struct {
	TemplateID string `path:"templateId" doc:"Template id"`
	Prefer     string `header:"Prefer" doc:"wait=N holds the answer until the outcome is known, for at most N seconds, N at most 30 (RFC 7240)" example:"wait=5"`
	Body       IssueCoupon

	wait time.Duration // of Prefer; 0 = none
}

// Resolve reads every Prefer header.
func (in *issueInput) Resolve(ctx huma.Context) []error {
	var headers []string
	ctx.EachHeader(func(name, value string) {
		if name == "Prefer" {
			headers = append(headers, value)
		}
	})
	in.wait = web.PreferredWait(headers)
	return nil
}

// applied is the value of Preference-Applied.
func (in *issueInput) applied() string {
	if in.wait == 0 {
		return ""
	}
	return fmt.Sprintf("wait=%d", in.wait/time.Second)
}

type issueOutput struct {
	Status   int
	Location string `header:"Location" doc:"Path of the coupon, or of the request while it waits; relative to that of this call"`
	Applied  string `header:"Preference-Applied" doc:"The wait that was granted; absent without one"`
	Body     *IssueRequest
}

type issueRequestInput struct {
	RequestID string `path:"requestId" doc:"{templateId}:{userId}, percent-encoded; it splits at its first colon" example:"42:u7"`
}

// requestParts splits the id of a request.
func requestParts(s string) (reward.TemplateID, string, error) {
	id, user, err := reward.ParseRequestID(s)
	if err != nil {
		return 0, "", web.Malformed("requestId", err.Error())
	}
	return id, user, nil
}

type issueRequestOutput struct {
	Body *IssueRequest
}

func (a *API) addIssuing() {
	tags := []string{"coupons"}
	const path = "/v1/coupons/{templateId}/issue"
	call(a, huma.Operation{
		OperationID: "issue-coupon", Method: http.MethodPost, Path: path, Tags: tags,
		Summary: "Ask for a coupon", DefaultStatus: http.StatusAccepted,
		Description: "202: the request waits, and GET /v1/issue-requests/{requestId} tells how it comes on. 201: the coupon is issued. " +
			"A repeat (duplicate: true) is 200 with the coupon that the user has, or 202 with the same ticket while it waits. " +
			"409: SOLD_OUT, NOT_OPEN (with opensAt), CLOSED, USER_LIMIT, and after a wait also NOT_DRAWN and ERROR.",
	}, a.issueCoupon)
	answers := a.OpenAPI().Paths[path].Post.Responses
	for status, what := range map[string]string{"200": "The coupon that the user has", "201": "The coupon is issued"} {
		same := *answers["202"]
		same.Description = what
		answers[status] = &same
	}
	call(a, huma.Operation{
		OperationID: "get-issue-request", Method: http.MethodGet, Path: "/v1/issue-requests/{requestId}", Tags: tags,
		Summary:     "Show where the latest request of a user at a template stands",
		Description: "404 REQUEST_UNKNOWN: it was never made, or it was lost before it was issued; asking again gives a new ticket.",
	}, a.getIssueRequest)
}

func (a *API) issueCoupon(ctx context.Context, in *issueInput) (*issueOutput, error) {
	id, err := templateID("templateId", in.TemplateID)
	if err != nil {
		return nil, err
	}
	if err := onlyOwn(ctx, in.Body.UserID); err != nil {
		return nil, err
	}
	if wait, ok := a.cfg.UserLimits.Allow(in.Body.UserID); !ok {
		return nil, tooMany(wait, "this user has asked too often (http.rate-limit-per-user)")
	}
	status, err := a.request(ctx, id, in.Body.UserID)
	if err != nil {
		return nil, err
	}
	if status.Kind == coupon.Waiting && in.wait > 0 {
		status = a.hold(ctx, id, in.Body.UserID, status, in.wait)
	}
	out := &issueOutput{Applied: in.applied()}
	return out, out.tell(status)
}

// tell makes the answer of a status; one that was refused is a problem.
func (out *issueOutput) tell(status coupon.Status) error {
	out.Body = issueRequestOf(status)
	switch {
	case status.Kind == coupon.Rejected:
		p := web.NewProblem(http.StatusConflict, status.Reason, rejections[status.Reason])
		p.Applied = out.Applied
		return p
	case status.Kind == coupon.Waiting:
		out.Status, out.Location = http.StatusAccepted, "../../issue-requests/"+url.PathEscape(status.RequestID)
		return nil
	case status.Duplicate:
		out.Status = http.StatusOK
	default:
		out.Status = http.StatusCreated
	}
	out.Location = "../" + out.Body.Coupon.ID
	return nil
}

// clockSlack is how far the clocks of two instances may be apart.
const clockSlack = 5 * time.Second

// request asks for a coupon. Under an idempotency key whose holder has died it
// is not known whether he had asked: what the user has got since then, or waits
// for, counts as that.
func (a *API) request(ctx context.Context, id reward.TemplateID, user string) (coupon.Status, error) {
	if c := claimOf(ctx); c != nil && c.Again {
		status, err := a.cfg.Issuing.Status(ctx, id, user)
		switch {
		case err != nil && !reward.HasCode(err, reward.CodeRequestUnknown):
			return status, err
		case err == nil && status.Kind == coupon.Waiting:
			status.Duplicate = true
			return status, nil
		}
		latest, err := a.cfg.Coupons.Coupons(ctx, store.CouponListParams{UserID: user, Limit: store.BatchMax})
		if err != nil {
			return status, err
		}
		for _, got := range latest {
			if got.TemplateID == id && !got.IssuedAt.Before(c.FirstAt.Add(-clockSlack)) {
				return coupon.Status{RequestID: reward.RequestID(id, user), Kind: coupon.Issued, Ticket: got.Ticket, Coupon: got, Duplicate: true}, nil
			}
		}
	}
	return a.cfg.Issuing.Request(ctx, coupon.IssueCommand{TemplateID: id, UserID: user})
}

// replayed brings a kept answer up to date: what waited then may have ended. Of
// a later request of the same user nothing is told.
func (out *issueOutput) replayed(ctx context.Context, a *API) error {
	out.Body.Duplicate = true
	if out.Status == http.StatusCreated {
		out.Status = http.StatusOK
	}
	if out.Status != http.StatusAccepted {
		return nil
	}
	id, user, err := requestParts(out.Body.RequestID)
	if err != nil {
		return err
	}
	status, err := a.cfg.Issuing.Status(ctx, id, user)
	switch {
	case err != nil:
		return err // also when Redis has lost it: one has to ask again, under a new key
	case out.Body.Ticket != 0 && status.Ticket != out.Body.Ticket:
		return nil // the entrants of a draw get theirs later
	}
	status.Duplicate = true
	return out.tell(status)
}

// hold waits until a request has ended, or the time has, and returns where it
// stands then. An instance that stops does not wait: the ticket is kept.
func (a *API) hold(ctx context.Context, id reward.TemplateID, user string, status coupon.Status, wait time.Duration) coupon.Status {
	news, stop := a.cfg.Watch(id, user, status.Ticket)
	defer stop()
	over := time.NewTimer(wait)
	defer over.Stop()
	for status.Kind == coupon.Waiting {
		select {
		case s := <-news:
			if s.Kind != coupon.Waiting && s.Ticket < status.Ticket {
				continue // of an earlier request of his: this one was lost
			}
			s.Duplicate = status.Duplicate
			status = s
		case <-over.C:
			return status
		case <-ctx.Done():
			return status
		case <-a.DrainBegins():
			return status
		}
	}
	return status
}

func (a *API) getIssueRequest(ctx context.Context, in *issueRequestInput) (*issueRequestOutput, error) {
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
	return &issueRequestOutput{Body: issueRequestOf(status)}, nil
}
