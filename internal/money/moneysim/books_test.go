package moneysim

import (
	"testing"
	"time"
)

// The ledger is told apart from the keys: a charge that slipped past them must
// be seen.
func TestMaxPerKeyCountsTheLedger(t *testing.T) {
	t.Parallel()
	b := newBooks()
	c := charge{key: key{1, 7}, amount: 10}
	b.receive(c.key, 1)
	b.charge(c, false)
	b.charge(c, true)
	if n := b.maxPerKey(); n != 1 {
		t.Fatalf("%d charges for a key", n)
	}
	s := b.shard(c.key)
	delete(s.keys, c.key) // the mistake
	b.charge(c, false)
	if n := b.maxPerKey(); n != 2 {
		t.Errorf("a second charge of the key went unseen: %d", n)
	}
}

func TestBusiest(t *testing.T) {
	t.Parallel()
	var a arrivals
	if n := a.busiest(time.Second); n != 0 {
		t.Errorf("%d before the first", n)
	}
	for _, at := range []int{0, 900, 1000, 1500, 1400, 1899, 2500} { // 1400 overtook 1500 and counts as 1500
		a.note(time.Duration(at) * time.Millisecond)
	}
	for window, want := range map[time.Duration]int{
		time.Nanosecond:         2, // the two at 1500
		400 * time.Millisecond:  3, // 1500, 1500, 1899
		time.Second:             5, // 900 to 1899; 1900 would be out
		999 * time.Millisecond:  4,
		1001 * time.Millisecond: 5,
		time.Hour:               7,
	} {
		if got := a.busiest(window); got != want {
			t.Errorf("%d within %v, want %d", got, window, want)
		}
	}
}
