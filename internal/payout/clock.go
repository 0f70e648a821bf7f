package payout

import (
	"context"
	"fmt"
	"sync"
	"time"
)

const (
	clockInterval = 10 * time.Second // between reads of the database's clock
	clockTimeout  = 2 * time.Second  // of a read
	clockBackoff  = time.Second      // after a failed read
	// clockAgeMax is the age of a read above which the time is not known any more.
	clockAgeMax = 5 * time.Minute
	// clockJump is a difference between the wall clock of this host and the time
	// that has passed. A larger one means that the clock was set or that the host
	// was suspended.
	clockJump = time.Second
)

// clock tells the time of the database. Instances have clocks of their own, which
// may be wrong; a "not found" must not be judged by them. It reads the time of the
// database now and then, and adds the time that has passed since. It is safe for
// concurrent use.
type clock struct {
	read func(ctx context.Context) (time.Time, error)

	mu           sync.Mutex // protects the fields below
	at           time.Time  // of the database, at the latest read
	began, ended time.Time  // of that read, on this host; zero before the first one
	failedAt     time.Time  // the latest failed read since
	reading      bool       // a call reads the clock
}

// between returns two times. The database's clock is not before the first and not
// after the second one. They differ by the duration of the latest read.
func (c *clock) between(ctx context.Context) (earliest, latest time.Time, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	unknown := !c.known(now)
	if unknown || now.Sub(c.ended) > clockInterval && !c.reading && now.Sub(c.failedAt) > clockBackoff {
		c.reading = true
		c.mu.Unlock() // others use the time that is known
		at, began, ended, err := c.ask(ctx)
		c.mu.Lock()
		c.reading = false
		now = time.Now()
		switch {
		case err == nil:
			c.at, c.began, c.ended = at, began, ended
		case unknown && !c.known(now): // no other call has read it meanwhile
			return time.Time{}, time.Time{}, err
		default:
			c.failedAt = now
		}
	}
	return c.at.Add(now.Sub(c.ended)), c.at.Add(now.Sub(c.began)), nil
}

// known reports whether the latest read still tells the time. The caller holds mu.
func (c *clock) known(now time.Time) bool {
	passed := now.Sub(c.ended) // by the monotonic clock
	jump := now.Round(0).Sub(c.ended.Round(0)) - passed
	return !c.ended.IsZero() && passed <= clockAgeMax && jump.Abs() <= clockJump
}

// ask reads the time of the database, and returns when the read began and ended.
func (c *clock) ask(ctx context.Context) (at, began, ended time.Time, err error) {
	ctx, cancel := context.WithTimeout(ctx, clockTimeout)
	defer cancel()
	began = time.Now()
	at, err = c.read(ctx)
	if err != nil {
		return at, began, ended, fmt.Errorf("read the clock of the database: %w", err)
	}
	return at, began, time.Now(), nil
}
