package governor

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
)

func TestMain(m *testing.M) { fixture.Main(m) }

var paid = Outcome{Class: reward.AnswerPaid, Status: 200}

// provider is a simulated one: it notes when calls began and answers each after
// a while. The fields that are functions are read under mu.
type provider struct {
	mu    sync.Mutex                            // protects the rest
	takes func(open int) time.Duration          // how long a call takes that finds so many open
	says  func(n int, at time.Duration) Outcome // call n, from 0, begun at; nil: paid
	asks  reward.PromotionID                    // whose call says is asked about
	born  time.Time
	begun []time.Duration
	of    map[reward.PromotionID]int
	open  int
	most  int
}

func newProvider(takes time.Duration) *provider {
	return &provider{born: time.Now(), of: map[reward.PromotionID]int{}, takes: func(int) time.Duration { return takes }}
}

// call is one call; it sleeps as long as it takes.
func (v *provider) call(id reward.PromotionID) Outcome {
	v.mu.Lock()
	at := time.Since(v.born)
	o := paid
	v.asks = id
	if v.says != nil {
		o = v.says(len(v.begun), at)
	}
	v.begun = append(v.begun, at)
	v.of[id]++
	v.open++
	v.most = max(v.most, v.open)
	if o.Took == 0 {
		o.Took = v.takes(v.open)
	}
	v.mu.Unlock()
	time.Sleep(o.Took)
	v.mu.Lock()
	v.open--
	v.mu.Unlock()
	return o
}

// calls counts those that began in [from, to).
func (v *provider) calls(from, to time.Duration) int {
	v.mu.Lock()
	defer v.mu.Unlock()
	n := 0
	for _, at := range v.begun {
		if at >= from && at < to {
			n++
		}
	}
	return n
}

// busiest is the highest number of calls that began within any second.
func (v *provider) busiest() int {
	v.mu.Lock()
	defer v.mu.Unlock()
	slices.Sort(v.begun)
	most, first := 0, 0
	for i, at := range v.begun {
		for at-v.begun[first] >= time.Second {
			first++
		}
		most = max(most, i-first+1)
	}
	return most
}

// gaps returns the shortest and the longest time between two calls in a row that began
// in [from, to).
func (v *provider) gaps(from, to time.Duration) (least, most time.Duration) {
	v.mu.Lock()
	defer v.mu.Unlock()
	slices.Sort(v.begun)
	before := time.Duration(-1)
	for _, at := range v.begun {
		if at < from || at >= to {
			continue
		}
		if gap := at - before; before >= 0 {
			if most == 0 || gap < least {
				least = gap
			}
			most = max(most, gap)
		}
		before = at
	}
	return least, most
}

func (v *provider) openNow() int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.open
}

func (v *provider) mostOpen() int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.most
}

func (v *provider) callsOf(id reward.PromotionID) int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.of[id]
}

// start has n calls of a job under way or waiting until the function that it
// returns is called.
func (v *provider) start(t *testing.T, g *Governor, job Job, n int) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	wait := v.work(ctx, g, job, n, 0)
	return func() {
		cancel()
		wait()
	}
}

// work has n calls of a job under way or waiting until ctx ends, total ones
// altogether (0: without end). The function that it returns waits for the end.
func (v *provider) work(ctx context.Context, g *Governor, job Job, n, total int) (wait func()) {
	var group sync.WaitGroup
	left := make(chan struct{}, total)
	for range total {
		left <- struct{}{}
	}
	close(left)
	for range n {
		group.Go(func() {
			for ctx.Err() == nil {
				if _, more := <-left; total > 0 && !more {
					return
				}
				p, err := g.Acquire(ctx, job)
				if err != nil {
					return
				}
				p.Done(v.call(job.PromotionID))
			}
		})
	}
	return group.Wait
}

// workFor does so for a time.
func (v *provider) workFor(t *testing.T, d time.Duration, g *Governor, n int, jobs ...Job) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	for _, job := range jobs {
		defer v.work(ctx, g, job, n, 0)()
	}
}

