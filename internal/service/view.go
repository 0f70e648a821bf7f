package service

import (
	"context"
	"sync/atomic"
	"time"
)

// View keeps the result of the latest successful read, at regular intervals and after
// hints. Reads never overlap. It is safe for concurrent use.
type View[T any] struct {
	interval, settle time.Duration
	read             func(context.Context) (T, error)
	report           func(error)
	jitter           float64
	hint             Hint
	reading          chan struct{} // holds a value while a read runs

	latest atomic.Pointer[viewed[T]] // nil before the first read
}

// viewed is the result of a read.
type viewed[T any] struct {
	value  T
	readAt time.Time
}

// NewView returns a View without a value. Run reads once per interval, varied by a tenth,
// and settle after a hint, so that one read covers a burst of hints. read limits its own
// duration. report, if not nil, gets the result of each read once its value is in place,
// except of one that its context cancelled.
func NewView[T any](interval, settle time.Duration, read func(context.Context) (T, error), report func(error)) *View[T] {
	return &View[T]{
		interval: interval, settle: settle, jitter: 0.1, read: read, report: report,
		hint: NewHint(), reading: make(chan struct{}, 1),
	}
}

// Steady makes Run keep the interval exactly, and returns v. Call it before Run.
func (v *View[T]) Steady() *View[T] {
	v.jitter = 0
	return v
}

// Get returns the latest value, zero before the first, and a time right before its read:
// the value includes every change that was complete by then. Callers share it and must
// not change it.
func (v *View[T]) Get() (value T, readAt time.Time) {
	if r := v.latest.Load(); r != nil {
		return r.value, r.readAt
	}
	return value, readAt
}

// Hint makes Run read sooner. At least one read begins after the hint.
func (v *View[T]) Hint() { v.hint.Give() }

// Read reads now, after a read that runs. An error keeps the value.
func (v *View[T]) Read(ctx context.Context) error {
	select {
	case v.reading <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-v.reading }()
	v.hint.Take() // this read covers it
	readAt := time.Now()
	value, err := v.read(ctx)
	if err == nil {
		v.latest.Store(&viewed[T]{value, readAt})
	} else if ctx.Err() != nil {
		return err
	}
	if v.report != nil {
		v.report(err)
	}
	return err
}

// Run reads at once, and then again and again until ctx ends.
func (v *View[T]) Run(ctx context.Context) {
	for ctx.Err() == nil {
		_ = v.Read(ctx) // report has the error
		timer := time.NewTimer(Jitter(v.interval, v.jitter))
		select {
		case <-v.hint:
			Sleep(ctx, v.settle)
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
	}
}
