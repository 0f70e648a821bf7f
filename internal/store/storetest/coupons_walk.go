package storetest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
)

const walkUsers = 5

// shopStep is one operation of a random walk, with its required result.
type shopStep struct {
	name   string
	do     func(ctx context.Context, s store.Store) (any, error)
	expect func(s *shop) any
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
	next := w.t.Settled + 1
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) rules.CouponRequest {
		w.lastID++
		a := rules.CouponRequest{
			UserID: fmt.Sprintf("u%d", rapid.IntRange(1, walkUsers).Draw(t, "user")), CouponID: reward.CouponID(w.lastID),
			Code: fmt.Sprintf("code%d", w.lastID), Generation: w.t.Generation,
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
			a.Ticket = max(1, w.t.Settled+int64(rapid.IntRange(-3, 4).Draw(t, "ticket")))
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
		Generation: mostly(t, "generation", w.t.Generation), Grants: mostly(t, "grants", w.t.Grants),
		Granted: w.t.Used + int64(rapid.IntRange(-1, 6).Draw(t, "left")),
	}
}

func (w *shopWalk) draw(t *rapid.T) shopStep {
	id, now := w.t.ID, w.now
	coupon := rapid.Custom(func(t *rapid.T) reward.CouponID {
		n := rapid.IntRange(0, len(w.coupons)).Draw(t, "coupon")
		if n == len(w.coupons) {
			return reward.CouponID(1 << 40) // an unknown coupon
		}
		return w.coupons[n].ID
	})
	switch rapid.IntRange(0, 18).Draw(t, "operation") {
	case 0, 1, 2, 3, 4:
		p := store.CouponSettleParams{
			TemplateID: id, Kind: rules.SettleKind(rapid.Int8Range(0, 2).Draw(t, "kind")), Now: now, Path: w.t.Path,
			Epoch: mostly(t, "epoch", w.t.Epoch), Generation: mostly(t, "generation", w.t.Generation),
		}
		p.Requests = w.drawAsks(t, p.Kind)
		if rapid.Bool().Draw(t, "with a fence") {
			p.Fence = max(0, mostly(t, "fence", w.t.Fence+1))
		}
		// Without tickets of a gate there is nobody who left.
		if p.Kind == rules.SettleDirect && len(w.lefts(w.t.Settled, 0)) > 0 || rapid.IntRange(0, 9).Draw(t, "other path") == 0 {
			p.Path = reward.PathDatabase
		}
		return shopStep{
			name: "settle", do: func(ctx context.Context, s store.Store) (any, error) { return s.CouponSettle(ctx, p) },
			expect: func(s *shop) any { return s.settle(p) },
		}
	case 5, 6, 7:
		c := coupon.Draw(t, "cancelled")
		return shopStep{
			name:   "cancel",
			do:     func(ctx context.Context, s store.Store) (any, error) { return allowed(s.CouponCancel(ctx, c, now)) },
			expect: func(s *shop) any { return s.cancel(c, now) },
		}
	case 8:
		c := coupon.Draw(t, "used")
		return shopStep{
			name:   "use",
			do:     func(ctx context.Context, s store.Store) (any, error) { return allowed(s.CouponUse(ctx, c, now)) },
			expect: func(s *shop) any { return s.use(c, now) },
		}
	case 9:
		return shopStep{
			name: "expire", do: func(ctx context.Context, s store.Store) (any, error) { return s.CouponExpire(ctx, now, plenty) },
			expect: func(s *shop) any { return s.expire(now) },
		}
	case 10, 11:
		p := rules.TemplateChange{ID: id}
		switch rapid.IntRange(0, 4).Draw(t, "changed") {
		case 0:
			p.TotalQuantity = new(max(1, w.t.Live+int64(rapid.IntRange(-1, 5).Draw(t, "total"))))
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
		return shopStep{
			name: "change", do: func(ctx context.Context, s store.Store) (any, error) { return allowed(s.TemplateChange(ctx, p)) },
			expect: func(s *shop) any { return s.change(p) },
		}
	case 12:
		p := store.TemplateGrantParams{
			ID: id, Generation: mostly(t, "generation", w.t.Generation), Grants: mostly(t, "grants", w.t.Grants),
			Granted: mostly(t, "granted", w.t.Granted), Places: int64(rapid.IntRange(0, 4).Draw(t, "places")),
		}
		return shopStep{
			name: "grant", do: func(ctx context.Context, s store.Store) (any, error) {
				t, done, err := s.TemplateGrant(ctx, p)
				return []any{t, done}, err
			},
			expect: func(s *shop) any {
				places := max(0, min(p.Places, s.t.TotalQuantity-s.t.Live-(s.t.Granted-s.t.Used)))
				done := p.Generation == s.t.Generation && p.Grants == s.t.Grants && s.t.Path == reward.PathGate && (places > 0 || s.t.Granted > p.Granted)
				if done {
					s.t.Granted, s.t.Grants, s.t.Version = s.t.Granted+places, s.t.Grants+1, s.t.Version+1
				}
				return []any{s.t, done}
			},
		}
	case 13:
		p := w.shrunk(t)
		return shopStep{
			name: "shrink", do: func(ctx context.Context, s store.Store) (any, error) {
				t, done, err := s.TemplateShrink(ctx, id, p)
				return []any{t, done}, err
			},
			expect: func(s *shop) any {
				done := p.Generation == s.t.Generation && p.Grants == s.t.Grants && s.t.Path == reward.PathGate
				if done {
					s.t.Granted, s.t.Grants, s.t.Version = max(s.t.Used, min(s.t.Granted, p.Granted)), s.t.Grants+1, s.t.Version+1
				}
				return []any{s.t, done}
			},
		}
	case 16, 17, 18:
		p := store.CouponLeaveParams{TemplateID: id, Now: now, Leave: rules.Leave{
			UserID: fmt.Sprintf("u%d", rapid.IntRange(1, walkUsers).Draw(t, "leaver")),
			Ticket: max(1, w.t.Settled+int64(rapid.IntRange(-2, 4).Draw(t, "ticket"))), GateGeneration: mostly(t, "gate", w.t.Generation),
			Generation: max(0, w.t.Generation-int64(rapid.SampledFrom([]int{0, 0, 0, 1, 5}).Draw(t, "earlier"))),
		}}
		return shopStep{
			name:   "leave",
			do:     func(ctx context.Context, s store.Store) (any, error) { return s.CouponLeave(ctx, p) },
			expect: func(s *shop) any { return s.leave(p) },
		}
	case 14:
		p := store.TemplateNewGenerationParams{
			ID: id, From: mostly(t, "from", w.t.Generation), AtLeast: int64(rapid.IntRange(0, 5).Draw(t, "at least")),
			Path:         rapid.SampledFrom([]reward.IssuePath{reward.PathGate, reward.PathGate, reward.PathDatabase}).Draw(t, "path"),
			NewNumbering: rapid.Bool().Draw(t, "new numbering"),
		}
		return shopStep{
			name: "raise", do: func(ctx context.Context, s store.Store) (any, error) {
				t, raised, err := s.TemplateNewGeneration(ctx, p)
				return []any{t, raised}, err
			},
			expect: func(s *shop) any {
				raised := p.From == -1 || p.From == s.t.Generation
				if raised {
					s.t.Generation, s.t.Path = max(s.t.Generation, p.AtLeast)+1, p.Path
					if p.NewNumbering {
						s.t.Base = s.t.Generation - 1
					}
				}
				return []any{s.t, raised}
			},
		}
	}
	generation := mostly(t, "floor", w.t.Generation)
	return shopStep{
		name: "set floor and assign", do: func(ctx context.Context, s store.Store) (any, error) {
			set, err := s.TemplateSetFloor(ctx, id, generation)
			if err != nil {
				return nil, err
			}
			epochs, err := s.TemplateAssign(ctx, []reward.TemplateID{id}, "me")
			return []any{set, epochs[id]}, err
		},
		expect: func(s *shop) any {
			set := generation == s.t.Generation
			if set {
				s.t.Floor = generation
			}
			s.t.Epoch++
			s.t.Owner = "me"
			return []any{set, s.t.Epoch}
		},
	}
}

// allowed turns an error that the state of a coupon or template requires into a
// result.
func allowed[T any](answer T, err error) (any, error) {
	for _, code := range []string{
		reward.CodeConflict, reward.CodeCouponNotFound, reward.CodeCouponUsed, reward.CodeCouponCancelled, reward.CodeCouponExpired,
	} {
		if reward.HasCode(err, code) {
			return code, nil
		}
	}
	return answer, err
}

// shops takes random steps on every store. After each step all stores must
// return and store what the model says.
func shops(t *testing.T, stores ...store.Store) {
	bundles := make([]*bundle, len(stores))
	for i, s := range stores {
		bundles[i] = &bundle{reporter: t, Store: s, ctx: t.Context()}
	}
	w := &shopWalk{}
	id := reward.TemplateID(0)
	rapid.Check(t, func(rt *rapid.T) {
		id++
		w.shop, w.now = shop{}, epoch
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
		for _, b := range bundles {
			b.reporter = rt
			made, err := b.TemplateCreate(b.ctx, given)
			b.must(err)
			w.t = made
			_, err = b.CouponExpire(b.ctx, at(1<<30), plenty) // of earlier walks
			b.must(err)
		}
		for range rapid.IntRange(1, 20).Draw(rt, "steps") {
			w.now = w.now.Add(time.Duration(rapid.IntRange(0, 20).Draw(rt, "seconds")) * time.Second)
			st := w.draw(rt)
			want := st.expect(&w.shop)
			above, most := w.t.Version-int64(rapid.IntRange(0, 6).Draw(rt, "back")), rapid.IntRange(0, 20).Draw(rt, "most")
			for _, b := range bundles {
				got, err := st.do(b.ctx, b.Store)
				if err != nil {
					rt.Fatalf("%s: %v", st.name, err)
				}
				same(b, st.name+" (expected, told)", want, got)
				b.shopBooks(&w.shop, above, most)
			}
		}
	})
}

// shopBooks fails the test unless a store matches a shop.
func (b *bundle) shopBooks(s *shop, above int64, most int) {
	b.Helper()
	id := s.t.ID
	same(b, "template", s.t, b.stands(id))
	same(b, "coupons", s.list(), append([]reward.Coupon{}, b.coupons(id)...))
	same(b, "facts", s.facts(), b.holders(id))
	got, err := b.CouponChanges(b.ctx, id, above, most)
	b.must(err)
	same(b, fmt.Sprintf("changes above %d, at most %d", above, most), s.changes(above, most), got)
	outcomes, err := b.IssueOutcomes(b.ctx, id, crowd(1, walkUsers))
	b.must(err)
	same(b, "outcomes", s.outcomes(), outcomes)
	left, err := b.CouponLeft(b.ctx, id, s.t.Settled-1, s.t.Generation, plenty)
	b.must(err)
	same(b, "left", s.lefts(s.t.Settled-1, s.t.Generation), append([]store.LineTicket{}, left...))
	b.couponBooks(id)
}
