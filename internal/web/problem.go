package web

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/validation"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
)

// Codes of HTTP itself; those of the operations are passed on.
const (
	CodeInternal         = "INTERNAL"
	CodeUnavailable      = "UNAVAILABLE"
	CodeRouteNotFound    = "ROUTE_NOT_FOUND"
	CodeMethodNotAllowed = "METHOD_NOT_ALLOWED"
	CodeUnsupportedMedia = "UNSUPPORTED_MEDIA_TYPE"
	CodeTooLarge         = "BODY_TOO_LARGE"
	CodeBodyTimeout      = "BODY_TIMEOUT"
	CodeHeadersTooLarge  = "HEADERS_TOO_LARGE"
	CodeTooManyHeaders   = "TOO_MANY_HEADERS"
	CodeCrossOrigin      = "CROSS_ORIGIN"
	CodeWrongHost        = "WRONG_HOST"
)

// statuses is the one table from kinds of error to HTTP.
var statuses = map[reward.Kind]int{
	reward.KindMalformed:   http.StatusBadRequest,
	reward.KindTimeout:     http.StatusRequestTimeout,
	reward.KindInvalid:     http.StatusUnprocessableEntity,
	reward.KindNotFound:    http.StatusNotFound,
	reward.KindConflict:    http.StatusConflict,
	reward.KindUnavailable: http.StatusServiceUnavailable,
	reward.KindInternal:    http.StatusInternalServerError,
}

// codes are for errors that come from HTTP itself and have a status only.
var codes = map[int]string{
	http.StatusBadRequest:            reward.CodeMalformed,
	http.StatusNotFound:              CodeRouteNotFound,
	http.StatusMethodNotAllowed:      CodeMethodNotAllowed,
	http.StatusRequestTimeout:        CodeBodyTimeout,
	http.StatusRequestEntityTooLarge: CodeTooLarge,
	http.StatusUnsupportedMediaType:  CodeUnsupportedMedia,
	http.StatusUnprocessableEntity:   reward.CodeInvalid,
	http.StatusServiceUnavailable:    CodeUnavailable,
}

// Problem is the body of every error (RFC 9457, application/problem+json).
type Problem struct {
	Type      string         `json:"type" doc:"Always about:blank; the code says what happened"`
	Title     string         `json:"title" doc:"The status in words"`
	Status    int            `json:"status" doc:"HTTP status"`
	Code      string         `json:"code" doc:"Stable, for programs" example:"ILLEGAL_STATE"`
	Detail    string         `json:"detail,omitempty" doc:"For people: what, where, what to do"`
	OpensAt   time.Time      `json:"opensAt,omitzero" doc:"Of NOT_OPEN: when one can ask"`
	RequestID string         `json:"requestId,omitempty" doc:"To be quoted when asking for help; X-Request-Id too"`
	Errors    []ProblemField `json:"errors,omitempty" doc:"Every field that is wrong"`

	Applied    string `json:"-"` // Preference-Applied; "" = none
	RetryAfter int    `json:"-"` // seconds; 0 = of the status
}

// ProblemField says which field is wrong.
type ProblemField struct {
	Field  string `json:"field" doc:"Name in the body or the query" example:"amount"`
	Detail string `json:"detail" example:"must not be negative"`
}

// Error makes a Problem an error.
func (p *Problem) Error() string { return p.Code + ": " + p.Detail }

// GetStatus tells huma the status.
func (p *Problem) GetStatus() int { return p.Status }

// ContentType tells huma the media type.
func (p *Problem) ContentType(string) string { return ProblemType }

// GetHeaders tells huma the headers that go with the status.
func (p *Problem) GetHeaders() http.Header {
	h := make(http.Header)
	switch {
	case p.RetryAfter > 0:
		h.Set("Retry-After", strconv.Itoa(p.RetryAfter))
	case p.Status == http.StatusServiceUnavailable:
		h.Set("Retry-After", "1")
	}
	if p.Status == http.StatusUnauthorized {
		h.Set("WWW-Authenticate", "Bearer")
	}
	if p.Applied != "" {
		h.Set("Preference-Applied", p.Applied)
	}
	return h
}

// ProblemType is the media type of a Problem.
const ProblemType = "application/problem+json"

// NewProblem returns a Problem with the title of its status.
func NewProblem(status int, code, detail string) *Problem {
	return &Problem{Type: "about:blank", Title: http.StatusText(status), Status: status, Code: code, Detail: detail}
}

// huma has one error model per process, so it is replaced once and for all.
func init() {
	huma.ValidateStrictCasing = true
	// The usual %v would write the greatest amount as 1e+15.
	validation.MsgExpectedMinimumNumber, validation.MsgExpectedMaximumNumber = "must be at least %.0f", "must be at most %.0f"
	huma.NewError = func(status int, msg string, errs ...error) huma.StatusError {
		return humaProblem(status, msg, errs)
	}
	huma.NewErrorWithContext = func(ctx huma.Context, status int, msg string, errs ...error) huma.StatusError {
		p := humaProblem(status, msg, errs)
		p.RequestID = RequestID(ctx.Context())
		return p
	}
}

