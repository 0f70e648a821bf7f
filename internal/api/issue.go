package api

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/auth"
	"github.com/largesse/largesse/internal/coupon"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/web"
)

// Issuing handles coupon requests.
type Issuing interface {
	Request(ctx context.Context, cmd coupon.IssueCommand) (coupon.Status, error)
	Status(ctx context.Context, id reward.TemplateID, user string) (coupon.Status, error)
	Leave(ctx context.Context, id reward.TemplateID, user string) error
	// Check returns the refusal that Request would answer with, without a request, and
	// Refused counts a request that was answered so.
	Check(ctx context.Context, cmd coupon.IssueCommand) error
	Refused(id reward.TemplateID, refusal error)
}

// WatchFunc follows the request of a user for a template that has this status, or a
// later one. Updates, of which none is about an earlier request, arrive until
// the request has ended. stop ends the watch.
type WatchFunc func(id reward.TemplateID, user string, since coupon.Status) (updates <-chan coupon.Status, stop func())

func issueRequestFor(ctx context.Context, s coupon.Status) *client.IssueRequest {
	r := &client.IssueRequest{ID: s.RequestID, Status: string(s.Kind), Ticket: s.Ticket, Duplicate: s.Duplicate}
	switch s.Kind {
	case coupon.StatusWaiting:
		if r.EstimatedWaitMillis = new(s.Wait.Milliseconds()); s.Ticket != 0 {
			r.QueueRank = &s.Rank
		}
	case coupon.StatusIssued:
		r.Coupon = couponFor(ctx, s.Coupon)
	case coupon.StatusRejected:
		r.Reason = s.Reason
	}
	return r
}

var rejections = map[string]string{
	reward.ReasonSoldOut:   "every coupon of this template was issued before this request's turn; a cancelled coupon becomes available",
	reward.ReasonUserLimit: "the user has reached the limit of this template",
	reward.ReasonNotDrawn:  "the draw selected other users; request again in case a coupon becomes available",
	reward.ReasonLeft:      "the user left the waiting line; a new request waits at its end",
	reward.ReasonError:     "issuing the coupon failed repeatedly; request it again",
}

// IssueCoupon is the body of POST /v1/coupons/{templateId}/issue.
type IssueCoupon struct {
	UserID string `json:"userId,omitempty" minLength:"1" doc:"Optional with a shopper's token, which names the user"`
}

// Resolve checks what the schema cannot express.
func (b *IssueCoupon) Resolve(ctx huma.Context) []error {
	if b.UserID == "" {
		if b.UserID = callerOf(ctx.Context()).User; b.UserID == "" {
			return fieldErrors([]reward.FieldError{{Field: "userId", Detail: "is missing"}})
		}
	}
	if err := reward.CheckNewUserID(b.UserID); err != nil {
		return fieldErrors([]reward.FieldError{{Field: "userId", Detail: strings.TrimPrefix(err.Error(), "userId ")}})
	}
	return nil
}

type issueInput struct {
	TemplateID string `path:"templateId" doc:"Template ID"`
	Prefer     string `header:"Prefer" doc:"wait=N holds the response until the outcome, for N seconds, at most 30" example:"wait=5"`
	Body       IssueCoupon

	wait time.Duration // from Prefer; 0: none
}

// Resolve parses all Prefer headers.
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

type issueOutput struct {
	Status   int
	Location string `header:"Location" doc:"Path of the coupon, or of the request while it waits"`
	Applied  string `header:"Preference-Applied" doc:"The granted wait"`
	Body     *client.IssueRequest
}

// RequestPath is the path of a coupon request.
type RequestPath struct {
	RequestID string `path:"requestId" example:"42:u7"`

	template reward.TemplateID
	user     string
}

func (p *RequestPath) parsePath(ctx context.Context) (err error) {
	if p.template, p.user, err = requestParts(p.RequestID); err != nil {
		return err
	}
	return checkOwnUser(ctx, p.user)
}

