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
	// loadTimeout ends one load, however many callers share it.
	loadTimeout = 30 * time.Second
	// loadInterval separates the checks for another instance's load, and for the
	// progress of the topic's consumers. loadIntervalMax is its upper limit for loads.
	loadInterval    = 20 * time.Millisecond
	loadIntervalMax = 500 * time.Millisecond
	// changesMax limits the changes of one apply; with more, the gate is loaded.
	changesMax = 5_000
	// settledMax limits the settled users that a load leaves out of the old line.
	settledMax = 1 << 20
)

// errNotNow means that the gate must not be loaded now: the template is on another
// path than expected, or its draw is not done.
var errNotNow = errors.New("the gate must not be loaded now")

// Loader loads gates from rows. One instance at a time loads a gate. It is safe
// for concurrent use.
//
// A load sets a marker at the gate's server, raises the template's generation, reads
// one snapshot of the rows, and replaces the gate. If a loader crashes in between,
// the generation is raised, but the gate has an earlier one. Nothing of that gate is
// settled any more, and the first instance that notices loads the gate again.
type Loader struct {
	rows      store.Store
	gate      gate.Gate
	templates *TemplateCache
	topic     *IssueTopic
	metrics   *obs.Metrics
	log       obs.Log
	onLoad    func(id reward.TemplateID) // called after each load
	ctx       context.Context            //nolint:containedctx // its end cancels all loads

	mu    sync.Mutex // protects loads
	loads map[reward.TemplateID]*load
	open  sync.WaitGroup // loads in progress
}

// load is a load in progress.
type load struct {
	done chan struct{} // closed once err is set
	err  error
}

// ensure loads the gate if it must not be served, and waits for the load. If ctx ends
// first, ensure returns an error and the load continues.
func (l *Loader) ensure(ctx context.Context, id reward.TemplateID) error {
	return l.join(ctx, id, reward.PathGate, 0)
}

// reload loads the gate again if its version is below above or it must not be served.
func (l *Loader) reload(ctx context.Context, id reward.TemplateID, above int64) error {
	return l.join(ctx, id, reward.PathGate, above)
}

// leaveDatabase loads the gate of a template on the database path, and moves the
// template back to the gate path.
func (l *Loader) leaveDatabase(ctx context.Context, id reward.TemplateID) error {
	return l.join(ctx, id, reward.PathDatabase, 0)
}

// join starts a load of a template's gate unless one runs, and waits for it.
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

// load tries until the gate is loaded, by this instance or another one.
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
		if !service.Sleep(ctx, service.Backoff(try, loadInterval, loadIntervalMax)) {
			return fmt.Errorf("loading the gate of template %s: %w", id, context.Cause(ctx))
		}
	}
}

// try tries to load the gate once. It reports whether the gate is loaded; false
// means that another instance loads it or has changed the template.
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
		return true, nil // another instance has loaded it
	case row.Path != from, row.Draw.State == reward.DrawOpen, row.Draw.State == reward.DrawClosed:
		return false, errNotNow
	case !begun.Held:
		return false, nil
	}
	raised, ok, err := l.rows.TemplateNewGeneration(ctx, store.TemplateNewGenerationParams{
		ID: id, From: row.Generation, AtLeast: begun.Gate.Generation, Path: reward.PathGate,
	})
	if err != nil || !ok {
		return false, err
	}
	if row.Mode == reward.ModeKafka {
		// Records of earlier generations up to the present ends are settled before
		// the rows are read; later ones are void.
		ok, err := l.waitForEnds(ctx, id, token, raised.Generation)
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
	}, func(facts []store.CouponHolding) error {
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
	l.log.Info("gate loaded", "template_id", id, "generation", state.Generation, "version", state.Version,
		"holdings", count, "waiting", swapped.Waiting)
	return true, nil
}

// keepLineAbove returns the ticket above which the users in an old gate's line
// still wait. Normally tickets up to t.Settled are settled.
//
// Coupons issued through the database during an outage get tickets that users in the
// old line have, too. So if old is the gate that the template left at the outage, and
// no ticket was settled since the outage ended, the users with tickets above those
// settled at the beginning of the outage still wait. In any other case, all tickets
// up to t.Settled count as settled. A user may then have to request again, but no
// user gets two coupons for one request.
func keepLineAbove(t *reward.CouponTemplate, old gate.Header) int64 {
	if old.Exists && old.Generation == t.GateBypass.Generation && t.Settled == t.GateBypass.Until {
		return t.GateBypass.Settled
	}
	return t.Settled
}

// served reports whether a gate may be served: it is loaded, and it agrees with the
// template's row, which was read after the header.
func served(h gate.Header, row *reward.CouponTemplate) bool {
	return h.Loaded && h.Generation == row.Generation && h.Version <= row.Version && h.Settled <= row.Settled && row.Path == reward.PathGate
}

// waitForEnds waits until the consumers have passed the present end offsets of the
// topic, and then records these. The generation has been raised before, so records
// of earlier generations after the ends are void. waitForEnds keeps the marker. It
// reports whether the ends were recorded: not if the generation is raised again.
func (l *Loader) waitForEnds(ctx context.Context, id reward.TemplateID, token string, generation int64) (bool, error) {
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
			// Record the ends only now. Until then the previous ends decide which
			// records are void, and a record between the previous ends and these may
			// be void.
			return l.rows.TemplateRecordEnds(ctx, id, generation, ends)
		}
		if err := l.gate.LoadHoldings(ctx, id, token, nil, nil); err != nil {
			return false, err
		}
		if !service.Sleep(ctx, loadInterval) {
			return false, fmt.Errorf("waiting for the consumers of %s: %w", bus.TopicCouponIssue, context.Cause(ctx))
		}
	}
}

// leaveOutSettled names the users in the old line whose tickets are settled: those
// settled under the old gate's generation since the old gate's version.
func (l *Loader) leaveOutSettled(ctx context.Context, id reward.TemplateID, token string, old gate.Header) error {
	changes, err := l.rows.CouponChanges(ctx, id, old.Version, settledMax)
	if err != nil {
		return err
	}
	if changes.More {
		return fmt.Errorf("template %s: more than %d tickets have been settled since its gate's version %d", id, settledMax, old.Version)
	}
	for settled := range slices.Chunk(settledTickets(old.Generation, changes.Settled), gate.LoadMax) {
		if err := l.gate.LoadHoldings(ctx, id, token, nil, settled); err != nil {
			return err
		}
	}
	return nil
}
