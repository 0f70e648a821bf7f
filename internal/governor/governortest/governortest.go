// Package governortest is the conformance suite of governor.Rates. It runs on a clock
// that moves only when a test waits, so it knows every time exactly.
package governortest

import (
	"context"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/governor"
	"github.com/largesse/largesse/internal/lab/fixture"
)

// World runs a test on an empty Rates. wait moves the clock of the Rates on; nothing
// else does.
type World func(t *testing.T, test func(t *testing.T, rates governor.Rates, wait func(d time.Duration)))

// Exercise runs the suite.
func Exercise(t *testing.T, world World) {
	t.Helper()
	for name, exercise := range map[string]func(*bundle){
		"GivesOutWhatIsAskedFor":       exerciseCount,
		"GivesOutNoMoreThanAhead":      exerciseAhead,
		"ASlowRateGivesOneAtATime":     exerciseSlow,
		"NeverMakesUpForWhatIsGone":    exerciseNoCatchingUp,
		"RatesAreApart":                exerciseApart,
		"ManyShareOne":                 exerciseConcurrent,
		"ARaisedPaceHoldsAtOnce":       exerciseRaised,
		"RefusesWhatMakesNoSense":      exerciseNonsense,
		"ACancelledLeaseTakesNothing":  exerciseCancelled,
		"NewsLeaseNothingByThemselves": exerciseNewsOnly,
		"ABlockHoldsForAll":            exerciseBlock,
		"OneDownIsDownForAll":          exerciseDown,
		"OneAtATimeHasTheTurn":         exerciseTurn,
		"ATurnOfTheDeadEnds":           exerciseDeadOwner,
		"ASignOfLifeEndsIt":            exerciseAlive,
		"AnOutageEndsOnce":             exerciseOutages,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			world(t, func(t *testing.T, rates governor.Rates, wait func(d time.Duration)) {
				exercise(&bundle{TB: t, rates: rates, wait: wait})
			})
		})
	}
}

// bundle is what one part of the suite uses.
type bundle struct {
	testing.TB
	rates governor.Rates
	wait  func(d time.Duration)
}

func (b *bundle) lease(name string, perSecond float64, count int) governor.Run {
	b.Helper()
	run := fixture.Must(b.rates.Lease(b.Context(), governor.LeaseParams{Name: name, PerSecond: perSecond, Count: count}))(b)
	if run.In < 0 || run.Count < 0 || run.Count > count || run.Every <= 0 {
		b.Fatalf("asked for %d, got %+v", count, run)
	}
	return run
}

// want checks a run that is neither early nor late.
func (b *bundle) want(what string, got governor.Run, in time.Duration, count int) {
	b.Helper()
	if got.In != in || got.Count != count {
		b.Errorf("%s: %+v, want %d send times, the first in %v", what, got, count, in)
	}
}

func exerciseCount(b *bundle) {
	first := b.lease("all", 100, 3)
	b.want("the first run", first, 0, 3)
	if first.Every != 10*time.Millisecond {
		b.Errorf("the send times are %v apart", first.Every)
	}
	b.want("the next run", b.lease("all", 100, 2), 30*time.Millisecond, 2)
	b.wait(20 * time.Millisecond)
	b.want("20 ms later", b.lease("all", 100, 2), 30*time.Millisecond, 2)
}

func exerciseAhead(b *bundle) {
	b.want("the first run", b.lease("all", 1000, math.MaxInt32), 0, 101)
	b.want("right after it", b.lease("all", 1000, math.MaxInt32), time.Millisecond, 0)
	b.wait(5 * time.Millisecond)
	b.want("5 ms later", b.lease("all", 1000, math.MaxInt32), 96*time.Millisecond, 5)
}

func exerciseSlow(b *bundle) {
	b.want("the first run", b.lease("all", 0.5, 10), 0, 1)
	b.want("the next send time is not leased yet", b.lease("all", 0.5, 10), 2*time.Second-governor.Ahead, 0)
	b.wait(2*time.Second - governor.Ahead)
	b.want("the next run", b.lease("all", 0.5, 10), governor.Ahead, 1)
}

