package coupon

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/largesse/largesse/internal/bus"
	"github.com/largesse/largesse/internal/gate"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/service"
	"github.com/largesse/largesse/internal/store"
)

const (
	// loadTimeout bounds one load, however many ask for it.
	loadTimeout = 30 * time.Second
	// loadPoll is how often somebody else's load, and the consumers of records,
	// are looked at.
	loadPoll = 20 * time.Millisecond
	// changesMax bounds what a covering apply carries; what is more is loaded.
	changesMax = 5_000
	// goneMax bounds what is left out of a line that is taken over.
	settledMax = 1 << 20
)

// errNotNow says that a gate is not to be loaded as things stand.
var errNotNow = errors.New("the gate is not to be loaded now")

// Loader loads gates from rows, each by one loader at a time.
//
// A load: the marker in the gate's server, then the generation is raised, then
// one snapshot of the rows, then the swap. Whoever dies in between leaves a
// raised generation: the gate of an earlier one is refused by the issuer's
// transaction, so it is loaded again, by whoever sees it.
type Loader struct {
	rows      store.Store
	gate      gate.Gate
	templates *TemplateCache
	topic     *IssueTopic
	metrics   *obs.Metrics
	log       obs.Log
	onLoad    func(id reward.TemplateID) // after each load
	ctx       context.Context            //nolint:containedctx // its end is that of every load

	mu    sync.Mutex // protects loads
	loads map[reward.TemplateID]*load
	open  sync.WaitGroup
}

// load is one in progress.
type load struct {
	done chan struct{}
	err  error
}

// ensure makes sure that there is a gate that may be served, or was a moment
// ago. It returns when ctx ends, while the load goes on.
func (l *Loader) ensure(ctx context.Context, id reward.TemplateID) error {
	return l.join(ctx, id, reward.PathGate, 0)
}

// renew loads a gate that is too far behind the rows to be told of each change:
// at a version below above.
func (l *Loader) reload(ctx context.Context, id reward.TemplateID, above int64) error {
	return l.join(ctx, id, reward.PathGate, above)
}

// back is ensure for a template that is on the way through the rows: it leads
// back to the gate.
func (l *Loader) leaveDatabase(ctx context.Context, id reward.TemplateID) error {
	return l.join(ctx, id, reward.PathDatabase, 0)
}

