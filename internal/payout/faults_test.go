package payout

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/queue"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

func TestMain(m *testing.M) { fixture.Main(m) }

var errFault = errors.New("injected fault")

// faults fails one step of a run.
type faults struct {
	at    int
	after bool // fail after doing the step

	mu   sync.Mutex // protects step, hit
	step int
	hit  string
}

func (f *faults) name() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.hit
}

func (f *faults) do(name string, call func() error) error {
	if f == nil {
		return call()
	}
	f.mu.Lock()
	f.step++
	hit := f.step == f.at
	if hit {
		f.hit = name
	}
	f.mu.Unlock()
	if hit && !f.after {
		return errFault
	}
	if err := call(); err != nil {
		return err
	}
	if hit {
		return errFault
	}
	return nil
}

// faultyStore is a store whose writes, and reads between them, can fail.
type faultyStore struct {
	Store
	faults *faults
	blind  atomic.Bool // PromotionChanges fails
	away   atomic.Bool // PayoutFinish fails
}

// stepped runs a call that returns a result as a step.
func stepped[T any](f *faults, name string, call func() (T, error)) (T, error) {
	var out T
	err := f.do(name, func() (err error) { out, err = call(); return err })
	return out, err
}

func (s *faultyStore) PromotionChanges(ctx context.Context, since string) (store.PromotionChanges, error) {
	if s.blind.Load() {
		return store.PromotionChanges{}, errFault
	}
	return s.Store.PromotionChanges(ctx, since)
}

func (s *faultyStore) PromotionComplete(ctx context.Context, id reward.PromotionID, after time.Duration, now time.Time) (bool, error) {
	return stepped(s.faults, "PromotionComplete", func() (bool, error) { return s.Store.PromotionComplete(ctx, id, after, now) })
}

func (s *faultyStore) PayoutDispatch(ctx context.Context, p store.PayoutDispatchParams) ([]reward.Payout, error) {
	return stepped(s.faults, "PayoutDispatch", func() ([]reward.Payout, error) { return s.Store.PayoutDispatch(ctx, p) })
}

func (s *faultyStore) PayoutReturn(ctx context.Context, p store.PayoutReturnParams) (int, error) {
	return stepped(s.faults, "PayoutGiveBack", func() (int, error) { return s.Store.PayoutReturn(ctx, p) })
}

func (s *faultyStore) PayoutSweep(ctx context.Context, p store.PayoutSweepParams) (int, error) {
	return stepped(s.faults, "PayoutSweep", func() (int, error) { return s.Store.PayoutSweep(ctx, p) })
}

func (s *faultyStore) PayoutGetMany(ctx context.Context, ids []store.PayoutID) ([]reward.Payout, error) {
	return stepped(s.faults, "PayoutHeads", func() ([]reward.Payout, error) { return s.Store.PayoutGetMany(ctx, ids) })
}

func (s *faultyStore) PayoutFinish(ctx context.Context, p store.PayoutFinishParams) ([]store.FinishResult, error) {
	if s.away.Load() {
		return nil, errFault
	}
	return stepped(s.faults, "PayoutFinish", func() ([]store.FinishResult, error) { return s.Store.PayoutFinish(ctx, p) })
}

func (s *faultyStore) PayoutSettle(ctx context.Context, p store.PayoutSettleParams) ([]store.SecondCharge, error) {
	return stepped(s.faults, "PayoutSettle", func() ([]store.SecondCharge, error) { return s.Store.PayoutSettle(ctx, p) })
}

// faultyQueue is a queue whose calls can fail.
type faultyQueue struct {
	queue.Queue
	faults *faults
}

func (q *faultyQueue) Add(ctx context.Context, p queue.AddParams) (int, error) {
	return stepped(q.faults, "Add", func() (int, error) { return q.Queue.Add(ctx, p) })
}

func (q *faultyQueue) Create(ctx context.Context, s queue.Stream, consumers []string) (bool, error) {
	return stepped(q.faults, "Create", func() (bool, error) { return q.Queue.Create(ctx, s, consumers) })
}

func (q *faultyQueue) Read(ctx context.Context, s queue.Stream, reads []queue.ReadParams) ([]queue.Entry, error) {
	entries, err := q.Queue.Read(ctx, s, reads)
	if err != nil || len(entries) == 0 {
		return entries, err // empty polls are not steps, because there are too many
	}
	return entries, q.faults.do("Read", func() error { return nil })
}

func (q *faultyQueue) Claim(ctx context.Context, p queue.ClaimParams) (queue.Claimed, error) {
	claimed, err := q.Queue.Claim(ctx, p)
	if err != nil || len(claimed.Entries) == 0 {
		return claimed, err
	}
	return claimed, q.faults.do("Claim", func() error { return nil })
}

func (q *faultyQueue) Ack(ctx context.Context, s queue.Stream, ids []string) error {
	return q.faults.do("Ack", func() error { return q.Queue.Ack(ctx, s, ids) })
}

func (f *faults) steps() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.step
}
