package storetest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
)

// Follower keeps the list of active promotions by reading only what changes. It
// is not safe for concurrent use.
type Follower struct {
	Views map[reward.PromotionID]store.PromotionView
	// Read counts the promotions that the latest Follow read. Whole reports whether it
	// read the whole list.
	Read  int
	Whole bool

	mark string
}

// activeSource is where a Follower reads.
type activeSource interface {
	PromotionActive(ctx context.Context) ([]store.PromotionView, error)
	PromotionChanges(ctx context.Context, since string) (store.PromotionChanges, error)
}

// Follow reads what has changed in s.
func (f *Follower) Follow(ctx context.Context, s activeSource) error {
	c, err := s.PromotionChanges(ctx, f.mark)
	if err != nil {
		return err
	}
	f.mark, f.Read, f.Whole = c.Mark, len(c.Active)+len(c.Inactive), c.Whole
	if c.Whole || f.Views == nil {
		f.Views = make(map[reward.PromotionID]store.PromotionView)
	}
	for _, v := range c.Active {
		f.Views[v.ID] = v
	}
	for _, id := range c.Inactive {
		delete(f.Views, id)
	}
	if !slices.IsSortedFunc(c.Active, func(a, b store.PromotionView) int { return int(a.ID - b.ID) }) {
		return fmt.Errorf("the changed promotions are not ordered by ID")
	}
	return nil
}

// Compare returns an error unless the followed views are those of
// PromotionActive.
func (f *Follower) Compare(ctx context.Context, s activeSource) error {
	if err := f.Follow(ctx, s); err != nil {
		return err
	}
	list, err := s.PromotionActive(ctx)
	if err != nil {
		return err
	}
	want := make(map[reward.PromotionID]store.PromotionView)
	for _, v := range list {
		want[v.ID] = v
	}
	if diff := cmp.Diff(want, f.Views); diff != "" {
		return fmt.Errorf("followed views differ from the whole list (-want +got):\n%s", diff)
	}
	return nil
}

func exerciseChanges(t *testing.T, open Open) {
	run(t, open, "TheyCostNothingWhileNothingChanges", func(b *bundle) {
		for id := reward.PromotionID(1); id <= 20; id++ {
			b.running(id)
		}
		var f Follower
		b.must(f.Follow(b.ctx, b))
		same(b, "first", []any{20, true}, []any{f.Read, f.Whole})
		for range 3 {
			b.must(f.Follow(b.ctx, b))
			same(b, "later", []any{0, false}, []any{f.Read, f.Whole})
		}
		b.saveReady(7, 1)
		b.must(f.Follow(b.ctx, b))
		same(b, "one has changed", []any{1, false}, []any{f.Read, f.Whole})
		b.must(f.Compare(b.ctx, b))
	})
	run(t, open, "LeavingTheListIsAChange", func(b *bundle) {
		b.running(1)
		b.running(2)
		var f Follower
		b.must(f.Follow(b.ctx, b))
		same(b, "active", 2, len(f.Views))
		b.complete(1, 20)
		must(b.PromotionStreamDestroyed(b.ctx, 1, time.Time{}))(b)
		b.must(f.Follow(b.ctx, b))
		same(b, "left", []reward.PromotionID{2}, slices.Collect(maps.Keys(f.Views)))
		b.draft(3) // never active
		b.must(b.PromotionDelete(b.ctx, 3))
		b.must(f.Compare(b.ctx, b))
		b.draft(3)
		b.move(3, reward.Running)
		b.must(f.Compare(b.ctx, b))
		same(b, "active again", 2, len(f.Views))
	})
	run(t, open, "AMarkOfAnotherDriverIsAnError", func(b *bundle) {
		if _, err := b.PromotionChanges(b.ctx, "yesterday"); err == nil {
			b.Fatal("no error")
		}
	})
	// Each worker changes promotions of its own, so it knows what its next read must
	// return. Another promotion is changed by all.
	run(t, open, "AnyInterleavingIsFollowed", func(b *bundle) {
		const workers, steps = 8, 40
		b.running(1)
		var all Follower
		b.must(all.Follow(b.ctx, b))
		b.must(together(workers, func(w int) error {
			var f Follower
			first := reward.PromotionID(100 * (w + 1))
			for n := range steps {
				id := first + reward.PromotionID(rand.IntN(3))
				if err := b.someChange(id, n); err != nil {
					return fmt.Errorf("step %d: %w", n, err)
				}
				shared := store.PayoutSaveParams{Rows: []store.NewPayout{row(1, reward.TargetID(1000*w+n))}, MaxLen: plenty, Now: epoch}
				if _, err := b.PayoutSave(b.ctx, shared); err != nil {
					return err
				}
				if err := f.Follow(b.ctx, b); err != nil {
					return err
				}
				now, err := b.PromotionGet(b.ctx, id)
				if err != nil {
					return err
				}
				got, active := f.Views[id]
				if active != isActive(now) || active && !cmp.Equal(got, now) {
					return fmt.Errorf("step %d: the read after the change returned %+v, the promotion is %+v", n, got, now)
				}
			}
			return nil
		}))
		b.must(all.Compare(b.ctx, b))
	})
}