func (l *Loader) join(ctx context.Context, id reward.TemplateID, from reward.IssuePath, above int64) error {
	l.mu.Lock()
	one := l.loads[id]
	if one == nil {
		one = &load{done: make(chan struct{})}
		l.loads[id] = one
		l.open.Go(func() {
			ctx, cancel := context.WithTimeout(l.ctx, loadTimeout)
			defer cancel()
			one.err = l.load(ctx, id, from, above)
			l.mu.Lock()
			delete(l.loads, id)
			l.mu.Unlock()
			close(one.done)
		})
	}
	l.mu.Unlock()
	select {
	case <-one.done:
		return one.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (l *Loader) load(ctx context.Context, id reward.TemplateID, from reward.IssuePath, above int64) error {
	token := rand.Text()
	for try := 0; ; try++ {
		done, err := l.try(ctx, id, from, above, token)
		if err != nil {
			return err
		}
		if done {
			l.onLoad(id)
			return nil
		}
		if !service.Sleep(ctx, service.Backoff(try, loadPoll, 500*time.Millisecond)) {
			return fmt.Errorf("load the gate of template %s: %w", id, context.Cause(ctx))
		}
	}
}

// try is one try: true = there is a gate, false = somebody else was in the way.
func (l *Loader) try(ctx context.Context, id reward.TemplateID, from reward.IssuePath, above int64, token string) (bool, error) {
	begun, err := l.gate.LoadBegin(ctx, id, token)
	if err != nil {
		return false, err
	}
	row, err := l.rows.TemplateGet(ctx, id)
	if err != nil {
		return false, err
	}
	switch {
	case served(begun.Gate, &row) && begun.Gate.Version >= above:
		return true, nil // somebody was quicker
	case row.Path != from, row.Draw.State == reward.DrawOpen, row.Draw.State == reward.DrawClosed:
		return false, errNotNow
	case !begun.Held:
		return false, nil
	}
	raised, ok, err := l.rows.TemplateRaise(ctx, store.TemplateRaiseParams{
		ID: id, From: row.Generation, AtLeast: begun.Gate.Generation, Path: reward.PathGate,
	})
	if err != nil || !ok {
		return false, err
	}
	if row.Mode == reward.ModeKafka {
		// What was published under an earlier generation up to here is settled
		// before the rows are read; what comes later is void.
		ok, err := l.passEnds(ctx, id, token, raised.Generation)
		if err != nil || !ok {
			return false, err
		}
	}
	var state gate.State
	var keepAbove int64
	count := 0
	err = l.rows.CouponSnapshot(ctx, id, func(t reward.CouponTemplate) error {
		state, keepAbove = stateOf(&t), keepLineAbove(&t, begun.Gate)
		return nil
	}, func(facts []store.CouponFact) error {
		count += len(facts)
		return l.gate.LoadHoldings(ctx, id, token, holdingsOf(facts), nil)
	})
	if err != nil {
		return false, err
	}
	if row.Mode == reward.ModeKafka && begun.Gate.Exists {
		if err := l.leaveOutSettled(ctx, id, token, begun.Gate); err != nil {
			return false, err
		}
	}
	state.Generation = raised.Generation
	swapped, err := l.gate.LoadSwap(ctx, gate.SwapParams{
		TemplateID: id, Token: token, Run: begun.Run, State: state, Holdings: count, KeepAbove: keepAbove,
	})
	if err != nil || !swapped.Done {
		return false, err
	}
	l.metrics.GateLoaded()
	l.templates.hint()
	l.log.Info(obs.Loaded, "template_id", id, "generation", state.Generation, "version", state.Version, "facts", count, "waiting", swapped.Waiting)
	return true, nil
}

// lineFrom is the ticket above which the line of a gate waits. What was issued
// past the gate while it was away has numbers that people in line have, too; so
// for the gate that was left, and until anything else is settled, it is what was
// settled then. In any other case numbers up to Settled are settled, whoever has
// them: after a loss and a loss of the way back, somebody may have to ask again,
// but nobody gets two coupons for one ask.
func keepLineAbove(t *reward.CouponTemplate, old gate.Header) int64 {
	if old.Exists && old.Generation == t.Moved.Generation && t.Settled == t.Moved.Until {
		return t.Moved.Settled
	}
	return t.Settled
}

// served says whether a gate may be served as far as a row tells that was read
// after it.
func served(h gate.Header, row *reward.CouponTemplate) bool {
	return h.Loaded && h.Generation == row.Generation && h.Version <= row.Version && h.Settled <= row.Settled && row.Path == reward.PathGate
}

// pass waits until the consumers have passed the end of the log as it is after
// the generation was raised, and keeps the marker meanwhile.
func (l *Loader) passEnds(ctx context.Context, id reward.TemplateID, token string, generation int64) (bool, error) {
	ends, err := l.topic.ends(ctx)
	if err != nil {
		return false, err
	}
	for {
		passed, err := l.topic.passed(ctx, ends)
		if err != nil {
			return false, err
		}
		if passed {
			// Noted only now: until then what is void is judged by the ends of the
			// generation before, behind which a record may be void that is before
			// these.
			return l.rows.TemplateNoteEnds(ctx, id, generation, ends)
		}
		if err := l.gate.LoadHoldings(ctx, id, token, nil, nil); err != nil {
			return false, err
		}
		if !service.Sleep(ctx, loadPoll) {
			return false, fmt.Errorf("wait for the consumers of %s: %w", bus.TopicCouponIssue, context.Cause(ctx))
		}
	}
}

// leaveOut names those of the old line who are settled: what was settled under
// the old gate's generation since the version it is at.
func (l *Loader) leaveOutSettled(ctx context.Context, id reward.TemplateID, token string, old gate.Header) error {
	changes, err := l.rows.CouponChanges(ctx, id, old.Version, settledMax)
	if err != nil {
		return err
	}
	if changes.More {
		return fmt.Errorf("template %s: more than %d tickets were settled since its gate's version %d", id, settledMax, old.Version)
	}
	for gone := range slices.Chunk(settledTickets(old.Generation, changes.Settled), gate.LoadMax) {
		if err := l.gate.LoadHoldings(ctx, id, token, nil, gone); err != nil {
			return err
		}
	}
	return nil
}
