package auth

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

// keyRows keeps API keys in memory.
type keyRows struct {
	mu    sync.Mutex // protects what follows
	keys  []store.APIKey
	reads int
	lists int // reads of the list of all keys
	used  map[int64]time.Time
	away  error
	block chan struct{} // reads wait for it, unless it is nil
}

func (r *keyRows) APIKeyByHash(ctx context.Context, hash []byte) (store.APIKey, error) {
	r.mu.Lock()
	r.reads++
	block := r.block
	r.mu.Unlock()
	if block != nil {
		select {
		case <-block:
		case <-ctx.Done():
			return store.APIKey{}, ctx.Err()
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.away != nil {
		return store.APIKey{}, r.away
	}
	for _, k := range r.keys {
		if bytes.Equal(k.Hash, hash) {
			return k, nil
		}
	}
	return store.APIKey{}, reward.NewError(reward.KindNotFound, reward.CodeAPIKeyNotFound, "there is no such key")
}

func (r *keyRows) APIKeyList(_ context.Context, before int64, _ int) ([]store.APIKey, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if before != 0 {
		return nil, nil
	}
	r.lists++
	return slices.Clone(r.keys), r.away
}

func (r *keyRows) APIKeyUsed(_ context.Context, used map[int64]time.Time) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.used = used
	return nil
}

func (r *keyRows) edit(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f()
}

func TestKeys(t *testing.T) {
	t.Parallel()
	setup := func() (*keyRows, *KeyVerifier, string) {
		key, text := NewKey(7, "till", RoleIssuer, "admin", nil, time.Now())
		rows := &keyRows{keys: []store.APIKey{key}}
		return rows, NewKeys(rows, obs.Log{}), string(text)
	}
	t.Run("LetsInWhoHasOne", func(t *testing.T) {
		t.Parallel()
		rows, k, text := setup()
		expires := time.Now().Add(time.Hour)
		rows.edit(func() { rows.keys[0].ExpiresAt = expires })
		p, err := k.Verify(t.Context(), text)
		if want := (Principal{Name: "till", Role: RoleIssuer, KeyID: 7, ExpiresAt: expires}); err != nil || p != want {
			t.Errorf("%+v %v", p, err)
		}
	})
	t.Run("RefusesWhatIsNone", func(t *testing.T) {
		t.Parallel()
		_, k, text := setup()
		for _, token := range []string{"", "lgs_", "lgs_" + strings.Repeat("a", 52), text + "a", text[:len(text)-1], strings.ToUpper(text), "x" + text, strings.Repeat("lgs_", 1000)} {
			if p, err := k.Verify(t.Context(), token); !errors.Is(err, ErrUnauthenticated) || p != (Principal{}) || len(token) > 4 && strings.Contains(err.Error(), token) {
				t.Errorf("%q: %+v %v", token, p, err)
			}
		}
	})
	fixture.OnFakeTime(t, "RevokeTakesHoldWithinASecond", func(t *testing.T) {
		rows, k, text := setup()
		fixture.Must(k.Verify(t.Context(), text))(t)
		rows.edit(func() { rows.keys[0].RevokedAt = time.Now() })
		time.Sleep(time.Second)
		if _, err := k.Verify(t.Context(), text); !errors.Is(err, ErrUnauthenticated) || !strings.Contains(err.Error(), "revoked") {
			t.Error(err)
		}
	})
	fixture.OnFakeTime(t, "Expires", func(t *testing.T) {
		rows, k, text := setup()
		rows.edit(func() { rows.keys[0].ExpiresAt = time.Now().Add(200 * time.Millisecond) })
		fixture.Must(k.Verify(t.Context(), text))(t)
		time.Sleep(200 * time.Millisecond)
		if _, err := k.Verify(t.Context(), text); !errors.Is(err, ErrUnauthenticated) || !strings.Contains(err.Error(), "expired") {
			t.Errorf("remembered past its end: %v", err)
		}
	})
	fixture.OnFakeTime(t, "IsReadTwiceASecondAtMost", func(t *testing.T) {
		rows, k, text := setup()
		for range 10 {
			for range 1000 {
				fixture.Must(k.Verify(t.Context(), text))(t)
			}
			time.Sleep(100 * time.Millisecond)
		}
		if rows.reads != 2 {
			t.Errorf("%d reads in a second", rows.reads)
		}
	})
	fixture.OnFakeTime(t, "OneReadsForAllWhoWait", func(t *testing.T) {
		rows, k, text := setup()
		rows.block = make(chan struct{})
		impatient, leave := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := k.Verify(impatient, text); !errors.Is(err, context.Canceled) {
				t.Errorf("a caller that has left: %v", err)
			}
		})
		synctest.Wait()
		for range 50 {
			wg.Go(func() {
				if _, err := k.Verify(t.Context(), text); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		leave() // the caller that reads for all leaves: another one reads
		synctest.Wait()
		close(rows.block)
		wg.Wait()
		if rows.reads != 2 {
			t.Errorf("%d reads", rows.reads)
		}
	})
	t.Run("WhenNobodyCanTell", func(t *testing.T) {
		t.Parallel()
		rows, k, text := setup()
		rows.edit(func() { rows.away = errors.New("away") })
		if _, err := k.Verify(t.Context(), text); err == nil || errors.Is(err, ErrUnauthenticated) {
			t.Error(err)
		}
		rows.edit(func() { rows.away = nil })
		if _, err := k.Verify(t.Context(), text); err != nil {
			t.Errorf("a failure was remembered: %v", err)
		}
	})
	t.Run("RemembersABoundedNumber", func(t *testing.T) {
		t.Parallel()
		_, k, text := setup()
		k.guesses.prefixes, k.guesses.all = NewLimits(0), NewLimits(0)
		for i := range 3 * keysMax {
			if _, err := k.Verify(t.Context(), fmt.Sprintf("lgs_%d", i)); !errors.Is(err, ErrUnauthenticated) {
				t.Fatal(err)
			}
		}
		if n := len(k.known); n > keysMax {
			t.Errorf("%d keys are remembered", n)
		}
		if _, err := k.Verify(t.Context(), text); err != nil {
			t.Error(err)
		}
	})
	fixture.OnFakeTime(t, "WritesDownTheLastUse", func(t *testing.T) {
		rows, k, text := setup()
		k.Start(t.Context())
		fixture.Must(k.Verify(t.Context(), text))(t)
		at := time.Now()
		time.Sleep(usedInterval + time.Second)
		rows.edit(func() {
			if !rows.used[7].Equal(at) {
				t.Errorf("%v", rows.used)
			}
			rows.used = nil
		})
		fixture.Must(k.Verify(t.Context(), text))(t)
		k.Stop()
		if rows.used[7].IsZero() {
			t.Error("the last use before the stop is lost")
		}
	})
}

func TestKeyText(t *testing.T) {
	t.Parallel()
	seen := map[KeySecret]bool{}
	for range 1000 {
		text := NewKeyText()
		if seen[text] || len(text) != 56 || !IsKeyText(string(text)) || len(text.Prefix()) != 12 || !strings.HasPrefix(string(text), text.Prefix()) {
			t.Fatalf("%s", text)
		}
		seen[text] = true
	}
}

func TestLimits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := NewLimits(2)
		allowed := func(name string) (n int) {
			for {
				if _, ok := l.Allow(name); !ok {
					return n
				}
				n++
			}
		}
		if a, b := allowed("a"), allowed("b"); a != 4 || b != 4 {
			t.Errorf("after a rest: %d and %d", a, b)
		}
		wait, ok := l.Allow("a")
		if ok || wait != 500*time.Millisecond || !l.Exhausted("a") || l.Exhausted("c") {
			t.Errorf("%v %t", wait, ok)
		}
		time.Sleep(wait)
		if n := allowed("a"); n != 1 {
			t.Errorf("after the wait: %d", n)
		}
		for i := range 3 * namesMax {
			l.Allow(fmt.Sprint(i))
		}
		if len(l.names) > namesMax {
			t.Errorf("%d names are remembered", len(l.names))
		}
		if _, ok := NewLimits(0).Allow("a"); !ok || NewLimits(0).Exhausted("a") {
			t.Error("0 is no limit")
		}
	})
}