func isActive(v store.PromotionView) bool {
	return v.Status == reward.Running || (v.Status == reward.PromotionCancelled && v.FinishedAt.IsZero()) || !v.StreamDestroyed
}

// someChange makes a random change to a promotion. Some are not allowed in its
// status.
func (b *bundle) someChange(id reward.PromotionID, n int) (err error) {
	target := reward.TargetID(n)
	move := func(from, to reward.PromotionStatus) error {
		_, err := b.PromotionMove(b.ctx, store.PromotionMoveParams{ID: id, From: []reward.PromotionStatus{from}, To: to, Now: at(n)})
		return err
	}
	if _, err = b.PromotionRegister(b.ctx, []store.Registration{{ID: id, Type: reward.Point, Started: true}}, reward.Limits{}, epoch); err != nil {
		return err
	}
	switch rand.IntN(9) {
	case 0:
		err = move(reward.Running, reward.Paused)
	case 1:
		err = move(reward.Paused, reward.Running)
	case 2:
		if n%8 == 0 {
			err = move(reward.Running, reward.PromotionCancelled)
		}
	case 3:
		_, err = b.PromotionClose(b.ctx, id)
	case 4:
		_, err = b.PayoutSave(b.ctx, store.PayoutSaveParams{Rows: []store.NewPayout{row(id, target)}, Now: epoch})
	case 5:
		_, err = b.PayoutDispatch(b.ctx, store.PayoutDispatchParams{PromotionID: id, Limit: 3, MaxLen: plenty, Now: at(n)})
	case 6:
		kind := rules.OutcomePaid
		if n%2 == 0 {
			kind = rules.OutcomeRefused
		}
		_, err = b.PayoutFinish(b.ctx, store.PayoutFinishParams{
			Outcomes: []rules.Outcome{{Ref: ref(id, target-1, 1), Kind: kind}}, Lease: lease, Now: at(n),
		})
	case 7:
		if _, err = b.PromotionComplete(b.ctx, id, settleAfter, at(n)); err != nil {
			return err
		}
		var v store.PromotionView
		if v, err = b.PromotionGet(b.ctx, id); err == nil {
			_, err = b.PromotionStreamDestroyed(b.ctx, id, v.LastDispatchedAt)
		}
	case 8:
		_, err = b.PayoutRetry(b.ctx, store.PayoutRetryParams{PromotionID: id, Now: at(n)})
	}
	var refused *reward.Error
	if errors.As(err, &refused) && (refused.Kind == reward.KindConflict || refused.Kind == reward.KindNotFound) {
		return nil // the state of the row requires it
	}
	return err
}
