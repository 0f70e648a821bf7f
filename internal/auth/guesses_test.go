package auth

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/largesse/largesse/internal/obs"
)

// TestGuessesShutNobodyOut guesses keys, far above the limits, with the prefix of an
// existing key and with others. Existing keys work all the time, also one that nobody
// has used yet and one that is created meanwhile; and few guesses cost a read.
func TestGuessesShutNobodyOut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		old, oldText := NewKey(7, "till", RoleIssuer, "admin", nil, time.Now())
		rows := &keyRows{}
		rows.keys = append(rows.keys, old)
		k := NewKeys(rows, obs.Log{})
		var guessing sync.WaitGroup
		stop := make(chan struct{})
		var mu sync.Mutex // protects refused
		refused := map[error]int{}
		for n := range 200 {
			guessing.Go(func() {
				for i := 0; ; i++ {
					select {
					case <-stop:
						return
					default:
					}
					guess := string(oldText[:len(keyMark)+prefixLen]) + strconv.Itoa(n) + "-" + strconv.Itoa(i)
					if n%2 == 0 {
						guess = string(NewKeyText())
					}
					_, err := k.Verify(t.Context(), guess)
					mu.Lock()
					switch {
					case errors.Is(err, ErrGuessed):
						refused[ErrGuessed]++
					case errors.Is(err, ErrUnauthenticated):
						refused[ErrUnauthenticated]++
					default:
						t.Errorf("guess: %v", err)
					}
					mu.Unlock()
					time.Sleep(time.Millisecond) // a request takes some time
				}
			})
		}
		time.Sleep(2 * time.Second)
		fresh, freshText := NewKey(8, "shop", RoleIssuer, "admin", nil, time.Now())
		rows.edit(func() { rows.keys = append(rows.keys, fresh) })
		for range 10 {
			for _, text := range []KeySecret{oldText, freshText} {
				began := time.Now()
				if p, err := k.Verify(t.Context(), string(text)); err != nil || p.KeyID < 7 || time.Since(began) > 2*listInterval {
					t.Errorf("an existing key after %s: %+v, %v", time.Since(began), p, err)
				}
			}
			time.Sleep(time.Second)
		}
		close(stop)
		guessing.Wait()
		mu.Lock()
		defer mu.Unlock()
		rows.edit(func() {
			if seconds := 13; rows.reads > (wrongInAll+20)*seconds+2*wrongInAll || rows.lists > seconds+2 || refused[ErrGuessed] < 1000 {
				t.Errorf("%d reads of keys, %d of the list; refused: %v", rows.reads, rows.lists, refused)
			}
		})
	})
}

// TestListIsReadByTheNextCaller checks that a caller who leaves while it reads the list
// does not take the answer from those who wait for it.
func TestListIsReadByTheNextCaller(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		key, text := NewKey(7, "till", RoleIssuer, "admin", nil, time.Now())
		rows := &keyRows{}
		rows.keys = append(rows.keys, key)
		k := NewKeys(rows, obs.Log{})
		k.guesses.readAt = time.Now()
		for !k.guesses.many(text) {
			k.guesses.wrong(text)
		}
		leaving, leave := context.WithCancel(t.Context())
		var calls sync.WaitGroup
		calls.Go(func() {
			if _, err := k.Verify(leaving, string(text)); err == nil || !strings.Contains(err.Error(), "canceled") {
				t.Errorf("who left: %v", err)
			}
		})
		synctest.Wait()
		calls.Go(func() {
			if _, err := k.Verify(t.Context(), string(text)); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		leave()
		calls.Wait()
	})
}
