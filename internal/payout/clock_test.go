package payout

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// TestClock checks what the clock of the database is between reads, and while the
// database does not answer.
func TestClock(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const ahead, roundTrip = time.Hour, 100 * time.Millisecond
		reads := 0
		away := errFault
		c := &clock{read: func(context.Context) (time.Time, error) {
			reads++
			time.Sleep(roundTrip / 2)
			at := time.Now().Add(ahead)
			time.Sleep(roundTrip / 2)
			return at, away
		}}
		if _, _, err := c.between(t.Context()); err == nil {
			t.Error("the time is known although it was never read")
		}
		away, reads = nil, 0
		check := func(wantReads int) {
			t.Helper()
			earliest, latest, err := c.between(t.Context())
			now := time.Now().Add(ahead)
			if err != nil || earliest.After(now) || latest.Before(now) || latest.Sub(earliest) > roundTrip {
				t.Errorf("the time %v is between %v and %v, %v", now, earliest, latest, err)
			}
			if reads != wantReads {
				t.Errorf("the clock was read %d times, want %d", reads, wantReads)
			}
		}
		check(1)
		time.Sleep(clockInterval / 2)
		check(1)
		time.Sleep(clockInterval)
		check(2)
		away = errFault
		time.Sleep(2 * clockInterval)
		check(3) // failed: the earlier read still holds
		check(3) // not at once again
		time.Sleep(2 * clockBackoff)
		check(4)
		time.Sleep(clockAgeMax)
		if _, _, err := c.between(t.Context()); err == nil {
			t.Errorf("a read is trusted for more than %v", clockAgeMax)
		}
		away, reads = nil, 0
		check(1)
	})
}
