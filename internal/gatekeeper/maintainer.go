package gatekeeper

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/largesse/largesse/internal/gate"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/service"
	"github.com/largesse/largesse/internal/store"
)

const (
	maintainInterval = 250 * time.Millisecond
	// idleInterval replaces maintainInterval for a template without requests for
	// idleAfter.
	idleInterval = 5 * time.Second
	idleAfter    = 30 * time.Second
	// behindGrace is how long a gate may be behind the rows, or differ from them at
	// the same version, before the Maintainer corrects it.
	behindGrace = 500 * time.Millisecond
	// strandedGrace is how long users may be in line while the stream has no
	// requests before the gate is reloaded.
	strandedGrace = 2 * time.Second
	// shrinkAfter is how long a gate without users in line keeps places after its
	// latest request.
	shrinkAfter = 5 * time.Second
	// contactInterval is how long no gate may be due before the maintainer asks whether
	// their server responds.
	contactInterval = time.Second
	// tasksMax limits the concurrent checks that read at most changesMax rows, and
	// largeLoadsMax those that load a gate with more holders and requests. So work that takes long
	// blocks no other template, and loads leave database connections free. Draws are
	// not limited: together they use at most drawMemory.
	tasksMax      = 32
	largeLoadsMax = 4
	// recordsPatience is how long a task waits for a load in KAFKA mode.
	recordsPatience = 100 * time.Millisecond
)

// Maintainer keeps the gates of the templates that this instance issues
// consistent with the rows. It:
//   - loads a gate that must not be served,
//   - applies changes to a gate that is behind the rows,
//   - gives the issuer a hint when a gate has requests,
//   - moves templates to the database path during a Redis outage, and back,
//   - runs draws,
//   - records when a template starts and stops refusing all users,
//   - removes unused gates, and those of closed templates.
type Maintainer struct {
	parts
	issuers Issuers
	loader  *Loader
	applier *Applier
	granter *Granter
	topic   *IssueTopic
	// draw closes the list of the entrants of a template and holds its draw.
	draw func(ctx context.Context, t *reward.CouponTemplate, epoch int64) error
	// fallbackAfter is how long an outage lasts before templates move to the
	// database path; queueTTL is when an unused gate is removed.
	fallbackAfter, queueTTL time.Duration
	troubles                *obs.Troubles

	statuses map[reward.TemplateID]*gateStatus
	slots    chan struct{} // one per running check, except those in loads
	loads    chan struct{} // one per running check that loads many holders or requests
	tasks    sync.WaitGroup
	// suspectedAt is when a call to the gate began that failed, in microseconds; 0 =
	// none failed since the latest round.
	suspectedAt atomic.Int64
	downSince   time.Time // when the gate's server became unavailable; zero = it is available
	downWhy     error     // with downSince: why
	contactAt   time.Time // when the gate's server was last found to be available
	health      gateHealth

	// What watch remembers: when it checked for issuing instances, and how often in a row
	// it found none.
	seenIssuersAt time.Time
	unissued      int
}

// gateStatus is what the Maintainer remembers of a template. While busy is
// set, only the running task may use the other fields.
type gateStatus struct {
	busy        atomic.Bool
	report      func(err error, attrs ...any) // logs the failures of the tasks
	checkAt     time.Time                     // when the gate is checked next
	behindSince time.Time                     // when the gate was first seen behind the rows, at version
	version     int64
	// wrongSince is when the gate was first seen to differ from the rows although
	// it is at their version.
	wrongSince time.Time
	// strandedSince is when users were first seen in line while the stream has no
	// requests.
	strandedSince time.Time
	forgotten     forgotten
	refusal       *string // recorded last; nil = unknown
}

// forgotten is what the Maintainer observes of the first ticket in line in KAFKA
// mode, whose request the broker may have lost.
type forgotten struct {
	ticket int64 // the first ticket in line; 0 = nothing is observed
	since  time.Time
	ends   topicEnds // read strandedGrace later
	passed bool      // the consumers have passed the ends
}

// Run maintains the gates until ctx ends.
func (m *Maintainer) Run(ctx context.Context) {
	m.loop(ctx, "maintaining gates failed", m.round)
	m.tasks.Wait()
}

