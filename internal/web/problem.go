package web

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/validation"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
)

// Codes of errors that do not depend on the operation.
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

var statuses = map[reward.Kind]int{
	reward.KindMalformed:    http.StatusBadRequest,
	reward.KindTimeout:      http.StatusRequestTimeout,
	reward.KindInvalid:      http.StatusUnprocessableEntity,
	reward.KindNotFound:     http.StatusNotFound,
	reward.KindConflict:     http.StatusConflict,
	reward.KindPrecondition: http.StatusPreconditionFailed,
	reward.KindUnavailable:  http.StatusServiceUnavailable,
	reward.KindInternal:     http.StatusInternalServerError,
}

// codes maps the statuses of huma's errors to codes.
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
	Type      string         `json:"type"`
	Title     string         `json:"title"`
	Status    int            `json:"status"`
	Code      string         `json:"code"`
	Detail    string         `json:"detail,omitempty"`
	OpensAt   time.Time      `json:"opensAt,omitzero" doc:"Only with NOT_OPEN"`
	RequestID string         `json:"requestId,omitempty"`
	Errors    []ProblemField `json:"errors,omitempty"`

	Applied    string `json:"-"` // header Preference-Applied; "": none
	RetryAfter int    `json:"-"` // header Retry-After in seconds; 0: as the status needs
}

// ProblemField describes an invalid field.
type ProblemField struct {
	Field  string `json:"field"`
	Detail string `json:"detail"`
}

// Error implements error.
func (p *Problem) Error() string { return p.Code + ": " + p.Detail }

// GetStatus returns the status for huma.
func (p *Problem) GetStatus() int { return p.Status }

// ContentType returns the media type for huma.
func (p *Problem) ContentType(string) string { return ProblemType }

// GetHeaders returns the headers of the response for huma.
func (p *Problem) GetHeaders() http.Header {
	h := make(http.Header)
	p.setHeaders(h)
	return h
}

func (p *Problem) setHeaders(h http.Header) {
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
}

// ProblemType is the media type of a Problem.
const ProblemType = "application/problem+json"

var problemTypes = []string{ProblemType}

// NewProblem returns a Problem whose title is the text of its status.
func NewProblem(status int, code, detail string) *Problem {
	return &Problem{Type: "about:blank", Title: http.StatusText(status), Status: status, Code: code, Detail: detail}
}

// huma has one error model per process. A program that embeds Largesse and uses
// huma itself gets this model too.
func init() {
	huma.ValidateStrictCasing = true
	// The default %v would print the largest amount as 1e+15.
	validation.MsgExpectedMinimumNumber, validation.MsgExpectedMaximumNumber = "must be at least %.0f", "must be at most %.0f"
	validation.MsgExpectedMinLength, validation.MsgExpectedMaxLength = "must have %d or more characters", "must have %d or fewer characters"
	validation.MsgExpectedMinItems, validation.MsgExpectedMaxItems = "must have %d or more items", "must have %d or fewer items"
	validation.MsgExpectedString, validation.MsgExpectedInteger = "must be a string", "must be a whole number"
	validation.MsgExpectedBoolean, validation.MsgExpectedNumber = "must be true or false", "must be a number"
	validation.MsgExpectedObject, validation.MsgExpectedArray = "must be a JSON object", "must be a JSON array"
	validation.MsgExpectedOneOf = "must be one of %s"
	validation.MsgExpectedRFC3339DateTime = "must be a time such as 2026-12-24T18:00:00Z"
	validation.MsgUnexpectedProperty = "is unknown; correct its spelling or remove it, /openapi.json lists the fields"
	huma.NewError = func(status int, msg string, errs ...error) huma.StatusError {
		return humaProblem(status, msg, errs)
	}
	huma.NewErrorWithContext = func(ctx huma.Context, status int, msg string, errs ...error) huma.StatusError {
		p := humaProblem(status, msg, errs)
		p.RequestID = RequestID(ctx.Context())
		return p
	}
}

// humaProblem returns the Problem for huma's errors about a request.
func humaProblem(status int, msg string, errs []error) *Problem {
	for _, err := range errs {
		if d, ok := errors.AsType[*huma.ErrorDetail](err); ok && unparsable(d) && status == http.StatusUnprocessableEntity {
			status = http.StatusBadRequest
		}
	}
	if msg == "cannot read request body" {
		// huma blames the server, but only the caller can break a body off.
		status, msg, errs = http.StatusBadRequest, "the body ended early, or its chunks cannot be parsed; send it again completely", nil
	}
	code, ok := codes[status]
	if !ok {
		code = CodeInternal
	}
	p := NewProblem(status, code, bodyDetail(msg))
	if status >= http.StatusInternalServerError {
		p.Detail = internalDetail
		return p
	}
	if cause, ok := bodyCause(errs); ok {
		// If the body as a whole is unusable, all of its fields would look invalid.
		errs = []error{cause}
	}
	for _, err := range errs {
		d, ok := errors.AsType[*huma.ErrorDetail](err)
		if !ok || status == http.StatusBadRequest && strings.HasPrefix(d.Location, "body.") {
			// A body that is not JSON has no fields.
			continue
		}
		f := problemField(d)
		f.Field, f.Detail = truncate(f.Field), truncate(f.Detail)
		// The first error of a field, from its schema, is enough.
		if !slices.ContainsFunc(p.Errors, func(o ProblemField) bool { return o.Field == f.Field }) {
			p.Errors = append(p.Errors, f)
		}
		if len(p.Errors) == fieldErrorsMax {
			break
		}
	}
	if len(p.Errors) > 0 {
		p.Detail = fieldsDetail(p.Errors)
	}
	return p
}

