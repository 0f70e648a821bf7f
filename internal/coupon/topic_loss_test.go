package coupon

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/largesse/largesse/internal/bus"
	"github.com/largesse/largesse/internal/gatekeeper"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/reward"
)

// countedTopic counts the reads of the end offsets.
type countedTopic struct {
	gatekeeper.TopicInspector
	ends *atomic.Int64
}

func (c countedTopic) Ends(ctx context.Context, topic string) (map[int32]int64, error) {
	defer c.ends.Add(1)
	return c.TopicInspector.Ends(ctx, topic)
}

// admin returns a client for the brokers, and a function that closes it.
func (r *rig) admin() (*kadm.Client, func()) {
	r.Helper()
	options := []kgo.Opt{kgo.SeedBrokers(r.brokers...), kgo.DisableClientMetrics()}
	if r.dial != nil {
		options = append(options, kgo.Dialer(r.dial))
	}
	raw := fixture.Must(kgo.NewClient(options...))(r)
	return kadm.NewClient(raw), raw.Close
}

// noConsumers waits until no instance reads coupon requests.
func (r *rig) noConsumers() {
	r.Helper()
	admin, done := r.admin()
	defer done()
	r.until("the consumers have left", func() bool {
		groups := fixture.Must(admin.DescribeGroups(r.Context(), r.prefix+bus.GroupCouponIssue))(r)
		return len(groups[r.prefix+bus.GroupCouponIssue].Members) == 0
	})
}

// recreateTopic deletes the topic of coupon requests and creates it again.
func (r *rig) recreateTopic() {
	r.Helper()
	admin, done := r.admin()
	defer done()
	topic := r.prefix + bus.TopicCouponIssue
	fixture.Must(admin.DeleteTopics(r.Context(), topic))(r)
	r.until("the topic is gone", func() bool {
		details, err := admin.ListTopics(r.Context(), topic)
		d, listed := details[topic]
		return err == nil && (!listed || errors.Is(d.Err, kerr.UnknownTopicOrPartition))
	})
	client := r.connect("maker")
	defer client.Close()
	fixture.OK(r, client.EnsureTopics(r.Context()))
}

// topicLoss is a loss of the records of coupon requests.
type topicLoss struct {
	early int    // users who have their coupons before it
	line  int    // users who were told that they wait, and whose records nobody has settled
	spare int    // coupons for newcomers
	rush  bool   // the newcomers come at once, and not after the line
	lose  func() // loses the records
}

// exerciseTopicLoss checks that all users in line get their coupons although the broker
// loses their records, and that newcomers get those that are left.
func exerciseTopicLoss(r *rig, c topicLoss) {
	r.Helper()
	var settle atomic.Bool
	settle.Store(true)
	for range 2 {
		r.start(func(c *FlowConfig) { c.Connected = settle.Load })
	}
	quantity := c.early + c.line + c.spare
	id := r.create(reward.CouponTemplate{TotalQuantity: int64(quantity), Mode: reward.ModeKafka})
	r.rush(r.instances[0], id, "early", c.early)
	r.issued(id, c.early)
	settle.Store(false)
	r.noConsumers()
	told := r.rush(r.instances[0], id, "line", c.line)
	if len(told) != c.line {
		r.Fatalf("%d of %d users were admitted", len(told), c.line)
	}
	// The line makes no progress, so the maintainer notes where the records end.
	noted := r.ends.Load()
	r.until("the maintainer notes the ends", func() bool { return r.ends.Load() > noted })
	c.lose()
	settle.Store(true)
	var newcomers sync.WaitGroup
	var got []string
	come := func() { got = r.rush(r.instances[1], id, "new", 2*c.spare) }
	if c.rush {
		newcomers.Go(come)
	}
	r.served(id, told)
	if !c.rush {
		come()
	}
	newcomers.Wait()
	if len(got) != c.spare {
		r.Errorf("%d newcomers were admitted, want %d", len(got), c.spare)
	}
	r.issued(id, quantity)
	r.balanced(id)
}

// TestTheTopicIsRecreated checks that users in line get their coupons although someone
// deletes the topic with their records and creates it again while instances run.
func TestTheTopicIsRecreated(t *testing.T) {
	t.Parallel()
	eachServer(t, func(r *rig) {
		exerciseTopicLoss(r, topicLoss{early: 5, line: 8, spare: 4, rush: true, lose: r.recreateTopic})
	})
}
