package redisgate

import (
	"strings"

	"github.com/largesse/largesse/internal/gate"
	"github.com/largesse/largesse/internal/reward"
)

// group is the one group of every request stream (head.lua has it too).
const group = "coupon-issue-group"

// The keys of a template that other systems may look at. The braces are part of
// the key: all of a template is in one slot.

// StockKey is what is left to promise, e.g. coupon:{42}:stock. While a Lower
// holds, less may be promised.
func StockKey(prefix string, id reward.TemplateID) string { return templateKey(prefix, id, "stock") }

// CountKey is how many coupons are live.
func CountKey(prefix string, id reward.TemplateID) string { return templateKey(prefix, id, "count") }

// IssuedKey is how many coupons were ever issued.
func IssuedKey(prefix string, id reward.TemplateID) string {
	return templateKey(prefix, id, "issued_total")
}

// LineKey is who waits, e.g. coupon:queue-position:{42}.
func LineKey(prefix string, id reward.TemplateID) string {
	return prefix + "coupon:queue-position:" + tag(id)
}

// RequestsKey is the request stream, e.g. coupon:request-stream:{42}.
func RequestsKey(prefix string, id reward.TemplateID) string {
	return prefix + "coupon:request-stream:" + tag(id)
}

// OutcomesKey is the outcome stream, e.g. coupon:issue-stream:{42}.
func OutcomesKey(prefix string, id reward.TemplateID) string {
	return prefix + "coupon:issue-stream:" + tag(id)
}

// TemplateKey is what the gate judges by, e.g. coupon:template:{42}.
func TemplateKey(prefix string, id reward.TemplateID) string {
	return prefix + "coupon:template:" + tag(id)
}

// LockKey is the SYNC lock, e.g. lock:coupon-template:{42}.
func LockKey(prefix string, id reward.TemplateID) string {
	return prefix + "lock:coupon-template:" + tag(id)
}

func tag(id reward.TemplateID) string { return "{" + id.String() + "}" }

func templateKey(prefix string, id reward.TemplateID, name string) string {
	return prefix + "coupon:" + tag(id) + ":" + name
}

// judgingKeys are the first KEYS of head.lua: all that asking takes.
func admitKeys(prefix string, id reward.TemplateID) []string {
	return []string{
		TemplateKey(prefix, id), LineKey(prefix, id), RequestsKey(prefix, id), templateKey(prefix, id, "holders"), StockKey(prefix, id),
	}
}

// allKeys are the KEYS of head.lua.
func allKeys(prefix string, id reward.TemplateID) []string {
	return append(admitKeys(prefix, id),
		CountKey(prefix, id), IssuedKey(prefix, id), OutcomesKey(prefix, id), templateKey(prefix, id, "loading"),
		templateKey(prefix, id, "loading-holders"), templateKey(prefix, id, "loading-gone"), templateKey(prefix, id, "loading-line"))
}

// lockKeys are the KEYS of the scripts of the lock.
func lockKeys(prefix string, id reward.TemplateID) []string {
	return []string{LockKey(prefix, id), templateKey(prefix, id, "lock-token")}
}

// wakeChannel carries hints: kind and template, e.g. asked:42.
func hintChannel(prefix string) string { return prefix + "coupon-wake" }

// wakeKinds are the kinds of hints as the scripts write them.
var hintKinds = map[string]gate.HintKind{"asked": gate.HintRequests, "applied": gate.HintOutcomes}

func parseHint(message string) (gate.Hint, bool) {
	name, id, _ := strings.Cut(message, ":")
	kind, known := hintKinds[name]
	t, err := reward.ParseTemplateID(id)
	return gate.Hint{TemplateID: t, Kind: kind}, known && err == nil
}
