package postgres

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestLowWater(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var w lowWater
		due := time.Now()
		check := func(what string, want time.Time) {
			t.Helper()
			if got := w.get(1); !got.Equal(want) {
				t.Errorf("%s: the mark is %v, want %v", what, got, want)
			}
		}
		check("at first", time.Time{})
		w.dispatched(1, lowAfter-1, due)
		check("after few rows", time.Time{})
		w.dispatched(1, 1, due.Add(time.Second))
		check("after many rows", due.Add(time.Second))
		w.dispatched(1, 5, time.Time{})
		check("after a limited dispatch", due.Add(time.Second))
		if got := w.get(2); !got.IsZero() {
			t.Errorf("the mark of another promotion is %v", got)
		}
		time.Sleep(lowMaxAge)
		check("when it is old", time.Time{})
		check("after the scan from the start", due.Add(time.Second))
	})
}
