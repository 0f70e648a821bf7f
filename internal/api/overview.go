package api

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/bus"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

const (
	// overviewTTL is the age up to which callers share an overview.
	overviewTTL = time.Second
	// overviewTimeout limits the reads of an overview.
	overviewTimeout = 5 * time.Second
	// overviewItems limits the promotions and templates that an overview has.
	overviewItems = 50
	// overviewStreams limits the streams that an overview reads.
	overviewStreams = 10
	// degradedKafka is the name of Kafka in degraded.
	degradedKafka = "kafka"
	// overviewSpan is the time that the points cover.
	overviewSpan = 15 * time.Minute
)

// governorOf adds up the governors of the living instances. It leaves out a Retry-After
// that is over.
func governorOf(instances []store.Instance, now time.Time) client.GovernorState {
	out := client.GovernorState{RatesShared: true}
	for _, i := range instances {
		g := i.Governor
		if !i.Alive || g == nil {
			continue
		}
		out.Limit += g.Limit
		out.InFlight += g.InFlight
		out.Waiting += g.Waiting
		out.BreakerOpen = out.BreakerOpen || g.BreakerOpen
		out.RatesShared = out.RatesShared && !g.RatesUnshared
		if g.BlockedUntil.After(now) && (out.BlockedUntil == nil || g.BlockedUntil.After(*out.BlockedUntil)) {
			out.BlockedUntil = timeOf(g.BlockedUntil)
		}
	}
	return out
}

func (a *API) addOverview() {
	call(a, operation{
		id: "get-overview", method: http.MethodGet, path: "/v1/overview", tag: "instances", roles: readers,
		summary: "Get overview",
	}, a.getOverview)
	call(a, operation{
		id: "unblock-provider", method: http.MethodPost, path: "/v1/provider/unblock", tag: "instances", roles: operators,
		summary: "Let calls start again that wait for a Retry-After", status: http.StatusNoContent,
	}, a.unblockProvider)
}

// overviews shares overviews among callers. It is safe for concurrent use.
type overviews struct {
	mu     sync.Mutex // protects latest
	latest *overviewRead
}

type overviewRead struct {
	over  chan struct{} // closed when the rest is set
	value *client.Overview
	err   error
	at    time.Time // when the read ended
}

