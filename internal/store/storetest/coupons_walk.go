package storetest

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
)

const walkUsers = 5

// shop is what the methods of a store return for one template.
type shop struct {
	Template reward.CouponTemplate
	Coupons  []reward.Coupon
	Holdings map[string]store.CouponHolding
	Changes  store.CouponChanges // above some version
	Outcomes map[string]reward.IssueOutcome
	Left     []store.LineTicket
}

// shop reads a template, with at most so many changes above a version.
func (b *bundle) shop(id reward.TemplateID, above int64, most int) shop {
	b.Helper()
	b.couponBooks(id)
	s := shop{Template: b.stands(id), Coupons: b.coupons(id), Holdings: b.holders(id)}
	var err error
	s.Changes, err = b.CouponChanges(b.ctx, id, above, most)
	b.must(err)
	s.Outcomes = must(b.IssueOutcomes(b.ctx, id, crowd(1, walkUsers)))(b)
	s.Left = must(b.CouponLeft(b.ctx, id, 0, 0, plenty))(b)
	return s
}

// shopWalk is the state of a walk over coupons.
type shopWalk struct {
	shop
	now    time.Time
	lastID int64 // the highest coupon ID of all walks
}

// drawAsks draws requests for what probably comes next: tickets around the
// settled one, and users who return again and again.
func (w *shopWalk) drawAsks(t *rapid.T, kind rules.SettleKind) []rules.CouponRequest {
	next := w.Template.Settled + 1
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) rules.CouponRequest {
		w.lastID++
		a := rules.CouponRequest{
			UserID: fmt.Sprintf("u%d", rapid.IntRange(1, walkUsers).Draw(t, "user")), CouponID: reward.CouponID(w.lastID),
			Code: fmt.Sprintf("code%d", w.lastID), Generation: w.Template.Generation,
		}
		if rapid.IntRange(0, 9).Draw(t, "with a reason") == 0 {
			a.Reason = reward.ReasonError
		}
		switch kind {
		case rules.SettleInOrder:
			if a.Ticket = next; rapid.IntRange(0, 7).Draw(t, "astray") == 0 {
				a.Ticket += int64(rapid.IntRange(-2, 2).Draw(t, "by"))
			} else {
				next++
			}
		case rules.SettleListed:
			a.Ticket = max(1, w.Template.Settled+int64(rapid.IntRange(-3, 4).Draw(t, "ticket")))
			a.Generation = max(0, a.Generation+int64(rapid.SampledFrom([]int{0, 0, 0, -1, 1}).Draw(t, "generation")))
		}
		return a
	}), 0, 8).Draw(t, "asks")
}

// mostly is right, and sometimes off by one.
func mostly(t *rapid.T, what string, right int64) int64 {
	return right + int64(rapid.SampledFrom([]int{0, 0, 0, 0, 0, 0, 0, 0, -1, 1}).Draw(t, what))
}

// shrunk draws what a gate that shrank says.
func (w *shopWalk) shrunk(t *rapid.T) rules.Shrunk {
	return rules.Shrunk{
		Generation: mostly(t, "generation", w.Template.Generation), Grants: mostly(t, "grants", w.Template.Grants),
		Granted: w.Template.Used + int64(rapid.IntRange(-1, 6).Draw(t, "left")),
	}
}

