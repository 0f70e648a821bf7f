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
func StockKey(prefix string, id reward.TemplateID) string { return beside(prefix, id, "stock") }

// CountKey is how many coupons are live.
func CountKey(prefix string, id reward.TemplateID) string { return beside(prefix, id, "count") }

// IssuedKey is how many coupons were ever issued.
func IssuedKey(prefix string, id reward.TemplateID) string { return beside(prefix, id, "issued_total") }

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

func beside(prefix string, id reward.TemplateID, name string) string {
	return prefix + "coupon:" + tag(id) + ":" + name
}

// judgingKeys are the first KEYS of head.lua: all that asking takes.
func judgingKeys(prefix string, id reward.TemplateID) []string {
	return []string{
		TemplateKey(prefix, id), LineKey(prefix, id), RequestsKey(prefix, id), beside(prefix, id, "holders"), StockKey(prefix, id),
	}
}

// allKeys are the KEYS of head.lua.
func allKeys(prefix string, id reward.TemplateID) []string {
	return append(judgingKeys(prefix, id),
		CountKey(prefix, id), IssuedKey(prefix, id), OutcomesKey(prefix, id), beside(prefix, id, "loading"),
		beside(prefix, id, "loading-holders"), beside(prefix, id, "loading-gone"), beside(prefix, id, "loading-line"))
}

// lockKeys are the KEYS of the scripts of the lock.
func lockKeys(prefix string, id reward.TemplateID) []string {
	return []string{LockKey(prefix, id), beside(prefix, id, "lock-token")}
}

// wakeChannel carries hints: kind and template, e.g. asked:42.
func wakeChannel(prefix string) string { return prefix + "coupon-wake" }

// wakeKinds are the kinds of hints as the scripts write them.
var wakeKinds = map[string]gate.WakeKind{"asked": gate.Asked, "applied": gate.Applied}

func parseWake(message string) (gate.Wake, bool) {
	name, id, _ := strings.Cut(message, ":")
	kind, known := wakeKinds[name]
	t, err := reward.ParseTemplateID(id)
	return gate.Wake{TemplateID: t, Kind: kind}, known && err == nil
}
