package redisrate

import (
	"strings"
	"testing"

	"go.uber.org/goleak"
)

// The client's refresher of cluster slots sleeps through Close, for a second
// at most, and what closes its spare connections to a Cluster for five; nothing
// else may be left.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		goleak.IgnoreAnyFunction("github.com/redis/rueidis.(*call).DelayDo.func1"),
		goleak.IgnoreAnyFunction("github.com/redis/rueidis.(*clusterClient)._refresh.func2"))
}

func TestOpenSaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	for want, cfg := range map[string]Config{
		"redis.key-prefix": {URL: "redis://127.0.0.1:1", KeyPrefix: "{a}"},
		"127.0.0.1:1":      {URL: "redis://user:secret@127.0.0.1:1"},
	} {
		if _, err := Open(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("the error is %v", err)
		}
	}
}