func requestParts(s string) (reward.TemplateID, string, error) {
	id, user, err := reward.ParseRequestID(s)
	if err != nil {
		return 0, "", web.Malformed("requestId", err.Error())
	}
	return id, user, nil
}

func (a *API) addIssuing() {
	const path, tag = "/v1/coupons/{templateId}/issue", "coupons"
	call(a, operation{
		id: "issue-coupon", method: http.MethodPost, path: path, tag: tag, roles: requesters, creates: true, unaudited: true,
		summary: "Request a coupon", status: http.StatusAccepted,
		description: "201: issued. 202: it waits, see GET /v1/issue-requests/{requestId}. " +
			"A repeat (duplicate: true) is 200 with the user's coupon, or 202 with the same ticket. " +
			"NOT_DRAWN, LEFT and ERROR come after a wait.",
		errors: []string{
			reward.CodeTemplateNotFound, reward.CodeNotOpen, reward.CodeClosed, reward.CodeSoldOut, reward.CodeUserLimit, reward.CodeHoldLapsed,
			reward.ReasonNotDrawn, reward.ReasonLeft, reward.ReasonError, reward.CodeArchived,
		},
		example: tree{"userId": "u7"},
	}, a.issueCoupon)
	a.Shorten(http.MethodPost, path, a.issuePlainly)
	answers := a.OpenAPI().Paths[path].Post.Responses
	for _, status := range []string{"200", "201"} {
		same := *answers["202"]
		answers[status] = &same
	}
	call(a, operation{
		id: "get-issue-request", method: http.MethodGet, path: "/v1/issue-requests/{requestId}", tag: tag, roles: everyRole, unlimited: true,
		summary:     "Show a user's latest request for a template",
		description: "REQUEST_UNKNOWN: there is none, or Redis lost it; request the coupon again.",
		errors:      []string{reward.CodeTemplateNotFound, reward.CodeRequestUnknown, reward.CodeArchived},
	}, a.getIssueRequest)
	call(a, operation{
		id: "leave-line", method: http.MethodDelete, path: "/v1/issue-requests/{requestId}", tag: tag, roles: requesters, unaudited: true,
		summary: "Leave the waiting line", status: http.StatusNoContent,
		description: "REQUEST_ENDED: it was served; cancel the coupon.",
		errors:      []string{reward.CodeTemplateNotFound, reward.CodeRequestUnknown, reward.CodeRequestEnded, reward.CodeIllegalState, reward.CodeArchived},
	}, a.leaveLine)
}

// template returns the template of a request, if the caller may make it for the user.
func (in *issueInput) template(ctx context.Context) (reward.TemplateID, error) {
	id, err := templateID("templateId", in.TemplateID)
	if err != nil {
		return 0, err
	}
	return id, checkOwnUser(ctx, in.Body.UserID)
}

// allow counts a request for the limit of its user, and returns the refusal above it.
func (in *issueInput) allow(ctx context.Context, a *API) error {
	if callerOf(ctx).Role == auth.RoleShopper { // permit has counted the call of a shopper
		return nil
	}
	if wait, ok := a.cfg.UserLimits.Allow(in.Body.UserID); !ok {
		return tooMany(wait, "too many coupon requests for this user (http.rate-limit-per-user)")
	}
	return nil
}

// refuse returns the error of a request that the gate would refuse now, unless an earlier one
// with its key is known. It returns nil for any other request.
func (in *issueInput) refuse(ctx context.Context, a *API, known func() (bool, error)) error {
	id, err := in.template(ctx)
	if err != nil {
		return err
	}
	refusal := a.cfg.Issuing.Check(ctx, coupon.IssueCommand{TemplateID: id, UserID: in.Body.UserID})
	if refusal == nil {
		return nil
	}
	if earlier, err := known(); err != nil || earlier {
		return err
	}
	if err := in.allow(ctx, a); err != nil {
		return err
	}
	a.cfg.Issuing.Refused(id, refusal)
	return refusal
}

