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
	Actor string    `json:"actor"`
	Role  string    `json:"role"`
	// KeyID is the API key of the actor, and TokenSubject the person in their token: two actors
	// can have the same name. Both are empty for callers with neither.
	KeyID        string     `json:"keyId,omitempty"`
	TokenSubject string     `json:"tokenSubject,omitempty"`
	Action       string     `json:"action"`           // operation ID of the call, e.g. start-promotion
	Subject      string     `json:"subject"`          // path of the call
	Detail       string     `json:"detail,omitempty"` // first 8 KiB of the call's JSON body, or 500 characters if it was refused
	RequestID    string     `json:"requestId"`
	Address      string     `json:"address,omitempty"` // IP address of the client; empty if it is not known
	EndedAt      *time.Time `json:"endedAt,omitempty"` // nil: the outcome is unknown
	Status       int        `json:"status,omitempty"`  // HTTP status of the response
	Code         string     `json:"code,omitempty"`    // code of the response's problem
}

// AuditFilter selects audit lines. Empty fields select all.
type AuditFilter struct {
	Actor   string
	Action  string // e.g. start-promotion
	Subject string // path; one that ends with / includes everything below it
}

// Audit iterates over the recorded changes, latest first. It ends after the
// first error.
func (c *Client) Audit(ctx context.Context, f AuditFilter) iter.Seq2[AuditLine, error] {
	return pages[AuditLine](ctx, c, []string{"v1", "audit"}, filled(map[string]string{"actor": f.Actor, "action": f.Action, "subject": f.Subject}))
}
