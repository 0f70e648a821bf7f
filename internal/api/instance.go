package api

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/pool"
	"github.com/largesse/largesse/internal/queue"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/service"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/web"
)

const (
	// streamsMax limits the streams that are shown, busiest first.
	streamsMax = 100
	// streamReaders is the number of streams that are read at a time.
	streamReaders = 8
)

const degradedQueue = "queue"

func instanceOf(i store.Instance) client.Instance {
	out := client.Instance{
		Name: i.Name, Version: i.Version, Roles: append([]string{}, i.Roles...), Alive: i.Alive,
		StartedAt: i.StartedAt.UTC(), SeenAt: i.SeenAt.UTC(), AliveUntil: i.AliveUntil.UTC(), Pools: []client.InstancePool{},
	}
	if !i.Alive {
		return out // its last report is out of date
	}
	out.Troubles = troublesOf(i.Troubles)
	for _, p := range i.Pools {
		out.Consumers += p.Consumers
		out.Pools = append(out.Pools, client.InstancePool{
			PromotionID: p.PromotionID.String(), Type: string(p.Type), Consumers: p.Consumers, InHand: p.Pending, StartedAt: p.StartedAt.UTC(),
		})
	}
	return out
}

type instanceListOutput struct {
	Body struct{ client.Instances }
}

func (a *API) addInstances() {
	call(a, operation{
		id: "list-instances", method: http.MethodGet, path: "/v1/instances", tag: "instances", roles: readers,
		summary: "List instances",
	}, a.listInstances)
}

func (a *API) listInstances(ctx context.Context, _ *struct{}) (*instanceListOutput, error) {
	instances, err := a.cfg.Rows.InstanceList(ctx)
	if err != nil {
		return nil, err
	}
	active, err := a.cfg.Rows.PromotionActive(ctx)
	if err != nil {
		return nil, err
	}
	out := &instanceListOutput{}
	out.Body.Items = mapped(instances, instanceOf)
	out.Body.Streams, err = a.workStreams(ctx, busiest(active))
	if err != nil {
		a.log.Debug("work queue unavailable", "request_id", web.RequestID(ctx), "error", err)
		out.Body.Streams, out.Body.Degraded = nil, []string{degradedQueue}
	}
	return out, nil
}

// busiest returns the promotions with the most dispatched payouts, most first. It
// returns at most streamsMax, and none without dispatched payouts.
func busiest(active []store.PromotionView) []store.PromotionView {
	busy := slices.DeleteFunc(slices.Clone(active), func(v store.PromotionView) bool { return v.Counts.Payouts[reward.Queued] == 0 })
	slices.SortStableFunc(busy, func(a, b store.PromotionView) int {
		return cmp.Compare(b.Counts.Payouts[reward.Queued], a.Counts.Payouts[reward.Queued])
	})
	return busy[:min(len(busy), streamsMax)]
}

// workStreams reads the streams of promotions, a few at a time, within
// queueTimeout. The first error ends it.
func (a *API) workStreams(ctx context.Context, views []store.PromotionView) ([]client.WorkStream, error) {
	bounded, done := context.WithTimeout(ctx, queueTimeout)
	defer done()
	ctx, fail := context.WithCancelCause(bounded)
	defer fail(nil)
	out := make([]client.WorkStream, len(views))
	var next atomic.Int64
	var workers sync.WaitGroup
	for range min(streamReaders, len(views)) {
		workers.Go(func() {
			for i := int(next.Add(1)) - 1; i < len(views) && ctx.Err() == nil; i = int(next.Add(1)) - 1 {
				var err error
				if out[i], err = a.workStream(ctx, views[i]); err != nil {
					fail(err)
				}
			}
		})
	}
	workers.Wait()
	return out, context.Cause(ctx)
}

func (a *API) workStream(ctx context.Context, v store.PromotionView) (client.WorkStream, error) {
	s := queue.Stream{Type: v.Type, PromotionID: v.ID}
	info, consumers, err := a.inspectStream(ctx, s)
	if err != nil {
		return client.WorkStream{}, err
	}
	out := client.WorkStream{
		PromotionID: v.ID.String(), Type: string(v.Type), Length: info.Len, Lag: info.Lag(), Pending: info.Pending, Consumers: len(consumers),
	}
	out.Key, _ = a.cfg.StreamNames(s)
	if !info.OldestPendingAt.IsZero() {
		// The queue's clock may be ahead.
		out.OldestPendingAgeMillis = max(time.Since(info.OldestPendingAt).Milliseconds(), 0)
	}
	return out, nil
}

const queueTimeout = time.Second

func (a *API) addStreams() {
	call(a, operation{
		id: "get-promotion-stream", method: http.MethodGet, path: "/v1/promotions/{id}/stream", tag: "promotions", roles: readers,
		summary: "Get a promotion stream",
		errors:  []string{reward.CodeNotFound},
	}, a.getPromotionStream)
}

func (a *API) getPromotionStream(ctx context.Context, in *PromotionPath) (*output[*client.PromotionStream], error) {
	v, err := a.cfg.Rows.PromotionGet(ctx, in.id)
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