func (a *API) issueCoupon(ctx context.Context, in *issueInput) (*issueOutput, error) {
	id, err := in.template(ctx)
	if err != nil {
		return nil, err
	}
	if err := in.allow(ctx, a); err != nil {
		return nil, err
	}
	status, err := a.request(ctx, id, in.Body.UserID)
	if err != nil {
		return nil, err
	}
	if !status.Duplicate && (status.Kind == coupon.StatusWaiting || status.Kind == coupon.StatusIssued) {
		a.acted(ctx, "issue-coupon", id)
	}
	if status.Kind == coupon.StatusWaiting && in.wait > 0 {
		if leave, err := a.hold(ctx); err != nil {
			in.wait = 0 // the preference is not granted; the request is made, and waits
		} else {
			status = a.await(ctx, id, in.Body.UserID, status, in.wait)
			leave()
		}
	}
	out := &issueOutput{}
	if in.wait > 0 {
		out.Applied = fmt.Sprintf("wait=%d", in.wait/time.Second)
	}
	return out, out.setStatus(ctx, status)
}

// plainMax limits the bodies that issuePlainly reads.
const plainMax = 256

// issuePlainly answers a coupon request in its plain form, as huma and issueCoupon do, for
// half of the processor time: parsing the body for the schema, checking and binding it take
// longer than all that follows. A sold-out drop has thousands of them per second. It leaves
// every other form to huma: with a parameter, another body, or one that is wrong.
func (a *API) issuePlainly(w http.ResponseWriter, r *http.Request) bool {
	h := r.Header
	template, ok := strings.CutSuffix(strings.TrimPrefix(r.URL.Path, "/v1/coupons/"), "/issue")
	if !ok || r.ContentLength <= 0 || r.ContentLength > plainMax ||
		h.Get("Content-Type") != "application/json" || h["Prefer"] != nil || h["Accept"] != nil && h.Get("Accept") != "*/*" {
		return false
	}
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(a.cfg.BodyWait)) // only test writers have no deadlines
	body := make([]byte, r.ContentLength)
	n, err := io.ReadFull(r.Body, body)
	user, ok := plainUser(body[:n])
	if err != nil || !ok {
		rest := io.Reader(r.Body)
		if err != nil {
			rest = failing{err}
		}
		r.Body = struct {
			io.Reader
			io.Closer
		}{io.MultiReader(bytes.NewReader(body[:n]), rest), r.Body}
		return false
	}
	in := &issueInput{TemplateID: template, Body: IssueCoupon{UserID: user}}
	var out *issueOutput
	if h[web.IdempotencyHeader] == nil {
		out, err = a.issueCoupon(r.Context(), in)
	} else {
		ctx := context.WithValue(r.Context(), replayedKey{}, func() { w.Header().Set(ReplayedHeader, "true") })
		out, err = once(ctx, a, "issue-coupon", in, a.issueCoupon)
	}
	if err != nil {
		a.Fail(w, r, err)
		return true
	}
	w.Header().Set("Location", out.Location)
	web.WriteJSON(w, out.Status, out.Body)
	return true
}

// failing is the rest of a body that has failed: another read would wait once more.
type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// plainUser returns the user in a body with nothing but a userId of plain characters, which
// every check of a body accepts.
func plainUser(body []byte) (string, bool) {
	quoted, ok := bytes.CutPrefix(body, []byte(`{"userId":`))
	if !ok {
		return "", false
	}
	quoted, opens := bytes.CutPrefix(bytes.TrimPrefix(quoted, []byte(" ")), []byte(`"`))
	user, closes := bytes.CutSuffix(quoted, []byte(`"}`))
	other := bytes.ContainsFunc(user, func(c rune) bool {
		return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' && c != '_' && c != '.'
	})
	return string(user), opens && closes && !other && len(user) > 0
}

