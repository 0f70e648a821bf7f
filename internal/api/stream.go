package api

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/pool"
	"github.com/largesse/largesse/internal/queue"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/service"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/web"
)

const queueTimeout = time.Second

func (a *API) addStreams() {
	call(a, operation{
		id: "get-promotion-stream", method: http.MethodGet, path: "/v1/promotions/{id}/stream", tag: "promotions", roles: readers,
		summary: "Get a promotion stream",
		errors:  []string{reward.CodeNotFound},
	}, a.getPromotionStream)
}

func (a *API) getPromotionStream(ctx context.Context, in *PromotionPath) (*output[*client.PromotionStream], error) {
	v, err := a.cfg.Promotions.Get(ctx, in.id)
	if err != nil {
		return nil, err
	}
	instances, err := a.cfg.Rows.InstanceList(ctx)
	if err != nil {
		return nil, err
	}
	s := queue.Stream{Type: v.Type, PromotionID: v.ID}
	info, consumers, err := a.inspectStream(ctx, s)
	if err != nil {
		return nil, &reward.Error{
			Kind: reward.KindUnavailable, Code: web.CodeUnavailable, Err: err,
			Detail: cmp.Or(service.Refusal(err, "Redis", "the work queue needs", "its payouts are safe in the database"),
				"the work queue does not answer; its payouts are safe in the database, try again later"),
		}
	}
	out := &client.PromotionStream{
		Exists: info.Exists, Length: info.Len, Lag: info.Lag(), Pending: info.Pending,
		OldestAt: timeOf(info.OldestAt), OldestPendingAt: timeOf(info.OldestPendingAt), Consumers: streamConsumers(consumers, instances),
	}
	out.Key, out.Group = a.cfg.StreamNames(s)
	return &output[*client.PromotionStream]{Body: out}, nil
}

func (a *API) inspectStream(ctx context.Context, s queue.Stream) (queue.Info, []queue.ConsumerInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, queueTimeout)
	defer cancel()
	info, err := a.cfg.Streams.Info(ctx, s)
	if err != nil {
		return info, nil, err
	}
	consumers, err := a.cfg.Streams.Consumers(ctx, s)
	return info, consumers, err
}

func streamConsumers(consumers []queue.ConsumerInfo, instances []store.Instance) []client.StreamConsumer {
	alive := make(map[string]bool, len(instances))
	for _, i := range instances {
		alive[i.Name] = i.Alive
	}
	out := mapped(consumers, func(c queue.ConsumerInfo) client.StreamConsumer {
		instance := pool.InstanceOf(c.Name)
		return client.StreamConsumer{
			Name: c.Name, Instance: instance, Alive: alive[instance], Pending: c.Pending, IdleMillis: c.Idle.Milliseconds(),
		}
	})
	slices.SortFunc(out, func(a, b client.StreamConsumer) int {
		return cmp.Or(cmp.Compare(a.Instance, b.Instance), cmp.Compare(len(a.Name), len(b.Name)), cmp.Compare(a.Name, b.Name))
	})
	return out
}
