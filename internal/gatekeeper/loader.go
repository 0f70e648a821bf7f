package gatekeeper

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/largesse/largesse/internal/bus"
	"github.com/largesse/largesse/internal/gate"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/service"
	"github.com/largesse/largesse/internal/store"
)

const (
	// loadStepTimeout ends a load that makes no progress for this long. A load of a
	// long line may take much longer altogether.
	loadStepTimeout = 30 * time.Second
	// loadInterval separates the checks for another instance's load, and for the
	// progress of the topic's consumers. loadIntervalMax is its upper limit for loads.
	loadInterval    = 20 * time.Millisecond
	loadIntervalMax = 500 * time.Millisecond
	// loadRenewInterval separates the extensions of the marker during a load.
	loadRenewInterval = gate.LoadMarkerTTL / 4
	// changesMax limits the changes of one apply; with more, the gate is loaded.
	changesMax = 5_000
)

var (
	errLoadStalled = errors.New("the load made no progress for " + loadStepTimeout.String())
	// errOvertaken means that the rows have a later generation than this load.
	errOvertaken = errors.New("another load has raised the generation")
	// errConsumersLag is the reason of a log line.
	errConsumersLag = errors.New("the gate cannot be loaded before the consumers of " + bus.TopicCouponIssue + " have settled the records of its line")
)

// ErrNotNow means that the gate must not be loaded now: the template is on another
// path than expected, or its draw is not done.
var ErrNotNow = errors.New("the gate must not be loaded now")

// Loader loads gates from rows. One instance at a time loads a gate. It is safe
// for concurrent use.
//
// A load sets a marker at the gate's server, raises the template's generation, closes
// the existing gate, reads one snapshot of the rows, and creates or reopens the gate.
// In KAFKA mode it closes the gate first, and raises the generation once the consumers
// have passed the records that the gate has published: until then the template stays on
// its path, so on the database path requests are answered while the consumers lag. On the
// gate path nobody is answered meanwhile, so a load that waits for long moves the template
// to the database path instead.
//
// Before the gate opens, the load brings the line into order, a page at a time:
//   - If the tickets in line are still valid (see gate.LoadKeep), the line and the
//     requests stay. Only users who are settled or have left are removed from the line.
//   - Otherwise (gate.LoadRemake) those who still wait are copied, with new tickets. In
//     STREAM mode, users whose requests still wait in the stream, and who are missing in the
//     line because someone has changed it manually, come back to their places before.
//
// If a loader crashes in between, the gate stays closed or has an earlier generation.
// Nothing of it is settled, and the first instance that notices loads the gate again.
type Loader struct {
	parts
	topic  *IssueTopic
	onLoad func(id reward.TemplateID) // called after each load
	// fallbackAfter is how long a load on the gate path waits for the topic's consumers
	// before it moves the template to the database path.
	fallbackAfter time.Duration
	ctx           context.Context //nolint:containedctx // its end cancels all loads
	// passed has one element per load whose records are passed, and limits these loads.
	passed chan struct{}

	mu    sync.Mutex // protects loads
	loads map[reward.TemplateID]*load
	open  sync.WaitGroup // loads in progress
}

type load struct {
	order loadOrder
	done  chan struct{} // closed once err is set
	err   error
}

// Ensure loads the gate if it must not be served, and waits for the load. If ctx ends
// first, ensure returns an error and the load continues.
func (l *Loader) Ensure(ctx context.Context, id reward.TemplateID) error {
	return l.join(ctx, id, loadOrder{from: reward.PathGate})
}

// reload loads the gate again if its version is below above or it must not be served.
func (l *Loader) reload(ctx context.Context, id reward.TemplateID, above int64) error {
	return l.join(ctx, id, loadOrder{from: reward.PathGate, above: above})
}

// Remake loads the gate again, and writes the requests of the users in line again, with
// new tickets. It is for a gate of this generation that has lost requests. If that was
// done since, remake does no more than ensure.
func (l *Loader) Remake(ctx context.Context, id reward.TemplateID, generation int64) error {
	return l.join(ctx, id, loadOrder{from: reward.PathGate, lost: generation})
}

// LeaveDatabase loads the gate of a template on the database path, and moves the
// template back to the gate path.
func (l *Loader) LeaveDatabase(ctx context.Context, id reward.TemplateID) error {
	return l.join(ctx, id, loadOrder{from: reward.PathDatabase})
}

// loadOrder says when a gate must be loaded, and how.
type loadOrder struct {
	from  reward.IssuePath // the expected path of the template
	above int64            // load even a gate that may be served, if its version is below
	// lost is the generation of a gate that has lost requests: load even a gate that may be
	// served, with new tickets, unless a new numbering has begun since; 0 = none.
	lost int64
}

