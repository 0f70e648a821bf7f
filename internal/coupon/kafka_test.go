package coupon

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

// watchedTopic reports the first read of the end offsets.
type watchedTopic struct {
	TopicInspector
	once sync.Once
	read chan struct{} // closed by the first read
}

func (w *watchedTopic) Ends(ctx context.Context, topic string) (map[int32]int64, error) {
	defer w.once.Do(func() { close(w.read) })
	return w.TopicInspector.Ends(ctx, topic)
}

// TestConsumersThatLagKeepTheDatabasePath checks that a template in KAFKA mode stays on
// the database path after an outage of Redis until the consumers have passed the records
// of its line, and that coupons are issued meanwhile.
func TestConsumersThatLagKeepTheDatabasePath(t *testing.T) {
	t.Parallel()
	each(t, func(r *rig) {
		var settles atomic.Bool
		i := r.start(func(c *FlowConfig) { c.Connected = settles.Load })
		other := r.start(func(c *FlowConfig) { c.Issue = false })
		id := r.create(reward.CouponTemplate{TotalQuantity: 200, Mode: reward.ModeKafka})
		r.want(i, id, "ann", "") // the record waits for a consumer
		watched := &watchedTopic{TopicInspector: i.loader.topic.inspector, read: make(chan struct{})}
		i.loader.topic.inspector = watched // no load runs
		if _, moved, err := r.rows.TemplateNewGeneration(r.Context(), store.TemplateNewGenerationParams{ID: id, From: -1, Path: reward.PathDatabase}); err != nil || !moved {
			r.Fatalf("moved %v, %v", moved, err)
		}
		select {
		case <-watched.read:
		case <-time.After(patience):
			r.Fatal("nobody loads the gate")
		}
		refused := 0
		for n := range 20 {
			at := []*instance{i, other}[n%2]
			s, err := at.Intake.Request(r.Context(), IssueCommand{TemplateID: id, UserID: fmt.Sprint("u", n)})
			switch {
			case reward.HasCode(err, reward.CodeUnavailable):
				refused++
			case err != nil || s.Kind != StatusIssued:
				r.Errorf("u%d: %+v, %v", n, s, err)
			}
			if refused == 2 {
				break // each takes seconds
			}
		}
		if refused > 0 {
			r.Errorf("%d requests were answered 503 while the consumers lagged", refused)
		}
		settles.Store(true)
		if s := r.outcome(i, id, "ann"); s.Kind != StatusIssued {
			r.Errorf("ann: %+v", s)
		}
		r.until("the gate admits users again", func() bool {
			row, err := r.rows.TemplateGet(r.Context(), id)
			return err == nil && row.Path == reward.PathGate
		})
		r.take(other, id, "bob")
		r.balanced(id)
	})
}
