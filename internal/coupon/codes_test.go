package coupon

import (
	"regexp"
	"testing"

	"github.com/largesse/largesse/internal/reward"
)

// TestCodes checks that coupons of every mode have codes in the style of their
// template, and are found by them.
func TestCodes(t *testing.T) {
	t.Parallel()
	eachMode(t, allModes, func(r *rig, mode reward.IssueMode) {
		i := r.start()
		id := r.create(reward.CouponTemplate{
			TotalQuantity: 10, Mode: mode, Codes: reward.CodeStyle{Prefix: "MAY-", Length: 8, Alphabet: "0123456789"},
		})
		for _, user := range []string{"ann", "bob", "cid"} {
			c := r.take(i, id, user)
			if !regexp.MustCompile(`^MAY-[0-9]{8}$`).MatchString(c.Code) {
				r.Errorf("the code of %s is %s", user, c.Code)
			}
			if found, err := i.Catalog.CouponsByCode(r.Context(), c.Code, 10); err != nil || len(found) != 1 || found[0].ID != c.ID {
				r.Errorf("by its code: %+v, %v", found, err)
			}
		}
		r.balanced(id)
	})
}
