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
}

// between returns two times. The database's clock is not before the first and not
// after the second one. They differ by the duration of the latest read.
func (c *clock) between(ctx context.Context) (earliest, latest time.Time, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	passed := now.Sub(c.ended) // by the monotonic clock
	jump := now.Round(0).Sub(c.ended.Round(0)) - passed
	unknown := c.ended.IsZero() || passed > clockAgeMax || jump.Abs() > clockJump
	if unknown || passed > clockInterval && now.Sub(c.failedAt) > clockBackoff {
		if err := c.refresh(ctx); err != nil {
			if unknown {
				return time.Time{}, time.Time{}, err
			}
			c.failedAt = time.Now()
		}
		now = time.Now()
	}
	return c.at.Add(now.Sub(c.ended)), c.at.Add(now.Sub(c.began)), nil
}

func (c *clock) refresh(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, clockTimeout)
	defer cancel()
	began := time.Now()
	at, err := c.read(ctx)
	if err != nil {
		return fmt.Errorf("read the clock of the database: %w", err)
	}
	c.at, c.began, c.ended = at, began, time.Now()
	return nil
}