func (w *shopWalk) draw(t *rapid.T) step {
	id, now := w.Template.ID, w.now
	coupon := rapid.Custom(func(t *rapid.T) reward.CouponID {
		n := rapid.IntRange(0, len(w.Coupons)).Draw(t, "coupon")
		if n == len(w.Coupons) {
			return reward.CouponID(1 << 40) // an unknown coupon
		}
		return w.Coupons[n].ID
	})
	switch rapid.IntRange(0, 18).Draw(t, "operation") {
	case 0, 1, 2, 3, 4:
		p := store.CouponSettleParams{
			TemplateID: id, Kind: rules.SettleKind(rapid.Int8Range(0, 2).Draw(t, "kind")), Now: now, Path: w.Template.Path,
			Epoch: mostly(t, "epoch", w.Template.Epoch), Generation: mostly(t, "generation", w.Template.Generation),
		}
		p.Requests = w.drawAsks(t, p.Kind)
		if rapid.Bool().Draw(t, "with a fence") {
			p.Fence = max(0, mostly(t, "fence", w.Template.Fence+1))
		}
		// Without tickets of a gate there is nobody who left.
		left := slices.ContainsFunc(w.Left, func(l store.LineTicket) bool { return l.Ticket >= w.Template.Settled })
		if p.Kind == rules.SettleDirect && left || rapid.IntRange(0, 9).Draw(t, "other path") == 0 {
			p.Path = reward.PathDatabase
		}
		return step{name: "settle", do: func(ctx context.Context, s store.Store) (any, error) { return s.CouponSettle(ctx, p) }}
	case 5, 6, 7:
		c := coupon.Draw(t, "cancelled")
		return step{name: "cancel", do: func(ctx context.Context, s store.Store) (any, error) { return legal(s.CouponCancel(ctx, c, now)) }}
	case 8:
		c := coupon.Draw(t, "used")
		return step{name: "use", do: func(ctx context.Context, s store.Store) (any, error) { return legal(s.CouponUse(ctx, c, now)) }}
	case 9:
		return step{name: "expire", do: func(ctx context.Context, s store.Store) (any, error) { return s.CouponExpire(ctx, now, plenty) }}
	case 10, 11:
		p := rules.TemplateChange{ID: id}
		switch rapid.IntRange(0, 4).Draw(t, "changed") {
		case 0:
			p.TotalQuantity = new(max(1, w.Template.Live+int64(rapid.IntRange(-1, 5).Draw(t, "total"))))
		case 1:
			p.PerUserLimit = new(rapid.IntRange(1, 3).Draw(t, "limit"))
		case 2:
			p.ReissueAfterCancel = new(rapid.Bool().Draw(t, "reissue"))
		case 3:
			p.ValidFor = new(time.Duration(rapid.IntRange(0, 60).Draw(t, "valid")) * time.Second)
		default:
			p.Mode = new(rapid.SampledFrom([]reward.IssueMode{reward.ModeStream, reward.ModeKafka}).Draw(t, "mode"))
		}
		if rapid.Bool().Draw(t, "shrunk") {
			p.Shrunk = new(w.shrunk(t))
		}
		return step{name: "change", do: func(ctx context.Context, s store.Store) (any, error) { return legal(s.TemplateChange(ctx, p)) }}
	case 12:
		p := store.TemplateGrantParams{
			ID: id, Generation: mostly(t, "generation", w.Template.Generation), Grants: mostly(t, "grants", w.Template.Grants),
			Granted: mostly(t, "granted", w.Template.Granted), Lacking: int64(rapid.IntRange(0, 4).Draw(t, "lacking")),
			More: int64(rapid.IntRange(0, 4).Draw(t, "more")),
		}
		return step{name: "grant", do: func(ctx context.Context, s store.Store) (any, error) {
			t, done, err := s.TemplateGrant(ctx, p)
			return []any{t, done}, err
		}}
	case 13:
		p := w.shrunk(t)
		return step{name: "shrink", do: func(ctx context.Context, s store.Store) (any, error) {
			t, done, err := s.TemplateShrink(ctx, id, p)
			return []any{t, done}, err
		}}
	case 16, 17, 18:
		p := store.CouponLeaveParams{TemplateID: id, Now: now, Leave: rules.Leave{
			UserID: fmt.Sprintf("u%d", rapid.IntRange(1, walkUsers).Draw(t, "leaver")),
			Ticket: max(1, w.Template.Settled+int64(rapid.IntRange(-2, 4).Draw(t, "ticket"))), GateGeneration: mostly(t, "gate", w.Template.Generation),
			Generation: max(0, w.Template.Generation-int64(rapid.SampledFrom([]int{0, 0, 0, 1, 5}).Draw(t, "earlier"))),
		}}
		return step{name: "leave", do: func(ctx context.Context, s store.Store) (any, error) { return s.CouponLeave(ctx, p) }}
	case 14:
		p := store.TemplateNewGenerationParams{
			ID: id, From: mostly(t, "from", w.Template.Generation), AtLeast: int64(rapid.IntRange(0, 5).Draw(t, "at least")),
			Path:         rapid.SampledFrom([]reward.IssuePath{reward.PathGate, reward.PathGate, reward.PathDatabase}).Draw(t, "path"),
			NewNumbering: rapid.Bool().Draw(t, "new numbering"),
		}
		return step{name: "raise", do: func(ctx context.Context, s store.Store) (any, error) {
			t, raised, err := s.TemplateNewGeneration(ctx, p)
			return []any{t, raised}, err
		}}
	}
	generation := mostly(t, "floor", w.Template.Generation)
	return step{name: "set floor and assign", do: func(ctx context.Context, s store.Store) (any, error) {
		set, err := s.TemplateSetFloor(ctx, id, generation)
		if err != nil {
			return nil, err
		}
		epochs, err := s.TemplateAssign(ctx, []reward.TemplateID{id}, "me")
		return []any{set, epochs[id]}, err
	}}
}

// shops takes random steps with coupons. After each one the counts must be those of the
// rows, and no limit may be exceeded.
func shops(t *testing.T, stores []*bundle) {
	w, id := &shopWalk{}, reward.TemplateID(0)
	rapid.Check(t, func(rt *rapid.T) {
		id++
		w.now = epoch
		given := stock(id, quantity(int64(rapid.IntRange(1, 12).Draw(rt, "total"))), limit(rapid.IntRange(1, 3).Draw(rt, "limit")),
			validFor(time.Duration(rapid.IntRange(0, 60).Draw(rt, "valid for"))*time.Second), func(t *reward.CouponTemplate) {
				t.ReissueAfterCancel = rapid.Bool().Draw(rt, "reissue")
				switch rapid.IntRange(0, 9).Draw(rt, "window") {
				case 0:
					t.OpensAt = fromNow(time.Hour)
				case 1:
					t.ClosesAt = fromNow(-time.Hour)
				}
			})
		st := step{name: "create", do: func(ctx context.Context, s store.Store) (any, error) {
			if _, err := s.CouponExpire(ctx, at(1<<30), plenty); err != nil { // of earlier walks
				return nil, err
			}
			return s.TemplateCreate(ctx, given)
		}}
		for _, b := range stores {
			b.reporter = rt
		}
		for range rapid.IntRange(2, 21).Draw(rt, "steps") {
			above, most := w.Template.Version-int64(rapid.IntRange(0, 6).Draw(rt, "back")), rapid.IntRange(0, 20).Draw(rt, "most")
			w.shop = alike(stores, st, func(b *bundle) shop { return b.shop(id, above, most) })
			w.now = w.now.Add(time.Duration(rapid.IntRange(0, 20).Draw(rt, "seconds")) * time.Second)
			st = w.draw(rt)
		}
	})
}
