package api

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/queue"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/web"
)

const (
	// streamsMax is how many streams are shown, the busiest first.
	streamsMax = 100
	// streamAskers is how many of them are asked for at a time.
	streamAskers = 8
)

// degradedQueue names the work queue among the parts that do not answer.
const degradedQueue = "queue"

// Instance is a running process of Largesse, or one that was not heard of
// lately.
type Instance struct {
	Name       string         `json:"name" example:"host-1"`
	Version    string         `json:"version"`
	Roles      []string       `json:"roles" nullable:"false"`
	Alive      bool           `json:"alive" doc:"Whether it was heard of in time"`
	StartedAt  time.Time      `json:"startedAt"`
	SeenAt     time.Time      `json:"seenAt" doc:"When it was last heard of; it is forgotten a day later"`
	AliveUntil time.Time      `json:"aliveUntil" doc:"When it is taken for dead unless it is heard of again"`
	Consumers  int            `json:"consumers" doc:"Of all its pools; 0 when it is not alive"`
	Pools      []InstancePool `json:"pools" nullable:"false" doc:"By promotion, as a living instance told last; empty when it is not alive"`
}

// InstancePool is the pool of one promotion on one instance.
type InstancePool struct {
	PromotionID string    `json:"promotionId"`
	Type        string    `json:"type" enum:"POINT,VOUCHER"`
	Consumers   int       `json:"consumers"`
	InHand      int       `json:"inHand" doc:"Entries read and not settled, when the instance was last heard of"`
	StartedAt   time.Time `json:"startedAt"`
}

func instanceOf(i store.Instance) Instance {
	out := Instance{
		Name: i.Name, Version: i.Version, Roles: append([]string{}, i.Roles...), Alive: i.Alive,
		StartedAt: i.StartedAt.UTC(), SeenAt: i.SeenAt.UTC(), AliveUntil: i.AliveUntil.UTC(), Pools: []InstancePool{},
	}
	if !i.Alive {
		return out // what it told last is no more so
	}
	for _, p := range i.Pools {
		out.Consumers += p.Consumers
		out.Pools = append(out.Pools, InstancePool{
			PromotionID: p.PromotionID.String(), Type: string(p.Type), Consumers: p.Consumers, InHand: p.InHand, StartedAt: p.StartedAt.UTC(),
		})
	}
	return out
}

// WorkStream is a work stream in short.
type WorkStream struct {
	PromotionID            string `json:"promotionId"`
	Type                   string `json:"type" enum:"POINT,VOUCHER"`
	Key                    string `json:"key,omitempty" doc:"Of the stream in Redis; absent for one in process"`
	Length                 int64  `json:"length" doc:"Entries that are not settled: lag and pending"`
	Lag                    int64  `json:"lag" doc:"Entries that nobody has read yet"`
	Pending                int64  `json:"pending" doc:"Entries read and not settled"`
	OldestPendingAgeMillis int64  `json:"oldestPendingAgeMillis" doc:"Since the oldest pending entry was added; 0 when none is pending"`
	Consumers              int    `json:"consumers" doc:"Registered consumers, of all instances"`
}

type instanceListOutput struct {
	Body struct {
		Items    []Instance   `json:"items" nullable:"false" doc:"By name; one page holds them all"`
		Streams  []WorkStream `json:"streams,omitzero" nullable:"false" doc:"Of the promotions with work dispatched, the 100 with the most first; absent when the queue does not answer"`
		Degraded []string     `json:"degraded,omitempty" nullable:"false" doc:"Parts that did not answer: queue"`
	}
}

func (a *API) addInstances() {
	call(a, huma.Operation{
		OperationID: "list-instances", Method: http.MethodGet, Path: "/v1/instances", Tags: []string{"instances"},
		Summary: "List instances with their pools, and the streams they work on",
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
	out.Body.Items = make([]Instance, len(instances))
	for n, i := range instances {
		out.Body.Items[n] = instanceOf(i)
	}
	out.Body.Streams, err = a.workStreams(ctx, busiest(active))
	if err != nil {
		a.log.Debug(obs.Unavailable, "request_id", web.RequestID(ctx), "error", err)
		out.Body.Streams, out.Body.Degraded = nil, []string{degradedQueue}
	}
	return out, nil
}

// busiest returns the promotions with work dispatched, those with the most
// first, no more than streamsMax.
func busiest(active []store.PromotionView) []store.PromotionView {
	busy := slices.DeleteFunc(slices.Clone(active), func(v store.PromotionView) bool { return v.Counts.Payouts[reward.Queued] == 0 })
	slices.SortStableFunc(busy, func(a, b store.PromotionView) int {
		return cmp.Compare(b.Counts.Payouts[reward.Queued], a.Counts.Payouts[reward.Queued])
	})
	return busy[:min(len(busy), streamsMax)]
}

// workStreams asks for the streams of promotions, a few at a time, for no
// longer than queueWait in all. The first failure ends it.
func (a *API) workStreams(ctx context.Context, views []store.PromotionView) ([]WorkStream, error) {
	bounded, done := context.WithTimeout(ctx, queueWait)
	defer done()
	ctx, fail := context.WithCancelCause(bounded)
	defer fail(nil)
	out := make([]WorkStream, len(views))
	var next atomic.Int64
	var askers sync.WaitGroup
	for range min(streamAskers, len(views)) {
		askers.Go(func() {
			for i := int(next.Add(1)) - 1; i < len(views) && ctx.Err() == nil; i = int(next.Add(1)) - 1 {
				var err error
				if out[i], err = a.workStream(ctx, views[i]); err != nil {
					fail(err)
				}
			}
		})
	}
	askers.Wait()
	return out, context.Cause(ctx)
}

func (a *API) workStream(ctx context.Context, v store.PromotionView) (WorkStream, error) {
	s := queue.Stream{Type: v.Type, PromotionID: v.ID}
	info, consumers, err := a.askStream(ctx, s)
	if err != nil {
		return WorkStream{}, err
	}
	out := WorkStream{
		PromotionID: v.ID.String(), Type: string(v.Type), Length: info.Len, Lag: info.Lag(), Pending: info.Pending, Consumers: len(consumers),
	}
	out.Key, _ = a.cfg.StreamNames(s)
	if !info.OldestPendingAt.IsZero() {
		// The queue's clock may be ahead of ours.
		out.OldestPendingAgeMillis = max(time.Since(info.OldestPendingAt).Milliseconds(), 0)
	}
	return out, nil
}
