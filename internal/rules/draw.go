package rules

import (
	"time"

	"github.com/largesse/largesse/internal/reward"
)

// TakesEntrants reports whether the draw of template t takes entrants at now: while it is
// OPEN, from Draw.From until the template opens.
func TakesEntrants(t *reward.CouponTemplate, now time.Time) bool {
	return t.Draw.State == reward.DrawOpen && !now.Before(t.Draw.From) && now.Before(t.OpensAt)
}
