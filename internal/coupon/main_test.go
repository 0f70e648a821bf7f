package coupon

import (
	"testing"

	"go.uber.org/goleak"
)

// The Redis client's refresher of cluster slots sleeps through Close, for a
// second at most, and what closes its spare connections to a Cluster for five;
// nothing else may be left.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		goleak.IgnoreAnyFunction("github.com/redis/rueidis.(*call).DelayDo.func1"),
		goleak.IgnoreAnyFunction("github.com/redis/rueidis.(*clusterClient)._refresh.func2"))
}
