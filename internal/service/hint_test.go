package service

import (
	"sync"
	"testing"
)

func TestHint(t *testing.T) {
	t.Parallel()

	t.Run("HoldsOneHoweverManyAreGiven", func(t *testing.T) {
		t.Parallel()
		h := NewHint()
		var group sync.WaitGroup
		for range 8 {
			group.Go(h.Give)
		}
		group.Wait()
		if !h.Take() || h.Take() {
			t.Error("want exactly one hint")
		}
	})

	t.Run("WakesAReceiver", func(t *testing.T) {
		t.Parallel()
		h := NewHint()
		done := make(chan struct{})
		go func() {
			defer close(done)
			<-h
		}()
		h.Give()
		<-done
		if h.Take() {
			t.Error("the receiver left the hint behind")
		}
	})
}