func exerciseNoCatchingUp(b *bundle) {
	b.lease("all", 1000, 1)
	b.wait(300 * time.Millisecond)
	b.want("after 300 ms without asking", b.lease("all", 1000, math.MaxInt32), 0, 101)
}

func exerciseApart(b *bundle) {
	b.lease("all", 10, 1)
	b.want("the other rate", b.lease("7", 10, 1), 0, 1)
}

// exerciseConcurrent checks that callers together get exactly the send times that the
// rate allows.
func exerciseConcurrent(b *bundle) {
	const callers, pace, rounds, step = 8, 2000, 40, 10 * time.Millisecond
	var total atomic.Int64
	for round := range rounds {
		if round > 0 {
			b.wait(step)
		}
		var group sync.WaitGroup
		for range callers {
			group.Go(func() {
				for {
					run, err := b.rates.Lease(b.Context(), governor.LeaseParams{Name: "all", PerSecond: pace, Count: 7})
					if err != nil {
						b.Error(err)
					}
					if total.Add(int64(run.Count)); run.Count == 0 {
						return
					}
				}
			})
		}
		group.Wait()
	}
	if got, want := total.Load(), int64(((rounds-1)*step+governor.Ahead)*pace/time.Second)+1; got != want {
		b.Errorf("%d send times given out, want %d", got, want)
	}
}

// exerciseRaised checks that a very slow rate does not delay a later faster
// one.
func exerciseRaised(b *bundle) {
	b.lease("all", 0.1, 1)
	b.want("the faster rate", b.lease("all", 100, 1), 10*time.Millisecond, 1)
}

func exerciseNonsense(b *bundle) {
	for _, p := range []governor.LeaseParams{
		{PerSecond: 1, Count: 1},
		{Name: "all", Count: 1},
		{Name: "all", PerSecond: -1, Count: 1},
		{Name: "all", PerSecond: math.NaN(), Count: 1},
		{Name: "all", PerSecond: 1},
		{Name: "all", PerSecond: 1, Count: -1},
		{Name: "all", PerSecond: 1, Count: 1, News: &governor.News{}},
		{Name: "all", PerSecond: 1, Count: 1, News: &governor.News{Instance: "a", Block: -1}},
		{Name: "all", PerSecond: 1, Count: 1, News: &governor.News{Instance: "a", Answered: -1}},
		{Name: "7", PerSecond: 1, Count: 1, News: &governor.News{Instance: "a"}},
	} {
		if run, err := b.rates.Lease(b.Context(), p); err == nil {
			b.Errorf("%+v gave %+v", p, run)
		}
	}
}

func exerciseCancelled(b *bundle) {
	ctx, cancel := context.WithCancel(b.Context())
	cancel()
	if run, err := b.rates.Lease(ctx, governor.LeaseParams{Name: "all", PerSecond: 0.1, Count: 1}); err == nil {
		b.Errorf("got %+v", run)
	}
	if run := b.lease("all", 0.1, 1); run.Count != 1 {
		b.Errorf("then %+v", run)
	}
}

// tell exchanges news without a lease.
func (b *bundle) tell(n governor.News) governor.Shared {
	b.Helper()
	run := fixture.Must(b.rates.Lease(b.Context(), governor.LeaseParams{Name: governor.NameOfAll, PerSecond: 10, News: &n}))(b)
	if run.Count != 0 {
		b.Fatalf("asked for no send times, got %+v", run)
	}
	return run.Shared
}

// in checks a time until something.
func (b *bundle) in(what string, got, want time.Duration) {
	b.Helper()
	if got != want {
		b.Errorf("%s: %v, want %v", what, got, want)
	}
}

