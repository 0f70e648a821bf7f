package coupon

import (
	"testing"

	"go.uber.org/goleak"
)

// TestMain checks that no goroutine is left, except two of the Redis client that end
// late: the refresh of the cluster slots after at most 1 s, and the close of spare
// connections to a Cluster after 5 s.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		goleak.IgnoreAnyFunction("github.com/redis/rueidis.(*call).DelayDo.func1"),
		goleak.IgnoreAnyFunction("github.com/redis/rueidis.(*clusterClient)._refresh.func2"))
}
