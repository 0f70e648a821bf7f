package engine

import (
	"context"
	"errors"
	"maps"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/lab/fixture"
)

func TestPulse(t *testing.T) {
	t.Parallel()

	fixture.OnFakeTime(t, "AsksAllAtOnceAndNoLongerThanASecond", func(t *testing.T) {
		silent := func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		}
		p := pulse{parts: map[string]func(context.Context) error{
			"store": func(context.Context) error { time.Sleep(900 * time.Millisecond); return nil },
			"queue": silent, "kafka": silent,
			"other": func(context.Context) error { return errors.New("refused") },
		}}
		began := time.Now()
		up := p.up()
		if want := map[string]bool{"store": true, "queue": false, "kafka": false, "other": false}; !maps.Equal(up, want) {
			t.Errorf("%v, want %v", up, want)
		}
		if took := time.Since(began); took != time.Second {
			t.Errorf("it took %s", took)
		}
	})

	fixture.OnFakeTime(t, "OneRoundAtATime", func(t *testing.T) {
		var rounds atomic.Int32
		p := pulse{parts: map[string]func(context.Context) error{"queue": func(context.Context) error {
			rounds.Add(1)
			time.Sleep(500 * time.Millisecond)
			return nil
		}}}
		var callers sync.WaitGroup
		for range 10 {
			callers.Go(func() {
				if !p.up()["queue"] {
					t.Error("a caller got no result")
				}
			})
		}
		callers.Wait()
		if n := rounds.Load(); n != 1 {
			t.Errorf("%d rounds for concurrent callers", n)
		}
		if p.up(); rounds.Load() != 2 {
			t.Errorf("%d rounds: an old answer is none", rounds.Load())
		}
	})
}