func exerciseNewsOnly(b *bundle) {
	if known := b.tell(governor.News{Instance: "a"}); known != (governor.Shared{}) {
		b.Errorf("at first, %+v is known", known)
	}
	run := b.lease(governor.NameOfAll, 10, 1)
	if run.Count != 1 || run.In != 0 || run.Shared != (governor.Shared{}) {
		b.Errorf("the first lease is %+v", run)
	}
	both, err := b.rates.Lease(b.Context(), governor.LeaseParams{
		Name: governor.NameOfAll, PerSecond: 10, Count: 1, News: &governor.News{Instance: "a", Block: time.Second},
	})
	if err != nil || both.Count != 1 || both.Shared.Blocked == 0 {
		b.Errorf("a lease with news is %+v, %v", both, err)
	}
}

func exerciseBlock(b *bundle) {
	b.in("for the teller", b.tell(governor.News{Instance: "a", Block: 3 * time.Second}).Blocked, 3*time.Second)
	b.wait(time.Second)
	b.in("for another, a second later", b.tell(governor.News{Instance: "b"}).Blocked, 2*time.Second)
	b.in("after a shorter one", b.tell(governor.News{Instance: "b", Block: time.Second}).Blocked, 2*time.Second)
	b.in("after a longer one", b.tell(governor.News{Instance: "b", Block: 4 * time.Second}).Blocked, 4*time.Second)
	b.in("after one that is too long", b.tell(governor.News{Instance: "b", Block: time.Hour}).Blocked, governor.RetryAfterMax)
	lifted := b.tell(governor.News{Instance: "a", Lift: true})
	if lifted.Blocked != 0 || lifted.Lifted == 0 {
		b.Errorf("after a person ended the block: %+v", lifted)
	}
	b.wait(time.Second)
	if known := b.tell(governor.News{Instance: "b"}); known.Blocked != 0 || known.Lifted != lifted.Lifted {
		b.Errorf("another knows %+v, not %+v", known, lifted)
	}
	again := b.tell(governor.News{Instance: "b", Lift: true, Block: 3 * time.Second})
	b.in("after an end and a later one", again.Blocked, 3*time.Second)
	if again.Lifted == lifted.Lifted {
		b.Errorf("two ends have the number %d", again.Lifted)
	}
}

func exerciseDown(b *bundle) {
	known := b.tell(governor.News{Instance: "a", Down: true, ProbeIn: time.Second})
	if known.Outage <= 0 || known.Turn || known.Up {
		b.Fatalf("the teller knows %+v", known)
	}
	outage := known.Outage
	b.wait(20 * time.Millisecond)
	known = b.tell(governor.News{Instance: "b", Want: true})
	if known.Outage != outage || known.Turn {
		b.Errorf("another knows %+v, the teller outage %d", known, outage)
	}
	b.in("the first probe", known.ProbeIn, 980*time.Millisecond)
	// Who finds out later changes nothing.
	known = b.tell(governor.News{Instance: "b", Down: true, ProbeIn: 9 * time.Second})
	b.in("the first probe after a second report", known.ProbeIn, 980*time.Millisecond)
	if known.Outage != outage {
		b.Errorf("a second report began outage %d, after %d", known.Outage, outage)
	}
}

// turnIn checks that an instance gets the turn after a time, and no sooner.
func (b *bundle) turnIn(d time.Duration, instance string) (known governor.Shared) {
	b.Helper()
	known = b.tell(governor.News{Instance: instance, Want: true})
	b.in("the next turn", known.ProbeIn, d)
	b.wait(d - time.Microsecond)
	if known = b.tell(governor.News{Instance: instance, Want: true}); known.Turn {
		b.Errorf("the next turn is early: %+v", known)
	}
	b.wait(time.Microsecond)
	if known = b.tell(governor.News{Instance: instance, Want: true}); !known.Turn {
		b.Errorf("the next turn did not come: %+v", known)
	}
	return known
}

