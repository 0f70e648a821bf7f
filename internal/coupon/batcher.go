package coupon

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/largesse/largesse/internal/reward"
)

// callTimeout ends a call that a batcher makes for several callers.
const callTimeout = 3 * time.Second

// lateMax is how many calls in a row must reach their timeout until those who wait for
// the next call fail, too. A single one may have met a server or an instance without CPU
// for a moment.
const lateMax = 2

// batcher makes one call for several concurrent callers of the same template. A
// caller that comes while no call is in progress starts one at once. Callers that
// come during a call share the next one, in order of arrival. A batcher is safe for
// concurrent use.
type batcher[T any] struct {
	sizeMax int           // users of one call
	timeout time.Duration // of one call
	// call handles a batch and returns one result per user, in order.
	call func(ctx context.Context, id reward.TemplateID, users []string) ([]T, error)

	mu    sync.Mutex // protects lanes and what is in them
	lanes map[reward.TemplateID]*lane[T]
	open  sync.WaitGroup // goroutines that make calls, one per lane

	timers sync.Pool // of *time.Timer, for doUntil
}

// lane holds the callers of a template that wait for the next call. It exists
// while a call is in progress.
type lane[T any] struct{ waiting []*caller[T] }

type caller[T any] struct {
	ctx    context.Context
	until  time.Time // the caller waits no longer; zero: as long as ctx lasts
	user   string
	result T
	err    error
	done   chan struct{} // closed once result and err are set
}

func newBatcher[T any](sizeMax int, timeout time.Duration, call func(context.Context, reward.TemplateID, []string) ([]T, error)) *batcher[T] {
	return &batcher[T]{sizeMax: sizeMax, timeout: timeout, call: call, lanes: make(map[reward.TemplateID]*lane[T])}
}

// do returns the result for one user. If ctx ends first, do returns an error, but
// the call for this user may still be made.
func (b *batcher[T]) do(ctx context.Context, id reward.TemplateID, user string) (T, error) {
	return b.doUntil(ctx, time.Time{}, id, user)
}

// doUntil is do with a deadline, whose error is errLate. A timer costs a fraction of a
// context with a deadline.
func (b *batcher[T]) doUntil(ctx context.Context, until time.Time, id reward.TemplateID, user string) (T, error) {
	c := &caller[T]{ctx: ctx, until: until, user: user, done: make(chan struct{})}
	var late <-chan time.Time
	if !until.IsZero() {
		timer, used := b.timers.Get().(*time.Timer)
		if used {
			timer.Reset(time.Until(until))
		} else {
			timer = time.NewTimer(time.Until(until))
		}
		defer func() {
			timer.Stop()
			b.timers.Put(timer)
		}()
		late = timer.C
	}
	b.mu.Lock()
	l := b.lanes[id]
	if l == nil {
		l = &lane[T]{}
		b.lanes[id] = l
		b.open.Go(func() { b.run(id, l) })
	}
	l.waiting = append(l.waiting, c)
	b.mu.Unlock()
	select {
	case <-c.done:
		return c.result, c.err
	case <-ctx.Done():
		var none T
		return none, context.Cause(ctx)
	case <-late:
		var none T
		return none, errLate
	}
}

// left reports whether the caller waits no more.
func (c *caller[T]) left(now time.Time) bool {
	return c.ctx.Err() != nil || !c.until.IsZero() && !now.Before(c.until)
}

func (b *batcher[T]) failWaiting(l *lane[T], err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range l.waiting {
		c.err = err
		close(c.done)
	}
	l.waiting = nil
}

// run makes calls until no caller waits.
func (b *batcher[T]) run(id reward.TemplateID, l *lane[T]) {
	var users []string
	late := 0 // calls in a row that reached their timeout
	for {
		b.mu.Lock()
		n := min(len(l.waiting), b.sizeMax)
		if n == 0 {
			delete(b.lanes, id)
			b.mu.Unlock()
			return
		}
		batch := l.waiting[:n:n]
		l.waiting = l.waiting[n:]
		b.mu.Unlock()
		// Skip cancelled callers: their result is not read.
		present := batch[:0:0]
		users = users[:0]
		now := time.Now()
		for _, c := range batch {
			if !c.left(now) {
				present = append(present, c)
				users = append(users, c.user)
			}
		}
		if len(present) == 0 {
			continue
		}
		ctx, cancel := context.WithTimeout(context.Background(), b.timeout)
		results, err := b.call(ctx, id, users)
		cancel()
		for i, c := range present {
			if c.err = err; err == nil {
				c.result = results[i]
			}
			close(c.done)
		}
		if !errors.Is(err, context.DeadlineExceeded) {
			late = 0
		} else if late++; late == lateMax {
			// The server hangs, so fail the callers that wait for the next call.
			// Otherwise each batch would wait for the timeout in turn.
			late = 0
			b.failWaiting(l, err)
		}
	}
}
