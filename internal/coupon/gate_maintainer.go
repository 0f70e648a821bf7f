package coupon

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/largesse/largesse/internal/gate"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/service"
	"github.com/largesse/largesse/internal/store"
)

const (
	maintainInterval = 250 * time.Millisecond
	// keepIdle is how often a template that nobody has asked for in busyFor is
	// looked at.
	idleInterval = 5 * time.Second
	idleAfter    = 30 * time.Second
	// behindFor is for how long the rows may be ahead of a gate before it is
	// told again.
	behindGrace = 500 * time.Millisecond
	// strandedFor is for how long people may be in line without a request before
	// the stream is made anew from the line.
	strandedGrace   = 2 * time.Second
	gateCallTimeout = 2 * time.Second
)

// Keeper holds the gates of this instance's templates to what the rows say,
// whatever was lost on the way: it loads a gate that counts no more, tells one
// that is behind, wakes the issuer of one that has requests, moves a template
// to the path through rows while Redis is away and back, draws, notes when a
// template refuses everybody, and removes gates that nobody uses.
type GateMaintainer struct {
	rows      store.Store
	gate      gate.Gate
	templates *TemplateCache
	issuers   *IssuerManager
	loader    *Loader
	applier   *Applier
	drawer    *drawer
	// fallbackAfter is for how long Redis has to be away before rows are the
	// path; queueTTL is when an unused gate leaves.
	fallbackAfter, queueTTL time.Duration
	log                     obs.Log

	statuses  map[reward.TemplateID]*gateStatus
	slots     chan struct{} // of care
	tasks     sync.WaitGroup
	downSince time.Time // since when the gate's server does not answer; zero = it does
	failures  int
}

// kept is what the keeper remembers of a template. While somebody is busy with
// it, it is his alone.
type gateStatus struct {
	busy        atomic.Bool
	failures    int // in a row
	checkAt     time.Time
	behindSince time.Time // since when the gate is at version
	version     int64
	// wrongAt is since when the gate says something else than the rows although it
	// is at their version.
	wrongSince time.Time
	// strandedAt is since when people are in line, and none of their requests is
	// in the stream.
	strandedSince time.Time
	refusal       *string // noted last; nil = not known
}

// run keeps until ctx ends.
func (k *GateMaintainer) run(ctx context.Context) {
	for ctx.Err() == nil {
		if err := k.round(ctx); err != nil && ctx.Err() == nil {
			k.failures++
			if k.failures&(k.failures-1) == 0 {
				k.log.Warn(obs.Failed, err, "failures", k.failures)
			}
		} else {
			k.failures = 0
		}
		service.Sleep(ctx, service.Jitter(maintainInterval, 0.2))
	}
	k.tasks.Wait()
}

func (k *GateMaintainer) round(ctx context.Context) error {
	mine := k.issuers.epochs()
	now := time.Now()
	var all, due []*reward.CouponTemplate
	active := make(map[reward.TemplateID]bool)
	for _, t := range k.templates.active() {
		if _, ok := mine[t.ID]; !ok {
			continue
		}
		active[t.ID] = true
		one := k.statuses[t.ID]
		if one == nil {
			one = &gateStatus{}
			k.statuses[t.ID] = one
		}
		if one.busy.Load() {
			continue
		}
		if t.Draw.State == reward.DrawOpen || t.Draw.State == reward.DrawClosed {
			// There is no gate yet.
			k.runTask(ctx, t, one, func(ctx context.Context) error { return k.drawer.draw(ctx, t, mine[t.ID]) })
			continue
		}
		all = append(all, t)
		if !now.Before(one.checkAt) || one.version != t.Version || t.Path == reward.PathDatabase {
			due = append(due, t)
		}
	}
	for id := range k.statuses {
		if !active[id] {
			delete(k.statuses, id)
		}
	}
	if len(due) == 0 {
		return nil
	}
	headers, err := k.headers(ctx, due)
	if err == nil {
		k.downSince = time.Time{}
		for i, t := range due {
			k.check(ctx, t, headers[i])
		}
		return nil
	}
	if away := k.ping(ctx); away != nil {
		return errors.Join(err, k.fallBack(ctx, all))
	}
	// The server answers, so it is one of them: the others are kept all the same.
	k.downSince = time.Time{}
	for _, t := range due {
		if headers, err := k.headers(ctx, []*reward.CouponTemplate{t}); err == nil {
			k.check(ctx, t, headers[0])
		}
	}
	return err
}

