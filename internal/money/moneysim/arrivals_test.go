package moneysim

import (
	"testing"
	"time"
)

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
