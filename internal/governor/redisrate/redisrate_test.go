package redisrate

import (
	"strings"
	"testing"

	"github.com/largesse/largesse/internal/lab/fixture"
)

func TestMain(m *testing.M) { fixture.Main(m) }

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
