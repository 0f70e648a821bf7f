//go:build nightly

package payout

import (
	"testing"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
)

// TestAHeldLockCostsOthersLittle compares how fast a promotion is paid while
// another one is locked, and without that.
func TestAHeldLockCostsOthersLittle(t *testing.T) {
	costsOthersLittle(t, "a locked promotion", func(n *neighbours) { n.lock(sick) })
}

// TestBrokenCountsCostOthersLittle does so while the counts of another one are
// broken.
func TestBrokenCountsCostOthersLittle(t *testing.T) {
	costsOthersLittle(t, "a promotion with broken counts", func(n *neighbours) {
		n.exec(`UPDATE summaries SET queued = 0 WHERE promotion_id = $1 AND summary_id = 0`, sick)
	})
}

func costsOthersLittle(t *testing.T, what string, fault func(n *neighbours)) {
	t.Helper()
	const targets, rounds = 5_000, 3
	n := newNeighbours(t)
	if err := n.flow.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	var free, beside float64 // seconds
	next := healthy
	pay := func() float64 {
		id := next
		next++
		n.create(id, targets)
		return n.pay(id, targets).Seconds()
	}
	pay() // warms up
	for range rounds {
		free += pay()
	}
	n.create(sick, 300)
	n.within(patience, "calling", func() bool { return n.callsOf(sick) >= calling })
	fault(n)
	n.open()
	n.within(patience, "in trouble", func() bool { return n.trouble(obs.PartOutcomes) != "" })
	for range rounds {
		beside += pay()
	}
	t.Logf("%d payouts take %.2f s, and %.2f s beside %s: %.2f of the throughput", rounds*targets, free, beside, what, free/beside)
	if free/beside < 0.9 {
		t.Errorf("%s leaves others %.2f of their throughput, want 0.9", what, free/beside)
	}
	if paid := n.get(sick).Counts.Payouts[reward.Succeeded]; paid != 0 {
		t.Errorf("%d payouts of %s were recorded", paid, what)
	}
}
