//go:build servers && load

package coupon

import (
	"testing"
	"time"

	"github.com/largesse/largesse/internal/reward"
)

// TestTheDatabasePathBeginsInTime checks that coupons are issued through the database
// within a second after coupon.fallback-after, although Redis hangs and refuses nothing.
func TestTheDatabasePathBeginsInTime(t *testing.T) {
	const fallbackAfter = 3 * time.Second
	for _, lasts := range []time.Duration{5 * time.Second, 30 * time.Second} {
		moved := exerciseHang(t, reward.ModeStream, lasts, fallbackAfter)
		if moved < fallbackAfter-time.Second || moved > fallbackAfter+time.Second {
			t.Errorf("a hang of %v: the database path began after %v", lasts, moved)
		}
	}
}
