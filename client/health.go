package client

import (
	"context"
	"net/http"
)

// Health checks whether the server answers. Nil means that it does.
func (c *Client) Health(ctx context.Context) error {
	return c.call(ctx, request{method: http.MethodGet, path: []string{"healthz"}}, nil)
}

// Readiness describes a server that can serve requests.
type Readiness struct {
	Degraded []string `json:"degraded"` // parts that are unavailable, e.g. queue or kafka
}

// Ready checks whether the server can serve requests. If it cannot (503), Ready
// returns a *Problem.
func (c *Client) Ready(ctx context.Context) (Readiness, error) {
	var out Readiness
	err := c.call(ctx, request{method: http.MethodGet, path: []string{"readyz"}}, &out)
	return out, err
}
