package redisgate

import (
	"strings"
	"testing"

	"github.com/largesse/largesse/internal/gate"
	"github.com/largesse/largesse/internal/lab/fixture"
)

func TestMain(m *testing.M) { fixture.Main(m) }

func TestKeys(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ got, want string }{
		{StockKey("", 42), "coupon:{42}:stock"},
		{CountKey("", 42), "coupon:{42}:count"},
		{IssuedKey("", 42), "coupon:{42}:issued_total"},
		{LineKey("", 42), "coupon:queue-position:{42}"},
		{RequestsKey("", 42), "coupon:request-stream:{42}"},
		{OutcomesKey("", 42), "coupon:issue-stream:{42}"},
		{TemplateKey("", 42), "coupon:template:{42}"},
		{LockKey("", 42), "lock:coupon-template:{42}"},
		{StockKey("test:", 42), "test:coupon:{42}:stock"},
		{LockKey("test:", 42), "test:lock:coupon-template:{42}"},
		{hintChannel("test:"), "test:coupon-wake"},
	} {
		if c.got != c.want {
			t.Errorf("got %s, want %s", c.got, c.want)
		}
	}
	if !strings.Contains(headText, "'"+group+"'") {
		t.Errorf("head.lua does not use the group %s", group)
	}
}

// TestATemplateHasOneSlot checks that all keys of a template are different and have the
// same hash tag.
func TestATemplateHasOneSlot(t *testing.T) {
	t.Parallel()
	for _, prefix := range []string{"", "test:", "a b*"} {
		seen := map[string]bool{}
		for _, key := range append(allKeys(prefix, 42), lockKeys(prefix, 42)...) {
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
		"redis.url":        {URL: "http://user:secret@127.0.0.1:1"},
	} {
		if _, err := Open(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("the error is %v", err)
		}
	}
}
