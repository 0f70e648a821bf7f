package auth

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/service"
	"github.com/largesse/largesse/internal/store"
)

const (
	// keyMark begins every API key, so that one that has leaked can be found.
	keyMark = "lgs_"
	// prefixLen is how much of a key is shown after its mark.
	prefixLen = 8
	// keyFresh is how long what was read of a key counts: a key that is revoked
	// is refused within that and the time of a read.
	keyFresh = 500 * time.Millisecond
	// keysMost bounds the keys that are remembered, known ones and unknown ones.
	keysMost = 10_000
	// usedEvery is how often it is written down which keys were used.
	usedEvery = time.Minute
	usedWait  = 5 * time.Second
)

// KeyText is the secret text of an API key, which only its owner has.
type KeyText string

// NewKeyText makes the text of a key: 256 random bits behind a mark.
func NewKeyText() KeyText {
	return KeyText(keyMark + strings.ToLower(rand.Text()+rand.Text()))
}

// IsKeyText tells an API key from other bearer tokens.
func IsKeyText(token string) bool { return strings.HasPrefix(token, keyMark) }

// Prefix is the part that may be shown.
func (k KeyText) Prefix() string { return string(k[:min(len(k), len(keyMark)+prefixLen)]) }

// Hash is what is stored of a key. The text has too many bits to be guessed, so
// a slow hash would only cost time at each call.
func (k KeyText) Hash() []byte {
	sum := sha256.Sum256([]byte(k))
	return sum[:]
}

// Keys verifies API keys by the rows, of which it remembers each for half a
// second.
type Keys struct {
	service.Base
	rows store.APIKeys
	log  obs.Log

	mu    sync.Mutex // protects what follows
	known map[[sha256.Size]byte]*knownKey
	used  map[int64]time.Time // since they were last written down
}

// knownKey is what was read of a key, or is being read.
type knownKey struct {
	read  chan struct{} // closed once the rest is there
	at    time.Time
	key   store.APIKey
	err   error
	found bool
}

// NewKeys makes Keys. Start makes it write down which keys were used.
func NewKeys(rows store.APIKeys, log obs.Log) *Keys {
	return &Keys{
		rows: rows, log: log.For(obs.API),
		known: make(map[[sha256.Size]byte]*knownKey), used: make(map[int64]time.Time),
	}
}

// Start writes down which keys were used, once a minute and at Stop.
func (k *Keys) Start(ctx context.Context) {
	k.Base.Start(ctx, func(ctx context.Context) {
		for service.Sleep(ctx, usedEvery) {
			k.writeUsed(ctx)
		}
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), usedWait)
		defer cancel()
		k.writeUsed(last)
	})
}

func (k *Keys) writeUsed(ctx context.Context) {
	k.mu.Lock()
	used := k.used
	k.used = make(map[int64]time.Time)
	k.mu.Unlock()
	if len(used) == 0 {
		return
	}
	if err := k.rows.APIKeyUsed(ctx, used); err != nil && ctx.Err() == nil {
		k.log.Warn(obs.Failed, err, "what", "last use of API keys")
	}
}

// Verify finds the principal of a key.
func (k *Keys) Verify(ctx context.Context, token string) (Principal, error) {
	if !IsKeyText(token) || len(token) > 200 {
		return Principal{}, fmt.Errorf("%w: it is no API key", ErrUnknown)
	}
	key, err := k.read(ctx, KeyText(token))
	if err != nil {
		return Principal{}, err
	}
	if err := key.check(time.Now()); err != nil {
		return Principal{}, err
	}
	k.mu.Lock()
	k.used[key.ID] = time.Now()
	k.mu.Unlock()
	return Principal{Name: key.Name, Role: Role(key.Role), KeyID: key.ID}, nil
}

// Knows says that a key was found when it was last read, which is not long ago.
func (k *Keys) Knows(token string) bool {
	hash := [sha256.Size]byte(KeyText(token).Hash())
	k.mu.Lock()
	defer k.mu.Unlock()
	known := k.known[hash]
	if known == nil {
		return false
	}
	select {
	case <-known.read:
		return known.found
	default:
		return false
	}
}