// loop calls round until ctx ends, and reports failures that last.
func (m *Maintainer) loop(ctx context.Context, failure string, round func(context.Context) error) {
	report := m.log.Streak(failure, "")
	for ctx.Err() == nil {
		if err := round(ctx); ctx.Err() == nil {
			report(err)
		}
		service.Sleep(ctx, m.interval())
	}
}

// round checks the gates that are due.
func (m *Maintainer) round(ctx context.Context) error {
	epochs := m.issuers.Epochs()
	now := time.Now()
	var all, due []*reward.CouponTemplate
	active := make(map[reward.TemplateID]bool)
	for _, t := range m.templates.Active() {
		if _, ok := epochs[t.ID]; !ok {
			continue
		}
		active[t.ID] = true
		status := m.statuses[t.ID]
		if status == nil {
			status = &gateStatus{report: m.log.Streak("maintaining gates failed", "")}
			m.statuses[t.ID] = status
		}
		drawing := InDraw(t)
		if !drawing {
			all = append(all, t) // busy or not: a task may wait for a server that hangs
		}
		if status.busy.Load() || m.loader.runs(t.ID) {
			continue
		}
		if drawing {
			// There is no gate before the draw.
			m.runTask(ctx, t, status, func(ctx context.Context) error { return m.draw(ctx, t, epochs[t.ID]) })
			continue
		}
		if !now.Before(status.checkAt) || status.version != t.Version || t.Path == reward.PathDatabase {
			due = append(due, t)
		}
	}
	for id := range m.statuses {
		if !active[id] {
			delete(m.statuses, id)
		}
	}
	began, suspected, ok, err := m.reach(ctx, func(ctx context.Context) error { return m.fallBack(ctx, all) })
	if !ok || err != nil {
		return err
	}
	if suspected {
		due = slices.DeleteFunc(slices.Clone(all), func(t *reward.CouponTemplate) bool { return m.statuses[t.ID].busy.Load() })
	}
	if len(due) == 0 {
		return nil
	}
	headers, err := m.headers(ctx, due)
	if err == nil {
		for i, t := range due {
			m.check(ctx, t, headers[i])
		}
		return nil
	}
	if !m.contact(ctx, began) {
		return m.fallBack(ctx, all)
	}
	// The server responds, so the error belongs to one template: check the others.
	for _, t := range due {
		began := time.Now()
		if headers, err := m.headers(ctx, []*reward.CouponTemplate{t}); err == nil {
			m.check(ctx, t, headers[0])
		} else {
			m.health.suspect(t.ID, began, err)
		}
	}
	if service.Words(err) != "" {
		return nil // the next round finds out whether the server still refuses it, and health reports that
	}
	return err
}

// reach finds out whether the gate's server is available: always during an outage, after a
// call that failed, and once per contactInterval while there are templates, also if this
// instance issues none of them: it may get one during the outage, and must know when that
// began. While the server is not available, reach calls move. Otherwise it tries refused
// gates. suspected reports whether a call has failed that began at began.
func (m *Maintainer) reach(ctx context.Context, move func(context.Context) error) (began time.Time, suspected, ok bool, err error) {
	began = time.Now()
	at := m.suspectedAt.Swap(0)
	if m.downSince.IsZero() {
		if suspected = at != 0; suspected {
			began = time.UnixMicro(at)
		}
	} else {
		// The latest call failed. If it is time to move, do not wait for another one.
		err := move(ctx)
		if down := m.ping(ctx); down != nil {
			m.stillDown(down)
			return began, false, false, err
		}
		m.responds()
	}
	if (suspected || len(m.templates.Active()) > 0 && time.Since(m.contactAt) >= contactInterval) && !m.contact(ctx, began) {
		return began, suspected, false, move(ctx)
	}
	return began, suspected, true, m.tryRefused(ctx)
}

// tryRefused tries the gates of which the server has refused a command although it is
// available, and moves those to the database path that it has refused for fallbackAfter.
func (m *Maintainer) tryRefused(ctx context.Context) error {
	active := make(map[reward.TemplateID]*reward.CouponTemplate)
	for _, t := range m.templates.Active() {
		active[t.ID] = t
	}
	var errs []error
	for _, id := range m.health.suspects(active) {
		err := m.try(ctx, id)
		since := m.health.tried(id, err)
		if since.IsZero() || time.Since(since) < m.fallbackAfter {
			continue
		}
		errs = append(errs, m.move(ctx, active[id], err))
	}
	return errors.Join(errs...)
}

