package coupon

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/largesse/largesse/internal/gatekeeper"
	"github.com/largesse/largesse/internal/reward"
)

// laggingTopic is a topic with a thousand new records per second. At its begin it has
// those of the lag before, and settled returns how many the consumers have settled since.
type laggingTopic struct {
	gatekeeper.TopicInspector
	began   time.Time // zero = it is empty
	settled func(after time.Duration) int64
}

const (
	laggingRate = 1000 // records per second
	lag         = 100 * time.Second
)

// behindAlways is how many records consumers settle that stay behind by the lag.
func behindAlways(after time.Duration) int64 { return laggingRate * int64(after.Seconds()) }

func (*laggingTopic) LogID(context.Context, string) (string, error) { return "log", nil }

func (l *laggingTopic) Ends(context.Context, string) (map[int32]int64, error) {
	if l.began.IsZero() {
		return map[int32]int64{0: 0}, nil
	}
	return map[int32]int64{0: laggingRate * int64((time.Since(l.began) + lag).Seconds())}, nil
}

// laggingRows are rows with the offsets of a laggingTopic.
type laggingRows struct {
	Store
	topic *laggingTopic
}

func (r *laggingRows) OffsetsGet(context.Context, string) (map[int32]int64, error) {
	if r.topic.began.IsZero() {
		return map[int32]int64{0: 0}, nil
	}
	return map[int32]int64{0: r.topic.settled(time.Since(r.topic.began))}, nil
}

// newLaggingHand returns a hand with a template in KAFKA mode and a user in line. From
// then on the consumers lag.
func newLaggingHand(t *testing.T, settled func(after time.Duration) int64) (*hand, *laggingTopic) {
	t.Helper()
	topic := &laggingTopic{settled: settled}
	h := newHand(t, reward.CouponTemplate{TotalQuantity: 100_000, Mode: reward.ModeKafka}, func(s Store) Store {
		return &laggingRows{Store: s, topic: topic}
	})
	h.topic.Inspector = topic
	h.must(h.loader.Ensure(t.Context(), h.id))
	_, err := h.granter.Admit(t.Context(), h.id, []string{"ann"}, true) // nobody publishes the record
	h.must(err)
	topic.began = time.Now()
	return h, topic
}

// maintains runs the loops that load gates until the test ends.
func (h *hand) maintains(t *testing.T) {
	t.Helper()
	h.issuers.issuers[h.id] = &runningIssuer{issuer: h.issuer, cancel: func() {}, done: make(chan struct{})}
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { h.templates.Run(ctx) })
	running.Go(func() { h.keeper.Maintainer.Run(ctx) })
	t.Cleanup(func() {
		stop()
		h.keeper.StopLoads()
		running.Wait()
		h.Intake.wait()
		h.keeper.WaitLoads()
	})
}

// TestLoadsOutlastLaggingConsumers checks that a template returns from the database path
// once the consumers have settled the records of its line, although they always are more
// than a minute behind, or stop for minutes and loads begin again. Requests are answered
// meanwhile, and the user in line still waits.
func TestLoadsOutlastLaggingConsumers(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name        string
		after       time.Duration // when the consumers have settled what the load waits for
		settled     func(after time.Duration) int64
		least, most int // how often loads close the gate: each at its begin, the last one three times
	}{
		{"Behind", lag, behindAlways, 3, 3},
		{"Stopped", 5 * time.Minute, func(after time.Duration) int64 {
			if after < 5*time.Minute {
				return 0
			}
			return behindAlways(after + lag)
		}, 8, 20},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				h, topic := newLaggingHand(t, c.settled)
				h.gate.set(func(g *faultyGate) { g.closes = 0 })
				h.move(reward.PathDatabase)
				h.maintains(t)
				asked := 0
				for path := reward.PathDatabase; path == reward.PathDatabase; asked++ {
					if after := time.Since(topic.began); after > c.after+time.Minute {
						t.Fatalf("not loaded after %v", after)
					}
					if s := h.request(fmt.Sprint("u", asked)); s.Kind != StatusIssued {
						t.Fatalf("after %v: %+v", time.Since(topic.began), s)
					}
					time.Sleep(time.Second)
					path = h.row().Path
				}
				if after := time.Since(topic.began); after < c.after-time.Second || after > c.after+40*time.Second {
					t.Errorf("loaded after %v, the consumers were there after %v", after, c.after)
				}
				if head := h.header(); !head.Loaded || head.Waiting != 1 {
					t.Errorf("the gate is %+v, and one user waits", head)
				}
				h.gate.set(func(g *faultyGate) {
					if g.closes < c.least || g.closes > c.most {
						t.Errorf("the gate was closed %d times, want %d to %d", g.closes, c.least, c.most)
					}
					t.Logf("%d requests were answered, the gate was closed %d times", asked, g.closes)
				})
			})
		})
	}
}

// TestLaggingConsumersDoNotShutTheGate checks that a template whose gate is lost while the
// consumers lag moves to the database path: users get coupons there, and no 503 until the
// consumers have settled the records.
func TestLaggingConsumersDoNotShutTheGate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h, topic := newLaggingHand(t, behindAlways)
		h.maintains(t)
		h.memory.lose()
		refused := 0
		for path := reward.PathGate; time.Since(topic.began) < lag || path == reward.PathDatabase; {
			after := time.Since(topic.began)
			if after > lag+time.Minute {
				t.Fatalf("not loaded after %v", after)
			}
			_, err := h.Intake.Request(t.Context(), IssueCommand{TemplateID: h.id, UserID: fmt.Sprint("u", after.Milliseconds())})
			if err != nil {
				if refused++; after > 5*time.Second {
					t.Fatalf("after %v: %v", after, err)
				}
			}
			time.Sleep(time.Second)
			path = h.row().Path
		}
		t.Logf("%d requests got 503", refused)
	})
}
