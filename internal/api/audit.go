package api

import (
	"context"
	"encoding/json"
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/web"
)

const (
	// auditDetailMax bounds what is kept of a request's body, in bytes.
	auditDetailMax = 8 << 10
	auditEndWait   = 5 * time.Second
	// auditSubjectMax bounds what is kept of a request's path, in bytes. No path
	// that names anything is as long.
	auditSubjectMax = 1 << 10
)

// unaudited are calls that are no reads and leave no line: what people ask for
// is in the history of their coupons, and would bury all else.
var unaudited = map[string]bool{"issue-coupon": true}

// audited carries a change out between the beginning and the end of a line of
// the audit. A change that cannot be noted is not begun; one that has no end in
// the audit may have happened.
func (a *API) audited(ctx context.Context, operation, detail string, change func() (status int, err error)) error {
	c := callerOf(ctx)
	line := store.AuditLine{
		ID: a.cfg.IDs.Next(), At: time.Now(), Actor: c.Name, Role: string(c.Role),
		Action: operation, Subject: c.path[:min(len(c.path), auditSubjectMax)], Detail: detail, RequestID: web.RequestID(ctx),
	}
	if err := a.cfg.Audits.AuditBegin(ctx, line); err != nil {
		return err
	}
	status, code := http.StatusInternalServerError, web.CodeInternal
	defer func() { // also when it panics
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), auditEndWait)
		defer cancel()
		if err := a.cfg.Audits.AuditEnd(ctx, line.ID, status, code, time.Now()); err != nil {
			a.log.Warn(obs.Failed, err, "request_id", line.RequestID, "what", "end of an audit line")
		}
	}()
	done, err := change()
	if err == nil {
		status, code = done, ""
		return nil
	}
	p := a.ProblemOf(ctx, err)
	status, code = p.Status, p.Code
	return p
}

// bodyOf is the body of a call's input as JSON, for the audit; "" = it has none.
func bodyOf(in any) string {
	body := reflect.Indirect(reflect.ValueOf(in))
	if body.Kind() != reflect.Struct {
		return ""
	}
	if body = body.FieldByName("Body"); !body.IsValid() {
		return ""
	}
	text, err := json.Marshal(body.Interface())
	if err != nil { // it was read from JSON
		return ""
	}
	if len(text) > auditDetailMax {
		text = text[:auditDetailMax]
	}
	return strings.ToValidUTF8(string(text), "")
}

// AuditLine is one change that somebody asked for, on the wire.
type AuditLine struct {
	ID        string    `json:"id" doc:"A whole number as a string"`
	At        time.Time `json:"at"`
	Actor     string    `json:"actor" doc:"Who asked; only what was said while auth.mode is none"`
	Role      string    `json:"role"`
	Action    string    `json:"action" doc:"Operation id of the call" example:"start-promotion"`
	Subject   string    `json:"subject" doc:"Path of the call" example:"/v1/promotions/12345/start"`
	Detail    string    `json:"detail,omitempty" doc:"The body of the call as JSON, its first 8 KiB"`
	RequestID string    `json:"requestId"`
	EndedAt   time.Time `json:"endedAt,omitzero" doc:"Absent: not known how it ended, the instance may have died in between"`
	Status    int       `json:"status,omitempty" doc:"HTTP status it ended with"`
	Code      string    `json:"code,omitempty" doc:"Of the problem it ended with"`
}

type auditListInput struct {
	Cursor  string `query:"cursor" doc:"nextCursor of the page before"`
	Limit   int    `query:"limit" minimum:"1" maximum:"1000" default:"100"`
	Actor   string `query:"actor" maxLength:"200" doc:"Only of this one"`
	Action  string `query:"action" maxLength:"200" doc:"Only this operation id"`
	Subject string `query:"subject" maxLength:"2000" doc:"Only this path; with a slash at its end all below it" example:"/v1/promotions/12345/"`
}

type auditListOutput struct {
	Body struct {
		Items      []AuditLine `json:"items" nullable:"false"`
		NextCursor string      `json:"nextCursor,omitempty" doc:"Absent on the last page"`
	}
}

func (a *API) addAudit() {
	call(a, huma.Operation{
		OperationID: "list-audit", Method: http.MethodGet, Path: "/v1/audit", Tags: []string{"audit"},
		Summary: "Show who changed what, the latest first",
	}, a.listAudit)
}

func (a *API) listAudit(ctx context.Context, in *auditListInput) (*auditListOutput, error) {
	p := store.AuditListParams{Limit: pageRead(in.Limit), Actor: in.Actor, Action: in.Action, Subject: in.Subject}
	if in.Cursor != "" {
		before, err := decodeCursor(cursorAudit, in.Cursor)
		if err != nil {
			return nil, err
		}
		p.Before = before
	}
	lines, err := a.cfg.Audits.AuditList(ctx, p)
	if err != nil {
		return nil, err
	}
	lines, more := page(lines, in.Limit)
	out := &auditListOutput{}
	out.Body.Items = make([]AuditLine, len(lines))
	for i, l := range lines {
		out.Body.Items[i] = AuditLine{
			ID: strconv.FormatInt(l.ID, 10), At: l.At.UTC(), Actor: l.Actor, Role: l.Role, Action: l.Action, Subject: l.Subject,
			Detail: l.Detail, RequestID: l.RequestID, EndedAt: l.EndedAt.UTC(), Status: l.Status, Code: l.Code,
		}
	}
	if more {
		out.Body.NextCursor = encodeCursor(cursorAudit, lines[len(lines)-1].ID)
	}
	return out, nil
}

// statusOf is the status that a call's output asks for, or the operation's own.
func statusOf(out any, otherwise int) int {
	v := reflect.Indirect(reflect.ValueOf(out))
	if v.Kind() == reflect.Struct {
		if s := v.FieldByName("Status"); s.IsValid() && s.CanInt() && s.Int() != 0 {
			return int(s.Int())
		}
	}
	return otherwise
}