func (m *Maintainer) try(ctx context.Context, id reward.TemplateID) error {
	ctx, cancel := context.WithTimeout(ctx, GateTimeout)
	defer cancel()
	return m.gate.Try(ctx, id)
}

func (m *Maintainer) responds() {
	m.downSince, m.downWhy, m.contactAt = time.Time{}, nil, time.Now()
	m.health.server(nil, time.Time{})
}

// stillDown notes why the gate's server is unavailable now, which health reports.
func (m *Maintainer) stillDown(err error) {
	m.downWhy = err
	m.health.server(err, m.downSince)
}

// contact reports whether the gate's server is available. If it is not, the outage began
// with the first call that failed, which was at began or earlier.
func (m *Maintainer) contact(ctx context.Context, began time.Time) bool {
	err := m.ping(ctx)
	if err == nil {
		m.responds()
		return true
	}
	if at := m.suspectedAt.Swap(0); at != 0 && time.UnixMicro(at).Before(began) {
		began = time.UnixMicro(at)
	}
	m.downSince = began
	m.stillDown(err)
	return false
}

// Suspect reports that a call to a gate failed that began at a time, so that the next
// round checks whether the gate's server is available, although no gate may be due.
func (m *Maintainer) Suspect(id reward.TemplateID, began time.Time, err error) {
	m.health.suspect(id, began, err)
	m.suspectedAt.CompareAndSwap(0, began.UnixMicro())
}

// check maintains one template in a task. If no slot for such work is free, it does
// nothing, and the next round tries again.
func (m *Maintainer) check(ctx context.Context, t *reward.CouponTemplate, h gate.Header) {
	slots := m.slots
	if t.Live+h.Waiting > changesMax && (t.Path == reward.PathDatabase || h.Exists && !served(h, t) || t.Version-h.Version > changesMax) {
		slots = m.loads
	}
	select {
	case slots <- struct{}{}:
	default:
		return
	}
	status := m.statuses[t.ID]
	m.runTask(ctx, t, status, func(ctx context.Context) error {
		defer func() { <-slots }()
		return m.maintain(ctx, t, h, status)
	})
}

func (m *Maintainer) runTask(ctx context.Context, t *reward.CouponTemplate, status *gateStatus, task func(context.Context) error) {
	status.busy.Store(true)
	m.tasks.Go(func() {
		defer status.busy.Store(false)
		began := time.Now()
		if err := task(ctx); ctx.Err() == nil {
			status.report(err, "template_id", t.ID)
			if err != nil {
				// A call to the gate may have failed, and no round has asked for this template
				// meanwhile. The task may have lasted much longer than its latest call.
				m.Suspect(t.ID, time.Now().Add(-min(time.Since(began), GateTimeout)), err)
			}
		}
	})
}

func (m *Maintainer) headers(ctx context.Context, list []*reward.CouponTemplate) ([]gate.Header, error) {
	ctx, cancel := context.WithTimeout(ctx, GateTimeout)
	defer cancel()
	ids := make([]reward.TemplateID, len(list))
	for i, t := range list {
		ids[i] = t.ID
	}
	return m.gate.Headers(ctx, ids)
}