func (k *GateMaintainer) check(ctx context.Context, t *reward.CouponTemplate, h gate.Header) {
	one := k.statuses[t.ID]
	k.runTask(ctx, t, one, func(ctx context.Context) error { return k.maintain(ctx, t, h, one) })
}

// careMost is how many templates are cared for at once: one that takes long (a
// load, a draw of a million) holds up no other.
const tasksMax = 32

// care does something about a template, if not too many are being cared for
// already; the next round looks again.
func (k *GateMaintainer) runTask(ctx context.Context, t *reward.CouponTemplate, one *gateStatus, do func(context.Context) error) {
	select {
	case k.slots <- struct{}{}:
	default:
		return
	}
	one.busy.Store(true)
	k.tasks.Go(func() {
		defer func() { <-k.slots }()
		defer one.busy.Store(false)
		err := do(ctx)
		if err == nil || ctx.Err() != nil {
			one.failures = 0
			return
		}
		one.failures++
		if one.failures&(one.failures-1) == 0 {
			k.log.Warn(obs.Failed, err, "template_id", t.ID, "failures", one.failures)
		}
	})
}

func (k *GateMaintainer) headers(ctx context.Context, list []*reward.CouponTemplate) ([]gate.Header, error) {
	ctx, cancel := context.WithTimeout(ctx, gateCallTimeout)
	defer cancel()
	ids := make([]reward.TemplateID, len(list))
	for i, t := range list {
		ids[i] = t.ID
	}
	return k.gate.Headers(ctx, ids)
}

func (k *GateMaintainer) ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, gateCallTimeout)
	defer cancel()
	return k.gate.Ping(ctx)
}

