package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
)

// sharer is an instance that takes part in the work.
type sharer struct {
	*Share
	stop func()
}

func join(t *testing.T, rows Leases, instance string) sharer {
	t.Helper()
	return joinIf(t, rows, instance, always)
}

func always() bool { return true }

// joinIf lets an instance take part while able reports true.
func joinIf(t *testing.T, rows Leases, instance string, able func() bool) sharer {
	t.Helper()
	s := NewShare(rows, "work", instance, able, obs.Log{})
	s.Start(t.Context(), s.Run)
	return sharer{s, s.Stop}
}

// ids are promotions in sequence and far apart.
func ids() []reward.PromotionID {
	var all []reward.PromotionID
	for i := range 1000 {
		all = append(all, reward.PromotionID(i+1), reward.PromotionID((i+1)<<22))
	}
	return all
}

// owners returns for each promotion who works on it.
func owners(shares ...sharer) map[reward.PromotionID][]string {
	of := make(map[reward.PromotionID][]string)
	for _, id := range ids() {
		for _, s := range shares {
			if s.Owns(id) {
				of[id] = append(of[id], s.instance)
			}
		}
	}
	return of
}

// count returns how many promotions have no owner, one, and several.
func count(of map[reward.PromotionID][]string) (none, one, several int) {
	for _, id := range ids() {
		switch len(of[id]) {
		case 0:
			none++
		case 1:
			one++
		default:
			several++
		}
	}
	return none, one, several
}