// humaProblem makes a Problem of what huma found wrong with a request.
func humaProblem(status int, msg string, errs []error) *Problem {
	for _, err := range errs {
		if d, ok := errors.AsType[*huma.ErrorDetail](err); ok && unparsable(d) && status == http.StatusUnprocessableEntity {
			status = http.StatusBadRequest
		}
	}
	code, ok := codes[status]
	if !ok {
		code = CodeInternal
	}
	p := NewProblem(status, code, msg)
	if status >= http.StatusInternalServerError {
		p.Detail = internalDetail
		return p
	}
	if cause, ok := bodyCause(errs); ok {
		// The fields of a body that could not be taken would all look wrong.
		errs = []error{cause}
	}
	for _, err := range errs {
		d, ok := errors.AsType[*huma.ErrorDetail](err)
		if !ok || status == http.StatusBadRequest && strings.HasPrefix(d.Location, "body.") {
			// Nothing can be said about the fields of a body that is not JSON.
			continue
		}
		f := problemField(d)
		f.Field, f.Detail = brief(f.Field), brief(f.Detail)
		// What the schema says about a field comes first and is enough.
		if !slices.ContainsFunc(p.Errors, func(o ProblemField) bool { return o.Field == f.Field }) {
			p.Errors = append(p.Errors, f)
		}
		if len(p.Errors) == fieldErrorsMost {
			break
		}
	}
	if len(p.Errors) == 1 {
		p.Detail = p.Errors[0].Field + ": " + p.Errors[0].Detail
	}
	return p
}

// What a problem repeats of a request has a bound, which a request may not have.
const (
	fieldErrorsMost = 100
	briefMost       = 500 // bytes of a name or a sentence
)

func brief(s string) string {
	if len(s) <= briefMost {
		return s
	}
	return strings.ToValidUTF8(s[:briefMost], "") + "…"
}

// requiredPrefix begins what huma says of a field that is missing.
const requiredPrefix = "expected required property "

// bodyCause finds what is wrong with a body as a whole: its media type, its
// JSON, or that it is no object.
func bodyCause(errs []error) (*huma.ErrorDetail, bool) {
	for _, err := range errs {
		d, ok := errors.AsType[*huma.ErrorDetail](err)
		if ok && d.Location == "body" && !strings.HasPrefix(d.Message, requiredPrefix) {
			return d, true
		}
	}
	return nil, false
}

// unparsable tells a parameter that is not of its type from one whose value is
// wrong.
func unparsable(d *huma.ErrorDetail) bool {
	return strings.HasPrefix(d.Location, "query.") && strings.HasPrefix(d.Message, "invalid ")
}

func problemField(d *huma.ErrorDetail) ProblemField {
	if rest, ok := strings.CutPrefix(d.Message, requiredPrefix); ok {
		name, _, _ := strings.Cut(rest, " ")
		if within, ok := strings.CutPrefix(d.Location, "body."); ok {
			name = within + "." + name
		}
		return ProblemField{Field: name, Detail: "is missing"}
	}
	if rest, ok := strings.CutPrefix(d.Message, fieldPrefix); ok && d.Location == "body" {
		field, detail, _ := strings.Cut(rest, ": ")
		return ProblemField{Field: field, Detail: detail}
	}
	field := d.Location
	for _, in := range []string{"body.", "query.", "path.", "header."} {
		field = strings.TrimPrefix(field, in)
	}
	return ProblemField{Field: field, Detail: d.Message}
}

const internalDetail = "something went wrong on our side; quote the request id when asking for help"

// ProblemOf makes the answer for an error of the rooms below. What is our own
// fault is logged, and not shown.
func (a *Router) ProblemOf(ctx context.Context, err error) *Problem {
	if p, ok := errors.AsType[*Problem](err); ok {
		p.RequestID = RequestID(ctx)
		return p
	}
	kind := reward.KindOf(err)
	status, ok := statuses[kind]
	if !ok {
		status = http.StatusInternalServerError
	}
	var p *Problem
	if e, ok := errors.AsType[*reward.Error](err); ok && status != http.StatusInternalServerError {
		p = NewProblem(status, e.Code, e.Detail)
		p.OpensAt = e.OpensAt.UTC()
		for _, f := range e.Fields {
			p.Errors = append(p.Errors, ProblemField(f))
		}
	} else {
		p = NewProblem(status, CodeInternal, internalDetail)
	}
	p.RequestID = RequestID(ctx)
	switch {
	case ctx.Err() != nil:
		// The caller has gone; that is no fault of ours.
		a.log.Debug(obs.Failed, "request_id", p.RequestID, "error", err)
	case status == http.StatusServiceUnavailable:
		a.log.Warn(obs.Unavailable, err, "request_id", p.RequestID)
	case status == http.StatusInternalServerError:
		a.log.Error(obs.Failed, err, "request_id", p.RequestID)
	}
	return p
}

// writeProblem answers outside of huma.
func writeProblem(w http.ResponseWriter, p *Problem) {
	body, err := json.Marshal(p)
	if err != nil { // strings and integers always have a JSON form
		panic(err)
	}
	h := w.Header()
	for name, values := range p.GetHeaders() {
		h[name] = values
	}
	h.Set("Content-Type", ProblemType)
	h.Del("Content-Length")
	w.WriteHeader(p.Status)
	_, _ = w.Write(append(body, '\n')) // the caller may have gone
}

// Fail answers an error of the rooms below, outside of huma.
func (a *Router) Fail(w http.ResponseWriter, r *http.Request, err error) {
	writeProblem(w, a.ProblemOf(r.Context(), err))
}

// Malformed returns the Problem of a field that cannot be parsed.
func Malformed(field, detail string) *Problem {
	p := NewProblem(http.StatusBadRequest, reward.CodeMalformed, field+": "+detail)
	p.Errors = []ProblemField{{Field: field, Detail: detail}}
	return p
}

// Invalid returns the Problem of a field whose value is not allowed.
func Invalid(field, detail string) *Problem {
	p := NewProblem(http.StatusUnprocessableEntity, reward.CodeInvalid, field+": "+detail)
	p.Errors = []ProblemField{{Field: field, Detail: detail}}
	return p
}
