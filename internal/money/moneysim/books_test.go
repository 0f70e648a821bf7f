package moneysim

import (
	"runtime"
	"testing"
)

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

// Not parallel: it measures the heap of the whole process.
func TestBooksAreLean(t *testing.T) {
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	const charges = 1_000_000
	before := heap()
	b := newBooks()
	for i := range int64(charges) {
		c := charge{key: key{1 + i%3, i}, amount: 1}
		b.receive(c.key, 1)
		b.charge(c, false)
	}
	used := heap() - before
	t.Logf("%d charges use %d MB", charges, used>>20)
	if used > 200<<20 {
		t.Errorf("%d charges use %d MB, more than 200", charges, used>>20)
	}
	if ledger, amount := b.events(); len(ledger) != charges || amount != charges {
		t.Errorf("%d events worth %d", len(ledger), amount)
	}
}

func BenchmarkBooks(b *testing.B) {
	books := newBooks()
	b.ReportAllocs()
	for i := range int64(b.N) {
		c := charge{key: key{1, i}, amount: 1}
		books.receive(c.key, 1)
		books.charge(c, false)
	}
}
