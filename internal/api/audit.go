package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/auth"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/web"
)

const (
	// auditDetailMax limits the recorded part of a request body, in bytes. Only metadata
	// and notes are longer, so they are the last fields of each body.
	auditDetailMax  = 8 << 10
	auditEndTimeout = 5 * time.Second
	// auditSubjectMax limits the recorded part of a request path, in bytes. Paths of
	// existing things are shorter.
	auditSubjectMax = 1 << 10
)

// audited makes a change and records it in the audit: an entry before the change, and its
// end afterwards, with the status ok unless it fails. If the entry cannot be written, the
// change is not made. An entry without an end means that the change may have been made.
// Entries of changes that were refused beyond refusedMax are dropped and counted,
// unless the error is partly.
func (a *API) audited(ctx context.Context, operation, detail string, ok int, change func() error) error {
	c := callerOf(ctx)
	line := lineOf(c.Principal)
	line.ID, line.At = a.cfg.IDs.Next(), time.Now()
	path := auditPath(c.url)
	line.Action, line.Subject, line.Detail = operation, path[:min(len(path), auditSubjectMax)], detail
	line.RequestID, line.Address = web.RequestID(ctx), web.ClientAddress(ctx)
	if err := a.cfg.Rows.AuditBegin(ctx, line); err != nil {
		return err
	}
	status, code, changed := http.StatusInternalServerError, web.CodeInternal, false
	defer func() { // also after a panic
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), auditEndTimeout)
		defer cancel()
		var err error
		if status/100 == 4 && !changed && a.refusedOften(line) {
			if err = a.cfg.Rows.AuditDrop(ctx, line.ID); err == nil {
				one := event{AuditLine: lineOf(c.Principal), note: fmt.Sprintf("refused, beyond the first %d of the minute", refusedMax)}
				one.Action, one.Status, one.Code = operation, status, code
				a.countAct(one, 1, line.At)
			}
		} else {
			err = a.cfg.Rows.AuditEnd(ctx, line.ID, status, code, time.Now())
		}
		if err != nil {
			a.log.Warn("completing audit entry failed", err, "request_id", line.RequestID)
		}
	}()
	err := change()
	if err == nil {
		status, code = ok, ""
		return nil
	}
	p := a.ProblemOf(ctx, err)
	status, code = p.Status, p.Code
	_, changed = errors.AsType[partly](err)
	return p
}

// partly is the error of a change that was made in part.
type partly struct{ error }

func (e partly) Unwrap() error { return e.error }

func lineOf(p auth.Principal) store.AuditLine {
	return store.AuditLine{Actor: p.Name, Role: string(p.Role), KeyID: p.KeyID, TokenSubject: p.TokenSubject}
}

// bodyOf returns the body of an operation's input as JSON, for the audit, or "" if
// it has none.
func bodyOf(in any) string {
	body := reflect.Indirect(reflect.ValueOf(in))
	if body.Kind() != reflect.Struct {
		return ""
	}
	if body = body.FieldByName("Body"); !body.IsValid() || body.Kind() == reflect.Pointer && body.IsNil() {
		return ""
	}
	shown := body.Interface()
	if secret, ok := shown.(interface{ forAudit() any }); ok {
		shown = secret.forAudit()
	}
	text, err := json.Marshal(shown)
	if err != nil { // it was read from JSON
		return ""
	}
	if len(text) > auditDetailMax {
		text = text[:auditDetailMax]
	}
	return strings.ToValidUTF8(string(text), "")
}

// auditPath returns the escaped path of a request for the audit. A path has many
// spellings, such as %31 for 1, and all of them become one: nobody could find the
// others.
func auditPath(u *url.URL) string {
	segments := strings.Split(u.EscapedPath(), "/")
	for i, s := range segments {
		if plain, err := url.PathUnescape(s); err == nil {
			segments[i] = url.PathEscape(plain)
		}
	}
	return strings.Join(segments, "/")
}

type auditListInput struct {
	PageInput
	Actor   string `query:"actor" maxLength:"200"`
	Action  string `query:"action" maxLength:"200" doc:"Operation ID"`
	Subject string `query:"subject" maxLength:"2000" doc:"Path; a final slash includes all paths below"`
}

func (a *API) addAudit() {
	call(a, operation{
		id: "list-audit", method: http.MethodGet, path: "/v1/audit", tag: "audit", roles: readers,
		summary: "List changes and who made them, latest first",
	}, a.listAudit)
}

func (a *API) listAudit(ctx context.Context, in *auditListInput) (*output[listOf[client.AuditLine]], error) {
	read := func(before int64, limit int) ([]store.AuditLine, error) {
		return a.cfg.Rows.AuditList(ctx, store.AuditListParams{Before: before, Limit: limit, Actor: in.Actor, Action: in.Action, Subject: in.Subject})
	}
	show := func(l store.AuditLine) client.AuditLine {
		out := client.AuditLine{
			ID: strconv.FormatInt(l.ID, 10), At: l.At.UTC(), Actor: l.Actor, Role: l.Role, TokenSubject: l.TokenSubject, Action: l.Action, Subject: l.Subject,
			Detail: l.Detail, RequestID: l.RequestID, Address: l.Address, EndedAt: timeOf(l.EndedAt), Status: l.Status, Code: l.Code,
		}
		if l.KeyID != 0 {
			out.KeyID = strconv.FormatInt(l.KeyID, 10)
		}
		return out
	}
	return pageByID(in.PageInput, cursorAudit, read, show, func(l store.AuditLine) int64 { return l.ID })
}
