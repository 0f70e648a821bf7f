package moneysim

import "testing"

// The ledger is told apart from the keys: a charge that slipped past them must
// be seen.
func TestMaxPerKeyCountsTheLedger(t *testing.T) {
	t.Parallel()
	b := newBooks()
	c := charge{key: key{1, 7}, amount: 10}
	b.receive(c.key, 1)
	b.charge(c, false)
	b.charge(c, true)
	if n := b.maxPerKey(); n != 1 {
		t.Fatalf("%d charges for a key", n)
	}
	s := b.shard(c.key)
	delete(s.keys, c.key) // the mistake
	b.charge(c, false)
	if n := b.maxPerKey(); n != 2 {
		t.Errorf("a second charge of the key went unseen: %d", n)
	}
}