type keyRow store.APIKey

// check refuses a key that is not good any more.
func (r keyRow) check(now time.Time) error {
	switch {
	case !r.RevokedAt.IsZero():
		return fmt.Errorf("%w: the API key %s was revoked", ErrUnknown, r.Prefix)
	case !r.ExpiresAt.IsZero() && !now.Before(r.ExpiresAt):
		return fmt.Errorf("%w: the API key %s has expired", ErrUnknown, r.Prefix)
	}
	return nil
}

// read returns the row of a key, at most keyFresh old. Of those who ask for the
// same key at the same time one reads.
func (k *Keys) read(ctx context.Context, text KeyText) (keyRow, error) {
	hash := [sha256.Size]byte(text.Hash())
	for {
		k.mu.Lock()
		known := k.known[hash]
		mine := known == nil || known.over(time.Now())
		if mine {
			if len(k.known) >= keysMost {
				k.forget()
			}
			known = &knownKey{read: make(chan struct{})}
			k.known[hash] = known
		}
		k.mu.Unlock()
		if mine {
			known.fill(k.rows.APIKeyByHash(ctx, hash[:]))
		}
		select {
		case <-known.read:
		case <-ctx.Done():
			return keyRow{}, ctx.Err()
		}
		switch {
		case known.found:
			return keyRow(known.key), nil
		case reward.HasCode(known.err, reward.CodeAPIKeyNotFound):
			return keyRow{}, fmt.Errorf("%w: there is no such API key", ErrUnknown)
		case mine || ctx.Err() != nil || !errors.Is(known.err, context.Canceled):
			return keyRow{}, fmt.Errorf("look an API key up: %w", known.err)
		}
		// Who has read has given up for reasons of his own.
	}
}

func (n *knownKey) fill(key store.APIKey, err error) {
	n.at, n.key, n.err, n.found = time.Now(), key, err, err == nil
	close(n.read)
}

// over says that it has to be read again. What failed is not remembered.
func (n *knownKey) over(now time.Time) bool {
	select {
	case <-n.read:
		return now.Sub(n.at) >= keyFresh || !n.found && !reward.HasCode(n.err, reward.CodeAPIKeyNotFound)
	default:
		return false
	}
}

// forget drops what is over, or everything when that is nothing: it can be
// read again.
func (k *Keys) forget() {
	now := time.Now()
	for hash, n := range k.known {
		if n.over(now) {
			delete(k.known, hash)
		}
	}
	if len(k.known) >= keysMost {
		clear(k.known)
	}
}

// CheckNewKey says what is wrong with a key that is to be made; expires nil =
// never.
func CheckNewKey(name, role string, expires *time.Time, now time.Time) []reward.FieldError {
	var wrong []reward.FieldError
	if n := utf8.RuneCountInString(name); n < 1 || n > 200 || name != strings.TrimSpace(name) || strings.ContainsFunc(name, unicode.IsControl) {
		wrong = append(wrong, reward.FieldError{Field: "name", Detail: "must be 1 to 200 characters, without control characters or spaces at its ends"})
	}
	if _, ok := ParseRole(role); !ok {
		wrong = append(wrong, reward.FieldError{Field: "role", Detail: "must be viewer, issuer, operator or admin"})
	}
	if expires != nil && !expires.After(now) {
		wrong = append(wrong, reward.FieldError{Field: "expiresAt", Detail: "is over already"})
	}
	return wrong
}

// NewKey makes a key and its text, which is kept nowhere.
func NewKey(id int64, name string, role Role, by string, expires *time.Time, now time.Time) (store.APIKey, KeyText) {
	text := NewKeyText()
	key := store.APIKey{ID: id, Name: name, Prefix: text.Prefix(), Hash: text.Hash(), Role: string(role), CreatedAt: now, CreatedBy: by}
	if expires != nil {
		key.ExpiresAt = *expires
	}
	return key, text
}