// get returns an overview that is at most overviewTTL old. Callers share one read,
// and a caller who leaves does not end it.
func (o *overviews) get(ctx context.Context, read func(ctx context.Context) (*client.Overview, error)) (*client.Overview, error) {
	o.mu.Lock()
	r := o.latest
	if r == nil || r.outdated() {
		r = &overviewRead{over: make(chan struct{})}
		o.latest = r
		go func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), overviewTimeout)
			defer cancel()
			r.value, r.err = read(ctx)
			r.at = time.Now()
			close(r.over)
		}()
	}
	o.mu.Unlock()
	select {
	case <-r.over:
		return r.value, r.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// outdated reports whether a read has ended and must not be shared any more.
func (r *overviewRead) outdated() bool {
	select {
	case <-r.over:
		return r.err != nil || time.Since(r.at) >= overviewTTL
	default:
		return false
	}
}

// unblockProvider ends a block of all calls on all instances. A repeat changes
// nothing.
func (a *API) unblockProvider(context.Context, *struct{}) (*struct{}, error) {
	a.cfg.Unblock()
	return nil, nil //nolint:nilnil // 204
}

func (a *API) getOverview(ctx context.Context, _ *struct{}) (*output[*client.Overview], error) {
	return outputOf(a.overviews.get(ctx, a.readOverview))
}

// readOverview reads an overview. The gates and the queue may be away; the database
// may not.
func (a *API) readOverview(ctx context.Context) (*client.Overview, error) {
	now := time.Now().UTC()
	out := &client.Overview{At: now, Promotions: []client.Promotion{}, Templates: []client.Template{}}
	active, err := a.cfg.Rows.PromotionActive(ctx)
	if err != nil {
		return nil, err
	}
	running := slices.DeleteFunc(active, func(v store.PromotionView) bool { return v.Status != reward.Running })
	slices.SortStableFunc(running, func(a, b store.PromotionView) int { return cmp.Compare(b.Counts.Undecided(), a.Counts.Undecided()) })
	out.Running = len(running)
	for i, v := range running {
		out.Waiting += v.Counts.Payouts[reward.Ready] + v.Counts.Payouts[reward.Queued] + v.Counts.Payouts[reward.Retrying]
		out.Unknown += v.Counts.Payouts[reward.Unknown]
		if i < overviewItems {
			out.Promotions = append(out.Promotions, *a.promotionForAll(v))
		}
	}
	templates, err := a.cfg.Templates.List(ctx, 0, overviewItems, nil)
	if err != nil {
		return nil, err
	}
	for _, t := range templates {
		if t.ClosesAt.IsZero() || t.ClosesAt.After(now) {
			out.Templates = append(out.Templates, *templateOf(t))
		}
	}
	oldest, err := a.cfg.Rows.PayoutOldest(ctx)
	if err != nil {
		return nil, err
	}
	out.OldestReadyAt, out.OldestUnknownAt = timeOf(oldest.ReadySince), timeOf(oldest.UnknownSince)
	instances, err := a.cfg.Rows.InstanceList(ctx)
	if err != nil {
		return nil, err
	}
	for _, i := range instances {
		if i.Alive {
			out.Instances.Alive++
		} else {
			out.Instances.Dead++
		}
	}
	out.Health = healthOf(instances)
	out.Governor = governorOf(instances, now)
	a.addLags(ctx, out, busiest(running))
	return out, a.addPoints(ctx, out, now)
}

// addLags reads the lag of the busiest streams and of the topics, at the same time, within
// queueTimeout. A part that does not answer is degraded.
func (a *API) addLags(ctx context.Context, out *client.Overview, busy []store.PromotionView) {
	var reading sync.WaitGroup
	var streams []client.WorkStream
	var streamsErr error
	reading.Go(func() { streams, streamsErr = a.workStreams(ctx, busy[:min(len(busy), overviewStreams)]) })
	topics, err := a.kafkaLags(ctx)
	reading.Wait()
	if streamsErr != nil {
		out.Degraded = append(out.Degraded, degradedQueue)
	} else {
		out.StreamLag = new(int64)
		for _, s := range streams {
			*out.StreamLag += s.Lag
		}
	}
	out.KafkaTopics = []client.TopicLag{}
	if err != nil {
		out.Degraded = append(out.Degraded, degradedKafka)
		return
	}
	out.KafkaLag = new(int64)
	for _, t := range topics {
		*out.KafkaLag += t.Records
		out.KafkaTopics = append(out.KafkaTopics, client.TopicLag{Topic: t.Topic, Group: t.Group, Lag: t.Records})
	}
}

func (a *API) kafkaLags(ctx context.Context) ([]bus.TopicLag, error) {
	if a.cfg.KafkaLags == nil {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, queueTimeout)
	defer cancel()
	return a.cfg.KafkaLags(ctx)
}

func (a *API) addPoints(ctx context.Context, out *client.Overview, now time.Time) error {
	s := span{now.Add(-overviewSpan), now}.aligned(store.TimelineStep)
	payouts, err := a.cfg.Rows.PromotionTimeline(ctx, 0, s)
	if err != nil {
		return err
	}
	coupons, err := a.cfg.Rows.TemplateTimeline(ctx, 0, s)
	if err != nil {
		return err
	}
	// The points of the latest whole step may not be there yet.
	latest := s.To.Add(-3 * store.TimelineStep)
	for _, p := range payouts {
		if p.At.Equal(latest) {
			out.PaidPerSecond = *rounded(float64(p.Succeeded) / store.TimelineStep.Seconds())
		}
	}
	for _, c := range coupons {
		if c.At.Equal(latest) {
			out.CouponsPerSecond = *rounded(float64(c.Issued) / store.TimelineStep.Seconds())
		}
	}
	out.StepSeconds = int64(s.Step / time.Second)
	out.Points, out.CouponPoints = promotionPoints(payouts, s), templatePoints(coupons, s)
	return nil
}

// healthOf merges what the living instances say of their parts. The engines are
// always there.
func healthOf(instances []store.Instance) []client.PartHealth {
	out := []client.PartHealth{{Part: "store", OK: true}, {Part: "queue", OK: true}, {Part: "kafka", OK: true}, {Part: obs.PartProvider, OK: true}}
	for _, i := range instances {
		if !i.Alive {
			continue
		}
		for _, t := range i.Troubles {
			n := slices.IndexFunc(out, func(p client.PartHealth) bool { return p.Part == t.Part })
			if n < 0 {
				n = len(out)
				out = append(out, client.PartHealth{Part: t.Part, OK: true})
			}
			p := &out[n]
			if p.OK || p.Since != nil && t.Since.Before(*p.Since) {
				p.Reason, p.Since = t.Reason, timeOf(t.Since)
			}
			p.OK, p.Instances = false, append(p.Instances, i.Name)
		}
	}
	return out
}
