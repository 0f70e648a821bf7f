package storetest

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
)

// exerciseCouponRaces runs many calls on the same templates at once. No limit
// may be exceeded, no caller may see a deadlock, and every version must be one
// change.
func exerciseCouponRaces(t *testing.T, open Open) {
	const workers = 8
	run(t, open, "IssuingCancellingUsingAndExpiring", func(b *bundle) {
		const total, users, rounds = 60, 40, 15
		b.template(1, quantity(total), limit(2), reissue, validFor(time.Minute))
		known := b.stands(1)
		var ids, versions atomic.Int64
		b.must(together(workers, func(w int) error {
			for round := range rounds {
				var list []rules.CouponRequest
				for n := range 10 {
					id := ids.Add(1)
					list = append(list, rules.CouponRequest{
						UserID: fmt.Sprintf("u%d", (w*7+round*3+n*n)%users), CouponID: reward.CouponID(id), Code: fmt.Sprint(id),
					})
				}
				res, err := b.CouponSettle(b.ctx, store.CouponSettleParams{
					TemplateID: 1, Kind: rules.SettleDirect, Path: reward.PathGate, Requests: list, Now: at(10), Known: &known,
				})
				if err != nil {
					return err
				}
				versions.Add(res.To - res.From)
				for i, r := range res.Results {
					if r.Outcome != rules.RequestIssued || i%3 == 0 {
						continue
					}
					now := at(20 + 100*(w%2)) // half of the workers come after the coupons expired
					if i%3 == 1 {
						change, err := cancelOne(b.ctx, b.Tables, r.Coupon.ID, now)
						versions.Add(change.To - change.From)
						if err != nil && !reward.HasCode(err, reward.CodeCouponExpired) {
							return err
						}
						continue
					}
					if _, err := b.CouponUse(b.ctx, r.Coupon.ID, now); err != nil && !reward.HasCode(err, reward.CodeCouponExpired) {
						return err
					}
				}
				if w == 0 {
					if _, err := b.CouponExpire(b.ctx, at(100), 5); err != nil {
						return err
					}
				}
				if w == 1 {
					if _, _, err := b.snapshot(1); err != nil {
						return err
					}
				}
			}
			return nil
		}))
		same(b, "versions", versions.Load(), b.stands(1).Version)
		b.couponBooks(1)
		for user, f := range b.holders(1) {
			if f.Held > 2 {
				b.Fatalf("%s holds %d slots", user, f.Held)
			}
		}
	})
	run(t, open, "OverlappingBatchesInOrderSettleEachTicketOnce", func(b *bundle) {
		const tickets = 300
		b.template(1, quantity(tickets/2))
		var settled atomic.Int64
		b.must(together(workers, func(w int) error {
			for first := int64(1); first <= tickets; first += 15 {
				list := asks(first, crowd(int(first), 30)...)
				for i := range list { // each worker offers its own coupons
					list[i].CouponID += reward.CouponID(1000 * w)
					list[i].Code = fmt.Sprint(list[i].CouponID)
				}
				res, err := b.CouponSettle(b.ctx, store.CouponSettleParams{TemplateID: 1, Requests: shuffled(list), Now: at(10)})
				if err != nil {
					return err
				}
				for _, r := range res.Results {
					if r.Outcome == rules.RequestIssued || r.Outcome == rules.RequestRejected {
						settled.Add(1)
					}
				}
			}
			return nil
		}))
		t := b.stands(1)
		same(b, "settled once", t.Settled, settled.Load())
		same(b, "live", int64(tickets/2), t.Live)
		list := b.coupons(1)
		for i, c := range list {
			same(b, "the first in the line", int64(i+1), c.Ticket)
		}
		b.couponBooks(1)
	})
	run(t, open, "ACouponIsUsedOrCancelledAndNeverBoth", func(b *bundle) {
		b.template(1)
		b.inOrder(1, asks(1, crowd(1, 40)...)...)
		var won atomic.Int64
		b.must(together(workers, func(w int) error {
			for id := reward.CouponID(1); id <= 40; id++ {
				var err error
				if w%2 == 0 {
					_, err = cancelOne(b.ctx, b.Tables, id, at(20))
				} else {
					_, err = b.CouponUse(b.ctx, id, at(20))
				}
				switch {
				case err == nil:
					won.Add(1)
				case !reward.HasCode(err, reward.CodeCouponCancelled) && !reward.HasCode(err, reward.CodeCouponUsed):
					return err
				}
			}
			return nil
		}))
		same(b, "ends", int64(40), won.Load())
		b.couponBooks(1)
	})
	run(t, open, "WhatIsReadIsOfOneMoment", func(b *bundle) {
		const batches, size = 60, 5
		b.template(1, quantity(batches*size))
		var written atomic.Bool
		reads := []func() error{
			func() error {
				t, facts, err := b.snapshot(1)
				if err == nil && (len(facts) != int(t.Version)*size || t.Live != t.Version*size) {
					err = fmt.Errorf("a snapshot of version %d has %d live coupons and %d users", t.Version, t.Live, len(facts))
				}
				return err
			},
			func() error {
				c, err := b.CouponChanges(b.ctx, 1, 0, plenty)
				want := int(c.Template.Version) * size
				if err == nil && (len(c.Holdings) != want || len(c.Settled) != want || c.Template.Settled != int64(want)) {
					err = fmt.Errorf("version %d has %d facts and %d tickets", c.Template.Version, len(c.Holdings), len(c.Settled))
				}
				return err
			},
			func() error {
				c, err := b.CouponRecount(b.ctx, 1)
				if err == nil && (c.Live != c.KeptLive || c.IssuedTotal != c.KeptIssuedTotal || c.Live%size != 0) {
					err = fmt.Errorf("recounted: %+v", c)
				}
				return err
			},
		}
		b.must(together(6, func(w int) error {
			if w == 0 { // one version per batch, and size coupons each
				defer written.Store(true)
				for n := range batches {
					if _, err := b.CouponSettle(b.ctx, store.CouponSettleParams{
						TemplateID: 1, Requests: asks(int64(n*size+1), crowd(n*size, size)...), Now: at(10),
					}); err != nil {
						return err
					}
				}
				return nil
			}
			for !written.Load() {
				if err := reads[w%len(reads)](); err != nil {
					return err
				}
			}
			return nil
		}))
	})
	run(t, open, "AFenceWritesOnce", func(b *bundle) {
		b.template(1, inSync)
		var won atomic.Int64
		b.must(together(workers, func(w int) error {
			for fence := int64(1); fence <= 10; fence++ {
				id := 100*int64(w) + fence
				res, err := b.CouponSettle(b.ctx, store.CouponSettleParams{
					TemplateID: 1, Kind: rules.SettleDirect, Path: reward.PathGate, Fence: fence, Now: at(10),
					Requests: []rules.CouponRequest{{UserID: fmt.Sprint(id), CouponID: reward.CouponID(id), Code: fmt.Sprint(id)}},
				})
				if err != nil {
					return err
				}
				if res.Refused == rules.NotRefused {
					won.Add(1)
				}
			}
			return nil
		}))
		if n := won.Load(); n < 1 || n > 10 || n != b.stands(1).Live {
			b.Fatalf("%d of 10 fences wrote, %d coupons are live", n, b.stands(1).Live)
		}
	})
	run(t, open, "EpochsGenerationsAndSettings", func(b *bundle) {
		for id := reward.TemplateID(1); id <= 5; id++ {
			b.template(id)
		}
		ids := []reward.TemplateID{1, 2, 3, 4, 5}
		b.must(together(workers, func(w int) error {
			for n := range 10 {
				if _, err := b.TemplateAssign(b.ctx, shuffled(ids), fmt.Sprint(w)); err != nil {
					return err
				}
				id := ids[(w+n)%len(ids)]
				if _, _, err := b.TemplateNewGeneration(b.ctx, raise(id, -1, 0)); err != nil {
					return err
				}
				name := fmt.Sprintf("%d of %d", n, w)
				t, err := b.TemplateChange(b.ctx, rules.TemplateChange{ID: id, Name: &name})
				if err != nil {
					return err
				}
				if t.Name != name {
					return fmt.Errorf("named %q, it is %q", name, t.Name)
				}
				active, err := b.TemplateActive(b.ctx, epoch)
				if err != nil {
					return err
				}
				if i := slices.Index(templateIDs(active), id); i < 0 || active[i].Version < t.Version {
					return fmt.Errorf("template %d is older in the list than in an earlier result", id)
				}
			}
			return nil
		}))
		var generations, versions int64
		for _, id := range ids {
			t := b.stands(id)
			same(b, "epoch", int64(10*workers), t.Epoch)
			generations += t.Generation
			versions += t.Version
		}
		same(b, "generations and versions", []int64{10 * workers, 10 * workers}, []int64{generations, versions})
	})
	run(t, open, "NobodyEntersBehindTheClosingOfADraw", func(b *bundle) {
		b.template(1, draw(-time.Hour, 400*time.Millisecond))
		var noted, after atomic.Int64
		b.must(together(workers, func(w int) error {
			for n := 0; ; n++ {
				if w == 0 {
					t, err := b.DrawClose(b.ctx, 1, 0)
					if err != nil {
						return err
					}
					if t.Draw.State == reward.DrawClosed {
						list, err := b.EntrantList(b.ctx, 1, "", plenty)
						after.Store(int64(len(list)))
						return err
					}
					continue
				}
				_, takes, err := b.EntrantSave(b.ctx, 1, []string{fmt.Sprintf("u%d-%d", w, n)})
				if err != nil {
					return err
				}
				if !takes {
					return nil
				}
				noted.Add(1)
			}
		}))
		same(b, "entrants recorded, and seen after the draw closed", noted.Load(), after.Load())
	})
}