func (m *Maintainer) ping(ctx context.Context) error {
	timeout := GateTimeout
	if left := m.untilFallback(); !m.downSince.IsZero() && left > 0 {
		timeout = min(timeout, left) // do not wait past the moment to move
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return m.gate.Ping(ctx)
}

// untilFallback returns how long the gate's server may still be down before templates
// move to the database path.
func (m *Maintainer) untilFallback() time.Duration {
	return m.fallbackAfter - time.Since(m.downSince)
}

// interval returns the time to the next round. During an outage, a round comes when
// templates must move to the database path.
func (m *Maintainer) interval() time.Duration {
	if left := m.untilFallback(); !m.downSince.IsZero() && left > 0 {
		return min(left, maintainInterval)
	}
	return service.Jitter(maintainInterval, 0.2)
}

// fallBack moves templates to the database path, if the gate's server has been
// down for fallbackAfter.
func (m *Maintainer) fallBack(ctx context.Context, all []*reward.CouponTemplate) error {
	if m.untilFallback() > 0 {
		return nil
	}
	var errs []error
	for _, t := range all {
		errs = append(errs, m.move(ctx, t, m.downWhy))
	}
	return errors.Join(errs...)
}

// movable reports whether a template moves to the database path when its gate does not
// work: it is neither there nor must wait.
func movable(t *reward.CouponTemplate) bool {
	return !InDraw(t) && t.Path != reward.PathDatabase && t.WhenRedisAway == reward.FallbackDatabase
}

// move moves a template to the database path because its gate does not work, if it is movable.
func (m *Maintainer) move(ctx context.Context, t *reward.CouponTemplate, why error) error {
	if !movable(t) {
		return nil
	}
	_, moved, err := m.rows.TemplateNewGeneration(ctx, store.TemplateNewGenerationParams{
		ID: t.ID, From: t.Generation, AtLeast: t.Generation, Path: reward.PathDatabase,
	})
	if moved {
		m.log.Warn("gate unavailable, issuing through the database", why, "template_id", t.ID)
		m.templates.Hint()
	}
	return err
}

var errCountersWrong = errors.New("the gate's counters differ from the rows at the same version")

func (m *Maintainer) maintain(ctx context.Context, t *reward.CouponTemplate, h gate.Header, status *gateStatus) error {
	now := time.Now()
	if t.Path == reward.PathDatabase {
		// A load may succeed although the server refuses what a request needs.
		if err := m.try(ctx, t.ID); err != nil {
			m.health.suspect(t.ID, now, err)
			return err
		}
		return m.awaitLoad(ctx, t, m.loader.LeaveDatabase)
	}
	status.checkAt = now
	closedLongAgo := IsClosed(t) && now.Sub(t.ClosesAt) > m.queueTTL
	if !h.Exists {
		status.version = t.Version
		status.checkAt = now.Add(idleInterval)
		if closedLongAgo && t.Promised() > 0 && t.Path == reward.PathGate {
			// The gate is lost, or was removed while people still asked. Nobody is admitted
			// or waits: the places would keep the template from being archived.
			if _, _, err := m.rows.TemplateShrink(ctx, t.ID, rules.Shrunk{Generation: t.Generation, Grants: t.Grants, Granted: t.Used}); err != nil {
				return err
			}
			m.templates.Hint()
		}
		return m.recordRefusal(ctx, t, status, t.LiveMax()-t.Live <= 0)
	}
	if err := m.catchUp(ctx, t, h, status); err != nil {
		return err
	}
	if h.Loaded && h.Backlog > 0 {
		m.issuers.GiveHint(t.ID)
	}
	if err := m.reloadStranded(ctx, t, h, status); err != nil {
		return err
	}
	if served(h, t) && h.Version == t.Version {
		if err := m.keepPlaces(ctx, t, h); err != nil {
			return Ignore(err, gate.ErrNotLoaded)
		}
	}
	if err := m.recordRefusal(ctx, t, status, h.Stock() == 0); err != nil {
		return err
	}
	if closedLongAgo && h.Waiting == 0 && h.Backlog == 0 {
		// Requests only keep the gate of an open template: later, nobody would remove it.
		_, err := m.gate.Retire(ctx, t.ID, 0)
		return err
	}
	if idle := now.Sub(h.LastRequestAt); idle > idleAfter && h.Waiting == 0 && h.Backlog == 0 && status.behindSince.IsZero() {
		status.checkAt = now.Add(idleInterval)
		if idle > m.queueTTL {
			_, err := m.gate.Retire(ctx, t.ID, m.queueTTL)
			return err
		}
	}
	return nil
}

// awaitLoad loads a gate. In KAFKA mode a load may wait for the consumers for minutes, so
// it continues without this task, whose slot others need.
func (m *Maintainer) awaitLoad(ctx context.Context, t *reward.CouponTemplate, load func(context.Context, reward.TemplateID) error) error {
	if t.Mode == reward.ModeKafka {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, recordsPatience, ErrNotNow)
		defer cancel()
	}
	return Ignore(load(ctx, t.ID), ErrNotNow)
}

