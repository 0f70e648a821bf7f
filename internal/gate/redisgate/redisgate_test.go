package redisgate

import (
	"strings"
	"testing"

	"github.com/largesse/largesse/internal/gate"
	"github.com/largesse/largesse/internal/lab/fixture"
)

func TestMain(m *testing.M) { fixture.Main(m) }

// TestATemplateHasOneSlot checks that all keys of a template are different and have the
// same hash tag.
func TestATemplateHasOneSlot(t *testing.T) {
	t.Parallel()
	for _, prefix := range []string{"", "test:", "a b*"} {
		seen := map[string]bool{}
		for _, key := range everyKey(prefix, 42) {
			_, rest, _ := strings.Cut(key, "{")
			if tag, _, closed := strings.Cut(rest, "}"); !closed || tag != "42" {
				t.Errorf("%s is not in the slot of {42}", key)
			}
			if seen[key] || !strings.HasPrefix(key, prefix) {
				t.Errorf("%s is used twice, or without the prefix %q", key, prefix)
			}
			seen[key] = true
		}
	}
}

func TestParseWake(t *testing.T) {
	t.Parallel()
	for message, want := range map[string]gate.Hint{
		"asked:7": {TemplateID: 7, Kind: gate.HintRequests}, "applied:42": {TemplateID: 42, Kind: gate.HintOutcomes},
	} {
		if got, ok := parseHint(message); !ok || got != want {
			t.Errorf("%q: %v, %v", message, got, ok)
		}
	}
	for _, message := range []string{"", "asked", "asked:", "asked:0", "asked:07", "other:7", "asked:7:8"} {
		if got, ok := parseHint(message); ok {
			t.Errorf("%q was accepted as %v", message, got)
		}
	}
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
