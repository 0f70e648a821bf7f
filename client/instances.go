package client

import (
	"context"
	"net/http"
	"time"
)

// Instances lists the instances and the work streams.
type Instances struct {
	Items    []Instance   `json:"items" nullable:"false"` // by name
	Streams  []WorkStream `json:"streams,omitzero" nullable:"false" doc:"Of the 100 busiest promotions; absent: the queue did not answer"`
	Degraded []string     `json:"degraded,omitempty" nullable:"false" doc:"queue: it did not answer"`
}

// Instance is an instance that runs, or ran recently.
type Instance struct {
	Name       string         `json:"name"`
	Version    string         `json:"version"`
	Roles      []string       `json:"roles" nullable:"false"`
	Alive      bool           `json:"alive"`
	StartedAt  time.Time      `json:"startedAt"`
	SeenAt     time.Time      `json:"seenAt"`
	AliveUntil time.Time      `json:"aliveUntil"`                          // when it counts as dead without another heartbeat
	Consumers  int            `json:"consumers"`                           // of all its pools; 0 if it is not alive
	Pools      []InstancePool `json:"pools" nullable:"false"`              // ordered by promotion; empty if it is not alive
	Troubles   []Trouble      `json:"troubles,omitempty" nullable:"false"` // what degraded it at its last heartbeat, as in Readiness; nil if it is not alive
}

// InstancePool is the pool of one promotion on one instance.
type InstancePool struct {
	PromotionID string    `json:"promotionId"`
	Type        string    `json:"type" enum:"POINT,VOUCHER"`
	Consumers   int       `json:"consumers"`
	InHand      int       `json:"inHand" doc:"Pending entries"`
	StartedAt   time.Time `json:"startedAt"`
}

// WorkStream is a summary of a work stream. Length is the sum of Lag and
// Pending.
type WorkStream struct {
	PromotionID            string `json:"promotionId"`
	Type                   string `json:"type" enum:"POINT,VOUCHER"`
	Key                    string `json:"key,omitempty" doc:"Absent: the queue is in process"`
	Length                 int64  `json:"length"`
	Lag                    int64  `json:"lag"`                    // undelivered entries
	Pending                int64  `json:"pending"`                // entries delivered and not acknowledged
	OldestPendingAgeMillis int64  `json:"oldestPendingAgeMillis"` // 0 without pending entries
	Consumers              int    `json:"consumers"`              // consumers of all instances
}

// Instances returns the instances with their pools, and the work streams.
func (c *Client) Instances(ctx context.Context) (Instances, error) {
	return get[Instances](ctx, c, "v1", "instances")
}

// PromotionStream is the work stream of a promotion. Length is the sum of Lag
// and Pending.
type PromotionStream struct {
	Key             string           `json:"key" example:"campaign-promotion-stream:POINT:12345"`
	Group           string           `json:"group"`  // consumer group; empty for an in-process stream
	Exists          bool             `json:"exists"` // false before the first dispatch and after completion
	Length          int64            `json:"length"`
	Lag             int64            `json:"lag"`                        // undelivered entries
	Pending         int64            `json:"pending"`                    // entries delivered and not acknowledged
	OldestAt        *time.Time       `json:"oldestAt,omitempty"`         // when the oldest entry was added; nil without entries
	OldestPendingAt *time.Time       `json:"oldestPendingAt,omitempty"`  // when the oldest pending entry was added; nil without pending entries
	Consumers       []StreamConsumer `json:"consumers" nullable:"false"` // ordered by instance
}

// StreamConsumer is a registered consumer of a stream.
type StreamConsumer struct {
	Name       string `json:"name" example:"host-1-0"`
	Instance   string `json:"instance"` // empty if the name is not one of Largesse
	Alive      bool   `json:"alive"`    // whether the instance is alive
	Pending    int64  `json:"pending"`
	IdleMillis int64  `json:"idleMillis"` // time since it last read or claimed entries
}

// PromotionStream returns the work stream of a promotion. If the work queue is
// unavailable, it returns a *Problem with the status 503.
func (c *Client) PromotionStream(ctx context.Context, id string) (PromotionStream, error) {
	return get[PromotionStream](ctx, c, "v1", "promotions", id, "stream")
}

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
