package auth

import (
	"context"
	"crypto/sha256"
	"errors"
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

	// These are protected by the mutex of the KeyVerifier.
	list    map[[sha256.Size]byte]bool // all keys, as of the last read
	readAt  time.Time                  // begin of the last read
	reads   int                        // number of reads
	reading chan struct{}              // closed at the end of the read that runs; nil: none
}

func newGuesses(rows apiKeys) *guesses {
	return &guesses{rows: rows, prefixes: NewLimits(wrongPerPrefix), all: NewLimits(wrongInAll)}
}

// many reports whether too many keys were wrong to read one more.
func (g *guesses) many(key KeySecret) bool {
	return g.prefixes.Exhausted(key.Prefix()) || g.all.Exhausted("")
}

func (g *guesses) wrong(key KeySecret) {
	_, _ = g.prefixes.Allow(key.Prefix()) // the key is refused anyway
	_, _ = g.all.Allow("")
}

// exists reports whether a key is in the list of all keys. If it is not, it waits for
// the next read of the list: the key may be new.
func (k *KeyVerifier) exists(ctx context.Context, hash [sha256.Size]byte) (bool, error) {
	g := k.guesses
	k.mu.Lock()
	defer k.mu.Unlock()
	after := g.reads
	if g.reading != nil {
		after++ // the key may be newer than the list that is being read
	}
	for {
		switch {
		case g.list[hash]:
			return true, nil
		case g.reads > after:
			return false, nil
		case g.reading == nil:
			if err := k.readListLocked(ctx); err != nil {
				return false, err
			}
			continue
		}
		done := g.reading
		k.mu.Unlock()
		select {
		case <-done:
		case <-ctx.Done():
		}
		k.mu.Lock()
		if ctx.Err() != nil {
			return false, ctx.Err()
		}
	}
}

// readListLocked reads the list for every caller that waits. It unlocks the mutex
// meanwhile. If it fails, for example because this caller leaves, another one reads.
func (k *KeyVerifier) readListLocked(ctx context.Context) error {
	g := k.guesses
	done := make(chan struct{})
	g.reading = done
	wait := time.Until(g.readAt.Add(listInterval))
	k.mu.Unlock()
	began := time.Now()
	list := make(map[[sha256.Size]byte]bool)
	err := ctx.Err()
	if wait <= 0 || service.Sleep(ctx, wait) {
		began = time.Now()
		err = readKeys(ctx, g.rows, list)
	}
	k.mu.Lock()
	g.reading = nil
	close(done)
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return err
	}
	g.list, g.readAt = list, began
	g.reads++
	return nil
}

func readKeys(ctx context.Context, rows apiKeys, list map[[sha256.Size]byte]bool) error {
	for before := int64(0); ; {
		page, err := rows.APIKeyList(ctx, before, listPage)
		if err != nil {
			return err
		}
		for _, key := range page {
			list[[sha256.Size]byte(key.Hash)] = true
			before = key.ID
		}
		if len(page) < listPage {
			return nil
		}
	}
}
