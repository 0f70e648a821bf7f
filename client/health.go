package client

import (
	"context"
	"net/http"
	"time"
)

// Health checks whether the server answers. Nil means that it does.
func (c *Client) Health(ctx context.Context) error {
	return c.call(ctx, request{method: http.MethodGet, path: []string{"healthz"}}, nil)
}

// Readiness describes a server that can serve requests.
type Readiness struct {
	Degraded []string  `json:"degraded" nullable:"false"`           // parts that do not work as they should, e.g. queue, kafka or provider
	Troubles []Trouble `json:"troubles,omitempty" nullable:"false"` // why, where the server knows it
}

// Trouble is the reason why a part of a server is degraded.
type Trouble struct {
	Part   string    `json:"part"`
	Reason string    `json:"reason"`
	Since  time.Time `json:"since"`
}

// Ready checks whether the server can serve requests. If it cannot (503), Ready
// returns a *Problem.
func (c *Client) Ready(ctx context.Context) (Readiness, error) {
	return get[Readiness](ctx, c, "readyz")
}
