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
	// keyMark begins every API key, so that leaked keys can be found.
	keyMark = "lgs_"
	// prefixLen is the number of characters shown after the mark.
	prefixLen = 8
	// keyTTL is for how long a key is cached, and may still be used when it is revoked.
	keyTTL = 500 * time.Millisecond
	// keysMax limits the cached keys, known and unknown ones.
	keysMax = 10_000
	// usedInterval is the interval in which the last use of keys is recorded.
	usedInterval = time.Minute
	usedTimeout  = 5 * time.Second
)

// KeySecret is the secret text of an API key.
type KeySecret string

// NewKeyText returns the text of a new key: the mark and 256 random bits.
func NewKeyText() KeySecret {
	return KeySecret(keyMark + strings.ToLower(rand.Text()+rand.Text()))
}

// IsKeyText reports whether a bearer token looks like an API key.
func IsKeyText(token string) bool { return strings.HasPrefix(token, keyMark) }

// Prefix returns the part that may be shown.
func (k KeySecret) Prefix() string { return string(k[:min(len(k), len(keyMark)+prefixLen)]) }

// Hash returns the hash that is stored of a key. A key has too many random bits
// to be guessed, so a slow hash would only cost time at each call.
func (k KeySecret) Hash() []byte {
	sum := sha256.Sum256([]byte(k))
	return sum[:]
}

type apiKeys interface {
	APIKeyByHash(ctx context.Context, hash []byte) (store.APIKey, error)
	APIKeyList(ctx context.Context, before int64, limit int) ([]store.APIKey, error)
	APIKeyUsed(ctx context.Context, used map[int64]time.Time) error
}

// KeyVerifier verifies API keys by their rows. It is safe for concurrent use.
type KeyVerifier struct {
	service.Base
	rows    apiKeys
	log     obs.Log
	guesses *guesses

	mu    sync.Mutex // protects the fields below
	known map[keyHash]*knownKey
	used  map[int64]time.Time // since the last record, by key ID
}

// knownKey is the cached result of a read, which may still run.
type knownKey struct {
	read chan struct{} // closed when the other fields are set
	at   time.Time
	key  store.APIKey
	err  error
}

// NewKeys returns a KeyVerifier. Without Start, the last use of keys is not recorded.
func NewKeys(rows apiKeys, log obs.Log) *KeyVerifier {
	return &KeyVerifier{
		rows: rows, log: log.For(obs.API), guesses: newGuesses(rows),
		known: make(map[keyHash]*knownKey), used: make(map[int64]time.Time),
	}
}

// Start records the last use of keys every minute and at Stop.
func (k *KeyVerifier) Start(ctx context.Context) {
	k.StartEvery(ctx, usedInterval, usedTimeout, k.writeUsed)
}

func (k *KeyVerifier) writeUsed(ctx context.Context) {
	k.mu.Lock()
	used := k.used
	k.used = make(map[int64]time.Time)
	k.mu.Unlock()
	if len(used) == 0 {
		return
	}
	if err := k.rows.APIKeyUsed(ctx, used); err != nil && ctx.Err() == nil {
		k.log.Warn("recording last use of API keys failed", err)
	}
}

// Verify returns the principal of a key.
func (k *KeyVerifier) Verify(ctx context.Context, token string) (Principal, error) {
	if !IsKeyText(token) || len(token) > 200 {
		return Principal{}, fmt.Errorf("%w: this is not an API key", ErrUnauthenticated)
	}
	key, err := k.read(ctx, KeySecret(token))
	if err != nil {
		return Principal{}, err
	}
	now := time.Now()
	switch {
	case !key.RevokedAt.IsZero():
		return Principal{}, fmt.Errorf("%w: the API key %s was revoked", ErrUnauthenticated, key.Prefix)
	case !key.ExpiresAt.IsZero() && !now.Before(key.ExpiresAt):
		return Principal{}, fmt.Errorf("%w: the API key %s has expired", ErrUnauthenticated, key.Prefix)
	}
	k.mu.Lock()
	k.used[key.ID] = now
	k.mu.Unlock()
	return Principal{Name: key.Name, Role: Role(key.Role), KeyID: key.ID, ExpiresAt: key.ExpiresAt}, nil
}

