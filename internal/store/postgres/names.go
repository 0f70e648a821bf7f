package postgres

import (
	"strconv"
	"strings"

	"github.com/largesse/largesse/internal/reward"
)

// named replaces the states of payouts in a statement (:UNKNOWN) by their numbers. These are
// literals, not parameters, so that the planner can use partial indexes.
var named = func() func(string) string {
	var pairs []string
	for s := range reward.StateCount {
		pairs = append(pairs, ":"+s.String(), strconv.Itoa(int(s)))
	}
	return strings.NewReplacer(pairs...).Replace
}()
