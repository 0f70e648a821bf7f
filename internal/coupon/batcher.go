package coupon

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/largesse/largesse/internal/reward"
)

// callTimeout bounds a call that several askers share.
const callTimeout = 3 * time.Second

// batcher makes one call of what several ask of one template at a time. One
// alone goes at once; those who come while a call is open go together with the
// next, in the order in which they came, at most most of them. So nobody waits
// for longer than the call before his own.
type batcher[T any] struct {
	sizeMax int
	timeout time.Duration // of a call
	// call answers a batch, one answer per user, in order.
	call func(ctx context.Context, id reward.TemplateID, users []string) ([]T, error)

	mu    sync.Mutex // protects lanes and what is in them
	lanes map[reward.TemplateID]*lane[T]
	open  sync.WaitGroup // lanes that make calls
}

// lane is the askers of a template who wait for the next call. It is there for
// as long as a call is open.
type lane[T any] struct{ waiting []*caller[T] }

type caller[T any] struct {
	ctx    context.Context
	user   string
	answer T
	err    error
	done   chan struct{}
}

func newBatcher[T any](most int, timeout time.Duration, call func(context.Context, reward.TemplateID, []string) ([]T, error)) *batcher[T] {
	return &batcher[T]{sizeMax: most, timeout: timeout, call: call, lanes: make(map[reward.TemplateID]*lane[T])}
}

// ask waits for the answer, or for the end of ctx: whether the user was asked
// for is not known then.
func (b *batcher[T]) do(ctx context.Context, id reward.TemplateID, user string) (T, error) {
	a := &caller[T]{ctx: ctx, user: user, done: make(chan struct{})}
	b.mu.Lock()
	l := b.lanes[id]
	if l == nil {
		l = &lane[T]{}
		b.lanes[id] = l
		b.open.Go(func() { b.run(id, l) })
	}
	l.waiting = append(l.waiting, a)
	b.mu.Unlock()
	select {
	case <-a.done:
		return a.answer, a.err
	case <-ctx.Done():
		var none T
		return none, context.Cause(ctx)
	}
}

// fail answers everybody who waits.
func (b *batcher[T]) fail(l *lane[T], err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, a := range l.waiting {
		a.err = err
		close(a.done)
	}
	l.waiting = nil
}

// run makes calls until nobody waits.
func (b *batcher[T]) run(id reward.TemplateID, l *lane[T]) {
	var users []string
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
		// Who has gone is not asked for.
		here := batch[:0:0]
		users = users[:0]
		for _, a := range batch {
			if a.ctx.Err() == nil {
				here = append(here, a)
				users = append(users, a.user)
			}
		}
		if len(here) == 0 {
			continue
		}
		ctx, cancel := context.WithTimeout(context.Background(), b.timeout)
		answers, err := b.call(ctx, id, users)
		cancel()
		for i, a := range here {
			if a.err = err; err == nil {
				a.answer = answers[i]
			}
			close(a.done)
		}
		if errors.Is(err, context.DeadlineExceeded) {
			b.fail(l, err) // a server that hangs would have each batch wait in turn
		}
	}
}