// does reports whether a load with this order does what another one asks for.
func (o loadOrder) does(another loadOrder) bool {
	return o.from == another.from && o.above >= another.above && o.lost >= another.lost
}

// fits reports whether a template is where the order expects it, so that its gate may be
// loaded now.
func (o loadOrder) fits(row *reward.CouponTemplate) bool { return row.Path == o.from && !InDraw(row) }

// done reports whether a gate that may be served needs no load. row was read after its
// header.
func (o loadOrder) done(h gate.Header, row *reward.CouponTemplate) bool {
	return h.Version >= o.above && (o.lost == 0 || row.Base >= o.lost)
}

// join waits for a load of a template's gate that does what the order asks for, and starts
// one if none runs. A load that began before this call is enough for an order that only
// needs a gate that may be served. Any other order has a reason that such a load may not
// have seen, so it waits for the next one.
func (l *Loader) join(ctx context.Context, id reward.TemplateID, order loadOrder) error {
	onlyServed := order.above == 0 && order.lost == 0
	for earlier := true; ; earlier = false {
		one, started := l.start(id, order)
		select {
		case <-one.done:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if started || one.order.does(order) && (onlyServed || !earlier) {
			return one.err
		}
	}
}

// start starts a load of a template's gate, unless one runs, and returns the one that runs.
func (l *Loader) start(id reward.TemplateID, order loadOrder) (one *load, started bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if one = l.loads[id]; one != nil {
		return one, false
	}
	one = &load{order: order, done: make(chan struct{})}
	l.loads[id] = one
	l.open.Go(func() {
		one.err = l.load(id, order)
		if errors.Is(one.err, errLoadStalled) {
			l.log.Warn("loading gate failed", one.err, "template_id", id) // perhaps nobody waits for it
		}
		l.mu.Lock()
		delete(l.loads, id)
		l.mu.Unlock()
		close(one.done)
	})
	return one, true
}

func (l *Loader) runs(id reward.TemplateID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.loads[id] != nil
}

// load tries until the gate is loaded, by this instance or another one.
func (l *Loader) load(id reward.TemplateID, order loadOrder) error {
	ctx, cancel := context.WithCancelCause(l.ctx)
	defer cancel(nil)
	stalled := time.AfterFunc(loadStepTimeout, func() { cancel(errLoadStalled) })
	defer stalled.Stop()
	token := rand.Text()
	for try := 0; ; try++ {
		t := &loadTry{Loader: l, order: order, load: gate.Load{TemplateID: id, Token: token}, progress: func() { stalled.Reset(loadStepTimeout) }}
		done, err := t.run(ctx)
		switch {
		case errors.Is(err, gate.ErrLoadLost), errors.Is(err, errOvertaken), errors.Is(err, errLogCut):
		case err != nil:
			if ctx.Err() != nil {
				err = context.Cause(ctx)
			}
			return fmt.Errorf("loading the gate of template %s: %w", id, err)
		case done:
			l.onLoad(id)
			return nil
		}
		if !service.Sleep(ctx, service.Backoff(try, loadInterval, loadIntervalMax)) {
			return fmt.Errorf("loading the gate of template %s: %w", id, context.Cause(ctx))
		}
	}
}

// loadTry is one try to load a gate.
type loadTry struct {
	*Loader
	order    loadOrder
	load     gate.Load
	progress func() // called after each step

	old   gate.Header           // the existing gate
	kind  gate.LoadKind         // what becomes of its line
	row   reward.CouponTemplate // with the raised generation
	state gate.State            // of the snapshot
	back  int                   // users who came back to the line
}

// run tries to load the gate. It reports whether the gate is loaded; false means
// that another instance loads it or has changed the template.
func (t *loadTry) run(ctx context.Context) (bool, error) {
	id := t.load.TemplateID
	// Without this look at the path, every reader of a status on the database path would
	// set the marker, and so keep the gate from being loaded for the return from that path.
	if row, err := t.rows.TemplateGet(ctx, id); err != nil {
		return false, err
	} else if !t.order.fits(&row) {
		return false, ErrNotNow
	}
	begun, err := t.gate.LoadBegin(ctx, id, t.load.Token)
	if err != nil {
		return false, err
	}
	t.load.Run, t.old = begun.Run, begun.Gate
	row, err := t.rows.TemplateGet(ctx, id)
	if err != nil {
		return false, err
	}
	switch {
	case served(t.old, &row) && t.order.done(t.old, &row):
		return true, nil // another load was enough
	case !t.order.fits(&row):
		return false, ErrNotNow
	case !begun.Held:
		return false, nil
	}
	defer t.keepMarker(ctx)()
	if row.Mode == reward.ModeKafka {
		if err := t.passRecords(ctx, &row); err != nil {
			return false, err
		}
		// Many loads may have waited for the same consumers.
		select {
		case t.passed <- struct{}{}:
			defer func() { <-t.passed }()
			t.progress()
		case <-ctx.Done():
			return false, context.Cause(ctx)
		}
	}
	var raised bool
	t.row, raised, err = t.rows.TemplateNewGeneration(ctx, store.TemplateNewGenerationParams{
		ID: id, From: row.Generation, AtLeast: t.old.Generation, Path: reward.PathGate,
		NewNumbering: t.order.lost > row.Base || t.old.Exists && !begun.Intact,
	})
	if err != nil || !raised || t.row.Mode != row.Mode {
		return false, err
	}
	t.kind = loadKind(&t.row, t.old)
	if err := t.gate.LoadClose(ctx, t.load); err != nil {
		return false, err
	}
	if t.row.Mode == reward.ModeKafka {
		// The consumers have passed every record whose user was told "accepted". Those of
		// earlier generations that are not settled now are void.
		if set, err := t.rows.TemplateSetFloor(ctx, id, t.row.Generation); err != nil || !set {
			return false, err
		}
	}
	holdings, err := t.readRows(ctx)
	if err != nil {
		return false, err
	}
	copied, err := t.prepareLine(ctx)
	if err != nil {
		return false, err
	}
	swapped, err := t.gate.LoadSwap(ctx, gate.SwapParams{
		Load: t.load, Kind: t.kind, Old: t.old.Generation, State: t.state, Holdings: holdings, Copied: copied,
	})
	if err != nil || !swapped.Done {
		return false, err
	}
	t.metrics.GateLoaded()
	t.templates.Hint()
	t.log.Info("gate loaded", "template_id", id, "generation", t.state.Generation, "version", t.state.Version,
		"holdings", holdings, "waiting", swapped.Waiting, "kept", t.kind == gate.LoadKeep, "put_back", t.back)
	if t.order.from == reward.PathDatabase {
		t.log.Info("gate available again", "template_id", id, "path", reward.PathGate)
	}
	return true, nil
}

// keepMarker extends the marker until stop is called: a step of a load, such as the
// snapshot of a million holdings, may take longer than the marker lasts.
func (t *loadTry) keepMarker(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var renewing sync.WaitGroup
	renewing.Go(func() {
		for service.Sleep(ctx, loadRenewInterval) {
			_ = t.gate.LoadHoldings(ctx, t.load, nil) // the next step finds out if the marker is lost
		}
	})
	return func() {
		cancel()
		renewing.Wait()
	}
}

// loadKind returns what becomes of the line of an existing gate. row has the raised
// generation.
func loadKind(row *reward.CouponTemplate, old gate.Header) gate.LoadKind {
	switch {
	case !old.Exists:
		return gate.LoadFresh
	case row.Mode == reward.ModeStream && old.Generation > row.Base:
		return gate.LoadKeep
	default:
		return gate.LoadRemake
	}
}

// readRows stores the holdings of one snapshot, and sets state. It returns the number
// of holdings.
func (t *loadTry) readRows(ctx context.Context) (int, error) {
	count := 0
	err := t.rows.CouponSnapshot(ctx, t.load.TemplateID, func(row reward.CouponTemplate) error {
		if row.Generation != t.row.Generation {
			return errOvertaken
		}
		t.state = StateOf(&row)
		return nil
	}, func(holdings []gate.Holding) error {
		count += len(holdings)
		t.progress()
		return t.gate.LoadHoldings(ctx, t.load, holdings)
	})
	return count, err
}

// prepareLine brings the closed line into order. It returns the number of users that
// it copied, which is 0 unless the line is made again.
func (t *loadTry) prepareLine(ctx context.Context) (copied int64, err error) {
	switch t.kind {
	case gate.LoadFresh:
		return 0, nil
	case gate.LoadKeep:
		for left := int64(1); left > 0; t.progress() {
			if left, err = t.gate.LoadTrim(ctx, t.load, t.state.Settled); err != nil {
				return 0, err
			}
		}
		return 0, t.removeLeft(ctx)
	}
	if t.row.Mode == reward.ModeStream {
		if err := t.putBack(ctx); err != nil {
			return 0, err
		}
	}
	for from := int64(0); ; t.progress() {
		page, err := t.gate.LoadPage(ctx, t.load, from)
		if err != nil || len(page) == 0 {
			return copied, err
		}
		from += int64(len(page))
		waiting, err := t.waiting(ctx, page)
		if err != nil {
			return 0, err
		}
		users := make([]string, len(waiting))
		for i, r := range waiting {
			users[i] = r.UserID
		}
		if err := t.gate.LoadCopy(ctx, t.load, t.state.Generation, t.state.Settled+copied+1, users); err != nil {
			return 0, err
		}
		copied += int64(len(users))
	}
}

// removeLeft removes users who have left from the line. Others cannot leave meanwhile: a
// user leaves at a gate that is served.
func (t *loadTry) removeLeft(ctx context.Context) error {
	for ticket, generation := t.state.Settled, int64(math.MaxInt64); ; t.progress() {
		page, err := t.rows.CouponLeft(ctx, t.load.TemplateID, ticket, generation, gate.LoadMax)
		if err != nil || len(page) == 0 {
			return err
		}
		if err := t.gate.LoadLeft(ctx, t.load, page); err != nil {
			return err
		}
		last := page[len(page)-1]
		ticket, generation = last.Ticket, last.Generation
	}
}

// putBack puts users back in the old line who still wait by the stream and by the rows. In
// KAFKA mode the broker has the request of everyone who was told "accepted".
func (t *loadTry) putBack(ctx context.Context) error {
	for after := int64(0); ; t.progress() {
		missing, last, err := t.gate.LoadMissing(ctx, t.load, after)
		if err != nil {
			return err
		}
		if len(missing) > 0 {
			// Others have an outcome: normally an apply has taken them out of the line, and
			// their requests are not acknowledged yet.
			back, err := t.waiting(ctx, missing)
			if err != nil {
				return err
			}
			if err := t.gate.LoadBack(ctx, t.load, back); err != nil {
				return err
			}
			t.back += len(back)
		}
		if last == after {
			return nil
		}
		after = last
	}
}

// waiting returns those requests of the old gate that still wait.
func (t *loadTry) waiting(ctx context.Context, page []gate.Request) ([]gate.Request, error) {
	wait, err := t.rows.CouponWaiting(ctx, t.load.TemplateID, t.old.Generation, page)
	if err != nil {
		return nil, err
	}
	waiting := make([]gate.Request, 0, len(page))
	for i, p := range page {
		if wait[i] {
			waiting = append(waiting, p)
		}
	}
	return waiting, nil
}

// served reports whether a gate may be served: it is loaded, and it agrees with the
// template's row, which was read after the header.
func served(h gate.Header, row *reward.CouponTemplate) bool {
	return h.Loaded && h.Generation == row.Generation && h.Version <= row.Version && h.Settled <= row.Settled && row.Path == reward.PathGate
}

// passRecords closes the gate and waits until the consumers have passed the end offsets
// of the topic as they are then. At a closed gate no record is acknowledged, so no user
// is told that a record behind these ends was accepted. Only a load opens the gate, after
// it has raised the generation: if that is still the one that was read before, the gate
// has been closed since.
//
// Consumers that lag are no stalled load as long as they settle records: the ends stay
// those of the beginning, so the load gets there however many records follow.
func (t *loadTry) passRecords(ctx context.Context, row *reward.CouponTemplate) error {
	if err := t.gate.LoadClose(ctx, t.load); err != nil {
		return err
	}
	ends, err := t.topic.ends(ctx)
	if err != nil {
		return err
	}
	began, least := time.Now(), int64(math.MaxInt64)
	for try := 0; ; try++ {
		behind, err := t.topic.behind(ctx, ends)
		switch {
		case err != nil:
			return err
		case behind == 0:
			// If the gate's server has lost the marker meanwhile, the path must stay as it is.
			return t.gate.LoadClose(ctx, t.load)
		case behind < least:
			least = behind
			t.progress()
		}
		if movable(row) && time.Since(began) >= t.fallbackAfter {
			return t.leaveGate(ctx, row)
		}
		if !service.Sleep(ctx, service.Backoff(try, loadInterval, loadIntervalMax)) {
			return fmt.Errorf("waiting for the consumers of %s: %w", bus.TopicCouponIssue, context.Cause(ctx))
		}
	}
}

// leaveGate moves a template whose consumers lag to the database path, where requests are
// answered meanwhile, and returns errNotNow. The next load waits for the consumers there.
func (t *loadTry) leaveGate(ctx context.Context, row *reward.CouponTemplate) error {
	_, moved, err := t.rows.TemplateNewGeneration(ctx, store.TemplateNewGenerationParams{
		ID: row.ID, From: row.Generation, AtLeast: t.old.Generation, Path: reward.PathDatabase,
	})
	if err != nil {
		return err
	}
	if moved {
		t.log.Warn("gate not loaded, issuing through the database", errConsumersLag, "template_id", row.ID)
		t.templates.Hint()
	}
	return ErrNotNow
}