func (out *issueOutput) setStatus(ctx context.Context, status coupon.Status) error {
	out.Body = issueRequestFor(ctx, status)
	switch {
	case status.Kind == coupon.StatusRejected || status.Kind == coupon.StatusLeft:
		reason := cmp.Or(status.Reason, reward.ReasonLeft)
		p := web.NewProblem(http.StatusConflict, reason, rejections[reason])
		p.Applied = out.Applied
		return p
	case status.Kind == coupon.StatusWaiting:
		out.Status, out.Location = http.StatusAccepted, web.Location(ctx, "/v1/issue-requests/"+url.PathEscape(status.RequestID))
		return nil
	case status.Duplicate:
		out.Status = http.StatusOK
	default:
		out.Status = http.StatusCreated
	}
	out.Location = web.Location(ctx, "/v1/coupons/"+out.Body.Coupon.ID)
	return nil
}

// clockSkewMax is the tolerated difference between the clocks of two instances.
const clockSkewMax = 5 * time.Second

// request requests a coupon. If an earlier attempt under the same idempotency key
// crashed, it may have requested the coupon already. A coupon that the user got
// since then, or a waiting request, then counts as its outcome.
func (a *API) request(ctx context.Context, id reward.TemplateID, user string) (coupon.Status, error) {
	if c := claimOf(ctx); c != nil && c.Again {
		status, err := a.cfg.Issuing.Status(ctx, id, user)
		switch {
		case err != nil && !reward.HasCode(err, reward.CodeRequestUnknown):
			return status, err
		case err == nil && status.Kind == coupon.StatusWaiting:
			status.Duplicate = true
			return status, nil
		}
		latest, err := a.cfg.Coupons.Coupons(ctx, store.CouponListParams{UserID: user, Limit: store.BatchMax})
		if err != nil {
			return status, err
		}
		for _, got := range latest {
			if got.TemplateID == id && !got.IssuedAt.Before(c.FirstAt.Add(-clockSkewMax)) {
				return coupon.Status{RequestID: reward.RequestID(id, user), Kind: coupon.StatusIssued, Ticket: got.Ticket, Coupon: got, Duplicate: true}, nil
			}
		}
	}
	return a.cfg.Issuing.Request(ctx, coupon.IssueCommand{TemplateID: id, UserID: user})
}

// replayed updates a stored response, because the request may have ended. It does not
// show a later request of the same user.
func (out *issueOutput) replayed(ctx context.Context, a *API) error {
	out.Body.Duplicate = true
	if out.Status == http.StatusCreated {
		out.Status = http.StatusOK
	}
	if out.Status != http.StatusAccepted {
		return nil
	}
	id, user, err := requestParts(out.Body.ID)
	if err != nil {
		return err
	}
	status, err := a.cfg.Issuing.Status(ctx, id, user)
	switch {
	case err != nil:
		return err // also if Redis lost the request: the user must request again, with a new key
	case out.Body.Ticket != 0 && status.Ticket != out.Body.Ticket:
		return nil // entrants of a draw get their tickets later
	}
	status.Duplicate = true
	return out.setStatus(ctx, status)
}

// await waits for the outcome of a request, for at most wait, and returns its
// status. It does not wait while the instance drains: the ticket stays valid.
func (a *API) await(ctx context.Context, id reward.TemplateID, user string, status coupon.Status, wait time.Duration) coupon.Status {
	updates, stop := a.cfg.Watch(id, user, status)
	defer stop()
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for status.Kind == coupon.StatusWaiting {
		select {
		case s := <-updates:
			s.Duplicate = status.Duplicate
			status = s
		case <-timer.C:
			return status
		case <-ctx.Done():
			return status
		case <-a.DrainBegins():
			return status
		}
	}
	return status
}

func (a *API) getIssueRequest(ctx context.Context, in *RequestPath) (*output[*client.IssueRequest], error) {
	status, err := a.cfg.Issuing.Status(ctx, in.template, in.user)
	return outputOf(issueRequestFor(ctx, status), err)
}

// leaveLine takes a request out of the waiting line. A caller that may make the request
// may do so.
func (a *API) leaveLine(ctx context.Context, in *RequestPath) (*struct{}, error) {
	if err := a.cfg.Issuing.Leave(ctx, in.template, in.user); err != nil {
		return nil, err
	}
	a.acted(ctx, "leave-line", in.template)
	return nil, nil //nolint:nilnil // the response has no body
}
