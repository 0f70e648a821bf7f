// Package governortest is the conformance suite of governor.Rates.
package governortest

import (
	"context"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/governor"
	"github.com/largesse/largesse/internal/service"
)

// Exercise runs the suite in real time, for about two seconds. newRates returns
// an empty Rates.
func Exercise(t *testing.T, newRates func(t testing.TB) governor.Rates) {
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
			exercise(&bundle{TB: t, rates: newRates(t)})
		})
	}
}

// bundle is what one part of the suite uses.
type bundle struct {
	testing.TB
	rates governor.Rates
}

func (b *bundle) lease(name string, perSecond float64, count int) governor.Run {
	b.Helper()
	run, err := b.rates.Lease(b.Context(), governor.LeaseParams{Name: name, PerSecond: perSecond, Count: count})
	if err != nil {
		b.Fatal(err)
	}
	if run.In < 0 || run.Count < 0 || run.Count > count || run.Every <= 0 {
		b.Fatalf("asked for %d, got %+v", count, run)
	}
	return run
}

// wait lets time pass, as a lease demands.
func (b *bundle) wait(d time.Duration) {
	b.Helper()
	if !service.Sleep(b.Context(), d) {
		b.Fatal("the test is over")
	}
}

// last returns the last send time of a run, counted from its lease.
func last(run governor.Run) time.Duration {
	return run.In + time.Duration(run.Count-1)*run.Every
}

func exerciseCount(b *bundle) {
	began := time.Now()
	first := b.lease("all", 100, 3)
	if first.Count != 3 || first.In > 10*time.Millisecond || first.Every != 10*time.Millisecond {
		b.Errorf("the first run is %+v", first)
	}
	// The next run follows it, minus the time that has passed.
	next := b.lease("all", 100, 2)
	if least := 29*time.Millisecond - time.Since(began); next.Count != 2 || next.In > 30*time.Millisecond || next.In < least {
		b.Errorf("the next run is %+v", next)
	}
}

func exerciseAhead(b *bundle) {
	began := time.Now()
	run := b.lease("all", 1000, math.MaxInt32)
	if run.Count < 90 || run.Count > 101 || last(run) > governor.Ahead {
		b.Fatalf("%+v, the last one in %v", run, last(run))
	}
	// Right after it, only the send times of the time since then are left.
	more := b.lease("all", 1000, math.MaxInt32)
	if room := int(time.Since(began)/time.Millisecond) + 1; more.Count > room || more.Count > 0 && last(more) > governor.Ahead {
		b.Errorf("then %+v", more)
	}
}

func exerciseSlow(b *bundle) {
	if run := b.lease("all", 0.5, 10); run.Count != 1 || run.In > time.Millisecond {
		b.Fatalf("%+v", run)
	}
	run := b.lease("all", 0.5, 10)
	if run.Count != 0 || run.In <= 0 || run.In > 1900*time.Millisecond {
		b.Fatalf("then %+v", run)
	}
	b.wait(run.In + time.Millisecond)
	run = b.lease("all", 0.5, 10)
	if run.Count != 1 || run.In > governor.Ahead {
		b.Fatalf("then %+v", run)
	}
}

func exerciseNoCatchingUp(b *bundle) {
	b.lease("all", 1000, 1)
	b.wait(300 * time.Millisecond)
	run := b.lease("all", 1000, math.MaxInt32)
	if run.Count > 101 || run.In > time.Millisecond {
		b.Errorf("after 300 ms without asking: %+v", run)
	}
}

func exerciseApart(b *bundle) {
	b.lease("all", 10, 5)
	if run := b.lease("7", 10, 1); run.Count != 1 || run.In > time.Millisecond {
		b.Errorf("the other rate gives %+v", run)
	}
}

// exerciseConcurrent checks that callers together get no more send times than
// the rate allows.
func exerciseConcurrent(b *bundle) {
	const askers, pace = 8, 2000
	var total atomic.Int64
	var group sync.WaitGroup
	began := time.Now()
	for range askers {
		group.Go(func() {
			for time.Since(began) < 400*time.Millisecond {
				run, err := b.rates.Lease(b.Context(), governor.LeaseParams{Name: "all", PerSecond: pace, Count: 7})
				if err != nil {
					b.Error(err)
					return
				}
				total.Add(int64(run.Count))
				if run.Count == 0 {
					service.Sleep(b.Context(), run.In)
				}
			}
		})
	}
	group.Wait()
	most := pace*(time.Since(began)+governor.Ahead).Seconds() + 2
	if n := float64(total.Load()); n > most || n < 50 {
		b.Errorf("%v send times given out, at most %.0f should be", n, most)
	}
}

