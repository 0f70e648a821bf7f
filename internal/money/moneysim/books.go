package moneysim

import (
	"crypto/rand"
	"fmt"
	"sync"
	"sync/atomic"
)

const shardCount = 256

// key is an idempotency key.
type key struct{ promotion, target int64 }

// entry is what the simulator knows about a key.
type entry struct {
	body   uint64 // fingerprint of the first request's body
	charge uint32 // number of its charge, from 1; 0: not charged
	tries  uint32 // requests with that body
}

// charge is one event of the ledger: a payment.
type charge struct {
	key
	amount   int64
	currency string
	voucher  bool
}

// shard holds the keys with the same hash.
type shard struct {
	mu   sync.Mutex // protects keys; taken before books.mu
	keys map[key]entry
}

// books is what the simulator has done since the last reset. The keys decide
// the responses. The append-only ledger records the charges, and all totals
// come from it, so that a mistake in the keys would show.
type books struct {
	// name is part of each transaction key, so that a simulator that starts again does
	// not repeat the keys that Largesse has stored.
	name       string
	shards     [shardCount]shard
	requests   atomic.Int64
	duplicates atomic.Int64
	openMax    atomic.Int64 // largest number of calls in flight
	arrivals   arrivals

	mu     sync.RWMutex // protects ledger, amount
	ledger []charge
	amount int64
}

func newBooks() *books {
	b := &books{name: rand.Text()[:6]}
	for i := range b.shards {
		b.shards[i].keys = make(map[key]entry)
	}
	return b
}

func (b *books) shard(k key) *shard {
	return &b.shards[mix(uint64(k.promotion)^mix(uint64(k.target)))%shardCount] //nolint:gosec // the bits are mixed, not counted
}

// opened records that n calls are in flight.
func (b *books) opened(n int64) {
	for {
		most := b.openMax.Load()
		if n <= most || b.openMax.CompareAndSwap(most, n) {
			return
		}
	}
}

// repeat records the copy of a received request. A copy is no attempt of its
// own, so it does not change the faults of later ones.
func (b *books) repeat(charged bool) {
	b.requests.Add(1)
	if charged {
		b.duplicates.Add(1)
	}
}

// receive records a request. It returns the number of the key's attempt (from
// 1) and whether the key is charged already. ok is false if the key came with
// another body before.
func (b *books) receive(k key, body uint64) (try uint32, charged, ok bool) {
	s := b.shard(k)
	s.mu.Lock()
	defer s.mu.Unlock()
	e, known := s.keys[k]
	if known && e.body != body {
		return 0, e.charge != 0, false
	}
	e.body = body
	e.tries++
	s.keys[k] = e
	if e.charge != 0 {
		b.duplicates.Add(1)
	}
	return e.tries, e.charge != 0, true
}

// charge pays for a received request, or finds its charge, and returns the
// transaction key. counted reports whether receive already saw the key as
// charged.
func (b *books) charge(c charge, counted bool) string {
	s := b.shard(c.key)
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.keys[c.key]
	if e.charge != 0 {
		if !counted {
			b.duplicates.Add(1)
		}
		return b.transactionKey(e.charge)
	}
	b.mu.Lock()
	b.ledger = append(b.ledger, c)
	b.amount += c.amount
	e.charge = uint32(len(b.ledger)) //nolint:gosec // 4 billion events do not fit in memory
	b.mu.Unlock()
	s.keys[c.key] = e
	return b.transactionKey(e.charge)
}

// chargeTwice is charge for a request that arrived twice at the same time.
func (b *books) chargeTwice(c charge, counted bool) string {
	var both sync.WaitGroup
	both.Go(func() { b.charge(c, counted) })
	key := b.charge(c, counted)
	both.Wait()
	return key
}

// transaction returns the transaction key of a charged key.
func (b *books) transaction(k key) (string, bool) {
	s := b.shard(k)
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.keys[k]
	return b.transactionKey(e.charge), e.charge != 0
}

func (b *books) transactionKey(number uint32) string {
	return fmt.Sprintf("MS-%s-%010d", b.name, number)
}

// events returns the current ledger. It may be read without a lock, because its
// events never change.
func (b *books) events() (ledger []charge, amount int64) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return b.ledger[:len(b.ledger):len(b.ledger)], b.amount
}

// maxPerKey counts the ledger's events per key, and returns the largest number.
func (b *books) maxPerKey() int {
	ledger, _ := b.events()
	most := 0
	times := make(map[key]int, len(ledger))
	for _, c := range ledger {
		times[c.key]++
		most = max(most, times[c.key])
	}
	return most
}
