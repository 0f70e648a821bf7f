package pool_test

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/lab/fleet"
	"github.com/largesse/largesse/internal/pool"
	"github.com/largesse/largesse/internal/queue"
	"github.com/largesse/largesse/internal/queue/redisstream"
	"github.com/largesse/largesse/internal/reward"
)

var voucher = queue.Stream{Type: reward.Voucher, PromotionID: 1}

// instance is a pool for voucher with a connection to Redis of its own, as in a process of
// its own, and a handler that acknowledges what it is given.
type instance struct {
	*testing.T
	q       queue.Queue
	handled atomic.Int64
}

func newInstance(t *testing.T, name, url, prefix string) *instance {
	t.Helper()
	q := fixture.Must(redisstream.Open(t.Context(), redisstream.Config{URL: url, KeyPrefix: prefix}))(t)
	t.Cleanup(q.Close)
	in := &instance{T: t, q: q}
	m := pool.NewManager(pool.Config{
		Queue: q, Handle: in.Handle, Instance: name, MinConsumers: 1, MaxConsumers: 32, InFlight: 64, BatchSize: 10,
		PollInterval: 100 * time.Millisecond, IdleTimeout: 30 * time.Second, Lease: time.Second, StopTimeout: 5 * time.Second,
		Healthy: func() bool { return true }, AcceptsWork: func(reward.PromotionID) bool { return true },
		Refused: func(queue.Stream, error) {}, Changed: func() {},
	})
	m.Run(t.Context())
	t.Cleanup(m.StopAll)
	m.Converge([]pool.Spec{{Stream: voucher, Total: 1000, Work: true}})
	return in
}

func (in *instance) Handle(_ context.Context, items []*pool.Item) {
	for _, it := range items {
		go func() {
			if err := in.q.Ack(context.Background(), it.Stream, []string{it.ID}); err != nil {
				in.Errorf("acknowledge %s: %v", it.ID, err)
			}
			in.handled.Add(1)
			it.Release()
		}()
	}
}

// enqueue adds n entries, as the producer of the payouts does.
func (in *instance) enqueue(n int) {
	in.Helper()
	p := queue.AddParams{Stream: voucher, MaxLen: 100_000, Deadline: time.Now().Add(time.Minute)}
	for i := range n {
		p.Entries = append(p.Entries, queue.NewEntry{TargetID: reward.TargetID(i), Dispatch: 1, Message: fmt.Appendf(nil, `{"promotionId":1,"targetId":%d}`, i)})
	}
	if added, err := in.q.Add(in.Context(), p); err != nil || added != n {
		in.Fatalf("added %d of %d: %v", added, n, err)
	}
}

// consumers returns the names of the consumers of the stream.
func (in *instance) consumers() []string {
	in.Helper()
	var names []string
	for _, c := range fixture.Must(in.q.Consumers(in.Context(), voucher))(in) {
		names = append(names, c.Name)
	}
	slices.Sort(names)
	return names
}

// TestConsumersComeBackAfterALoss: the stream is deleted with everything that
// Redis knew of the group; entries that come later are handled, and all
// consumers of all instances are registered again.
func TestConsumersComeBackAfterALoss(t *testing.T) {
	t.Parallel()
	url := fixture.Address(t, fleet.VariableRedis)
	prefix := fixture.Keys(t, url)
	a, b := newInstance(t, "host-a", url, prefix), newInstance(t, "host-b", url, prefix)
	a.enqueue(1) // only an add makes a stream
	all := []string{"host-a-0", "host-a-1", "host-b-0", "host-b-1"}
	fixture.Until(t, "all consumers are registered", func() bool { return slices.Equal(a.consumers(), all) })
	fixture.Until(t, "the entry is handled", func() bool { return a.handled.Load()+b.handled.Load() == 1 })
	fixture.DeleteKeys(t, url, prefix)
	a.enqueue(5)
	fixture.Until(t, "all is handled", func() bool { return a.handled.Load()+b.handled.Load() == 6 })
	fixture.Until(t, "all consumers are registered again", func() bool { return slices.Equal(a.consumers(), all) })
}
