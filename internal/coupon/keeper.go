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
	keepEvery = 250 * time.Millisecond
	// keepIdle is how often a template that nobody has asked for in busyFor is
	// looked at.
	keepIdle = 5 * time.Second
	busyFor  = 30 * time.Second
	// behindFor is for how long the rows may be ahead of a gate before it is
	// told again.
	behindFor = 500 * time.Millisecond
	// strandedFor is for how long people may be in line without a request before
	// the stream is made anew from the line.
	strandedFor = 2 * time.Second
	keepCall    = 2 * time.Second
)

// Keeper holds the gates of this instance's templates to what the rows say,
// whatever was lost on the way: it loads a gate that counts no more, tells one
// that is behind, wakes the issuer of one that has requests, moves a template
// to the path through rows while Redis is away and back, draws, notes when a
// template refuses everybody, and removes gates that nobody uses.
type Keeper struct {
	rows      store.Store
	gate      gate.Gate
	templates *Templates
	owner     *Owner
	loader    *Loader
	applier   *Applier
	drawer    *drawer
	// fallbackAfter is for how long Redis has to be away before rows are the
	// path; queueTTL is when an unused gate leaves.
	fallbackAfter, queueTTL time.Duration
	log                     obs.Log

	kept   map[reward.TemplateID]*kept
	slots  chan struct{} // of care
	caring sync.WaitGroup
	awayAt time.Time // since when the gate's server does not answer; zero = it does
	fails  int
}

// kept is what the keeper remembers of a template. While somebody is busy with
// it, it is his alone.
type kept struct {
	busy     atomic.Bool
	fails    int // in a row
	lookAt   time.Time
	behindAt time.Time // since when the gate is at version
	version  int64
	// wrongAt is since when the gate says something else than the rows although it
	// is at their version.
	wrongAt time.Time
	// strandedAt is since when people are in line, and none of their requests is
	// in the stream.
	strandedAt time.Time
	refusal    *string // noted last; nil = not known
}

// run keeps until ctx ends.
func (k *Keeper) run(ctx context.Context) {
	for ctx.Err() == nil {
		if err := k.round(ctx); err != nil && ctx.Err() == nil {
			k.fails++
			if k.fails&(k.fails-1) == 0 {
				k.log.Warn(obs.Failed, err, "failures", k.fails)
			}
		} else {
			k.fails = 0
		}
		service.Sleep(ctx, service.Jitter(keepEvery, 0.2))
	}
	k.caring.Wait()
}

func (k *Keeper) round(ctx context.Context) error {
	mine := k.owner.mine()
	now := time.Now()
	var all, due []*reward.CouponTemplate
	active := make(map[reward.TemplateID]bool)
	for _, t := range k.templates.active() {
		if _, ok := mine[t.ID]; !ok {
			continue
		}
		active[t.ID] = true
		one := k.kept[t.ID]
		if one == nil {
			one = &kept{}
			k.kept[t.ID] = one
		}
		if one.busy.Load() {
			continue
		}
		if t.Draw.State == reward.DrawOpen || t.Draw.State == reward.DrawClosed {
			// There is no gate yet.
			k.care(ctx, t, one, func(ctx context.Context) error { return k.drawer.draw(ctx, t, mine[t.ID]) })
			continue
		}
		all = append(all, t)
		if !now.Before(one.lookAt) || one.version != t.Version || t.Path == reward.PathDatabase {
			due = append(due, t)
		}
	}
	for id := range k.kept {
		if !active[id] {
			delete(k.kept, id)
		}
	}
	if len(due) == 0 {
		return nil
	}
	headers, err := k.headers(ctx, due)
	if err == nil {
		k.awayAt = time.Time{}
		for i, t := range due {
			k.look(ctx, t, headers[i])
		}
		return nil
	}
	if away := k.ping(ctx); away != nil {
		return errors.Join(err, k.away(ctx, all))
	}
	// The server answers, so it is one of them: the others are kept all the same.
	k.awayAt = time.Time{}
	for _, t := range due {
		if headers, err := k.headers(ctx, []*reward.CouponTemplate{t}); err == nil {
			k.look(ctx, t, headers[0])
		}
	}
	return err
}

func (k *Keeper) look(ctx context.Context, t *reward.CouponTemplate, h gate.Header) {
	one := k.kept[t.ID]
	k.care(ctx, t, one, func(ctx context.Context) error { return k.keep(ctx, t, h, one) })
}

// careMost is how many templates are cared for at once: one that takes long (a
// load, a draw of a million) holds up no other.
const careMost = 32

// care does something about a template, if not too many are being cared for
// already; the next round looks again.
func (k *Keeper) care(ctx context.Context, t *reward.CouponTemplate, one *kept, do func(context.Context) error) {
	select {
	case k.slots <- struct{}{}:
	default:
		return
	}
	one.busy.Store(true)
	k.caring.Go(func() {
		defer func() { <-k.slots }()
		defer one.busy.Store(false)
		err := do(ctx)
		if err == nil || ctx.Err() != nil {
			one.fails = 0
			return
		}
		one.fails++
		if one.fails&(one.fails-1) == 0 {
			k.log.Warn(obs.Failed, err, "template_id", t.ID, "failures", one.fails)
		}
	})
}

