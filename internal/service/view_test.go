package service

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func TestView(t *testing.T) {
	t.Parallel()
	const interval, settle = time.Second, 20 * time.Millisecond

	// run starts v in the background until the test ends.
	run := func(t *testing.T, v *View[int]) (stop func()) {
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			v.Run(ctx)
		}()
		return func() {
			cancel()
			<-done
		}
	}

	onFakeTime(t, "SteadyKeepsTheIntervalExactly", func(t *testing.T) {
		var reads []time.Duration
		began := time.Now()
		v := NewView(interval, settle, func(context.Context) (int, error) {
			reads = append(reads, time.Since(began))
			return len(reads), nil
		}, nil).Steady()
		stop := run(t, v)
		time.Sleep(3*interval + interval/2)
		stop()
		if want := []time.Duration{0, interval, 2 * interval, 3 * interval}; !slices.Equal(reads, want) {
			t.Errorf("reads at %v, want %v", reads, want)
		}
	})

	onFakeTime(t, "ReadsAtOnceAndInIntervals", func(t *testing.T) {
		var reads []time.Time
		v := NewView(interval, settle, func(context.Context) (int, error) {
			reads = append(reads, time.Now())
			return len(reads), nil
		}, nil)
		if value, readAt := v.Get(); value != 0 || !readAt.IsZero() {
			t.Errorf("%d read at %v before the first read, want zero values", value, readAt)
		}
		began := time.Now()
		stop := run(t, v)
		time.Sleep(10 * interval)
		stop()
		if n := len(reads); n < 10 || n > 12 {
			t.Errorf("%d reads in 10 intervals", n)
		}
		if !reads[0].Equal(began) {
			t.Errorf("the first read began %v after Run", reads[0].Sub(began))
		}
		for i := range reads[1:] {
			if gap := reads[i+1].Sub(reads[i]); gap < 900*time.Millisecond || gap > 1100*time.Millisecond {
				t.Errorf("%v between reads, want 1s ± a tenth", gap)
			}
		}
		if value, readAt := v.Get(); value != len(reads) || !readAt.Equal(reads[len(reads)-1]) {
			t.Errorf("Get returns %d of %v", value, readAt)
		}
	})

	onFakeTime(t, "ReadAtIsBeforeTheRead", func(t *testing.T) {
		v := NewView(interval, settle, func(context.Context) (int, error) {
			time.Sleep(300 * time.Millisecond)
			return 1, nil
		}, nil)
		began := time.Now()
		if err := v.Read(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, readAt := v.Get(); !readAt.Equal(began) {
			t.Errorf("readAt is %v after the read began", readAt.Sub(began))
		}
	})

	onFakeTime(t, "ABurstOfHintsMakesOneReadAfterSettle", func(t *testing.T) {
		var reads []time.Time
		v := NewView(interval, settle, func(context.Context) (int, error) {
			reads = append(reads, time.Now())
			return len(reads), nil
		}, nil)
		stop := run(t, v)
		defer stop()
		synctest.Wait()
		hinted := time.Now()
		for range 5 {
			v.Hint()
			time.Sleep(settle / 10)
		}
		time.Sleep(interval / 2)
		synctest.Wait()
		if len(reads) != 2 || !reads[1].Equal(hinted.Add(settle)) {
			t.Errorf("reads at %v, want the second %v after %v", reads, settle, hinted)
		}
	})

	onFakeTime(t, "AHintDuringAReadMakesAnother", func(t *testing.T) {
		reads := 0
		var v *View[int]
		v = NewView(interval, settle, func(context.Context) (int, error) {
			if reads++; reads == 1 {
				v.Hint() // a change that this read may have missed
			}
			return reads, nil
		}, nil)
		stop := run(t, v)
		defer stop()
		time.Sleep(interval / 2)
		synctest.Wait()
		if reads != 2 {
			t.Errorf("%d reads, want 2", reads)
		}
	})

	onFakeTime(t, "KeepsTheValueAndItsTimeWhenAReadFails", func(t *testing.T) {
		away := errors.New("away")
		var results []error
		var fail error
		var v *View[int]
		v = NewView(interval, settle, func(context.Context) (int, error) { return 7, fail },
			func(err error) {
				if value, _ := v.Get(); value != 7 {
					t.Errorf("report runs before the value is in place: %d", value)
				}
				results = append(results, err)
			})
		readAt := time.Now()
		if err := v.Read(t.Context()); err != nil {
			t.Fatal(err)
		}
		fail = away
		time.Sleep(time.Second)
		if err := v.Read(t.Context()); !errors.Is(err, away) {
			t.Errorf("error %v", err)
		}
		if value, at := v.Get(); value != 7 || !at.Equal(readAt) {
			t.Errorf("%d of %v, want the value of the good read", value, at)
		}
		fail = nil
		if err := v.Read(t.Context()); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(results, []error{nil, away, nil}) {
			t.Errorf("reported %v", results)
		}
	})

	onFakeTime(t, "ReadsNeverOverlapAndWaitersKeepTheirContext", func(t *testing.T) {
		reading, most := 0, 0
		v := NewView(interval, settle, func(ctx context.Context) (int, error) {
			reading++
			most = max(most, reading)
			Sleep(ctx, 10*interval)
			reading--
			return 1, nil
		}, nil)
		stop := run(t, v)
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), interval)
		defer cancel()
		if err := v.Read(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v", err)
		}
		if err := v.Read(t.Context()); err != nil {
			t.Error(err)
		}
		stop()
		if most != 1 {
			t.Errorf("%d reads at once", most)
		}
	})

	onFakeTime(t, "ReportsNoReadThatWasCancelled", func(t *testing.T) {
		v := NewView(interval, settle, func(ctx context.Context) (int, error) {
			<-ctx.Done()
			return 0, ctx.Err()
		}, func(err error) { t.Errorf("reported %v", err) })
		stop := run(t, v)
		synctest.Wait()
		stop()
	})
}