// read returns the row of a key, at most keyTTL old. Concurrent calls share a read.
func (k *KeyVerifier) read(ctx context.Context, text KeySecret) (store.APIKey, error) {
	hash := keyHash(text.Hash())
	if k.guesses.many(text) {
		exists, err := k.guesses.exists(ctx, hash)
		if err != nil {
			return store.APIKey{}, fmt.Errorf("look up an API key: %w", err)
		}
		if !exists {
			return store.APIKey{}, ErrGuessed
		}
	}
	for {
		k.mu.Lock()
		known := k.known[hash]
		mine := known == nil || known.over(time.Now())
		if mine {
			if len(k.known) >= keysMax {
				k.forget()
			}
			known = &knownKey{read: make(chan struct{})}
			k.known[hash] = known
		}
		k.mu.Unlock()
		if mine {
			known.key, known.err = k.rows.APIKeyByHash(ctx, hash[:])
			known.at = time.Now()
			close(known.read)
		}
		select {
		case <-known.read:
		case <-ctx.Done():
			return store.APIKey{}, ctx.Err()
		}
		switch {
		case known.err == nil:
			return known.key, nil
		case reward.HasCode(known.err, reward.CodeAPIKeyNotFound):
			k.guesses.wrong(text)
			return store.APIKey{}, fmt.Errorf("%w: there is no such API key", ErrUnauthenticated)
		case mine || ctx.Err() != nil || !errors.Is(known.err, context.Canceled):
			return store.APIKey{}, fmt.Errorf("look up an API key: %w", known.err)
		}
		// The caller that was reading has given up: read again.
	}
}

// over reports whether the key must be read again. Failures are not cached.
func (n *knownKey) over(now time.Time) bool {
	select {
	case <-n.read:
		return now.Sub(n.at) >= keyTTL || n.err != nil && !reward.HasCode(n.err, reward.CodeAPIKeyNotFound)
	default:
		return false
	}
}

// forget drops old results, or all results if none is old.
func (k *KeyVerifier) forget() {
	now := time.Now()
	for hash, n := range k.known {
		if n.over(now) {
			delete(k.known, hash)
		}
	}
	if len(k.known) >= keysMax {
		clear(k.known)
	}
}

// CheckNewKey returns the invalid fields of a new key; a nil expires means never.
func CheckNewKey(name, role string, expires *time.Time, now time.Time) []reward.FieldError {
	var wrong []reward.FieldError
	if n := utf8.RuneCountInString(name); n < 1 || n > 200 || !visible(name) {
		wrong = append(wrong, reward.FieldError{Field: "name", Detail: "must be 1 to 200 characters that can be seen, without spaces at its ends"})
	}
	if _, ok := ParseRole(role); !ok {
		wrong = append(wrong, reward.FieldError{Field: "role", Detail: "must be viewer, issuer, campaigner, approver, operator or admin"})
	}
	if expires != nil && !expires.After(now) {
		wrong = append(wrong, reward.FieldError{Field: "expiresAt", Detail: "is over already"})
	}
	return wrong
}

// CheckNameFree returns CodeKeyNameTaken if a key in use has the name of a new one: the
// audit and approvals would take the two for one person. Of keys that are made at once,
// two may get one name; the audit tells them apart by their IDs.
func CheckNameFree(name string, keys []store.APIKeyMaker, now time.Time) error {
	for _, k := range keys {
		if strings.EqualFold(k.Name, name) && k.RevokedAt.IsZero() && (k.ExpiresAt.IsZero() || now.Before(k.ExpiresAt)) {
			return reward.NewError(reward.KindConflict, reward.CodeKeyNameTaken,
				"API key %d has the name %s and is in use: choose another name, or revoke that key first", k.ID, reward.Quote(k.Name))
		}
	}
	return nil
}

// visible reports whether a name has no spaces at its ends and only characters that
// print. Two names that look alike would seem to be one person.
func visible(name string) bool {
	return name == strings.TrimSpace(name) && !strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) })
}

// NewKey returns the row of a new key, and its text, which is stored nowhere.
func NewKey(id int64, name string, role Role, by string, expires *time.Time, now time.Time) (store.APIKey, KeySecret) {
	text := NewKeyText()
	key := store.APIKey{ID: id, Name: name, Prefix: text.Prefix(), Hash: text.Hash(), Role: string(role), CreatedAt: now, CreatedBy: by}
	if expires != nil {
		key.ExpiresAt = *expires
	}
	return key, text
}
