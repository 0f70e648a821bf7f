package client

import (
	"context"
	"net/http"
)

// Health asks whether the server's own loops are alive; nil says yes.
func (c *Client) Health(ctx context.Context) error {
	return c.call(ctx, request{method: http.MethodGet, path: []string{"healthz"}}, nil)
}

// Readiness is what a server that can do its work says of itself.
type Readiness struct {
	Degraded []string `json:"degraded"` // parts that work less well than they should
}

// Ready asks whether the server can do its work. An answer of 503 is a
// *Problem.
func (c *Client) Ready(ctx context.Context) (Readiness, error) {
	var out Readiness
	err := c.call(ctx, request{method: http.MethodGet, path: []string{"readyz"}}, &out)
	return out, err
}
