package auth

import (
	"context"
	"crypto/sha256"
	"errors"
	"sync/atomic"
	"time"

	"github.com/largesse/largesse/internal/service"
)

// Wrong keys per second that each cost a read: of one prefix, and of all.
const (
	wrongPerPrefix = 10
	wrongInAll     = 100
)

const (
	// listInterval is the shortest time between two reads of the list of all keys.
	listInterval = time.Second
	listPage     = 1000
)

// ErrGuessed means that a key is wrong, and that many wrong ones came before it.
var ErrGuessed = errors.New("too many API keys were wrong")

// guesses slows down callers who try keys, without a read for each of them. While too
// many are wrong, a key is looked up only if it is in a list of all keys, which is read
// at most once per second for all callers together. So an existing key is never
// refused, although others guess from the same address and with the same prefix.
type guesses struct {
	rows     apiKeys
	prefixes *RateLimiter
	all      *RateLimiter

	list  atomic.Pointer[map[keyHash]bool] // all keys, as of the last read
	begun atomic.Int64                     // number of reads that have begun

	turn    chan struct{} // holds a value while a caller may read; protects what follows
	readAt  time.Time     // begin of the last read that succeeded
	covered int64         // its number
}

type keyHash = [sha256.Size]byte

func newGuesses(rows apiKeys) *guesses {
	g := &guesses{rows: rows, prefixes: NewLimits(wrongPerPrefix), all: NewLimits(wrongInAll), turn: make(chan struct{}, 1)}
	g.list.Store(&map[keyHash]bool{})
	return g
}

// many reports whether too many keys were wrong to read one more.
func (g *guesses) many(key KeySecret) bool {
	return g.prefixes.Exhausted(key.Prefix()) || g.all.Exhausted("")
}

func (g *guesses) wrong(key KeySecret) {
	_, _ = g.prefixes.Allow(key.Prefix()) // the key is refused anyway
	_, _ = g.all.Allow("")
}

// exists reports whether a key is in the list of all keys. If it is not, it waits for a
// read that begins from now on: the key may be new. One caller reads for all who wait; if
// it leaves, the next one reads.
func (g *guesses) exists(ctx context.Context, hash keyHash) (bool, error) {
	before := g.begun.Load()
	if (*g.list.Load())[hash] {
		return true, nil
	}
	select {
	case g.turn <- struct{}{}:
		defer func() { <-g.turn }()
	case <-ctx.Done():
		return false, ctx.Err()
	}
	if g.covered <= before {
		if err := g.read(ctx); err != nil {
			return false, err
		}
	}
	return (*g.list.Load())[hash], nil
}

// read reads the list of all keys, at most once per listInterval.
func (g *guesses) read(ctx context.Context) error {
	if wait := time.Until(g.readAt.Add(listInterval)); wait > 0 && !service.Sleep(ctx, wait) {
		return ctx.Err()
	}
	number, began := g.begun.Add(1), time.Now()
	list := make(map[keyHash]bool)
	for before, more := int64(0), true; more; {
		page, err := g.rows.APIKeyList(ctx, before, listPage)
		if err != nil {
			return err
		}
		for _, key := range page {
			list[keyHash(key.Hash)] = true
			before = key.ID
		}
		more = len(page) == listPage
	}
	g.list.Store(&list)
	g.readAt, g.covered = began, number
	return nil
}