// newTest makes a Governor that ends with the test's bubble.
func newTest(t testing.TB, cfg Config) *Governor {
	g := New(cfg)
	t.Cleanup(g.Close)
	return g
}

func acquire(t testing.TB, g *Governor, job Job) *Permit {
	t.Helper()
	return fixture.Must(g.Acquire(t.Context(), job))(t)
}

// ended is an Acquire that has returned.
type ended struct {
	job    Job
	number int
	permit *Permit
	err    error
}

// line has n Acquires of a job wait, one after the other, and reports their
// ends.
func line(ctx context.Context, g *Governor, job Job, n int, out chan<- ended) {
	for i := range n {
		go func() {
			p, err := g.Acquire(ctx, job)
			out <- ended{job, i, p, err}
		}()
		synctest.Wait()
	}
}

func TestGovernor(t *testing.T) {
	t.Parallel()
	one, other := Job{PromotionID: 1}, Job{PromotionID: 2}

	fixture.OnFakeTime(t, "FirstComeFirstServedWithinAPromotion", func(t *testing.T) {
		g := newTest(t, Config{MaxConcurrency: 1})
		first := acquire(t, g, one)
		out := make(chan ended, 10)
		line(t.Context(), g, one, 5, out)
		if s := g.State(); s.Open != 1 || s.Limit != 1 || s.Waiting[1] != 5 {
			t.Fatalf("state %+v", s)
		}
		first.Done(paid)
		first.Done(paid)
		for i := range 5 {
			e := <-out
			synctest.Wait()
			if e.err != nil || e.number != i || len(out) != 0 {
				t.Fatalf("number %d came as %d, error %v, %d more at once", e.number, i, e.err, len(out))
			}
			e.permit.Done(paid)
		}
		fixture.Equal(t, State{GovernorFigures: obs.GovernorFigures{Limit: 1}, Waiting: map[reward.PromotionID]int{}}, g.State())
	})

	fixture.OnFakeTime(t, "OneWhoLeavesIsPassedOver", func(t *testing.T) {
		g := newTest(t, Config{MaxConcurrency: 1})
		first := acquire(t, g, one)
		ctx, cancel := context.WithCancelCause(t.Context())
		out := make(chan ended, 10)
		line(t.Context(), g, one, 1, out)
		line(ctx, g, one, 3, out)
		line(t.Context(), g, one, 1, out)
		cancel(errors.New("whatever"))
		for range 3 {
			if e := <-out; !errors.Is(e.err, context.Canceled) || e.permit != nil {
				t.Fatalf("%+v", e)
			}
		}
		if n := g.State().Waiting[1]; n != 2 {
			t.Fatalf("%d wait", n)
		}
		first.Done(paid)
		for range 2 {
			e := <-out
			if e.err != nil {
				t.Fatal(e.err)
			}
			e.permit.Done(paid)
		}
		if _, err := g.Acquire(ctx, one); !errors.Is(err, context.Canceled) {
			t.Errorf("error %v", err)
		}
	})

	fixture.OnFakeTime(t, "KickSendsOnePromotionAway", func(t *testing.T) {
		g := newTest(t, Config{MaxConcurrency: 1})
		first := acquire(t, g, one)
		out := make(chan ended, 10)
		line(t.Context(), g, one, 3, out)
		line(t.Context(), g, other, 1, out)
		line(t.Context(), g, Job{PromotionID: 3, RatePerSecond: 7}, 2, out)
		g.CancelWaiting(1)
		g.CancelWaiting(3)
		g.CancelWaiting(4)
		for range 5 {
			if e := <-out; !errors.Is(e.err, ErrWaitCancelled) || e.job == other {
				t.Fatalf("%+v", e)
			}
		}
		first.Done(paid)
		if e := <-out; e.err != nil || e.job != other {
			t.Fatalf("%+v", e)
		}
	})

	fixture.OnFakeTime(t, "CloseSendsEverybodyAway", func(t *testing.T) {
		g := New(Config{MaxConcurrency: 1, RatePerSecond: 3, Rates: &LocalRates{}})
		first := acquire(t, g, one)
		out := make(chan ended, 10)
		line(t.Context(), g, one, 3, out)
		line(t.Context(), g, other, 1, out)
		g.Close()
		g.Close()
		for range 4 {
			if e := <-out; !errors.Is(e.err, ErrClosed) {
				t.Fatalf("%+v", e)
			}
		}
		if _, err := g.Acquire(t.Context(), one); !errors.Is(err, ErrClosed) {
			t.Errorf("error %v", err)
		}
		first.Done(paid)
		if s := g.State(); s.Open != 0 || len(s.Waiting) != 0 {
			t.Errorf("state %+v", s)
		}
	})

	t.Run("OpensNothingBeforeRetryAfterIsOver", func(t *testing.T) {
		t.Parallel()
		for name, tc := range map[string]struct {
			outcomes []Outcome
			want     time.Duration
		}{
			"429":         {slices.Repeat([]Outcome{{Class: reward.AnswerThrottled, Status: 429, RetryAfter: 7 * time.Second}}, payeesToBlock), 7 * time.Second},
			"503":         {slices.Repeat([]Outcome{{Class: reward.AnswerThrottled, Status: 503, RetryAfter: 3 * time.Second}}, payeesToBlock), 3 * time.Second},
			"TheLonger":   {append(slices.Repeat([]Outcome{{Class: reward.AnswerThrottled, Status: 429, RetryAfter: 9 * time.Second}}, payeesToBlock), Outcome{Class: reward.AnswerThrottled, Status: 429, RetryAfter: time.Second}), 9 * time.Second},
			"AtMost1Min":  {slices.Repeat([]Outcome{{Class: reward.AnswerThrottled, Status: 503, RetryAfter: time.Hour}}, payeesToBlock), time.Minute},
			"NotSaid":     {slices.Repeat([]Outcome{{Class: reward.AnswerThrottled, Status: 429}}, payeesToBlock), 0},
			"OtherStatus": {slices.Repeat([]Outcome{{Class: reward.AnswerFailed, Status: 500, RetryAfter: time.Minute}}, payeesToBlock), 0},
		} {
			fixture.OnFakeTime(t, name, func(t *testing.T) {
				g := newTest(t, Config{})
				var permits []*Permit
				for range tc.outcomes {
					permits = append(permits, acquire(t, g, one))
				}
				for i, o := range tc.outcomes {
					permits[i].Done(o)
				}
				began := time.Now()
				if until := g.State().BlockedUntil; tc.want > 0 && until.Sub(began).Round(time.Millisecond) != tc.want || tc.want == 0 && !until.IsZero() {
					t.Errorf("blocked until %v after", until.Sub(began))
				}
				acquire(t, g, other)
				if d := time.Since(began); d < tc.want || d > tc.want+2*time.Millisecond {
					t.Errorf("the next call opened after %v, want %v", d, tc.want)
				}
				if tc.want > 0 {
					return // the next call waits for the answer
				}
				acquire(t, g, one)
				if d := time.Since(began); d > tc.want+2*time.Millisecond {
					t.Errorf("the one after it after %v", d)
				}
			})
		}
	})
}