// keepPlaces grants places to users in line who have none, and takes back places that
// a gate without requests does not need: during a Redis outage others could get them.
func (m *Maintainer) keepPlaces(ctx context.Context, t *reward.CouponTemplate, h gate.Header) error {
	switch {
	case t.Mode == reward.ModeSync:
		return nil
	case h.Waiting == 0 && h.Backlog == 0 && t.Promised() > 0 && time.Since(h.LastRequestAt) > shrinkAfter:
		return Ignore(m.granter.shrink(ctx, t.ID), errPlacesChange)
	default:
		return m.granter.Cover(ctx, t.ID, h)
	}
}

// catchUp brings an existing gate to the state of the rows. t may be older than
// the gate, so an apparent difference is checked against a fresh row.
func (m *Maintainer) catchUp(ctx context.Context, t *reward.CouponTemplate, h gate.Header, status *gateStatus) error {
	if served(h, t) && h.Version == t.Version {
		status.version, status.behindSince = t.Version, time.Time{}
		return m.repairCounters(ctx, t, h, status)
	}
	row, err := m.rows.TemplateGet(ctx, t.ID)
	if err != nil {
		return err
	}
	if !served(h, &row) {
		status.behindSince = time.Time{}
		return m.awaitLoad(ctx, &row, m.loader.Ensure)
	}
	switch {
	case h.Version == row.Version:
		status.version, status.behindSince = h.Version, time.Time{}
	case status.version != h.Version || status.behindSince.IsZero():
		status.version, status.behindSince = h.Version, time.Now()
	case time.Since(status.behindSince) >= behindGrace:
		status.behindSince = time.Time{}
		return m.applier.CatchUp(ctx, t.ID, h.Version)
	}
	return nil
}

// repairCounters overwrites the counters of a gate that differ from the rows at
// the same version. This happens only if someone has changed the gate manually.
func (m *Maintainer) repairCounters(ctx context.Context, t *reward.CouponTemplate, h gate.Header, status *gateStatus) error {
	switch {
	case h.Total == t.LiveMax() && h.Live == t.Live && h.IssuedTotal == t.IssuedTotal && h.Used == t.Used &&
		h.PublishedStock == h.Stock() && h.PublishedCount == h.Live && h.PublishedIssued == h.IssuedTotal:
		status.wrongSince = time.Time{}
	case status.wrongSince.IsZero():
		status.wrongSince = time.Now()
	case time.Since(status.wrongSince) >= behindGrace:
		status.wrongSince = time.Time{}
		m.log.Warn("gate counters differ, repairing", errCountersWrong, "template_id", t.ID)
		_, err := m.gate.Apply(ctx, gate.ApplyParams{TemplateID: t.ID, From: t.Version, State: StateOf(t), Repair: true})
		return Ignore(err, gate.ErrNotLoaded)
	}
	return nil
}

// reloadStranded reloads a gate whose users in line have no requests in the
// stream: someone has deleted the requests manually. Normally an apply soon
// removes such users from the line.
func (m *Maintainer) reloadStranded(ctx context.Context, t *reward.CouponTemplate, h gate.Header, status *gateStatus) error {
	if t.Mode == reward.ModeKafka {
		return m.reloadForgotten(ctx, t, h, status)
	}
	switch {
	case !h.Loaded, h.Waiting == 0, h.Backlog > 0, h.Version != t.Version:
		status.strandedSince = time.Time{}
	case status.strandedSince.IsZero():
		status.strandedSince = time.Now()
	case time.Since(status.strandedSince) >= strandedGrace:
		status.strandedSince = time.Time{}
		m.log.Error("requests missing, reloading gate", fmt.Errorf("%d users are in line and the stream has no requests", h.Waiting),
			"template_id", t.ID, "waiting", h.Waiting)
		return Ignore(m.loader.Remake(ctx, t.ID, h.Generation), ErrNotNow)
	}
	return nil
}

