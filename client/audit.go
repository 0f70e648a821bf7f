package client

import (
	"context"
	"iter"
	"time"
)

// AuditLine is one recorded change.
type AuditLine struct {
	ID    string    `json:"id"`
	At    time.Time `json:"at"`
	Actor string    `json:"actor" doc:"Empty: refused and not authenticated"`
	Role  string    `json:"role"`
	// KeyID and TokenSubject differ for two actors with the same name. Both are empty for
	// callers with neither.
	KeyID        string     `json:"keyId,omitempty" doc:"API key of the actor"`
	TokenSubject string     `json:"tokenSubject,omitempty" doc:"Person in the actor's token"`
	Action       string     `json:"action" doc:"Operation ID; refused-access: detail counts refused callers, subject is the operation; with no subject: detail counts refused changes" example:"start-promotion"`
	Subject      string     `json:"subject" example:"/v1/promotions/12345/start"`
	Detail       string     `json:"detail,omitempty" doc:"First 8 KiB of the body; 500 characters if the change was refused"`
	RequestID    string     `json:"requestId"`
	Address      string     `json:"address,omitempty" example:"192.0.2.7"` // IP address of the client; empty if it is not known
	EndedAt      *time.Time `json:"endedAt,omitempty" doc:"Absent: outcome unknown"`
	Status       int        `json:"status,omitempty"` // HTTP status of the response
	Code         string     `json:"code,omitempty"`   // code of the response's problem
}

// AuditFilter selects audit lines. Empty fields select all.
type AuditFilter struct {
	Actor   string
	Action  string // e.g. start-promotion
	Subject string // path; one that ends with / includes everything below it
}

// Audit iterates over the recorded changes, latest first.
func (c *Client) Audit(ctx context.Context, f AuditFilter) iter.Seq2[AuditLine, error] {
	return pages[AuditLine](ctx, c, []string{"v1", "audit"}, filled(map[string]string{"actor": f.Actor, "action": f.Action, "subject": f.Subject}))
}