// exerciseRaised checks that a very slow rate does not delay a later faster
// one.
func exerciseRaised(b *bundle) {
	b.lease("all", 0.1, 1)
	if run := b.lease("all", 100, 1); run.Count != 1 || run.In > 10*time.Millisecond {
		b.Errorf("%+v", run)
	}
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
	run, err := b.rates.Lease(b.Context(), governor.LeaseParams{Name: governor.NameOfAll, PerSecond: 10, News: &n})
	if err != nil {
		b.Fatal(err)
	}
	if run.Count != 0 {
		b.Fatalf("asked for no send times, got %+v", run)
	}
	return run.Shared
}

// about checks a time that has passed since it was set to want.
func (b *bundle) about(what string, got, want time.Duration, since time.Time) {
	b.Helper()
	if least := want - time.Since(since) - time.Millisecond; got > want || got < least {
		b.Errorf("%s: %v, want %v, or a little less", what, got, want)
	}
}

func exerciseNewsOnly(b *bundle) {
	if known := b.tell(governor.News{Instance: "a"}); known != (governor.Shared{}) {
		b.Errorf("at first, %+v is known", known)
	}
	run := b.lease(governor.NameOfAll, 10, 1)
	if run.Count != 1 || run.In > time.Millisecond || run.Shared != (governor.Shared{}) {
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
	began := time.Now()
	b.about("for the teller", b.tell(governor.News{Instance: "a", Block: 3 * time.Second}).Blocked, 3*time.Second, began)
	b.about("for another", b.tell(governor.News{Instance: "b"}).Blocked, 3*time.Second, began)
	b.about("after a shorter one", b.tell(governor.News{Instance: "b", Block: time.Second}).Blocked, 3*time.Second, began)
	again := time.Now()
	b.about("after a longer one", b.tell(governor.News{Instance: "b", Block: 4 * time.Second}).Blocked, 4*time.Second, again)
	again = time.Now()
	b.about("after one that is too long", b.tell(governor.News{Instance: "b", Block: time.Hour}).Blocked, governor.RetryAfterMax, again)
}

func exerciseDown(b *bundle) {
	began := time.Now()
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
	b.about("the first probe", known.ProbeIn, time.Second, began)
	// Who finds out later changes nothing.
	known = b.tell(governor.News{Instance: "b", Down: true, ProbeIn: 9 * time.Second})
	b.about("the first probe after a second report", known.ProbeIn, time.Second, began)
	if known.Outage != outage {
		b.Errorf("a second report began outage %d, after %d", known.Outage, outage)
	}
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
	ended := time.Now()
	known := b.tell(governor.News{Instance: "b", Want: true, Probe: governor.ProbeResult{Ended: true, Tries: 2}, ProbeIn: 200 * time.Millisecond})
	if known.Turn || known.Tries != 2 {
		b.Errorf("after its probe, %+v", known)
	}
	for {
		known = b.tell(governor.News{Instance: "a", Want: true})
		if known.Turn {
			break
		}
		b.wait(known.ProbeIn + time.Millisecond)
	}
	if took := time.Since(ended); took < 200*time.Millisecond || took > time.Second || known.Tries != 2 {
		b.Errorf("the next turn came after %v: %+v", took, known)
	}
	// One that changes its mind passes the turn on.
	b.tell(governor.News{Instance: "a"})
	if known = b.tell(governor.News{Instance: "b", Want: true}); !known.Turn {
		b.Errorf("nobody wants the turn, but %+v", known)
	}
}

func exerciseDeadOwner(b *bundle) {
	b.tell(governor.News{Instance: "a", Down: true})
	began := time.Now()
	if known := b.tell(governor.News{Instance: "a", Want: true}); !known.Turn {
		b.Fatalf("no turn: %+v", known)
	}
	for {
		known := b.tell(governor.News{Instance: "b", Want: true})
		if known.Turn {
			break
		}
		b.wait(known.ProbeIn + time.Millisecond)
	}
	if took := time.Since(began); took < governor.TurnLength || took > 2*governor.TurnLength {
		b.Errorf("a turn without a sign of its owner lasted %v", took)
	}
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