// away moves templates to the path through rows, once the gate's server has
// been away for long enough.
func (k *GateMaintainer) fallBack(ctx context.Context, all []*reward.CouponTemplate) error {
	if k.downSince.IsZero() {
		k.downSince = time.Now()
	}
	if time.Since(k.downSince) < k.fallbackAfter {
		return nil
	}
	var errs []error
	for _, t := range all {
		if t.Path == reward.PathDatabase || t.WhenRedisAway != reward.AwayDatabase {
			continue
		}
		_, moved, err := k.rows.TemplateRaise(ctx, store.TemplateRaiseParams{
			ID: t.ID, From: t.Generation, AtLeast: t.Generation, Path: reward.PathDatabase,
		})
		if moved {
			k.log.Warn(obs.Unavailable, errors.New("the gate's server is away: coupons are issued through the database"), "template_id", t.ID)
			k.templates.hint()
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// keep looks after one template whose gate answers.
func (k *GateMaintainer) maintain(ctx context.Context, t *reward.CouponTemplate, h gate.Header, one *gateStatus) error {
	now := time.Now()
	if t.Path == reward.PathDatabase {
		err := k.loader.leaveDatabase(ctx, t.ID)
		if err == nil {
			k.log.Info(obs.Recovered, "template_id", t.ID, "path", reward.PathGate)
		}
		return ignore(err, errNotNow)
	}
	one.checkAt = now
	if !h.Exists {
		one.version = t.Version
		one.checkAt = now.Add(idleInterval)
		return k.recordRefusal(ctx, t, one, t.TotalQuantity-t.Live <= 0)
	}
	if err := k.catchUp(ctx, t, h, one); err != nil {
		return err
	}
	if h.Loaded && h.Backlog > 0 {
		k.issuers.giveHint(t.ID)
	}
	if err := k.reloadStranded(ctx, t, h, one); err != nil {
		return err
	}
	if err := k.recordRefusal(ctx, t, one, h.Stock() == 0); err != nil {
		return err
	}
	if idle := now.Sub(h.LastRequestAt); idle > idleAfter && h.Waiting == 0 && h.Backlog == 0 && one.behindSince.IsZero() {
		one.checkAt = now.Add(idleInterval)
		if idle > k.queueTTL {
			_, err := k.gate.Retire(ctx, t.ID, k.queueTTL)
			return err
		}
	}
	return nil
}

// level brings a gate that stands to what the rows say. t may be older than
// the gate, so what looks wrong is looked at in the row as it is now.
func (k *GateMaintainer) catchUp(ctx context.Context, t *reward.CouponTemplate, h gate.Header, one *gateStatus) error {
	if served(h, t) && h.Version == t.Version {
		one.version, one.behindSince = t.Version, time.Time{}
		return k.repairCounters(ctx, t, h, one)
	}
	row, err := k.rows.TemplateGet(ctx, t.ID)
	if err != nil {
		return err
	}
	if !served(h, &row) {
		one.behindSince = time.Time{}
		return ignore(k.loader.ensure(ctx, t.ID), errNotNow)
	}
	switch {
	case h.Version == row.Version:
		one.version, one.behindSince = h.Version, time.Time{}
	case one.version != h.Version || one.behindSince.IsZero():
		one.version, one.behindSince = h.Version, time.Now()
	case time.Since(one.behindSince) >= behindGrace:
		one.behindSince = time.Time{}
		return k.applier.catchUp(ctx, t.ID, h.Version)
	}
	return nil
}

// right writes what the rows say over a gate that is at their version and says
// something else all the same: somebody has changed it by hand.
func (k *GateMaintainer) repairCounters(ctx context.Context, t *reward.CouponTemplate, h gate.Header, one *gateStatus) error {
	switch {
	case h.Total == t.TotalQuantity && h.Live == t.Live && h.IssuedTotal == t.IssuedTotal && h.PublishedStock == h.Stock():
		one.wrongSince = time.Time{}
	case one.wrongSince.IsZero():
		one.wrongSince = time.Now()
	case time.Since(one.wrongSince) >= behindGrace:
		one.wrongSince = time.Time{}
		k.log.Warn(obs.Unbalanced, errors.New("the gate's counters are not those of the rows"), "template_id", t.ID)
		_, err := k.gate.Apply(ctx, gate.ApplyParams{TemplateID: t.ID, From: t.Version, State: stateOf(t), Repair: true})
		return ignore(err, gate.ErrNotLoaded)
	}
	return nil
}

// stranded sees to people in line whose requests somebody has deleted: in our
// own course nobody is in line without one for longer than an apply takes, but
// in KAFKA mode, where the broker has it.
func (k *GateMaintainer) reloadStranded(ctx context.Context, t *reward.CouponTemplate, h gate.Header, one *gateStatus) error {
	switch {
	case t.Mode == reward.ModeKafka, !h.Loaded, h.Waiting == 0, h.Backlog > 0, h.Version != t.Version:
		one.strandedSince = time.Time{}
	case one.strandedSince.IsZero():
		one.strandedSince = time.Now()
	case time.Since(one.strandedSince) >= strandedGrace:
		one.strandedSince = time.Time{}
		k.log.Error(obs.Unbalanced, fmt.Errorf("%d people are in line, and none of their requests is in the stream", h.Waiting), "template_id", t.ID)
		return ignore(k.loader.reload(ctx, t.ID, math.MaxInt64), errNotNow)
	}
	return nil
}

// note keeps when a template refuses everybody, so that its history can say
// why somebody got nothing.
func (k *GateMaintainer) recordRefusal(ctx context.Context, t *reward.CouponTemplate, one *gateStatus, soldOut bool) error {
	reason := ""
	now := time.Now()
	switch {
	case !t.ClosesAt.IsZero() && !now.Before(t.ClosesAt):
		reason = reward.CodeClosed
	case soldOut:
		reason = reward.CodeSoldOut
	}
	if one.refusal != nil && *one.refusal == reason {
		return nil
	}
	if err := k.rows.RefusalNote(ctx, t.ID, reason, now); err != nil {
		return err
	}
	one.refusal = &reason
	return nil
}

func ignore(err, target error) error {
	if errors.Is(err, target) {
		return nil
	}
	return err
}