func (k *Keeper) headers(ctx context.Context, list []*reward.CouponTemplate) ([]gate.Header, error) {
	ctx, cancel := context.WithTimeout(ctx, keepCall)
	defer cancel()
	ids := make([]reward.TemplateID, len(list))
	for i, t := range list {
		ids[i] = t.ID
	}
	return k.gate.Headers(ctx, ids)
}

func (k *Keeper) ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, keepCall)
	defer cancel()
	return k.gate.Ping(ctx)
}

// away moves templates to the path through rows, once the gate's server has
// been away for long enough.
func (k *Keeper) away(ctx context.Context, all []*reward.CouponTemplate) error {
	if k.awayAt.IsZero() {
		k.awayAt = time.Now()
	}
	if time.Since(k.awayAt) < k.fallbackAfter {
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
func (k *Keeper) keep(ctx context.Context, t *reward.CouponTemplate, h gate.Header, one *kept) error {
	now := time.Now()
	if t.Path == reward.PathDatabase {
		err := k.loader.back(ctx, t.ID)
		if err == nil {
			k.log.Info(obs.Recovered, "template_id", t.ID, "path", reward.PathGate)
		}
		return ignore(err, errNotNow)
	}
	one.lookAt = now
	if !h.Exists {
		one.version = t.Version
		one.lookAt = now.Add(keepIdle)
		return k.note(ctx, t, one, t.TotalQuantity-t.Live <= 0)
	}
	if err := k.level(ctx, t, h, one); err != nil {
		return err
	}
	if h.Loaded && h.Backlog > 0 {
		k.owner.wake(t.ID)
	}
	if err := k.stranded(ctx, t, h, one); err != nil {
		return err
	}
	if err := k.note(ctx, t, one, h.Stock() == 0); err != nil {
		return err
	}
	if idle := now.Sub(h.LastAskAt); idle > busyFor && h.Waiting == 0 && h.Backlog == 0 && one.behindAt.IsZero() {
		one.lookAt = now.Add(keepIdle)
		if idle > k.queueTTL {
			_, err := k.gate.Retire(ctx, t.ID, k.queueTTL)
			return err
		}
	}
	return nil
}

// level brings a gate that stands to what the rows say. t may be older than
// the gate, so what looks wrong is looked at in the row as it is now.
func (k *Keeper) level(ctx context.Context, t *reward.CouponTemplate, h gate.Header, one *kept) error {
	if served(h, t) && h.Version == t.Version {
		one.version, one.behindAt = t.Version, time.Time{}
		return k.right(ctx, t, h, one)
	}
	row, err := k.rows.TemplateGet(ctx, t.ID)
	if err != nil {
		return err
	}
	if !served(h, &row) {
		one.behindAt = time.Time{}
		return ignore(k.loader.ensure(ctx, t.ID), errNotNow)
	}
	switch {
	case h.Version == row.Version:
		one.version, one.behindAt = h.Version, time.Time{}
	case one.version != h.Version || one.behindAt.IsZero():
		one.version, one.behindAt = h.Version, time.Now()
	case time.Since(one.behindAt) >= behindFor:
		one.behindAt = time.Time{}
		return k.applier.cover(ctx, t.ID, h.Version)
	}
	return nil
}

// right writes what the rows say over a gate that is at their version and says
// something else all the same: somebody has changed it by hand.
func (k *Keeper) right(ctx context.Context, t *reward.CouponTemplate, h gate.Header, one *kept) error {
	switch {
	case h.Total == t.TotalQuantity && h.Live == t.Live && h.IssuedTotal == t.IssuedTotal && h.KeptStock == h.Stock():
		one.wrongAt = time.Time{}
	case one.wrongAt.IsZero():
		one.wrongAt = time.Now()
	case time.Since(one.wrongAt) >= behindFor:
		one.wrongAt = time.Time{}
		k.log.Warn(obs.Unbalanced, errors.New("the gate's counters are not those of the rows"), "template_id", t.ID)
		_, err := k.gate.Apply(ctx, gate.ApplyParams{TemplateID: t.ID, From: t.Version, State: stateOf(t), Repair: true})
		return ignore(err, gate.ErrNotLoaded)
	}
	return nil
}

// stranded sees to people in line whose requests somebody has deleted: in our
// own course nobody is in line without one for longer than an apply takes, but
// in KAFKA mode, where the broker has it.
func (k *Keeper) stranded(ctx context.Context, t *reward.CouponTemplate, h gate.Header, one *kept) error {
	switch {
	case t.Mode == reward.ModeKafka, !h.Loaded, h.Waiting == 0, h.Backlog > 0, h.Version != t.Version:
		one.strandedAt = time.Time{}
	case one.strandedAt.IsZero():
		one.strandedAt = time.Now()
	case time.Since(one.strandedAt) >= strandedFor:
		one.strandedAt = time.Time{}
		k.log.Error(obs.Unbalanced, fmt.Errorf("%d people are in line, and none of their requests is in the stream", h.Waiting), "template_id", t.ID)
		return ignore(k.loader.renew(ctx, t.ID, math.MaxInt64), errNotNow)
	}
	return nil
}

// note keeps when a template refuses everybody, so that its history can say
// why somebody got nothing.
func (k *Keeper) note(ctx context.Context, t *reward.CouponTemplate, one *kept, soldOut bool) error {
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
