package service

import "time"

// Clock is another machine's clock seen from this one.
type Clock struct {
	// Ahead is how far it is in front of ours; below zero: behind.
	Ahead time.Duration
	// RoundTrip is how long the answer took; Ahead is known to half of that.
	RoundTrip time.Duration
}

// clockSamples is how often a clock is asked; the quickest answer tells most.
const clockSamples = 3

// CompareClock asks another machine's clock for its time and compares it with
// ours, as if it had been read in the middle of the round trip.
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
	}
	return best, nil
}

// Skew is the least by which the clocks are apart: what half the round trip
// may explain counts for nothing.
func (c Clock) Skew() time.Duration { return max(c.Ahead.Abs()-c.RoundTrip/2, 0) }
