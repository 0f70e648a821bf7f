package postgres

import (
	"strconv"
	"strings"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
)

// named replaces names in a statement by their numbers: states of payouts
// (:UNKNOWN), refusals of batches (:REFUSED_EPOCH), outcomes of coupon requests
// (:REQUEST_CLOSED), and statuses of coupons
// (:COUPON_CANCELLED). The numbers are literals, not parameters, so that the planner can use
// partial indexes.
var named = func() func(string) string {
	var pairs []string
	name := func(prefix, name string, n int) { pairs = append(pairs, ":"+prefix+name, strconv.Itoa(n)) }
	for s := range reward.StateCount {
		name("", s.String(), int(s))
	}
	for s := reward.CouponIssued; s <= reward.CouponHeld; s++ {
		name("COUPON_", s.String(), int(s))
	}
	for r, text := range map[rules.SettleRefusal]string{
		rules.NotRefused: "NOT", rules.RefusedEpoch: "EPOCH", rules.RefusedGeneration: "GENERATION",
		rules.RefusedPath: "PATH", rules.RefusedFence: "FENCE", rules.RefusedArchived: "ARCHIVED",
	} {
		name("REFUSED_", text, int(r))
	}
	name("REQUEST_", "NOT_OPEN", int(rules.RequestNotOpen))
	name("REQUEST_", "CLOSED", int(rules.RequestClosed))
	return strings.NewReplacer(pairs...).Replace
}()