// TestGovernorUnderEverything throws all that can happen at a Governor.
func TestGovernorUnderEverything(t *testing.T) {
	t.Parallel()
	for seed := range uint64(12) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 5))
			cfg := Config{MaxConcurrency: 1 + random.IntN(100), Instances: func() int { return 1 + int(seed%3) }}
			if seed%2 == 0 {
				cfg.RatePerSecond = 1 + random.IntN(2000)
			}
			if seed%4 < 2 {
				cfg.Rates = &LocalRates{}
			}
			g := New(cfg)
			const workers = 60
			var open, acquired, returned atomic.Int64
			var group sync.WaitGroup
			for w := range workers {
				mine := rand.New(rand.NewPCG(seed, uint64(100+w)))
				id := reward.PromotionID(1 + w%7)
				group.Go(func() {
					for {
						ctx, cancel := context.WithTimeout(t.Context(), time.Duration(mine.IntN(5000))*time.Millisecond)
						job := Job{PromotionID: id, TargetID: reward.TargetID(mine.IntN(50)), HasTarget: true, Hangs: mine.IntN(5) == 0, Weight: mine.IntN(4)}
						if id%3 == 0 {
							job.RatePerSecond = mine.IntN(3) * 40
						}
						acquired.Add(1)
						p, err := g.Acquire(ctx, job)
						returned.Add(1)
						cancel()
						if errors.Is(err, ErrClosed) {
							return
						}
						if err != nil {
							time.Sleep(time.Millisecond)
							continue
						}
						if n := open.Add(1); int(n) > cfg.MaxConcurrency {
							t.Errorf("seed %d: %d calls open, at most %d", seed, n, cfg.MaxConcurrency)
						}
						time.Sleep(time.Duration(mine.IntN(300)) * time.Millisecond)
						open.Add(-1)
						p.Done(anyOutcome(mine))
					}
				})
			}
			for range 300 {
				time.Sleep(time.Duration(random.IntN(200)) * time.Millisecond)
				if random.IntN(4) == 0 {
					g.CancelWaiting(reward.PromotionID(1 + random.IntN(8)))
				}
				checkBooks(t, g)
			}
			g.Close()
			group.Wait()
			s := g.State()
			if s.Open != 0 || len(s.Waiting) != 0 || acquired.Load() != returned.Load() {
				t.Errorf("seed %d: %d asked, %d returned, state %+v", seed, acquired.Load(), returned.Load(), s)
			}
		})
	}
}

