package api

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/pool"
	"github.com/largesse/largesse/internal/queue"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/web"
)

// queueWait bounds how long a request waits for the work queue.
const queueWait = time.Second

// PromotionStream is the work stream of a promotion: what is dispatched and not
// settled, and who reads it.
type PromotionStream struct {
	Key             string           `json:"key" doc:"Of the stream in Redis; empty for one in process" example:"campaign-promotion-stream:POINT:12345"`
	Group           string           `json:"group" doc:"Consumer group of the stream; empty for one in process" example:"campaign-promotion-group:POINT:12345"`
	Exists          bool             `json:"exists" doc:"There is none before the first dispatch and after the end"`
	Length          int64            `json:"length" doc:"Entries that are not settled: lag and pending"`
	Lag             int64            `json:"lag" doc:"Entries that nobody has read yet"`
	Pending         int64            `json:"pending" doc:"Entries read and not settled"`
	OldestAt        time.Time        `json:"oldestAt,omitzero" doc:"When the oldest entry was added, by the queue's clock; absent when it is empty"`
	OldestPendingAt time.Time        `json:"oldestPendingAt,omitzero" doc:"When the oldest pending entry was added; absent when none is pending"`
	Consumers       []StreamConsumer `json:"consumers" nullable:"false" doc:"By instance"`
}

// StreamConsumer is one registered reader of a stream.
type StreamConsumer struct {
	Name       string `json:"name" example:"host-1-0"`
	Instance   string `json:"instance" doc:"The instance it belongs to; empty when the name is none of ours" example:"host-1"`
	Alive      bool   `json:"alive" doc:"Whether that instance is; what a dead one has pending is claimed by others after the lease"`
	Pending    int64  `json:"pending" doc:"Entries it has read and not settled"`
	IdleMillis int64  `json:"idleMillis" doc:"Since it last read or claimed anything"`
}

type promotionStreamOutput struct {
	Body *PromotionStream
}

func (a *API) addStreams() {
	call(a, huma.Operation{
		OperationID: "get-promotion-stream", Method: http.MethodGet, Path: "/v1/promotions/{id}/stream", Tags: []string{"promotions"},
		Summary: "Show the work stream of a promotion and its consumers",
	}, a.getPromotionStream)
}

func (a *API) getPromotionStream(ctx context.Context, in *promotionIDInput) (*promotionStreamOutput, error) {
	id, err := promotionID(in.ID)
	if err != nil {
		return nil, err
	}
	v, err := a.cfg.Promotions.Get(ctx, id)
	if err != nil {
		return nil, err
	}
	instances, err := a.cfg.Rows.InstanceList(ctx)
	if err != nil {
		return nil, err
	}
	s := queue.Stream{Type: v.Type, PromotionID: v.ID}
	info, consumers, err := a.askStream(ctx, s)
	if err != nil {
		a.log.Warn(obs.Unavailable, err, "request_id", web.RequestID(ctx), "promotion_id", id)
		return nil, web.NewProblem(http.StatusServiceUnavailable, web.CodeUnavailable,
			"the work queue does not answer; what it held is kept in the database, ask again later")
	}
	out := &PromotionStream{
		Exists: info.Exists, Length: info.Len, Lag: info.Lag(), Pending: info.Pending,
		OldestAt: info.OldestAt.UTC(), OldestPendingAt: info.OldestPendingAt.UTC(), Consumers: streamConsumers(consumers, instances),
	}
	out.Key, out.Group = a.cfg.StreamNames(s)
	return &promotionStreamOutput{Body: out}, nil
}

// askStream asks the work queue for all it knows of a stream.
func (a *API) askStream(ctx context.Context, s queue.Stream) (queue.Info, []queue.ConsumerInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, queueWait)
	defer cancel()
	info, err := a.cfg.Streams.Info(ctx, s)
	if err != nil {
		return info, nil, err
	}
	consumers, err := a.cfg.Streams.Consumers(ctx, s)
	return info, consumers, err
}

// streamConsumers tells of each consumer whose it is.
func streamConsumers(consumers []queue.ConsumerInfo, instances []store.Instance) []StreamConsumer {
	alive := make(map[string]bool, len(instances))
	for _, i := range instances {
		alive[i.Name] = i.Alive
	}
	out := make([]StreamConsumer, len(consumers))
	for n, c := range consumers {
		instance := pool.InstanceOf(c.Name)
		out[n] = StreamConsumer{
			Name: c.Name, Instance: instance, Alive: alive[instance], Pending: c.Pending, IdleMillis: c.Idle.Milliseconds(),
		}
	}
	slices.SortFunc(out, func(a, b StreamConsumer) int {
		return cmp.Or(cmp.Compare(a.Instance, b.Instance), cmp.Compare(len(a.Name), len(b.Name)), cmp.Compare(a.Name, b.Name))
	})
	return out
}