func exerciseTurn(b *bundle) {
	b.tell(governor.News{Instance: "a", Down: true})
	if known := b.tell(governor.News{Instance: "a"}); known.Turn {
		b.Errorf("one that does not want a turn got it: %+v", known)
	}
	for range 3 { // while its probe is in flight
		if known := b.tell(governor.News{Instance: "b", Want: true}); !known.Turn {
			b.Fatalf("nobody has the turn, but %+v", known)
		}
		if known := b.tell(governor.News{Instance: "a", Want: true}); known.Turn || known.ProbeIn <= 0 || known.ProbeIn > governor.TurnLength {
			b.Fatalf("another has the turn, but %+v", known)
		}
	}
	// Only the owner's probe counts.
	b.tell(governor.News{Instance: "a", Want: true, Probe: governor.ProbeResult{Ended: true, Tries: 7}, ProbeIn: 9 * time.Second})
	if known := b.tell(governor.News{Instance: "b", Want: true}); !known.Turn || known.Tries != 0 {
		b.Errorf("a probe out of turn changed the turn: %+v", known)
	}
	known := b.tell(governor.News{Instance: "b", Want: true, Probe: governor.ProbeResult{Ended: true, Tries: 2}, ProbeIn: 200 * time.Millisecond})
	if known.Turn || known.Tries != 2 {
		b.Errorf("after its probe, %+v", known)
	}
	if known = b.turnIn(200*time.Millisecond, "a"); known.Tries != 2 {
		b.Errorf("in the next turn, %+v", known)
	}
	// One that changes its mind passes the turn on.
	b.tell(governor.News{Instance: "a"})
	if known = b.tell(governor.News{Instance: "b", Want: true}); !known.Turn {
		b.Errorf("nobody wants the turn, but %+v", known)
	}
}

func exerciseDeadOwner(b *bundle) {
	b.tell(governor.News{Instance: "a", Down: true})
	if known := b.tell(governor.News{Instance: "a", Want: true}); !known.Turn {
		b.Fatalf("no turn: %+v", known)
	}
	b.turnIn(governor.TurnLength, "b")
}

func exerciseAlive(b *bundle) {
	outage := b.tell(governor.News{Instance: "a", Down: true}).Outage
	b.tell(governor.News{Instance: "a", Want: true})
	if known := b.tell(governor.News{Instance: "b", Answered: outage}); known.Outage != 0 || !known.Up {
		b.Errorf("after an answer: %+v", known)
	}
	if known := b.tell(governor.News{Instance: "a", Want: true, Probe: governor.ProbeResult{Ended: true, Tries: 1}}); known.Outage != 0 || known.Turn || !known.Up {
		b.Errorf("the owner of the turn knows %+v", known)
	}
	// The next outage starts from the beginning.
	b.wait(time.Millisecond)
	if known := b.tell(governor.News{Instance: "c", Down: true, ProbeIn: time.Second}); known.Outage == 0 || known.Outage == outage || known.Up || known.Tries != 0 {
		b.Errorf("the next outage, after %d: %+v", outage, known)
	}
}

// exerciseOutages checks that news of an answer in an earlier outage, which arrive late,
// do not end the current one.
func exerciseOutages(b *bundle) {
	if known := b.tell(governor.News{Instance: "a", Answered: 7}); known != (governor.Shared{}) {
		b.Errorf("without an outage, %+v is known", known)
	}
	first := b.tell(governor.News{Instance: "a", Down: true}).Outage
	b.tell(governor.News{Instance: "b", Answered: first})
	b.wait(5 * time.Millisecond)
	second := b.tell(governor.News{Instance: "a", Down: true}).Outage
	if known := b.tell(governor.News{Instance: "c", Answered: first}); known.Outage != second {
		b.Errorf("an answer in outage %d ended outage %d: %+v", first, second, known)
	}
	if known := b.tell(governor.News{Instance: "c", Answered: second}); known.Outage != 0 || !known.Up {
		b.Errorf("an answer in outage %d did not end it: %+v", second, known)
	}
}