func anyOutcome(random *rand.Rand) Outcome {
	switch n := random.IntN(100); {
	case n < 3:
		return Outcome{Class: reward.AnswerThrottled, Status: 429, RetryAfter: time.Duration(random.IntN(3)) * time.Second}
	case n < 6:
		return Outcome{Class: reward.AnswerUnknown, Took: 5 * time.Second}
	case n < 30:
		return Outcome{Class: reward.AnswerFailed, Status: 500}
	case n < 35:
		return Outcome{Class: reward.AnswerNotSent, Local: n%2 == 0}
	}
	return Outcome{Class: reward.AnswerPaid, Status: 200, Took: time.Duration(random.IntN(300)) * time.Millisecond}
}

// checkBooks compares the counts that are kept with what is counted.
func checkBooks(t *testing.T, g *Governor) {
	t.Helper()
	g.mu.Lock()
	defer g.mu.Unlock()
	total, fresh, flows := 0, 0, 0
	var plain [2]int
	for _, f := range g.flows {
		n := 0
		for w := f.first; w != nil; w = w.next {
			n++
			if !w.job.Hangs {
				fresh++
			}
			if w.permit != nil || w.err != nil || w.flow != f {
				t.Errorf("promotion %v has an unexpected waiter", f.id)
			}
		}
		if n != f.waiting || (n > 0) != (f.in != inNone) {
			t.Errorf("promotion %v: %d wait, it counts %d, in heap %v", f.id, n, f.waiting, f.in)
		}
		total += n
		if f.lane == nil {
			plain[indexOf(f.hangs)] += n
		}
		if n > 0 {
			flows++
		}
	}
	heaps := g.kinds[0].ready.Len() + g.kinds[1].ready.Len() + g.parked.Len()
	if total != g.waiting() || plain != [2]int{g.kinds[0].plain, g.kinds[1].plain} || fresh != g.fresh || flows != heaps {
		t.Errorf("%d wait, it counts %d; %d without a rate, it counts %d; %d do not hang, it counts %d; %d promotions, %d in heaps",
			total, g.waiting(), plain, [2]int{g.kinds[0].plain, g.kinds[1].plain}, fresh, g.fresh, flows, heaps)
	}
	if most := max(g.cfg.MaxConcurrency/hangingPart, 1); g.kinds[1].open < 0 || g.kinds[1].open > min(g.open(), most) {
		t.Errorf("%d calls of payouts that hang are open, at most %d should be", g.kinds[1].open, most)
	}
	if g.open() < 0 || g.open() > g.cfg.MaxConcurrency || g.limit.now() < 1 || g.limit.now() > g.cfg.MaxConcurrency {
		t.Errorf("%d open, limit %d, at most %d", g.open(), g.limit.now(), g.cfg.MaxConcurrency)
	}
}