func fieldsDetail(fields []ProblemField) string {
	const named = 5
	var texts []string
	for _, f := range fields[:min(len(fields), named)] {
		texts = append(texts, f.Field+": "+f.Detail)
	}
	if more := len(fields) - named; more > 0 {
		texts = append(texts, fmt.Sprintf("and %d more, see errors[]", more))
	}
	return strings.Join(texts, "; ")
}

// bodyDetail rewrites huma's message about a body that is missing or too large, so
// that it says what to do.
func bodyDetail(msg string) string {
	if limit, ok := strings.CutPrefix(msg, "request body is too large limit="); ok {
		return "the body is larger than " + limit + "; send less at once"
	}
	if msg == "request body is required" {
		return "the request has no body; /openapi.json shows what to send"
	}
	return msg
}

// paramDetail rewrites huma's message about a parameter or a media type, so that it
// says what to do.
func paramDetail(msg string) string {
	switch msg {
	case "invalid integer":
		return "must be a whole number"
	case "invalid boolean":
		return "must be true or false"
	case "unknown query parameter":
		return "is unknown; correct its spelling or remove it, /openapi.json lists the parameters"
	case "required query parameter is missing":
		return "is missing"
	}
	if given, ok := strings.CutPrefix(msg, "unknown content type: "); ok {
		return fmt.Sprintf("Content-Type %s is not accepted; /openapi.json names the types of this operation", given)
	}
	return msg
}

// Limits of what a problem repeats from a request.
const (
	fieldErrorsMax = 100
	truncatedMax   = 500 // bytes of a name or sentence
)

func truncate(s string) string {
	if len(s) <= truncatedMax {
		return s
	}
	return strings.ToValidUTF8(s[:truncatedMax], "") + "…"
}

// requiredPrefix starts huma's message about a missing field.
const requiredPrefix = "expected required property "

// bodyCause finds the error about a body as a whole: its media type, its JSON, or
// that it is not an object.
func bodyCause(errs []error) (*huma.ErrorDetail, bool) {
	for _, err := range errs {
		d, ok := errors.AsType[*huma.ErrorDetail](err)
		if ok && d.Location == "body" && !strings.HasPrefix(d.Message, requiredPrefix) {
			return d, true
		}
	}
	return nil, false
}

// unparsable reports whether d is about a query parameter that does not have its
// type, in contrast to an invalid value.
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
	return ProblemField{Field: field, Detail: paramDetail(d.Message)}
}

const internalDetail = "the server failed unexpectedly; quote the request ID when you ask for help"

const lateDetail = "a service that the server needs did not answer in time; try again"

const awayDetail = "a service that the server needs cannot be reached; try again"

// ProblemOf returns the Problem for an error of an operation. Internal errors are
// logged, and their text is not shown to the caller.
func (a *Router) ProblemOf(ctx context.Context, err error) *Problem {
	if p, ok := errors.AsType[*Problem](err); ok {
		p.RequestID = RequestID(ctx)
		return p
	}
	if reward.KindOf(err) == reward.KindInternal && ctx.Err() == nil {
		detail := ""
		switch {
		case errors.Is(err, reward.ErrUnreachable):
			detail = awayDetail
		case errors.Is(err, context.DeadlineExceeded):
			detail = lateDetail
		}
		if detail != "" {
			err = &reward.Error{Kind: reward.KindUnavailable, Code: CodeUnavailable, Detail: detail, Err: err}
		}
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
		a.log.Debug("request abandoned by caller", "request_id", p.RequestID, "error", err)
	case status == http.StatusServiceUnavailable:
		a.outage.report(err, p.RequestID)
	case status == http.StatusInternalServerError:
		a.log.Error("request failed", err, "request_id", p.RequestID)
	}
	return p
}

func writeProblem(w http.ResponseWriter, p *Problem) {
	body, err := json.Marshal(p)
	if err != nil { // strings and integers always have a JSON form
		panic(err)
	}
	h := w.Header()
	p.setHeaders(h)
	h["Content-Type"] = problemTypes
	h.Del("Content-Length")
	w.WriteHeader(p.Status)
	_, _ = w.Write(append(body, '\n')) // the caller may have left
}

// Fail answers a request with the Problem for err, without huma.
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

// outageQuiet is the time without a failed request after which an outage has ended.
const outageQuiet = time.Minute

// outage logs requests that failed because a service was unavailable: of each outage
// the first, second, fourth, eighth and so on, and each at the level debug. It is safe
// for concurrent use.
type outage struct {
	log    obs.Log
	streak func(err error, attrs ...any)

	mu   sync.Mutex // protects last
	last time.Time  // when a request failed
}

func newOutage(log obs.Log) *outage {
	return &outage{log: log, streak: log.Streak("requests failing: service unavailable", "")}
}

func (o *outage) report(err error, requestID string) {
	o.mu.Lock()
	now := time.Now()
	over := now.Sub(o.last) > outageQuiet
	o.last = now
	o.mu.Unlock()
	if over {
		o.streak(nil)
	}
	o.streak(err, "request_id", requestID)
	o.log.Debug("request failed: service unavailable", "request_id", requestID, "error", err)
}
