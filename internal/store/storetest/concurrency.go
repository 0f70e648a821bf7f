package storetest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
)

// together runs n workers, which start at the same time, and returns their
// errors.
func together(n int, work func(worker int) error) error {
	var wg sync.WaitGroup
	gate := make(chan struct{})
	errs := make([]error, n)
	for w := range n {
		wg.Go(func() {
			<-gate
			errs[w] = work(w)
		})
	}
	close(gate)
	wg.Wait()
	return errors.Join(errs...)
}

func exerciseConcurrency(t *testing.T, open Open) {
	const workers = 8
	run(t, open, "NoDispatchIsHandedOutTwice", func(b *bundle) {
		const targets, room = 600, 450
		b.running(1)
		ids := firstTargets(targets)
		b.saveReady(1, ids...)
		var mu sync.Mutex // guards handed
		handed := make(map[reward.Ref]int)
		b.must(together(workers, func(w int) error {
			for range 20 {
				list, err := b.PayoutDispatch(b.ctx, store.PayoutDispatchParams{PromotionID: 1, Limit: 7 + w, MaxLen: room, Now: at(1)})
				if err != nil {
					return err
				}
				mu.Lock()
				for _, p := range list {
					handed[ref(1, p.TargetID, p.Dispatch)]++
				}
				mu.Unlock()
			}
			return nil
		}))
		same(b, "handed out, up to the room", room, len(handed))
		for r, n := range handed {
			if n != 1 {
				b.Errorf("%+v was dispatched %d times", r, n)
			}
		}
		b.books(1)
	})
	run(t, open, "OverlappingSavesKeepTheRoomAndEndWell", func(b *bundle) {
		const room = 100
		for id := reward.PromotionID(1); id <= 3; id++ {
			b.running(id)
		}
		var rows []store.NewPayout
		for id := reward.PromotionID(1); id <= 3; id++ {
			for target := range reward.TargetID(200) {
				rows = append(rows, row(id, target))
			}
		}
		var mu sync.Mutex // guards accepted, queued
		accepted, queued := 0, 0
		b.must(together(workers, func(int) error {
			mine := shuffled(rows)
			for len(mine) > 0 {
				n := min(150, len(mine))
				maxLen := room * rand.IntN(2)
				res, err := b.PayoutSave(b.ctx, store.PayoutSaveParams{
					Rows: mine[:n], MaxLen: maxLen, Now: epoch,
					Offsets:     []store.Offset{{Topic: "t", Partition: int32(n % 3), Next: int64(n)}, {Topic: "s", Partition: 1, Next: 1}},
					DeadLetters: []reward.DeadLetter{{Source: "t", Offset: "1", At: epoch}, {Source: "s", Offset: "1", At: epoch}},
				})
				if err != nil {
					return err
				}
				mu.Lock()
				for _, o := range res.Outcomes {
					if o == store.Accepted {
						accepted++
					}
				}
				queued += len(res.Queued)
				mu.Unlock()
				mine = mine[n:]
			}
			return nil
		}))
		same(b, "accepted once each", len(rows), accepted)
		inQueue := 0
		for id := reward.PromotionID(1); id <= 3; id++ {
			v := b.view(id)
			n := int(v.Counts.Payouts[reward.Queued])
			if n > room {
				b.Errorf("promotion %d has %d QUEUED rows, more than its capacity", id, n)
			}
			inQueue += n
			b.books(id)
		}
		same(b, "queued", inQueue, queued)
	})
	run(t, open, "OverlappingFinishesAndGiveBacksEndWell", func(b *bundle) {
		var refs []reward.Ref
		for id := reward.PromotionID(1); id <= 3; id++ {
			b.running(id)
			var targets []reward.TargetID
			for target := range reward.TargetID(100) {
				targets = append(targets, target)
				refs = append(refs, ref(id, target, 1))
			}
			b.saveQueued(id, targets...)
		}
		var mu sync.Mutex // guards changed
		changed := make(map[reward.Ref]int)
		b.must(together(workers, func(w int) error {
			for range 3 {
				mine := shuffled(refs)[:200]
				if w%4 == 3 {
					if _, err := b.PayoutReturn(b.ctx, store.PayoutReturnParams{Refs: mine[:20], MaybeCalled: true, Lease: lease, Now: at(5)}); err != nil {
						return err
					}
					if _, err := b.PayoutDispatch(b.ctx, store.PayoutDispatchParams{PromotionID: 2, Limit: 50, MaxLen: plenty, Now: at(6)}); err != nil {
						return err
					}
				}
				outcomes := make([]rules.Outcome, len(mine))
				for i, r := range mine {
					outcomes[i] = rules.Outcome{Ref: r, Kind: kinds[rand.IntN(len(kinds))], RetryAt: at(20)}
				}
				finish := store.PayoutFinishParams{Outcomes: outcomes, Lease: lease, Now: at(10)}
				res, err := b.PayoutFinish(b.ctx, finish)
				for tries := 1; errors.Is(err, store.ErrLocked) && tries < 100; tries++ {
					// The other workers had the locks for long, as they may on a busy machine.
					res, err = b.PayoutFinish(b.ctx, finish)
				}
				if err != nil {
					return fmt.Errorf("worker %d: %w", w, err)
				}
				mu.Lock()
				for i, r := range res {
					if r.Changed && outcomes[i].Kind != rules.OutcomePaid {
						changed[mine[i]]++
					}
				}
				mu.Unlock()
			}
			return nil
		}))
		for r, n := range changed {
			if n != 1 {
				b.Errorf("%+v was decided %d times", r, n)
			}
		}
		for id := reward.PromotionID(1); id <= 3; id++ {
			b.books(id)
		}
	})
	run(t, open, "LookUpsAreTakenByOne", func(b *bundle) {
		b.running(1)
		targets := firstTargets(200)
		b.saveQueued(1, targets...)
		for _, target := range targets {
			b.finish(rules.Outcome{Ref: ref(1, target, 1), Kind: rules.OutcomeNoLookup})
		}
		var mu sync.Mutex // guards taken
		taken := make(map[reward.TargetID]int)
		b.must(together(workers, func(int) error {
			for range 10 {
				list, err := b.PayoutClaimLookups(b.ctx, store.PayoutClaimLookupsParams{Limit: 9, Until: at(99), Now: at(10)})
				if err != nil {
					return err
				}
				mu.Lock()
				for _, p := range list {
					taken[p.TargetID]++
				}
				mu.Unlock()
			}
			return nil
		}))
		same(b, "taken", len(targets), len(taken))
		for target, n := range taken {
			if n != 1 {
				b.Errorf("target %d was claimed %d times", target, n)
			}
		}
	})
	run(t, open, "OneWinnerPerLease", func(b *bundle) {
		var mu sync.Mutex // guards winners
		winners := 0
		b.must(together(workers, func(w int) error {
			l, err := b.LeaseTake(b.ctx, store.LeaseTakeParams{Name: "x", Owner: fmt.Sprint(w), TTL: 1 << 40})
			if err == nil && l.OK {
				mu.Lock()
				winners++
				mu.Unlock()
			}
			return err
		}))
		same(b, "winners", 1, winners)
	})
	run(t, open, "InstancesBeatTogether", func(b *bundle) {
		b.must(together(workers, func(w int) error {
			for n := range 10 {
				name := fmt.Sprint(w % 4) // two workers per name
				if _, err := b.InstanceHeartbeat(b.ctx, store.Instance{Name: name, StartedAt: at(n)}, lease); err != nil {
					return err
				}
				if _, err := b.InstanceList(b.ctx); err != nil {
					return err
				}
			}
			return nil
		}))
		list := must(b.InstanceList(b.ctx))(b)
		same(b, "instances", 4, len(list))
	})
	run(t, open, "AnActiveListIsNeverOlderThanItsQuestion", func(b *bundle) {
		b.must(together(workers, func(w int) error {
			for n := range 10 {
				id := reward.PromotionID(100*w + n + 1)
				if _, err := b.PromotionRegister(b.ctx, []store.Registration{{ID: id, Type: reward.Point, Started: true}}, reward.Limits{}, epoch); err != nil {
					return err
				}
				list, err := b.PromotionActive(b.ctx)
				if err != nil {
					return err
				}
				if !slices.ContainsFunc(list, func(v store.PromotionView) bool { return v.ID == id }) {
					return fmt.Errorf("RUNNING promotion %d is not among the %d active ones", id, len(list))
				}
			}
			return nil
		}))
	})
	run(t, open, "SavesRaceCompletionAndNoWorkIsForgotten", func(b *bundle) {
		for id := reward.PromotionID(1); id <= 2; id++ {
			b.running(id)
		}
		b.move(2, reward.PromotionCancelled)
		b.must(together(workers, func(w int) error {
			for i := range 25 {
				if w%2 == 0 {
					rows := []store.NewPayout{row(1, reward.TargetID(100*w+i)), row(2, reward.TargetID(100*w+i))}
					if _, err := b.PayoutSave(b.ctx, store.PayoutSaveParams{Rows: rows, Now: epoch}); err != nil {
						return err
					}
					continue
				}
				for id := reward.PromotionID(1); id <= 2; id++ {
					if _, err := b.PromotionComplete(b.ctx, id, settleAfter, at(50)); err != nil {
						return err
					}
				}
			}
			return nil
		}))
		v := b.view(1)
		same(b, "work left", 100, v.Counts.Undecided())
		same(b, "status", reward.Running, v.Status)
		b.books(1)
		b.books(2)
	})
	run(t, open, "RegistrationsOfManyAtOnce", func(b *bundle) {
		b.must(together(workers, func(w int) error {
			rs := make([]store.Registration, 40)
			for i := range rs {
				rs[i] = store.Registration{ID: reward.PromotionID(1 + i/2), Type: reward.Point, Started: w%2 == 0}
			}
			_, err := b.PromotionRegister(b.ctx, shuffled(rs), reward.Limits{}, epoch)
			return err
		}))
		list := must(b.PromotionActive(b.ctx))(b)
		same(b, "running", 20, len(list))
	})
}

func shuffled[T any](list []T) []T {
	mine := append([]T(nil), list...)
	rand.Shuffle(len(mine), func(i, j int) { mine[i], mine[j] = mine[j], mine[i] })
	return mine
}
