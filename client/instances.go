package client

import (
	"context"
	"net/http"
	"time"
)

// Instances is who works, and on which streams.
type Instances struct {
	Items []Instance `json:"items"` // by name
	// Streams are those of the promotions with work dispatched, at most 100,
	// the ones with the most first; nil when the queue did not answer.
	Streams  []WorkStream `json:"streams"`
	Degraded []string     `json:"degraded,omitempty"` // parts that did not answer: queue
}

// Instance is a running server, or one that was not heard of lately.
type Instance struct {
	Name       string         `json:"name"`
	Version    string         `json:"version"`
	Roles      []string       `json:"roles"`
	Alive      bool           `json:"alive"`
	StartedAt  time.Time      `json:"startedAt"`
	SeenAt     time.Time      `json:"seenAt"`
	AliveUntil time.Time      `json:"aliveUntil"` // taken for dead then, unless it is heard of again
	Consumers  int            `json:"consumers"`  // of all its pools; 0 when it is not alive
	Pools      []InstancePool `json:"pools"`      // by promotion; empty when it is not alive
}

// InstancePool is the pool of one promotion on one instance.
type InstancePool struct {
	PromotionID string    `json:"promotionId"`
	Type        string    `json:"type"` // POINT or VOUCHER
	Consumers   int       `json:"consumers"`
	InHand      int       `json:"inHand"` // entries read and not settled
	StartedAt   time.Time `json:"startedAt"`
}

// WorkStream is a work stream in short. Length is Lag and Pending together.
type WorkStream struct {
	PromotionID            string `json:"promotionId"`
	Type                   string `json:"type"`
	Key                    string `json:"key,omitempty"` // in Redis; empty for a stream in process
	Length                 int64  `json:"length"`
	Lag                    int64  `json:"lag"`                    // entries that nobody has read
	Pending                int64  `json:"pending"`                // entries read and not settled
	OldestPendingAgeMillis int64  `json:"oldestPendingAgeMillis"` // 0 when none is pending
	Consumers              int    `json:"consumers"`              // of all instances
}

// Instances lists the instances with their pools, and the streams they work
// on.
func (c *Client) Instances(ctx context.Context) (Instances, error) {
	var out Instances
	err := c.call(ctx, request{method: http.MethodGet, path: []string{"v1", "instances"}}, &out)
	return out, err
}

// PromotionStream is the work stream of a promotion. Length is Lag and Pending
// together.
type PromotionStream struct {
	Key             string           `json:"key"`    // in Redis; empty for a stream in process
	Group           string           `json:"group"`  // likewise
	Exists          bool             `json:"exists"` // false before the first dispatch and after the end
	Length          int64            `json:"length"`
	Lag             int64            `json:"lag"`                       // entries that nobody has read
	Pending         int64            `json:"pending"`                   // entries read and not settled
	OldestAt        *time.Time       `json:"oldestAt,omitempty"`        // when the oldest entry was added; nil without any
	OldestPendingAt *time.Time       `json:"oldestPendingAt,omitempty"` // when the oldest pending entry was added; nil without any
	Consumers       []StreamConsumer `json:"consumers"`                 // by instance
}

// StreamConsumer is one registered reader of a stream.
type StreamConsumer struct {
	Name       string `json:"name"`
	Instance   string `json:"instance"` // empty when the name is none of ours
	Alive      bool   `json:"alive"`    // whether the instance is
	Pending    int64  `json:"pending"`
	IdleMillis int64  `json:"idleMillis"` // since it last read or claimed anything
}

// PromotionStream reads the work stream of a promotion. A queue that does not
// answer is a *Problem with the status 503.
func (c *Client) PromotionStream(ctx context.Context, id string) (PromotionStream, error) {
	var out PromotionStream
	err := c.call(ctx, request{method: http.MethodGet, path: []string{"v1", "promotions", id, "stream"}}, &out)
	return out, err
}