func TestShare(t *testing.T) {
	t.Parallel()
	const settled = 2 * shareTTL
	divided := func(t *testing.T, shares ...sharer) map[reward.PromotionID][]string {
		t.Helper()
		of := owners(shares...)
		if none, one, several := count(of); none != 0 || several != 0 || one != len(ids()) {
			t.Fatalf("%d promotions have no owner, %d have several", none, several)
		}
		return of
	}

	bubble(t, "OneInstanceHasAllAtOnceAndNoneBeforeAndAfter", func(t *testing.T) {
		idle := NewShare(&fakeLeases{}, "work", "one", always, obs.Log{})
		if idle.Owns(1) {
			t.Error("a promotion has an owner before Run")
		}
		one := join(t, &fakeLeases{}, "one")
		synctest.Wait()
		divided(t, one)
		time.Sleep(time.Hour)
		divided(t, one)
		one.stop()
		if none, _, _ := count(owners(one)); none != len(ids()) {
			t.Error("promotions have an owner after the end")
		}
	})

	bubble(t, "ManyDivideTheWorkFairly", func(t *testing.T) {
		rows := &fakeLeases{}
		var all []sharer
		for i := range 20 {
			all = append(all, join(t, rows, fmt.Sprintf("host-%d-17", i)))
		}
		time.Sleep(settled)
		parts := make(map[string]int)
		for _, of := range divided(t, all...) {
			parts[of[0]]++
		}
		for name, n := range parts {
			if fair := len(ids()) / len(all); n > 3*fair || n < fair/4 {
				t.Errorf("%s has %d promotions, about %d would be fair", name, n, fair)
			}
		}
		if len(parts) != len(all) {
			t.Errorf("%d of %d instances have a part", len(parts), len(all))
		}
		for _, s := range all {
			s.stop()
		}
	})

	bubble(t, "WhoJoinsTakesItsPartAndNobodyElses", func(t *testing.T) {
		rows := &fakeLeases{}
		one, two := join(t, rows, "one"), join(t, rows, "two")
		time.Sleep(settled)
		before := divided(t, one, two)
		three := join(t, rows, "three")
		synctest.Wait()
		// The others still have what the new one took: no promotion is
		// without an owner.
		if none, _, several := count(owners(one, two, three)); none != 0 || several == 0 {
			t.Errorf("%d promotions have no owner, %d have two", none, several)
		}
		time.Sleep(shareTTL/2 + time.Second)
		moved := 0
		for id, of := range divided(t, one, two, three) {
			if of[0] == before[id][0] {
				continue
			}
			moved++
			if of[0] != "three" {
				t.Fatalf("promotion %d went from %s to %s", id, before[id][0], of[0])
			}
		}
		if moved < len(ids())/6 || moved > len(ids())/2 {
			t.Errorf("%d of %d promotions moved, want about a third", moved, len(ids()))
		}
		for _, s := range []sharer{one, two, three} {
			s.stop()
		}
	})

	bubble(t, "WhoLeavesHandsOverAtTheNextRenewal", func(t *testing.T) {
		rows := &fakeLeases{}
		one, two := join(t, rows, "one"), join(t, rows, "two")
		time.Sleep(settled)
		two.stop()
		time.Sleep(shareTTL/3*6/5 + time.Second)
		divided(t, one)
		one.stop()
		if len(rows.held) != 0 {
			t.Errorf("leases are left: %v", rows.held)
		}
	})

	bubble(t, "TheOthersHaveThePartOfADeadOneWithinABound", func(t *testing.T) {
		rows := &fakeLeases{}
		one, two := join(t, rows, "one"), join(t, rows, "two")
		time.Sleep(settled)
		rows.set(func(m *fakeLeases) { m.cutOff = map[string]bool{"two": true} })
		two.stop() // its release is lost
		if none, _, _ := count(owners(one, two)); none == 0 {
			t.Error("the part of a dead instance has an owner at once")
		}
		time.Sleep(shareTTL + shareTTL/3*6/5 + time.Second)
		divided(t, one)
		one.stop()
	})

	bubble(t, "AStaleOwnerStopsWhenItsLeaseHasExpired", func(t *testing.T) {
		rows := &fakeLeases{}
		one, two := join(t, rows, "one"), join(t, rows, "two")
		time.Sleep(settled)
		rows.set(func(m *fakeLeases) { m.cutOff = map[string]bool{"two": true} })
		cut := time.Now()
		// Until then both may have its promotions, which is harmless.
		for owned := true; owned; time.Sleep(100 * time.Millisecond) {
			if _, _, several := count(owners(one, two)); time.Since(cut) < shareTTL/2 && several > 0 {
				t.Fatalf("another instance has promotions of a live lease after %v", time.Since(cut))
			}
			if none, _, _ := count(owners(two)); none == len(ids()) {
				owned = false
			}
			if time.Since(cut) > shareTTL+time.Second {
				t.Fatal("an instance without a renewal keeps its promotions")
			}
		}
		time.Sleep(shareTTL)
		divided(t, one)
		rows.set(func(m *fakeLeases) { m.cutOff = nil })
		time.Sleep(settled)
		divided(t, one, two)
		one.stop()
		two.stop()
	})

	bubble(t, "WhoIsNotAbleLeavesItsPartForAWhile", func(t *testing.T) {
		rows := &fakeLeases{}
		var able atomic.Bool
		able.Store(true)
		one := join(t, rows, "one")
		two := joinIf(t, rows, "two", able.Load)
		time.Sleep(settled)
		divided(t, one, two)
		able.Store(false)
		time.Sleep(shareTTL/3*6/5 + time.Second)
		able.Store(true)
		if none, _, _ := count(owners(two)); none != len(ids()) {
			t.Error("an instance that was not able keeps its part")
		}
		time.Sleep(shareTTL/3*6/5 + time.Second)
		divided(t, one) // it has noticed before the other one comes back
		time.Sleep(settled)
		divided(t, one, two)
		one.stop()
		two.stop()
	})

	bubble(t, "WhoIsNotAbleYetTakesNothing", func(t *testing.T) {
		rows := &fakeLeases{}
		var able atomic.Bool
		s := joinIf(t, rows, "one", able.Load)
		time.Sleep(settled)
		if len(rows.held) != 0 || s.Owns(1) {
			t.Errorf("it holds %v", rows.held)
		}
		able.Store(true)
		time.Sleep(ablePause + time.Millisecond)
		if !s.Owns(1) {
			t.Error("it has no part soon after it is able")
		}
		s.Stop()
	})

	bubble(t, "AShortOutageOfTheDatabaseChangesNothingAndIsLogged", func(t *testing.T) {
		var text bytes.Buffer
		log := fixture.Must(obs.NewLog(&text, "info", "text"))(t)
		rows := &fakeLeases{}
		s := NewShare(rows, "work", "one", always, log)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			s.Run(ctx)
		}()
		synctest.Wait()
		rows.set(func(m *fakeLeases) { m.err = errors.New("no database") })
		time.Sleep(shareTTL / 2)
		if !s.Owns(1) {
			t.Error("it has lost its part before its lease has expired")
		}
		time.Sleep(shareTTL)
		if s.Owns(1) {
			t.Error("it keeps its part although its lease has expired")
		}
		rows.set(func(m *fakeLeases) { m.err = nil })
		time.Sleep(shareTTL)
		if !s.Owns(1) {
			t.Error("it has no part after the outage")
		}
		cancel()
		<-done
		for _, want := range []string{`msg="work divided"`, `msg="lease unavailable" lease="work one"`, `msg="lease available again"`} {
			if !strings.Contains(text.String(), want) {
				t.Errorf("%s is not in the log:\n%s", want, text.String())
			}
		}
	})
}
