package service

import "time"

// Clock is another machine's clock compared with this one.
type Clock struct {
	Ahead     time.Duration // negative: behind
	RoundTrip time.Duration // of the request; Ahead is accurate to half of it
}

const (
	clockSamples = 3                     // requests at most; the fastest one is the most accurate
	clockQuick   = 10 * time.Millisecond // round trip that is accurate enough, so that no other request follows
)

// CompareClock requests the time of another machine and compares it with the
// local time in the middle of the round trip.
func CompareClock(ask func() (time.Time, error)) (Clock, error) {
	var best Clock
	for i := range clockSamples {
		asked := time.Now()
		theirs, err := ask()
		if err != nil {
			return Clock{}, err
		}
		took := time.Since(asked)
		if i == 0 || took < best.RoundTrip {
			best = Clock{Ahead: theirs.Sub(asked.Add(took / 2)), RoundTrip: took}
		}
		if took <= clockQuick {
			break
		}
	}
	return best, nil
}

// Skew returns the smallest possible difference of the clocks: half the round
// trip may explain the rest.
func (c Clock) Skew() time.Duration { return max(c.Ahead.Abs()-c.RoundTrip/2, 0) }
