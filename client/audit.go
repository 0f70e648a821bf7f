package client

import (
	"context"
	"iter"
	"time"
)

// AuditLine is one change that somebody asked for.
type AuditLine struct {
	ID        string     `json:"id"`
	At        time.Time  `json:"at"`
	Actor     string     `json:"actor"`
	Role      string     `json:"role"`
	Action    string     `json:"action"`           // operation id of the call, e.g. start-promotion
	Subject   string     `json:"subject"`          // path of the call
	Detail    string     `json:"detail,omitempty"` // body of the call as JSON, its first 8 KiB
	RequestID string     `json:"requestId"`
	EndedAt   *time.Time `json:"endedAt,omitempty"` // nil: not known how it ended
	Status    int        `json:"status,omitempty"`  // HTTP status it ended with
	Code      string     `json:"code,omitempty"`    // of the problem it ended with
}

// AuditFilter narrows the audit; empty fields let all through.
type AuditFilter struct {
	Actor   string
	Action  string // e.g. start-promotion
	Subject string // a path; with a slash at its end all below it
}

// Audit walks over who changed what, the latest first. It ends after the first
// error.
func (c *Client) Audit(ctx context.Context, f AuditFilter) iter.Seq2[AuditLine, error] {
	return pages[AuditLine](ctx, c, []string{"v1", "audit"}, filled(map[string]string{"actor": f.Actor, "action": f.Action, "subject": f.Subject}))
}
