package engine

import (
	"context"
	"fmt"
	"time"

	"github.com/largesse/largesse/internal/bus"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/service"
)

const (
	// topicsWait is how long the start waits for the topics. After that, the instance
	// starts without them and tries again, for topicsMax in all.
	topicsWait = 15 * time.Second
	topicsMax  = 10 * time.Minute
	// The pauses between these tries.
	topicsBackoff    = 500 * time.Millisecond
	topicsBackoffMax = 10 * time.Second
)

// topicKeeper creates the topics at brokers that do not do so in time.
type topicKeeper struct {
	ensure   func(context.Context) error
	troubles *obs.Troubles
	fail     func(error) // stops the instance
}

// openTopics creates the missing topics. If the brokers are too slow, it leaves that to
// a topicKeeper: meanwhile records wait, and payouts in the database are paid.
func (e *Engine) openTopics(ctx context.Context) error {
	ensure := e.bus.EnsureTopics
	if e.ensureTopics != nil {
		ensure = e.ensureTopics
	}
	first, cancel := context.WithTimeout(ctx, topicsWait)
	defer cancel()
	err := ensure(first)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil, !bus.IsTemporary(err):
		return fmt.Errorf("creating the topics failed: %w", err)
	}
	k := &topicKeeper{ensure: ensure, troubles: e.troubles, fail: e.fail}
	k.late()
	e.background(ctx, k.run)
	return nil
}

func (k *topicKeeper) late() {
	k.troubles.Set(obs.PartTopics, "the Kafka brokers did not create or describe the topics in time: records and coupon requests of mode KAFKA wait; "+
		"this instance tries again for 10 minutes and then stops; check the load of the brokers, or create the topics yourself")
}

// run tries until the topics are there, ctx ends or topicsMax has passed.
func (k *topicKeeper) run(ctx context.Context) {
	began := time.Now()
	for try := 0; service.Sleep(ctx, service.Backoff(try, topicsBackoff, topicsBackoffMax)); try++ {
		err := k.ensure(ctx)
		switch {
		case err == nil:
			k.troubles.Clear(obs.PartTopics)
			return
		case ctx.Err() != nil:
			return
		case !bus.IsTemporary(err), time.Since(began) >= topicsMax:
			k.fail(fmt.Errorf("creating the topics failed for %v: %w", time.Since(began).Round(time.Second), err))
			return
		}
	}
}
