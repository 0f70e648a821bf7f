package service

import (
	"errors"
	"testing"
	"time"
)

func TestCompareClock(t *testing.T) {
	t.Parallel()

	onFakeTime(t, "TakesTheMiddleOfTheQuickestRoundTrip", func(t *testing.T) {
		pauses := []time.Duration{800 * time.Millisecond, 100 * time.Millisecond, time.Second}
		clock, err := CompareClock(func() (time.Time, error) {
			pause := pauses[0]
			pauses = pauses[1:]
			time.Sleep(pause / 2)
			theirs := time.Now().Add(3 * time.Second)
			time.Sleep(pause / 2)
			return theirs, nil
		})
		if err != nil || clock != (Clock{Ahead: 3 * time.Second, RoundTrip: 100 * time.Millisecond}) {
			t.Errorf("%+v, error %v", clock, err)
		}
	})

	onFakeTime(t, "AsksOnceIfTheRoundTripIsQuick", func(t *testing.T) {
		asked := 0
		clock, err := CompareClock(func() (time.Time, error) {
			asked++
			time.Sleep(time.Millisecond)
			return time.Now(), nil
		})
		if err != nil || asked != 1 || clock.RoundTrip != time.Millisecond {
			t.Errorf("%d requests, %+v, error %v", asked, clock, err)
		}
	})

	t.Run("FailsWithTheAsking", func(t *testing.T) {
		t.Parallel()
		broken := errors.New("no answer")
		if _, err := CompareClock(func() (time.Time, error) { return time.Time{}, broken }); !errors.Is(err, broken) {
			t.Errorf("error %v", err)
		}
	})

	t.Run("HalfTheRoundTripIsNoSkew", func(t *testing.T) {
		t.Parallel()
		for _, tc := range []struct{ ahead, trip, want time.Duration }{
			{0, 0, 0},
			{time.Second, 2 * time.Second, 0},
			{-time.Second, 2 * time.Second, 0},
			{2 * time.Second, time.Second, 1500 * time.Millisecond},
			{-2 * time.Second, time.Second, 1500 * time.Millisecond},
		} {
			if got := (Clock{Ahead: tc.ahead, RoundTrip: tc.trip}).Skew(); got != tc.want {
				t.Errorf("%v ahead, round trip %v: skew %v, want %v", tc.ahead, tc.trip, got, tc.want)
			}
		}
	})
}
