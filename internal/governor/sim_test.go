package governor

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/largesse/largesse/internal/reward"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var paid = Outcome{Class: reward.AnswerPaid, Status: 200}

// provider is a simulated one: it notes when calls began and answers each after
// a while. The fields that are functions are read under mu.
type provider struct {
	mu    sync.Mutex                            // protects the rest
	takes func(open int) time.Duration          // how long a call takes that finds so many open
	says  func(n int, at time.Duration) Outcome // call n, from 0, begun at; nil: paid
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
	p, err := g.Acquire(t.Context(), job)
	if err != nil {
		t.Fatal(err)
	}
	return p
}