// reloadForgotten reloads a gate in KAFKA mode whose first user in line waits for a
// record that the broker has lost. That is so if the user is still first although the
// broker has every request and the consumers have passed all records. The load gives
// those who still wait new tickets, whose records are published. A load without cause
// would do no harm.
func (m *Maintainer) reloadForgotten(ctx context.Context, t *reward.CouponTemplate, h gate.Header, status *gateStatus) (err error) {
	seen := &status.forgotten
	switch {
	case !h.Loaded, h.Waiting == 0, h.Backlog > 0, h.Version != t.Version:
		*seen = forgotten{}
	case seen.ticket != h.FirstTicket:
		*seen = forgotten{ticket: h.FirstTicket, since: time.Now()}
	case time.Since(seen.since) < strandedGrace:
	case seen.ends.log == "":
		seen.ends, err = m.topic.ends(ctx)
	case !seen.passed:
		var behind int64
		behind, err = m.topic.behind(ctx, seen.ends)
		if seen.passed = err == nil && behind == 0; errors.Is(err, errLogCut) {
			*seen, err = forgotten{}, nil // observe the line again, with the ends of today
		}
	default:
		*seen = forgotten{}
		m.log.Error("requests missing, reloading gate", fmt.Errorf("%d users are in line and the broker has no record of the first", h.Waiting),
			"template_id", t.ID, "waiting", h.Waiting)
		return Ignore(m.loader.Remake(ctx, t.ID, h.Generation), ErrNotNow)
	}
	return err
}

// recordRefusal records when a template starts and stops refusing all users, so
// that its history can explain why a user got no coupon.
func (m *Maintainer) recordRefusal(ctx context.Context, t *reward.CouponTemplate, status *gateStatus, soldOut bool) error {
	reason := ""
	now := time.Now()
	switch {
	case IsClosed(t):
		reason = reward.CodeClosed
	case soldOut:
		reason = reward.CodeSoldOut
	}
	if status.refusal != nil && *status.refusal == reason {
		return nil
	}
	if err := m.rows.RefusalRecord(ctx, t.ID, reason, now); err != nil {
		return err
	}
	status.refusal = &reason
	return nil
}

// seeIssuersInterval separates the checks whether an instance that issues coupons is alive.
const seeIssuersInterval = 5 * time.Second

// Watch is the loop of an instance that issues no coupons. During an outage of the gate's
// server it moves templates to the database path, but only if no instance that issues
// coupons is alive to do it: users would get 503 until one is. The next such instance
// moves them back. It also reports when nobody issues coupons.
func (m *Maintainer) Watch(ctx context.Context) {
	defer m.troubles.Clear(obs.PartIssuer)
	m.loop(ctx, "watching the gate's server failed", func(ctx context.Context) error {
		_, _, _, err := m.reach(ctx, m.standIn)
		return errors.Join(err, m.seeIssuers(ctx))
	})
}

// standIn moves templates to the database path, if the gate's server has been down for
// fallbackAfter and no issuing instance is alive.
func (m *Maintainer) standIn(ctx context.Context) error {
	if m.untilFallback() > 0 {
		return nil
	}
	all := m.templates.Active()
	if !slices.ContainsFunc(all, movable) {
		return nil
	}
	alive, err := m.issuers.AnyAlive(ctx)
	if err != nil || alive {
		return err
	}
	return m.fallBack(ctx, all)
}

// seeIssuers reports when no instance that issues coupons is alive. One that has just seen
// its first template takes its lease a moment later, so two checks in a row must agree.
func (m *Maintainer) seeIssuers(ctx context.Context) error {
	if len(m.templates.Active()) == 0 {
		m.unissued = 0
		m.troubles.Clear(obs.PartIssuer)
		return nil
	}
	if time.Since(m.seenIssuersAt) < seeIssuersInterval {
		return nil
	}
	m.seenIssuersAt = time.Now()
	alive, err := m.issuers.AnyAlive(ctx)
	switch {
	case err != nil:
		return err
	case alive:
		m.unissued = 0
		m.troubles.Clear(obs.PartIssuer)
	default:
		if m.unissued++; m.unissued > 1 {
			m.troubles.Set(obs.PartIssuer, "no instance with the role issuer is alive: users in waiting lines wait, and no draw is held; start an instance with this role")
		}
	}
	return nil
}
