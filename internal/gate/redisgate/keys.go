package redisgate

import (
	"strings"

	"github.com/largesse/largesse/internal/gate"
	"github.com/largesse/largesse/internal/reward"
)

// group is the consumer group of every request stream; head.lua repeats it.
const group = "coupon-issue-group"

// Other systems may read the following keys of a template. The braces are part of
// the key, so that all keys of a template are in one slot.

// StockKey returns the key of the coupons left to promise, for example
// coupon:{42}:stock. Until more places are granted, the gate may promise less.
func StockKey(prefix string, id reward.TemplateID) string { return namedKey(prefix, id, "stock") }

// CountKey returns the key of the number of live coupons.
func CountKey(prefix string, id reward.TemplateID) string { return namedKey(prefix, id, "count") }

// IssuedKey returns the key of the number of coupons ever issued.
func IssuedKey(prefix string, id reward.TemplateID) string {
	return namedKey(prefix, id, "issued_total")
}

// LineKey returns the key of the waiting line, for example
// coupon:queue-position:{42}.
func LineKey(prefix string, id reward.TemplateID) string {
	return prefix + "coupon:queue-position:" + tag(id)
}

// RequestsKey returns the key of the request stream, for example
// coupon:request-stream:{42}.
func RequestsKey(prefix string, id reward.TemplateID) string {
	return prefix + "coupon:request-stream:" + tag(id)
}

// OutcomesKey returns the key of the outcome stream, for example
// coupon:issue-stream:{42}.
func OutcomesKey(prefix string, id reward.TemplateID) string {
	return prefix + "coupon:issue-stream:" + tag(id)
}

// TemplateKey returns the key of the state that the gate decides by, for example
// coupon:template:{42}.
func TemplateKey(prefix string, id reward.TemplateID) string {
	return prefix + "coupon:template:" + tag(id)
}

// LockKey returns the key of the SYNC lock, for example lock:coupon-template:{42}.
func LockKey(prefix string, id reward.TemplateID) string {
	return prefix + "lock:coupon-template:" + tag(id)
}

func tag(id reward.TemplateID) string { return "{" + id.String() + "}" }

func namedKey(prefix string, id reward.TemplateID, name string) string {
	return prefix + "coupon:" + tag(id) + ":" + name
}

// admitKeys returns the first KEYS of head.lua, which the hot path needs.
func admitKeys(prefix string, id reward.TemplateID) []string {
	return []string{
		TemplateKey(prefix, id), LineKey(prefix, id), RequestsKey(prefix, id), namedKey(prefix, id, "holders"), StockKey(prefix, id),
	}
}

// allKeys returns all KEYS of head.lua.
func allKeys(prefix string, id reward.TemplateID) []string {
	return append(admitKeys(prefix, id),
		CountKey(prefix, id), IssuedKey(prefix, id), OutcomesKey(prefix, id), namedKey(prefix, id, "loading"),
		namedKey(prefix, id, "loading-holders"), namedKey(prefix, id, "loading-requests"), namedKey(prefix, id, "loading-line"))
}

// lockKeys returns the KEYS of the lock's scripts.
func lockKeys(prefix string, id reward.TemplateID) []string {
	return []string{LockKey(prefix, id), namedKey(prefix, id, "lock-token")}
}

// everyKey returns all keys of a template.
func everyKey(prefix string, id reward.TemplateID) []string {
	return append(allKeys(prefix, id), lockKeys(prefix, id)...)
}

// hintChannel returns the channel of hints. A hint is a kind and a template, for
// example asked:42.
func hintChannel(prefix string) string { return prefix + "coupon-wake" }

// hintKinds maps the kinds of hints as the scripts write them.
var hintKinds = map[string]gate.HintKind{"asked": gate.HintRequests, "applied": gate.HintOutcomes}

func parseHint(message string) (gate.Hint, bool) {
	name, id, _ := strings.Cut(message, ":")
	kind, known := hintKinds[name]
	t, err := reward.ParseTemplateID(id)
	return gate.Hint{TemplateID: t, Kind: kind}, known && err == nil
}
